//! Answers other than success, and requests without an answer, as errors.

use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use sandbox_core::{Effect, Error, ErrorKind, Retry, Secret, format_duration};
use serde_json::Value;

/// Upper bound of what a service can ask to wait, so that no clock overflows.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Characters of a service's message that an error repeats.
const MAX_MESSAGE: usize = 500;

/// A hint for errors of a kind, of one operation or (`None`) of any. The first that fits counts.
pub type Hint = (ErrorKind, Option<&'static str>, &'static str);

/// The meaning of a status or an error code of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Kind of the error.
    pub kind: ErrorKind,
    /// Tells if trying again can help.
    pub retry: Retry,
    /// Tells if the operation took place.
    pub effect: Effect,
}

impl Meaning {
    /// A request that did nothing and fails the same way again.
    pub const fn refused(kind: ErrorKind) -> Self {
        Self { kind, retry: Retry::Never, effect: Effect::NotSent }
    }

    /// A request that may succeed later.
    pub const fn temporary(kind: ErrorKind, effect: Effect) -> Self {
        Self { kind, retry: Retry::Temporary, effect }
    }
}

/// Errors of a provider where they differ from the common meaning of statuses, and hints for its users.
///
/// Messages are found in every form that is usual: `message`, `detail`, `error`, `errors`. A code is text in `error_code`
/// or `code`, or in `code` of an object `error`.
#[derive(Clone, Copy, Debug)]
pub struct ErrorRules {
    /// Statuses that mean something else than usual.
    pub statuses: &'static [(u16, Meaning)],
    /// Error codes, which count more than the status.
    pub codes: &'static [(&'static str, Meaning)],
    /// Hints for answers of the service.
    pub hints: &'static [Hint],
    /// Hint for a service that cannot be reached.
    pub unreachable_hint: &'static str,
    /// Hint for a service that does not answer in time.
    pub timeout_hint: &'static str,
    /// Returns true for a body that the service itself wrote, and not a gateway before it. A 503 of its own did nothing.
    pub is_own_answer: fn(&Value) -> bool,
    /// Returns true for a body that reports a failure although its status is a success.
    pub reports_failure: fn(&Value) -> bool,
}

impl ErrorRules {
    /// Rules of a provider that has nothing of its own.
    pub const DEFAULT: Self = Self {
        statuses: &[],
        codes: &[],
        hints: &[],
        unreachable_hint: "look whether this computer has a network, and which address of the service is configured",
        timeout_hint: "look whether the service is up, and try again",
        is_own_answer: |_| false,
        reports_failure: |_| false,
    };

    /// Returns the error that an answer stands for. `secrets` are removed from what the service says.
    pub fn parse_error(
        &self,
        operation: &'static str,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        secrets: &[Secret],
    ) -> Error {
        let body: Option<Value> = serde_json::from_slice(body).ok();
        let message = body.as_ref().and_then(message).unwrap_or_else(|| {
            format!("the service answered {}", status.canonical_reason().unwrap_or("with an error"))
        });
        let code = body.as_ref().and_then(code);
        let meaning = self.meaning(operation, status, code, body.as_ref());
        let mut error = Error::new(meaning.kind, operation, clean(&message, secrets))
            .with_retry(meaning.retry)
            .with_effect(meaning.effect)
            .with_context("status", status.as_u16().to_string());
        // A page instead of an answer: the address is not that of the service.
        let is_elsewhere = body.is_none() && matches!(status.as_u16(), 300..=399 | 404 | 405 | 501);
        let hint = match is_elsewhere {
            true => Some(self.unreachable_hint),
            false => self.hint(operation, meaning.kind),
        };
        let asked = retry_after(headers).or_else(|| body.as_ref().and_then(seconds_of_body));
        let asked = asked.filter(|_| meaning.retry == Retry::Temporary);
        if let Some(after) = asked {
            error = error.with_retry_after(after);
        }
        error = match (hint, asked) {
            (Some(hint), _) => error.with_hint(hint),
            (None, Some(after)) => {
                let after = Duration::from_secs(after.as_secs_f64().ceil() as u64);
                error.with_hint(format!("try again after {}", format_duration(after)))
            }
            (None, None) => error,
        };
        if let Some(code) = code {
            error = error.with_context("code", clean(code, secrets));
        }
        match body.as_ref().and_then(|body| text(body, &["correlationId", "reason"])) {
            Some(reason) => error.with_context("reason", clean(reason, secrets)),
            None => error,
        }
    }

