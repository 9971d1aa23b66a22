//! Errors of the API and the toolbox, as their answers tell them.

use sandbox_cloud::http::{ErrorRules, Meaning};
use sandbox_core::{Effect, Error, ErrorKind, Retry, Variant};

/// Errors of the API and hints for its users.
pub(crate) static ERRORS: ErrorRules = ErrorRules {
    codes: &[
        ("QUOTA_EXCEEDED", Meaning::refused(ErrorKind::QuotaExceeded)),
        ("RATE_LIMITED", Meaning::temporary(ErrorKind::RateLimited, Effect::NotSent)),
        ("QUEUE_TIMEOUT", Meaning::temporary(ErrorKind::Unavailable, Effect::NotSent)),
    ],
    hints: &[
        (
            ErrorKind::Unauthenticated,
            None,
            "the key or the token is not accepted; set DAYTONA_API_KEY to a key that is \
             (https://app.daytona.io/dashboard/keys), or DAYTONA_JWT_TOKEN and DAYTONA_ORGANIZATION_ID",
        ),
        (
            ErrorKind::QuotaExceeded,
            None,
            "the organization has no credit or quota left: raise it in the dashboard, ask for less, or end other sandboxes \
             (`Sandbox::list()`)",
        ),
        (
            ErrorKind::PermissionDenied,
            Some("create"),
            "the key may not do that, or the quota or credit of the organization is used up \
             (https://app.daytona.io/dashboard/limits)",
        ),
        (ErrorKind::PermissionDenied, None, "the key or the token may not do that"),
        (
            ErrorKind::NotFound,
            Some("create"),
            "look whether the snapshot and the region exist: `Backend::environments()`, DAYTONA_TARGET",
        ),
        (
            ErrorKind::Unavailable,
            Some("create"),
            "no machine is free for now; try again later, or in another region",
        ),
    ],
    unreachable_hint: "look whether this computer has a network, and which address DAYTONA_API_URL names",
    timeout_hint: "look whether the service is up, and try again; the provider option `request_timeout`, in seconds, sets the \
        time for its answer",
    // Its services say who answers, gateways before them do not.
    is_own_answer: |body| body.get("statusCode").is_some() || body.get("source").is_some(),
    ..ErrorRules::DEFAULT
};

/// Hint for a sandbox that could not be deleted.
pub(crate) const LEFT_BEHIND: &str =
    "the sandbox could not be deleted and may cost credits: `Sandbox::list()`";

/// Returns the error for a verb that the provider has no request for.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("daytona does not support {operation}"))
        .with_context("variant", Variant::DAYTONA.as_str())
}

/// Returns the error for a connection that broke while something ran, whose outcome is not known.
pub(crate) fn lost(operation: &'static str, what: &str) -> Error {
    let message = format!("the connection to {what} was lost; it may still run");
    Error::new(ErrorKind::ConnectionLost, operation, message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use sandbox_cloud::http::StatusCode;
    use sandbox_cloud::http::header::HeaderMap;

    use super::*;

    fn parse(operation: &'static str, status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        ERRORS.parse_error(operation, status, &HeaderMap::new(), body.as_bytes(), &[])
    }

    #[test]
    fn what_users_can_do_is_in_the_hints() {
        assert!(parse("list", 401, "").hint().unwrap().contains("DAYTONA_API_KEY"));
        let quota =
            parse("create", 403, r#"{"statusCode": 403, "message": "Total CPU quota exceeded"}"#);
        assert!(quota.hint().unwrap().contains("quota"), "{quota:?}");
        let coded = parse(
            "create",
            400,
            r#"{"statusCode": 400, "message": "no", "code": "QUOTA_EXCEEDED"}"#,
        );
        assert_eq!(coded.kind(), ErrorKind::QuotaExceeded);
    }

    #[test]
    fn a_service_that_answers_itself_has_done_nothing() {
        assert_eq!(parse("create", 503, "<html>").effect(), Effect::Unknown);
        let own = parse("create", 503, r#"{"statusCode": 503, "message": "No available runners"}"#);
        assert_eq!((own.effect(), own.retry()), (Effect::NotSent, Retry::Temporary));
    }
}
