//! Errors of the bridge, as its answers tell them, and of containers that were lost.

use sandbox_cloud::http::{ErrorRules, Meaning};
use sandbox_core::{Effect, Error, ErrorKind, Retry, Variant};

/// Errors of the bridge and hints for its users.
pub(crate) static ERRORS: ErrorRules = ErrorRules {
    codes: &[
        ("capacity_exceeded", Meaning::temporary(ErrorKind::QuotaExceeded, Effect::NotSent)),
        ("pool_error", Meaning::temporary(ErrorKind::Unavailable, Effect::NotSent)),
        ("workspace_read_not_found", Meaning::refused(ErrorKind::NotFound)),
        ("not_found", Meaning::refused(ErrorKind::NotFound)),
        ("payload_too_large", Meaning::refused(ErrorKind::InvalidArgument)),
        ("mount_error", Meaning::refused(ErrorKind::InvalidArgument)),
    ],
    hints: &[
        (
            ErrorKind::Unauthenticated,
            None,
            "the bridge does not accept the key: set CLOUDFLARE_API_TOKEN to its secret SANDBOX_API_KEY",
        ),
        (
            ErrorKind::QuotaExceeded,
            None,
            "all containers of the Worker are in use: raise `max_instances` in its wrangler configuration, or end others \
             (`Sandbox::list()`)",
        ),
        (
            ErrorKind::Unavailable,
            Some("create"),
            "the Worker could not start its container: `npx wrangler tail` shows why",
        ),
    ],
    unreachable_hint: "look which Worker CLOUDFLARE_SANDBOX_BASE_URL names, and whether it is deployed",
    timeout_hint: "a container that starts for the first time takes a while; try again",
    is_own_answer: |body| body.get("error").is_some() && body.get("code").is_some(),
    ..ErrorRules::DEFAULT
};

/// Hint for a sandbox that could not be deleted.
pub(crate) const LEFT_BEHIND: &str = "the container could not be deleted: it sleeps when it is not used, and costs nothing \
     then; `Sandbox::list()` lists it";

/// Returns the error for a verb that the bridge has no request for.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("cloudflare does not support {operation}"))
        .with_context("variant", Variant::CLOUDFLARE.as_str())
}

/// Returns the error for a connection that broke while something ran, whose outcome is not known.
pub(crate) fn lost(operation: &'static str, what: &str) -> Error {
    let message = format!("the connection to {what} was lost; it may still run");
    Error::new(ErrorKind::ConnectionLost, operation, message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

/// Returns the error for a container that was started again since it was last used. Nothing was done in the new one.
pub(crate) fn container_lost(operation: &'static str) -> Error {
    let message =
        "the container has slept or was restarted since: its files and processes are lost";
    Error::new(ErrorKind::Unavailable, operation, message)
        .with_retry(Retry::Never)
        .with_effect(Effect::NotSent)
        .with_context("state", "lost")
        .with_hint(
            "the sandbox has an empty container now, and works: set it up again. The Worker's `sleepAfter` says how long an \
             unused one stays",
        )
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
        let unauthorized =
            parse("list", 401, r#"{"error": "Unauthorized", "code": "unauthorized"}"#);
        assert_eq!(unauthorized.kind(), ErrorKind::Unauthenticated);
        assert!(unauthorized.hint().unwrap().contains("SANDBOX_API_KEY"));
        let full = parse(
            "create",
            503,
            r#"{"error": "instance limit reached", "code": "capacity_exceeded"}"#,
        );
        assert_eq!((full.kind(), full.effect()), (ErrorKind::QuotaExceeded, Effect::NotSent));
        assert!(full.hint().unwrap().contains("max_instances"));
    }
}