    /// Returns the error that an object reports which came with a success, or within a stream.
    pub fn parse_failure(
        &self,
        operation: &'static str,
        body: &Value,
        secrets: &[Secret],
    ) -> Error {
        let message = message(body).unwrap_or_else(|| "the service reports a failure".to_owned());
        let code = code(body);
        let known = code.and_then(|code| find(self.codes, &code));
        let meaning = known.unwrap_or_else(|| match seconds_of_body(body) {
            Some(_) => Meaning::temporary(ErrorKind::Unavailable, Effect::NotSent),
            None => Meaning::refused(ErrorKind::Unexpected),
        });
        let mut error = Error::new(meaning.kind, operation, clean(&message, secrets))
            .with_retry(meaning.retry)
            .with_effect(meaning.effect);
        if let Some(hint) = known.and_then(|_| self.hint(operation, meaning.kind)) {
            error = error.with_hint(hint);
        }
        if let Some(after) = seconds_of_body(body).filter(|_| meaning.retry == Retry::Temporary) {
            error = error.with_retry_after(after);
        }
        match text(body, &["reason"]) {
            Some(reason) => error.with_context("reason", clean(reason, secrets)),
            None => error,
        }
    }

    fn meaning(
        &self,
        operation: &str,
        status: StatusCode,
        code: Option<&str>,
        body: Option<&Value>,
    ) -> Meaning {
        let known = code.and_then(|code| find(self.codes, &code));
        let known = known.or_else(|| find(self.statuses, &status.as_u16()));
        let is_own = || body.is_some_and(self.is_own_answer);
        known.unwrap_or_else(|| usual_meaning(operation, status, is_own))
    }

    fn hint(&self, operation: &str, kind: ErrorKind) -> Option<&'static str> {
        let fits = |(of, only, _): &&Hint| *of == kind && only.is_none_or(|only| only == operation);
        self.hints.iter().find(fits).map(|(_, _, hint)| *hint)
    }

    /// Returns the error of a request that got no answer, or only a part of one. `is_safe` says that the request changes
    /// nothing.
    pub(crate) fn unanswered(
        &self,
        operation: &'static str,
        error: &reqwest::Error,
        is_safe: bool,
    ) -> Error {
        let is_unsent = is_safe || error.is_connect();
        let effect = if is_unsent { Effect::NotSent } else { Effect::Unknown };
        if let Some(own) = own_error(error) {
            return Error::new(own.kind(), operation, own.to_string()).with_effect(effect);
        }
        let origin = error.url().map(|url| format!(" at {}", url.origin().ascii_serialization()));
        let service = format!("the service{}", origin.unwrap_or_default());
        let (kind, mut message) = if error.is_connect() {
            (ErrorKind::Unavailable, format!("{service} cannot be reached"))
        } else if error.is_timeout() {
            (ErrorKind::Timeout, format!("{service} did not answer in time"))
        } else {
            (ErrorKind::ConnectionLost, format!("the connection to {service} broke"))
        };
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            message = format!("{message}: {inner}");
            source = inner.source();
        }
        let error =
            Error::new(kind, operation, message).with_retry(Retry::Temporary).with_effect(effect);
        match kind {
            ErrorKind::Unavailable => error.with_hint(self.unreachable_hint),
            _ => error,
        }
    }
}

/// Returns the caller's own error, for a body whose source failed.
fn own_error(error: &reqwest::Error) -> Option<&Error> {
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(own) = inner.downcast_ref::<Error>() {
            return Some(own);
        }
        source = inner.source();
    }
    None
}

fn find<K: PartialEq, T: Copy>(table: &[(K, T)], key: &K) -> Option<T> {
    table.iter().find(|(known, _)| known == key).map(|(_, found)| *found)
}

fn usual_meaning(operation: &str, status: StatusCode, is_own: impl FnOnce() -> bool) -> Meaning {
    use ErrorKind as Kind;
    match status.as_u16() {
        400 | 412 | 413 | 422 => Meaning::refused(Kind::InvalidArgument),
        401 => Meaning::refused(Kind::Unauthenticated),
        402 => Meaning::refused(Kind::QuotaExceeded),
        403 => Meaning::refused(Kind::PermissionDenied),
        404 | 410 => Meaning::refused(Kind::NotFound),
        405 | 501 => Meaning::refused(Kind::Unsupported),
        408 => Meaning::temporary(Kind::Timeout, Effect::Unknown),
        409 if operation.starts_with("create") => Meaning::refused(Kind::AlreadyExists),
        409 | 423 | 425 => Meaning::refused(Kind::Unavailable),
        429 => Meaning::temporary(Kind::RateLimited, Effect::NotSent),
        // A gateway may have passed the request on; the service itself says when it did nothing.
        503 if is_own() => Meaning::temporary(Kind::Unavailable, Effect::NotSent),
        502..=504 => Meaning::temporary(Kind::Unavailable, Effect::Unknown),
        507 => {
            Meaning { kind: Kind::ResourceExhausted, retry: Retry::Never, effect: Effect::Unknown }
        }
        500..=599 => Meaning::temporary(Kind::Unexpected, Effect::Unknown),
        300..=399 => Meaning::refused(Kind::Protocol),
        _ => Meaning { kind: Kind::Unexpected, retry: Retry::Never, effect: Effect::Unknown },
    }
}

