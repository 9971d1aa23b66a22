//! Errors of the service, as the statuses of its calls tell them.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

use prost::Message as _;
use sandbox_cloud::http::clean;
use sandbox_core::{Effect, Error, ErrorKind, Retry, Secret, Variant};
use tonic::{Code, Status};

use crate::wire::{GenericResult, RpcRetryPolicy, RpcStatus, status};

/// Hint for a sandbox that could not be deleted.
pub(crate) const LEFT_BEHIND: &str =
    "the sandbox could not be terminated and may cost money: `Sandbox::list()`";

/// Hint for a service that does not answer.
const ADDRESS_HINT: &str =
    "look whether this computer has a network, and which address MODAL_SERVER_URL names";

/// A connection that could not be opened, so that nothing was sent.
#[derive(Debug)]
pub(crate) struct NotConnected(pub(crate) io::Error);

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for NotConnected {}

/// Returns the error for a verb that the service has no request for.
pub(crate) fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("modal does not support {operation}"))
        .with_context("variant", Variant::MODAL.as_str())
}

/// Returns true for statuses that a further attempt may not get.
pub(crate) fn is_temporary(code: Code) -> bool {
    matches!(
        code,
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Unknown
            | Code::Cancelled
    )
}

/// Turns the status of a failed call into an error. `secrets` are removed from what the service says.
pub(crate) fn parse(operation: &'static str, failed: &Status, secrets: &[Secret]) -> Error {
    let not_sent = cause::<NotConnected>(failed);
    if let Some(cause) = not_sent {
        return Error::new(
            ErrorKind::Unavailable,
            operation,
            "the service of Modal cannot be reached",
        )
        .with_retry(Retry::Temporary)
        .with_hint(ADDRESS_HINT)
        .with_source(cause.to_string());
    }
    // No status of the service: what is there speaks no gRPC, or the connection broke.
    if let Some(cause) = cause::<tonic::transport::Error>(failed) {
        let message = "the connection to the service of Modal broke";
        return Error::new(ErrorKind::Unavailable, operation, message)
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown)
            .with_hint(ADDRESS_HINT)
            .with_source(deepest(cause).to_string());
    }
    let wait = retry_after(failed);
    let text = clean(failed.message(), secrets);
    let message =
        |otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.clone() };
    let make = |kind, otherwise: &str| Error::new(kind, operation, message(otherwise));
    let error = match failed.code() {
        Code::Unauthenticated => make(ErrorKind::Unauthenticated, "the token is not accepted").with_hint(
            "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET to a token of https://modal.com/settings/tokens, or look which profile \
             of ~/.modal.toml is active",
        ),
        Code::PermissionDenied => make(ErrorKind::PermissionDenied, "the token may not do that")
            .with_hint("use a token of a workspace and an environment that may, see MODAL_PROFILE and MODAL_ENVIRONMENT"),
        Code::NotFound => make(ErrorKind::NotFound, "there is no such thing at the service"),
        Code::AlreadyExists => make(ErrorKind::AlreadyExists, "there is one of that name already")
            .with_hint("use another name, or end that one: `Sandbox::list()` lists them"),
        Code::InvalidArgument | Code::OutOfRange => {
            make(ErrorKind::InvalidArgument, "the service does not take that")
        }
        Code::ResourceExhausted if wait.is_some() => {
            make(ErrorKind::RateLimited, "there are too many requests").with_retry(Retry::Temporary)
        }
        Code::ResourceExhausted => make(ErrorKind::QuotaExceeded, "a quota of the workspace is used up").with_hint(
            "end other sandboxes (`Sandbox::list()`), or look at limits and credits of the workspace at \
             https://modal.com/settings",
        ),
        Code::FailedPrecondition | Code::Aborted => {
            make(ErrorKind::Unavailable, "the sandbox is not in a state for that")
        }
        Code::Unimplemented => {
            let error = make(ErrorKind::Unsupported, "the service does not have that call");
            return error.with_context("variant", Variant::MODAL.as_str());
        }
        Code::DeadlineExceeded => make(ErrorKind::Timeout, "the service did not answer in time")
            .with_effect(Effect::Unknown)
            .with_retry(Retry::Temporary)
            .with_hint("try again; the provider option `request_timeout`, in seconds, sets the time for an answer"),
        _ => {
            let error = make(ErrorKind::Unavailable, "the service failed").with_effect(Effect::Unknown);
            if is_temporary(failed.code()) { error.with_retry(Retry::Temporary) } else { error }
        }
    };
    let error = error.with_context("status", format!("{:?}", failed.code()));
    match wait {
        Some(wait) => error.with_retry_after(wait),
        None => error,
    }
}

