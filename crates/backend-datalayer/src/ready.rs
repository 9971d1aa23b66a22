//! The Jupyter Server of a runtime, from its start until it answers.

use std::time::{Duration, Instant};

use jupyter_protocol::websocket::{ServerClient, Token};
use sandbox_cloud::http::parse_endpoint;
use sandbox_core::{CallContext, Error, ErrorKind, FailureKind, Result, Retry, SandboxStatus};

use crate::api::Api;
use crate::describe::status;
use crate::runtime::RuntimeHandle;
use crate::wire::Runtime;

/// Interval of requests to the service while a runtime starts.
const SERVICE_POLL_INTERVAL: Duration = Duration::from_secs(2);
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time for the server of a runtime to answer once.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until the Jupyter Server of a runtime answers.
///
/// # Errors
/// `Timeout` after `timeout`; `Unavailable` for a runtime that cannot start or has ended.
pub(crate) async fn until_ready(
    api: &Api,
    call: &CallContext,
    handle: &RuntimeHandle,
    timeout: Duration,
) -> Result<()> {
    let started = Instant::now();
    let mut interval = MIN_POLL_INTERVAL;
    let mut asked = Instant::now();
    loop {
        let runtime = handle.runtime();
        let seconds = started.elapsed().as_secs_f64();
        let why = match check_answer(&runtime).await {
            Ok(()) => {
                tracing::info!(name = runtime.name(), seconds, "the runtime is ready");
                return Ok(());
            }
            Err(error) if error.retry() == Retry::Never => return Err(error),
            Err(error) => error,
        };
        let is_late = call.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if started.elapsed() > timeout || is_late {
            let seconds = started.elapsed().as_secs_f64();
            let message = format!("the runtime was not usable after {seconds:.0} s: {why}");
            return Err(Error::new(ErrorKind::Timeout, "create", message).with_hint(
                "try again, or wait longer: the provider option `start_timeout`, in seconds",
            ));
        }
        tracing::info!(name = runtime.name(), seconds, %why, "the runtime is starting");
        tokio::time::sleep(interval).await;
        interval = (interval * 2).min(SERVICE_POLL_INTERVAL);
        let is_incomplete = runtime.ingress.is_none() || runtime.token.is_none();
        if is_incomplete || asked.elapsed() > SERVICE_POLL_INTERVAL {
            asked = Instant::now();
            refresh(api, call, handle, runtime.name()).await?;
        }
    }
}

/// Asks the service for the state of a runtime that starts.
async fn refresh(api: &Api, call: &CallContext, handle: &RuntimeHandle, name: &str) -> Result<()> {
    let failed = |message: &str| Err(Error::new(ErrorKind::Unavailable, "create", message));
    match api.runtime(call, "create", name).await {
        Ok(found) => match status(&found) {
            SandboxStatus::Error => failed("the service could not start the runtime"),
            SandboxStatus::Terminated | SandboxStatus::Stopping => {
                failed("the runtime ended while it started")
            }
            _ => {
                handle.update(found);
                Ok(())
            }
        },
        Err(error) if error.kind() == ErrorKind::NotFound => {
            handle.mark_ended(FailureKind::Terminated);
            failed("the runtime vanished while it started")
        }
        Err(error) if error.retry() == Retry::Never => Err(error),
        Err(_) => Ok(()),
    }
}

/// Checks that the server of a runtime accepts requests.
async fn check_answer(runtime: &Runtime) -> Result<()> {
    let server = server(runtime)?;
    match tokio::time::timeout(ANSWER_TIMEOUT, server.status()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(not_ready(error.to_string())),
        Err(_) => Err(not_ready("it does not answer".to_owned())),
    }
}

/// Returns the Jupyter Server of a runtime.
///
/// # Errors
/// `Unavailable` as long as the service has not named the address; `Protocol` for an address that a token must not go to.
pub(crate) fn server(runtime: &Runtime) -> Result<ServerClient> {
    let (Some(ingress), Some(token)) = (runtime.ingress.as_deref(), &runtime.token) else {
        return Err(not_ready("the service has not said where it is".to_owned()));
    };
    let invalid = |why: String| {
        let message = format!("the service gave an invalid address of the runtime: {why}");
        Error::new(ErrorKind::Protocol, "connect", message)
    };
    let address = parse_endpoint("ingress", ingress).map_err(|error| invalid(error.to_string()))?;
    ServerClient::new(address.as_str(), Token::new(token.expose()))
        .map_err(|error| invalid(error.to_string()))
}

fn not_ready(why: String) -> Error {
    Error::new(ErrorKind::Unavailable, "connect", why).with_retry(Retry::Temporary)
}
