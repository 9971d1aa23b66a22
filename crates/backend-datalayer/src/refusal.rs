//! What an answer other than success means.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use sandbox_core::{Effect, Error, ErrorKind, Retry, Secret};
use serde_json::Value;

/// Nobody waits longer because a service asks for it, and no clock overflows.
const MOST_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How much of what a service says is told.
const MOST_MESSAGE: usize = 500;

/// An error for a status. `secrets` are taken out of what the service says.
pub(crate) fn refusal(
    operation: &'static str,
    status: StatusCode,
    headers: &HeaderMap,
    body: &[u8],
    secrets: &[Secret],
) -> Error {
    let said: Option<Value> = serde_json::from_slice(body).ok();
    let own = said.as_ref().is_some_and(|said| said.get("success").is_some());
    let message = said.as_ref().and_then(message).unwrap_or_else(|| {
        format!("the service answered {}", status.canonical_reason().unwrap_or("with an error"))
    });
    let (kind, retry, effect) = meaning(operation, status, own);
    let mut error = Error::new(kind, operation, clean(&message, secrets))
        .with_retry(retry)
        .with_effect(effect)
        .with_context("status", status.as_u16().to_string());
    if let Some(hint) = hint(operation, kind) {
        error = error.with_hint(hint);
    }
    let asked = retry_after(headers).or_else(|| said.as_ref().and_then(seconds_of_body));
    if let Some(after) = asked.filter(|_| retry == Retry::Temporary) {
        error = error.with_retry_after(after);
    }
    match said.as_ref().and_then(|said| text(said, &["correlationId", "reason"])) {
        Some(reason) => error.with_context("reason", clean(reason, secrets)),
        None => error,
    }
}

/// An error for an answer that is a success by its status and says that it is none.
pub(crate) fn unsuccessful(operation: &'static str, said: &Value, secrets: &[Secret]) -> Error {
    let message = message(said).unwrap_or_else(|| "the service says that it failed".to_owned());
    let error = match seconds_of_body(said) {
        Some(after) => Error::new(ErrorKind::Unavailable, operation, clean(&message, secrets))
            .with_retry(Retry::Temporary)
            .with_retry_after(after),
        None => Error::new(ErrorKind::Unexpected, operation, clean(&message, secrets)),
    };
    match text(said, &["reason"]) {
        Some(reason) => error.with_context("reason", clean(reason, secrets)),
        None => error,
    }
}

fn meaning(operation: &str, status: StatusCode, own: bool) -> (ErrorKind, Retry, Effect) {
    use ErrorKind as Kind;
    // A gateway may have passed the request on; the service itself says when it did nothing.
    let refused = if own { Effect::NotSent } else { Effect::Unknown };
    match status.as_u16() {
        400 | 412 | 422 => (Kind::InvalidArgument, Retry::Never, Effect::NotSent),
        401 => (Kind::Unauthenticated, Retry::Never, Effect::NotSent),
        402 => (Kind::QuotaExceeded, Retry::Never, Effect::NotSent),
        403 => (Kind::PermissionDenied, Retry::Never, Effect::NotSent),
        404 | 410 => (Kind::NotFound, Retry::Never, Effect::NotSent),
        405 | 501 => (Kind::Unsupported, Retry::Never, Effect::NotSent),
        408 => (Kind::Timeout, Retry::Temporary, Effect::Unknown),
        409 if operation.starts_with("create") => {
            (Kind::AlreadyExists, Retry::Never, Effect::NotSent)
        }
        409 | 423 | 425 => (Kind::Unavailable, Retry::Never, Effect::NotSent),
        429 => (Kind::RateLimited, Retry::Temporary, Effect::NotSent),
        503 => (Kind::Unavailable, Retry::Temporary, refused),
        502 | 504 => (Kind::Unavailable, Retry::Temporary, Effect::Unknown),
        500..=599 => (Kind::Unexpected, Retry::Temporary, Effect::Unknown),
        300..=399 => (Kind::Protocol, Retry::Never, Effect::NotSent),
        _ => (Kind::Unexpected, Retry::Never, Effect::Unknown),
    }
}

fn hint(operation: &str, kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::Unauthenticated => Some(
            "the API key is not accepted; set DATALAYER_API_KEY to one that is, or log in with `datalayer login`",
        ),
        ErrorKind::QuotaExceeded => Some(
            "there are not enough credits: add some to the account, ask for a shorter lifetime, choose a cheaper \
             environment (`sandboxes environments -p datalayer-runtime`), or end other sandboxes",
        ),
        ErrorKind::PermissionDenied => Some("the account of this API key may not do that"),
        ErrorKind::Unavailable if operation == "create" => {
            Some("no runtime is free for now; try again later, or with another environment")
        }
        _ => None,
    }
}