/// Returns the cause that has no other one.
fn deepest<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut error = error;
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}

/// Finds an error of a type among the causes of a status.
fn cause<T: StdError + 'static>(failed: &Status) -> Option<&T> {
    let mut next = StdError::source(failed);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        // An error of input or output hides the error that it was made of.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(found) = inner.and_then(|inner| inner.downcast_ref::<T>()) {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// Returns the wait that the service asks for before another attempt.
fn retry_after(failed: &Status) -> Option<Duration> {
    let status = RpcStatus::decode(failed.details()).ok()?;
    let policy =
        status.details.iter().find(|detail| detail.type_url.ends_with("RPCRetryPolicy"))?;
    let policy = RpcRetryPolicy::decode(policy.value.as_slice()).ok()?;
    Duration::try_from_secs_f32(policy.retry_after_secs).ok()
}

/// Describes the end of a sandbox. `None`: it runs.
pub(crate) fn describe_end(result: &GenericResult) -> Option<String> {
    let words = match result.status {
        status::RUNNING => return None,
        status::SUCCESS | status::FAILURE => "its first process has ended",
        status::TERMINATED => "it was terminated",
        status::TIMEOUT => "its lifetime was over",
        status::INIT_FAILURE => "it could not be started",
        status::IDLE_TIMEOUT => "it was idle for too long",
        status::MEMORY_EVICTION | status::MEMORY_THRASHING | status::OUT_OF_MEMORY => {
            "it had too much memory"
        }
        _ => "the service failed",
    };
    let why = result.exception.trim();
    Some(if why.is_empty() { words.to_owned() } else { format!("{words}: {why}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::AnyDetail;

    #[test]
    fn what_users_can_do_is_in_the_hints() {
        let parsed = |code| parse("create", &Status::new(code, "no"), &[]);
        assert_eq!(parsed(Code::Unauthenticated).kind(), ErrorKind::Unauthenticated);
        assert!(parsed(Code::Unauthenticated).hint().unwrap().contains("MODAL_TOKEN_ID"));
        assert_eq!(parsed(Code::ResourceExhausted).kind(), ErrorKind::QuotaExceeded);
        assert_eq!(parsed(Code::AlreadyExists).kind(), ErrorKind::AlreadyExists);
        assert_eq!(parsed(Code::NotFound).kind(), ErrorKind::NotFound);
        let error = parsed(Code::Unavailable);
        assert_eq!((error.retry(), error.effect()), (Retry::Temporary, Effect::Unknown));
        let error = parsed(Code::InvalidArgument);
        assert_eq!((error.retry(), error.effect()), (Retry::Never, Effect::NotSent));
    }

    #[test]
    fn a_secret_in_a_message_is_removed() {
        let status = Status::unauthenticated("as-hunter2\u{1b}[31m is not valid");
        let error = parse("create", &status, &["as-hunter2".into()]);
        assert_eq!(error.message(), "***[31m is not valid");
    }

    #[test]
    fn a_limit_of_requests_says_when_to_come_back() {
        let policy = RpcRetryPolicy { retry_after_secs: 1.5 }.encode_to_vec();
        let detail = AnyDetail {
            type_url: "type.modal.com/modal.client.RPCRetryPolicy".into(),
            value: policy,
        };
        let details = RpcStatus { details: vec![detail] }.encode_to_vec();
        let status = Status::with_details(Code::ResourceExhausted, "slow down", details.into());
        let error = parse("create", &status, &[]);
        assert_eq!(error.kind(), ErrorKind::RateLimited);
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
    }
}
