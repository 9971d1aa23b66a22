//! Errors of the services, as their answers tell them.

use sandbox_cloud::http::ErrorRules;
use sandbox_core::{Error, ErrorKind, Variant};
use serde_json::Value;

/// Errors of the services and hints for their users.
pub(crate) static ERRORS: ErrorRules = ErrorRules {
    hints: &[
        (
            ErrorKind::Unauthenticated,
            None,
            "the API key is not accepted; set DATALAYER_API_KEY to one that is, or log in with `datalayer login`",
        ),
        (
            ErrorKind::QuotaExceeded,
            None,
            "there are not enough credits: add some to the account, ask for a shorter lifetime, choose a cheaper \
             environment (`Backend::environments()`), or end other sandboxes",
        ),
        (ErrorKind::PermissionDenied, None, "the account of this API key may not do that"),
        (
            ErrorKind::Unavailable,
            Some("create"),
            "no runtime is free for now; try again later, or with another environment",
        ),
    ],
    unreachable_hint: "look whether this computer has a network, and which address DATALAYER_RUN_URL and ~/.datalayer/config.json name",
    timeout_hint: "look whether the service is up, and try again; DATALAYER_REQUEST_TIMEOUT, in seconds, or the provider \
        option `request_timeout` sets the time for its answer",
    // Gateways before the services answer otherwise.
    is_own_answer: |body| body.get("success").is_some(),
    reports_failure: |body| body.get("success") == Some(&Value::Bool(false)),
    ..ErrorRules::DEFAULT
};

/// Hint for a runtime that could not be deleted.
pub(crate) const LEFT_BEHIND: &str =
    "the runtime could not be deleted and may cost credits: `Sandbox::list()` shows it";

/// Returns the error for a verb that the service has no request for.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("datalayer-runtime does not support {operation}"))
        .with_context("variant", Variant::DATALAYER_RUNTIME.as_str())
}

#[cfg(test)]
mod tests {
    use sandbox_cloud::http::StatusCode;
    use sandbox_cloud::http::header::HeaderMap;
    use sandbox_core::{Effect, Retry};

    use super::*;

    fn parse(status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        ERRORS.parse_error("create", status, &HeaderMap::new(), body.as_bytes(), &[])
    }

    #[test]
    fn what_users_can_do_is_in_the_hints() {
        assert!(parse(402, "").hint().unwrap().contains("credits"));
        assert!(parse(401, "").hint().unwrap().contains("DATALAYER_API_KEY"));
    }

    #[test]
    fn a_service_that_answers_itself_has_done_nothing() {
        assert_eq!(parse(503, "<html>").effect(), Effect::Unknown);
        let own = parse(503, r#"{"success": false, "message": "No runtime available"}"#);
        assert_eq!((own.effect(), own.retry()), (Effect::NotSent, Retry::Temporary));
    }
}
