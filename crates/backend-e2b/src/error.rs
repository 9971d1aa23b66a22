//! Errors of the control plane and of the daemon in a sandbox, as their answers tell them.

use sandbox_agent_client::commands_alone;
use sandbox_cloud::http::{ErrorRules, Meaning};
use sandbox_core::{Effect, Error, ErrorKind, Retry, Variant};

const KEY: &str =
    "the API key is not accepted; set E2B_API_KEY to one of https://e2b.dev/dashboard?tab=keys";
const UNREACHABLE: &str = "look whether this computer has a network, and which addresses E2B_DOMAIN, E2B_API_URL and \
    E2B_SANDBOX_URL name";
const SLOW: &str = "look whether the service is up, and try again; the provider option `request_timeout`, in seconds, sets \
    the time for its answer";

/// Errors of the control plane and hints for its users.
pub(crate) static API_ERRORS: ErrorRules = ErrorRules {
    codes: &[
        (
            "sandbox_capacity_unavailable",
            Meaning::temporary(ErrorKind::Unavailable, Effect::NotSent),
        ),
        ("sandbox_snapshot_guest_agent_unresponsive", Meaning::refused(ErrorKind::Unavailable)),
    ],
    hints: &[
        (ErrorKind::Unauthenticated, None, KEY),
        (ErrorKind::PermissionDenied, None, "the team of this API key may not do that"),
        (
            ErrorKind::RateLimited,
            None,
            "the team runs or creates too many sandboxes at once; end some of them (`Sandbox::list()`), or wait",
        ),
        (
            ErrorKind::NotFound,
            Some("create"),
            "`Backend::environments()` lists the templates; an image has to be built as a template first",
        ),
        (
            ErrorKind::InvalidArgument,
            Some("create"),
            "the lifetime may be longer than the plan of the team has (an hour, or 24 hours)",
        ),
        (ErrorKind::Unavailable, Some("create"), "no machine is free for now; try again later"),
    ],
    unreachable_hint: UNREACHABLE,
    timeout_hint: SLOW,
    // Gateways before the service answer otherwise.
    is_own_answer: |body| body.get("code").is_some_and(serde_json::Value::is_i64),
    ..ErrorRules::DEFAULT
};

/// Errors of the daemon and of the code interpreter in a sandbox, in the words of the Connect protocol.
pub(crate) static SANDBOX_ERRORS: ErrorRules = ErrorRules {
    // The provider's proxy: the sandbox is gone, or the port is closed. Neither passes while a request waits.
    statuses: &[(502, Meaning::refused(ErrorKind::Unavailable))],
    codes: &CONNECT_CODES,
    hints: &[],
    unreachable_hint: UNREACHABLE,
    timeout_hint: SLOW,
    ..ErrorRules::DEFAULT
};

/// Codes of the Connect protocol.
const CONNECT_CODES: [(&str, Meaning); 16] = [
    ("canceled", Meaning::refused(ErrorKind::Cancelled)),
    (
        "unknown",
        Meaning { kind: ErrorKind::Unexpected, retry: Retry::Never, effect: Effect::Unknown },
    ),
    ("invalid_argument", Meaning::refused(ErrorKind::InvalidArgument)),
    (
        "deadline_exceeded",
        Meaning { kind: ErrorKind::Timeout, retry: Retry::Never, effect: Effect::Unknown },
    ),
    ("not_found", Meaning::refused(ErrorKind::NotFound)),
    ("already_exists", Meaning::refused(ErrorKind::AlreadyExists)),
    ("permission_denied", Meaning::refused(ErrorKind::PermissionDenied)),
    ("resource_exhausted", Meaning::refused(ErrorKind::ResourceExhausted)),
    ("failed_precondition", Meaning::refused(ErrorKind::InvalidArgument)),
    ("aborted", Meaning::temporary(ErrorKind::Unavailable, Effect::NotSent)),
    ("out_of_range", Meaning::refused(ErrorKind::InvalidArgument)),
    ("unimplemented", Meaning::refused(ErrorKind::Unsupported)),
    (
        "internal",
        Meaning { kind: ErrorKind::Unexpected, retry: Retry::Never, effect: Effect::Unknown },
    ),
    ("unavailable", Meaning::temporary(ErrorKind::Unavailable, Effect::Unknown)),
    (
        "data_loss",
        Meaning { kind: ErrorKind::Unexpected, retry: Retry::Never, effect: Effect::Unknown },
    ),
    ("unauthenticated", Meaning::refused(ErrorKind::Unauthenticated)),
];

