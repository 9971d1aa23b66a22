//! A Jupyter Server: how it is asked, and what its refusals mean.

use std::time::Duration;

use jupyter_protocol::client::{ClientError, CloseReason};
use jupyter_protocol::websocket::{
    ServerClient, ServerError, ServerKernelSpecs, ServerOptions, Token,
};
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry, format_duration};
use tokio::time::timeout;

use crate::config::ServerAccess;

/// How long a server may take to answer the first question.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// How long any request may take. Starting a kernel is one.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(45);

/// The server that the options name. Nothing is sent.
pub(super) fn server(access: &ServerAccess) -> Result<ServerClient> {
    let mut options = ServerOptions::default();
    options.timeout = REQUEST_TIMEOUT;
    let header =
        |(name, value): &(String, sandbox_core::Secret)| (name.clone(), Token::new(value.expose()));
    options.headers = access.headers.iter().map(header).collect();
    let token = access.token.as_ref().map(|token| Token::new(token.expose())).unwrap_or_default();
    ServerClient::from_page_with_options(&access.url, token, options)
        .map_err(|error| refused("create", &error))
}

/// The kernels that it can start. The first question, so that its answer says whether it is a server that knows us.
pub(super) async fn kernelspecs(server: &ServerClient) -> Result<ServerKernelSpecs> {
    match timeout(FIRST_ANSWER, server.kernelspecs()).await {
        Ok(answer) => answer.map_err(|error| match error {
            ServerError::Unauthorized { .. } if server.has_token() => {
                refused("create", &error).with_hint(WRONG_TOKEN)
            }
            // Every server has that page.
            ServerError::NotFound { .. } | ServerError::Malformed { .. } => {
                no_server(&error.to_string())
            }
            error => refused("create", &error),
        }),
        Err(_) => {
            let (url, within) = (server.url(), format_duration(FIRST_ANSWER));
            let message = format!("the Jupyter Server at {url} did not answer within {within}");
            let other = if url.starts_with("https:") { "http:" } else { "https:" };
            Err(Error::new(ErrorKind::Unavailable, "create", message)
                .with_retry(Retry::Temporary)
                .with_hint(format!(
                    "is `server_url` its address, or does that begin with {other}?"
                )))
        }
    }
}

fn no_server(why: &str) -> Error {
    let message = format!("there is no Jupyter Server at that address: {why}");
    Error::new(ErrorKind::Unavailable, "create", message).with_hint(GIVE_ADDRESS)
}

const GIVE_ADDRESS: &str =
    "give the address that the server printed when it started, such as http://127.0.0.1:8888/";

const GIVE_TOKEN: &str = "give its token: `.provider_option(\"token\", \"..\")`, or JUPYTER_TOKEN";

const WRONG_TOKEN: &str = "what was given with `.provider_option(\"token\", \"..\")` or JUPYTER_TOKEN is not its token, \
    which it prints when it starts";

/// What a refusal of a server means.
pub(super) fn refused(operation: &'static str, error: &ServerError) -> Error {
    let message = format!("the Jupyter Server cannot be used: {error}");
    let known = match error {
        ServerError::Address { why } => {
            let hint = if why.contains("token") { GIVE_TOKEN } else { GIVE_ADDRESS };
            return Error::invalid("server_url", why.clone()).with_hint(hint);
        }
        ServerError::Header { name, .. } if name.eq_ignore_ascii_case("authorization") => {
            return Error::invalid("token", "cannot be sent in a header").with_hint(GIVE_TOKEN);
        }
        ServerError::Header { name, why } => {
            return Error::invalid("headers", format!("has a header {name:?} that {why}"));
        }
        ServerError::Unauthorized { .. } => {
            Error::new(ErrorKind::Unauthenticated, operation, message).with_hint(GIVE_TOKEN)
        }
        ServerError::NotFound { .. } => Error::new(ErrorKind::NotFound, operation, message),
        ServerError::Status { status: 300..=399, .. } => {
            Error::new(ErrorKind::Unauthenticated, operation, message)
                .with_hint("it redirects the request, perhaps to a login; is a token missing?")
        }
        ServerError::Status { status: 429, .. } => {
            let limited =
                Error::new(ErrorKind::RateLimited, operation, message).with_retry(Retry::Temporary);
            match error.retry_after() {
                Some(wait) => limited.with_retry_after(wait),
                None => limited,
            }
        }
        ServerError::Unreachable { .. } => Error::new(ErrorKind::Unavailable, operation, message)
            .with_retry(Retry::Temporary)
            .with_hint("is it running, and is `server_url` its address?"),
        ServerError::Malformed { .. } | ServerError::TooLong { .. } => {
            Error::new(ErrorKind::Protocol, operation, message)
        }
        _ => Error::new(ErrorKind::Unavailable, operation, message),
    };
    known.with_effect(match error.effect() {
        jupyter_protocol::client::Effect::None => Effect::NotSent,
        _ => Effect::Unknown,
    })
}

/// Why a kernel is not connected to.
pub(super) fn not_connected(error: &ClientError) -> Error {
    let kind = match error {
        ClientError::Closed { reason: CloseReason::Refused(_), .. } => ErrorKind::PermissionDenied,
        ClientError::Closed { reason: CloseReason::Violation { .. }, .. } => ErrorKind::Protocol,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("the kernel could not be reached: {error}");
    Error::new(kind, "start_kernel", message).with_effect(Effect::Applied)
}