/// The message of a service, in any of the usual forms.
fn message(body: &Value) -> Option<String> {
    let first = |list: &Value| list.as_array().and_then(|list| list.first()).map(Value::to_string);
    text(body, &["message"])
        .or_else(|| text(body, &["detail"]))
        .or_else(|| text(body.get("detail")?, &["message", "msg"]))
        .or_else(|| text(body, &["exception", "error"]))
        .or_else(|| text(body.get("error")?, &["message", "msg"]))
        .map(str::to_owned)
        .or_else(|| body.get("detail").and_then(first))
        .or_else(|| body.get("errors").and_then(first))
}

fn code(body: &Value) -> Option<&str> {
    text(body, &["error_code", "code"]).or_else(|| text(body.get("error")?, &["code"]))
}

fn text<'a>(body: &'a Value, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| body.get(key)?.as_str().filter(|text| !text.trim().is_empty()))
}

/// Returns what a service says as one line of at most 500 characters, with `***` for secrets, and without characters that
/// change what a terminal shows.
pub fn clean(message: &str, secrets: &[Secret]) -> String {
    let words: Vec<_> = message.split_whitespace().collect();
    let mut line = words.join(" ");
    line.retain(|c| !c.is_control() && !is_directional(c));
    // Last, so that no such character within a secret hides it.
    for secret in secrets.iter().map(Secret::expose).filter(|secret| secret.len() > 3) {
        line = line.replace(secret, "***");
    }
    match line.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{} ..", &line[..end]),
        None => line,
    }
}