/// Hint for a sandbox that could not be ended.
pub(crate) const LEFT_BEHIND: &str =
    "the sandbox could not be ended and costs until it expires: `Sandbox::list()`";

/// Hint for a create whose outcome is unknown.
pub(crate) const MAYBE_CREATED: &str =
    "a sandbox may have been created: `Sandbox::list()` lists them";

/// Returns true for the answer of the provider's proxy about a port that no program listens on.
pub(crate) fn is_port_closed(error: &Error) -> bool {
    error.message().contains("port is not open")
}

/// Returns the error for a verb that the service has no request for.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("e2b does not support {operation}"))
        .with_context("variant", Variant::E2B.as_str())
}

/// Returns the error for code in a template with neither the code interpreter nor Python.
pub(crate) fn no_code(operation: &'static str) -> Error {
    const HINT: &str = "create the sandbox with `.environment(\"code-interpreter-v1\")`, or with a template that has Python";
    commands_alone(operation, Variant::E2B, HINT)
}

#[cfg(test)]
mod tests {
    use sandbox_cloud::http::StatusCode;
    use sandbox_cloud::http::header::HeaderMap;

    use super::*;

    fn parse(rules: &ErrorRules, operation: &'static str, status: u16, body: &str) -> Error {
        let status = StatusCode::from_u16(status).unwrap();
        rules.parse_error(operation, status, &HeaderMap::new(), body.as_bytes(), &[])
    }

    #[test]
    fn what_users_can_do_is_in_the_hints() {
        let refused = parse(&API_ERRORS, "create", 401, r#"{"code":401,"message":"bad key"}"#);
        assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
        assert!(refused.hint().unwrap().contains("E2B_API_KEY"));
        let missing = parse(&API_ERRORS, "create", 404, r#"{"code":404,"message":"no template"}"#);
        assert!(missing.hint().unwrap().contains("environments"));
    }

    #[test]
    fn a_service_that_has_no_machine_has_done_nothing() {
        let own = parse(
            &API_ERRORS,
            "create",
            503,
            r#"{"code":503,"message":"full","error_code":"sandbox_capacity_unavailable"}"#,
        );
        assert_eq!((own.effect(), own.retry()), (Effect::NotSent, Retry::Temporary));
        assert_eq!(parse(&API_ERRORS, "create", 503, "<html>").effect(), Effect::Unknown);
    }

    #[test]
    fn codes_of_the_protocol_count_more_than_statuses() {
        let exists = parse(
            &SANDBOX_ERRORS,
            "create_directory",
            409,
            r#"{"code":"already_exists","message":"directory already exists"}"#,
        );
        assert_eq!(exists.kind(), ErrorKind::AlreadyExists);
        // The daemon's own checks, before the protocol, have numbers.
        let refused = parse(&SANDBOX_ERRORS, "stat", 401, r#"{"code":401,"message":"no token"}"#);
        assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    }

    #[test]
    fn an_ended_sandbox_and_a_closed_port_differ() {
        let gone = r#"{"sandboxId":"i1","message":"The sandbox was not found","code":502}"#;
        let gone = parse(&SANDBOX_ERRORS, "stat", 502, gone);
        assert!(!is_port_closed(&gone));
        // Nothing is sent again before the control plane was asked whether the sandbox has ended.
        assert_eq!((gone.kind(), gone.retry()), (ErrorKind::Unavailable, Retry::Never));
        let closed = r#"{"sandboxId":"i1","message":"The sandbox is running but port is not open","port":49999,"code":502}"#;
        let closed = parse(&SANDBOX_ERRORS, "stat", 502, closed);
        assert!(is_port_closed(&closed));
    }
}