/// What a service says, in any of the forms it has.
fn message(said: &Value) -> Option<String> {
    let first = |list: &Value| list.as_array().and_then(|list| list.first()).map(Value::to_string);
    text(said, &["message"])
        .or_else(|| text(said, &["detail"]))
        .or_else(|| text(said.get("detail")?, &["message", "msg"]))
        .or_else(|| text(said, &["exception", "error"]))
        .map(str::to_owned)
        .or_else(|| said.get("detail").and_then(first))
        .or_else(|| said.get("errors").and_then(first))
}

fn text<'a>(said: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| said.get(key)?.as_str().filter(|text| !text.trim().is_empty()))
}

/// One line, not too long, and without what nobody else may see.
fn clean(message: &str, secrets: &[Secret]) -> String {
    let mut message = message.to_owned();
    for secret in secrets.iter().map(Secret::expose).filter(|secret| secret.len() > 3) {
        message = message.replace(secret, "***");
    }
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MOST_MESSAGE) {
        Some((end, _)) => format!("{} ..", &line[..end]),
        None => line,
    }
}

fn seconds_of_body(said: &Value) -> Option<Duration> {
    bounded(said.get("retry_after_seconds")?.as_f64()?)
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return bounded(seconds);
    }
    let date = DateTime::parse_from_rfc2822(text).ok()?;
    bounded(date.signed_duration_since(Utc::now()).num_milliseconds() as f64 / 1e3)
}

fn bounded(seconds: f64) -> Option<Duration> {
    let after = Duration::try_from_secs_f64(seconds.max(0.0)).ok()?;
    Some(after.min(MOST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(operation: &'static str, status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        refusal(operation, status, &HeaderMap::new(), body.as_bytes(), &["hunter2".into()])
    }

    #[test]
    fn every_status_has_its_kind() {
        use ErrorKind as Kind;
        for (status, kind) in [
            (401, Kind::Unauthenticated),
            (402, Kind::QuotaExceeded),
            (403, Kind::PermissionDenied),
            (404, Kind::NotFound),
            (409, Kind::AlreadyExists),
            (422, Kind::InvalidArgument),
            (429, Kind::RateLimited),
            (500, Kind::Unexpected),
            (502, Kind::Unavailable),
            (503, Kind::Unavailable),
            (504, Kind::Unavailable),
            (302, Kind::Protocol),
        ] {
            assert_eq!(of("create", status, "").kind(), kind, "{status}");
        }
        assert!(of("create", 402, "").hint().unwrap().contains("credits"));
        assert!(of("create", 401, "").hint().unwrap().contains("DATALAYER_API_KEY"));
    }

    #[test]
    fn what_was_surely_not_done_may_be_done_again() {
        assert_eq!(of("create", 429, "").effect(), Effect::NotSent);
        assert_eq!(of("create", 500, "").effect(), Effect::Unknown);
        assert_eq!(of("create", 503, "<html>").effect(), Effect::Unknown);
        let own = of("create", 503, r#"{"success": false, "message": "No runtime available"}"#);
        assert_eq!((own.effect(), own.retry()), (Effect::NotSent, Retry::Temporary));
    }

    #[test]
    fn every_form_of_message_is_read() {
        for body in [
            r#"{"success": false, "message": "it is so"}"#,
            r#"{"detail": "it is so"}"#,
            r#"{"detail": {"message": "it is so"}}"#,
            r#"{"code": "DL_ENV_CONFLICT", "message": "it\n is so", "correlationId": "7"}"#,
        ] {
            assert_eq!(of("list", 400, body).message(), "it is so", "{body}");
        }
        assert!(
            of("list", 422, r#"{"detail": [{"msg": "it is so"}]}"#).message().contains("it is so")
        );
        assert_eq!(of("list", 502, "<html>").message(), "the service answered Bad Gateway");
        let long = of("list", 400, &serde_json::json!({"message": "é".repeat(9000)}).to_string());
        assert!(long.message().len() < 2000);
    }

    #[test]
    fn a_key_in_an_answer_is_not_told() {
        let error = of("list", 401, r#"{"message": "hunter2 is not valid", "reason": "hunter2"}"#);
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn a_service_says_when_to_come_back() {
        let after = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            refusal("list", StatusCode::TOO_MANY_REQUESTS, &headers, b"", &[]).retry_after()
        };
        assert_eq!(after("2"), Some(Duration::from_secs(2)));
        assert_eq!(after("-5"), Some(Duration::ZERO));
        assert_eq!(after("1e300"), None);
        assert_eq!(after("99999999"), Some(MOST_RETRY_AFTER));
        let date = (Utc::now() + chrono::TimeDelta::seconds(100)).to_rfc2822();
        assert!(after(&date).unwrap() > Duration::from_secs(90));
        assert_eq!(after("soon"), None);
    }
}