/// Returns true for a character that turns the direction of the text after it.
fn is_directional(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn seconds_of_body(body: &Value) -> Option<Duration> {
    bounded(body.get("retry_after_seconds")?.as_f64()?)
}

/// The header, which is a number of seconds or a date.
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
    Some(after.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: ErrorRules = ErrorRules {
        statuses: &[(503, Meaning::temporary(ErrorKind::QuotaExceeded, Effect::NotSent))],
        codes: &[("capacity_exceeded", Meaning::refused(ErrorKind::ResourceExhausted))],
        hints: &[
            (ErrorKind::QuotaExceeded, Some("create"), "end other sandboxes"),
            (ErrorKind::QuotaExceeded, None, "wait"),
            (ErrorKind::ResourceExhausted, None, "ask for less"),
        ],
        ..ErrorRules::DEFAULT
    };

    fn parse(rules: ErrorRules, operation: &'static str, status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        let (headers, secrets) = (HeaderMap::new(), ["hunter2".into()]);
        rules.parse_error(operation, status, &headers, body.as_bytes(), &secrets)
    }

    fn usual(operation: &'static str, status: u16, body: &str) -> Error {
        parse(ErrorRules::DEFAULT, operation, status, body)
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
            (413, Kind::InvalidArgument),
            (422, Kind::InvalidArgument),
            (429, Kind::RateLimited),
            (500, Kind::Unexpected),
            (502, Kind::Unavailable),
            (503, Kind::Unavailable),
            (504, Kind::Unavailable),
            (507, Kind::ResourceExhausted),
            (302, Kind::Protocol),
        ] {
            assert_eq!(usual("create", status, "").kind(), kind, "{status}");
        }
        assert_eq!(usual("pause", 409, "").kind(), Kind::Unavailable);
    }

    #[test]
    fn rules_of_a_provider_count_more() {
        let error = parse(RULES, "create", 503, "");
        assert_eq!(
            (error.kind(), error.hint()),
            (ErrorKind::QuotaExceeded, Some("end other sandboxes"))
        );
        assert_eq!(parse(RULES, "list", 503, "").hint(), Some("wait"));
        for body in [
            json!({"code": "capacity_exceeded"}),
            json!({"code": 7, "error_code": "capacity_exceeded"}),
            json!({"error": {"code": "capacity_exceeded", "message": "full"}}),
        ] {
            let error = parse(RULES, "create", 503, &body.to_string());
            assert_eq!(
                (error.kind(), error.hint()),
                (ErrorKind::ResourceExhausted, Some("ask for less"))
            );
            assert!(error.context().contains(&("code", "capacity_exceeded".to_owned())));
        }
    }

    #[test]
    fn what_was_surely_not_done_may_be_done_again() {
        let own = ErrorRules {
            is_own_answer: |body| body.get("success").is_some(),
            ..ErrorRules::DEFAULT
        };
        assert_eq!(usual("create", 429, "").effect(), Effect::NotSent);
        assert_eq!(usual("create", 500, "").effect(), Effect::Unknown);
        assert_eq!(parse(own, "create", 503, "<html>").effect(), Effect::Unknown);
        let body = r#"{"success": false, "message": "No runtime available"}"#;
        let error = parse(own, "create", 503, body);
        assert_eq!((error.effect(), error.retry()), (Effect::NotSent, Retry::Temporary));
    }

    #[test]
    fn every_form_of_message_is_read() {
        for body in [
            r#"{"success": false, "message": "it is so"}"#,
            r#"{"detail": "it is so"}"#,
            r#"{"detail": {"message": "it is so"}}"#,
            r#"{"error": "it is so", "code": "x"}"#,
            r#"{"error": {"message": "it is so"}}"#,
            r#"{"code": "DL_ENV_CONFLICT", "message": "it\n is so", "correlationId": "7"}"#,
        ] {
            assert_eq!(usual("list", 400, body).message(), "it is so", "{body}");
        }
        let list = usual("list", 422, r#"{"detail": [{"msg": "it is so"}]}"#);
        assert!(list.message().contains("it is so"));
        assert_eq!(usual("list", 502, "<html>").message(), "the service answered Bad Gateway");
        let long = usual("list", 400, &json!({"message": "é".repeat(9000)}).to_string());
        assert!(long.message().len() < 2000);
    }

    #[test]
    fn failures_within_a_success_are_errors_too() {
        let error = RULES.parse_failure("run", &json!({"code": "capacity_exceeded"}), &[]);
        assert_eq!(
            (error.kind(), error.hint()),
            (ErrorKind::ResourceExhausted, Some("ask for less"))
        );
        let error =
            RULES.parse_failure("run", &json!({"message": "no", "retry_after_seconds": 2}), &[]);
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Temporary));
        assert_eq!(error.retry_after(), Some(Duration::from_secs(2)));
        let error = RULES.parse_failure("run", &json!({"reason": "hunter2"}), &["hunter2".into()]);
        assert_eq!(error.kind(), ErrorKind::Unexpected);
        assert!(!format!("{error:?}").contains("hunter2"));
    }

    #[test]
    fn a_secret_in_an_answer_is_removed() {
        let body = r#"{"message": "hunter2 is not valid", "reason": "hunter2", "code": "hunter2"}"#;
        assert!(!format!("{:?}", usual("list", 401, body)).contains("hunter2"));
    }

    #[test]
    fn what_a_terminal_would_obey_is_removed() {
        let body = json!({"message": "a\u{1b}[31mb\u{7} \u{202e}c hun\u{1b}ter2"}).to_string();
        assert_eq!(usual("list", 400, &body).message(), "a[31mb c ***");
    }

    #[test]
    fn a_page_instead_of_an_answer_is_a_matter_of_the_address() {
        for status in [302, 404, 405, 501] {
            let error = usual("list", status, "<html>Log in</html>");
            assert_eq!(error.hint(), Some(ErrorRules::DEFAULT.unreachable_hint), "{status}");
        }
        assert_eq!(usual("list", 404, r#"{"message": "no such sandbox"}"#).hint(), None);
    }

    #[test]
    fn a_service_says_when_to_come_back() {
        let after = |text: &str| {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]);
            let status = StatusCode::TOO_MANY_REQUESTS;
            let error = ErrorRules::DEFAULT.parse_error("list", status, &headers, b"", &[]);
            assert_eq!(error.hint().is_some(), error.retry_after().is_some());
            error.retry_after()
        };
        assert_eq!(after("2"), Some(Duration::from_secs(2)));
        assert_eq!(after("0.5"), Some(Duration::from_millis(500)));
        assert_eq!(after("-5"), Some(Duration::ZERO));
        assert_eq!(after("1e300"), None);
        assert_eq!(after("99999999"), Some(MAX_RETRY_AFTER));
        let date = (Utc::now() + chrono::TimeDelta::seconds(100)).to_rfc2822();
        assert!(after(&date).unwrap() > Duration::from_secs(90));
        assert_eq!(after("soon"), None);
    }
}
