//! Guard of a container, from the request that creates it to its removal, however late the engine answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::{ContainerCreateBody, ContainerCreateResponse};
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use sandbox_core::{Effect, Error, ErrorKind, Result, Retry};
use sandbox_engine::background;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::commit::BaseImage;
use crate::exit_reason::{self, ExitReason};

/// Limits the wait for the answer to an abandoned create, whose container then has to be removed.
const CREATE_TIMEOUT: Duration = Duration::from_hours(1);

/// Delays before each further attempt to remove a container, or to find one that an engine may still create after its answer
/// got lost.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(10),
];

/// Interval of checks for a paused container while something in it does not end.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Time that a container has to end with its connection before the engine is asked to end it.
const GRACEFUL_END_TIMEOUT: Duration = Duration::from_secs(2);

/// A container that exists. Dropping the guard removes it.
#[derive(Debug)]
pub(crate) struct ContainerGuard {
    pub(crate) docker: Docker,
    pub(crate) name: String,
    pub(crate) runtime: Handle,
    pub(crate) exit: Arc<ContainerExit>,
    /// The image of a snapshot from which the container was created.
    base_image: Option<BaseImage>,
    /// The engine may still create the container after its removal.
    is_pending: bool,
}

/// The exit of a container, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct ContainerExit {
    /// This process ended the container.
    is_own: AtomicBool,
    reason: OnceLock<ExitReason>,
}

impl ContainerExit {
    /// Records that this process ends the container.
    pub(crate) fn set_own(&self) {
        self.is_own.store(true, Ordering::Release);
    }

    /// Returns the reason of an exit that this process did not cause, once it is known.
    pub(crate) fn reason(&self) -> Option<&ExitReason> {
        self.reason.get()
    }

    /// Queries the reason from the engine, unless this process ended the container.
    pub(crate) async fn find_reason(&self, docker: &Docker, name: &str, clock_ahead: i64) {
        if !self.is_own.load(Ordering::Acquire)
            && let Some(reason) = exit_reason::query(docker, name, clock_ahead).await
        {
            let _ = self.reason.set(reason);
        }
    }
}

impl ContainerGuard {
    /// Asks the engine for a container, and waits as long as for any other answer of that engine.
    ///
    /// # Cancellation
    /// A container that the engine creates later is removed.
    ///
    /// # Errors
    /// `Unavailable` when the engine has not answered in time. The inner result is the engine's answer.
    pub(crate) async fn create(
        docker: &Docker,
        name: String,
        platform: Option<&str>,
        base_image: Option<BaseImage>,
        request: ContainerCreateBody,
    ) -> Result<(Self, std::result::Result<ContainerCreateResponse, Cause>)> {
        let mut options = CreateContainerOptionsBuilder::default().name(&name);
        if let Some(platform) = platform {
            options = options.platform(platform);
        }
        let (options, docker, limit) = (options.build(), docker.clone(), docker.timeout());
        let creating = background(async move {
            let patient = docker.clone().with_timeout(CREATE_TIMEOUT);
            let created = patient.create_container(Some(options), request).await;
            let is_pending = created.as_ref().is_err_and(|error| !is_answer(error));
            let (runtime, exit) = (Handle::current(), Arc::default());
            (Self { docker, name, runtime, exit, base_image, is_pending }, created)
        });
        timeout(limit, creating).await.unwrap_or_else(|_| Err(create_timed_out(limit)))
    }

    /// Ends the container, unless it ends with its connection shortly.
    pub(crate) fn end(self: &Arc<Self>) {
        let guard = Arc::clone(self);
        self.runtime.spawn(async move {
            sleep(GRACEFUL_END_TIMEOUT).await;
            remove(&guard.docker, &guard.name).await;
        });
    }

    /// Waits until the engine reports the container as paused while this process does not pause it, and records that as the
    /// reason of its exit. The first check is after a second: hardly any end takes that long.
    pub(crate) async fn paused_by_others(&self, is_paused_here: impl Fn() -> bool + Send) {
        loop {
            sleep(PAUSE_POLL_INTERVAL).await;
            let inspect = self.docker.inspect_container(&self.name, None);
            let found = timeout(PAUSE_POLL_INTERVAL, inspect).await;
            let state = found.ok().and_then(Result::ok).and_then(|found| found.state);
            if state.and_then(|state| state.paused) == Some(true) && !is_paused_here() {
                let _ = self.exit.reason.set(ExitReason::PausedFromOutside);
                return;
            }
        }
    }
}

/// Returns true if the engine itself refused.
fn is_answer(error: &Cause) -> bool {
    matches!(error, Cause::DockerResponseServerError { .. })
}

fn create_timed_out(limit: Duration) -> Error {
    let message = format!("the engine has created no container within {limit:?}");
    Error::new(ErrorKind::Unavailable, "create", message)
        .with_effect(Effect::Unknown)
        .with_retry(Retry::Temporary)
        .with_hint("the engine's own log says more; a container that it creates later is removed")
}

impl Drop for ContainerGuard {
    fn drop(&mut self) {
        let (docker, name) = (self.docker.clone(), self.name.clone());
        let (base_image, is_pending) = (self.base_image.take(), self.is_pending);
        // Usually the container has ended with its connection, and the engine removes it. This is for the other cases, and for
        // the container's image.
        self.runtime.spawn(async move {
            let clean_up = async || {
                let is_gone = remove(&docker, &name).await;
                match &base_image {
                    Some(base_image) if is_gone => base_image.release(&docker).await,
                    _ => is_gone,
                }
            };
            let mut is_clean = clean_up().await;
            for delay in RETRY_DELAYS {
                if is_clean && !is_pending {
                    break;
                }
                sleep(delay).await;
                is_clean = clean_up().await;
            }
        });
    }
}

/// Removes a container in any state. Returns false for one that is left or still being removed.
pub(crate) async fn remove(docker: &Docker, name: &str) -> bool {
    let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
    match docker.remove_container(name, Some(options)).await {
        Ok(()) | Err(Cause::DockerResponseServerError { status_code: 404, .. }) => true,
        Err(Cause::DockerResponseServerError { status_code: 409, .. }) => false,
        Err(error) => {
            tracing::debug!(name, %error, "a container could not be removed");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;
    use crate::fake_engine::{Answer, EventLog, FakeEngine};

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    async fn create(engine: &FakeEngine, limit: Duration) -> Result<Option<Cause>> {
        let docker = engine.docker().with_timeout(limit);
        let body = ContainerCreateBody::default();
        let (_guard, created) =
            ContainerGuard::create(&docker, "late".to_owned(), None, None, body).await?;
        Ok(created.err())
    }

    async fn until_removed(engine: &FakeEngine) {
        let is_removed = |events: &[String]| events.iter().any(|event| event == "removed");
        let started = Instant::now();
        while !is_removed(&engine.events()) {
            assert!(started.elapsed() < TEST_TIMEOUT, "it stays: {:?}", engine.events());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Answers like an engine that has the container from the event "created" on.
    fn answer_removal(log: &EventLog) -> Answer {
        let is_there = log.has("created");
        log.add(if is_there { "removed" } else { "not there" });
        match is_there {
            true => Answer::now(204, json!(null)),
            false => Answer::now(404, json!({"message": "No such container"})),
        }
    }

    #[tokio::test]
    async fn a_container_that_is_created_after_the_limit_is_removed() {
        let engine = FakeEngine::start(|request, log| match request.method.as_str() {
            "POST" => {
                Answer::after(Duration::from_secs(3), 201, json!({"Id": "x", "Warnings": []}))
                    .logging("created")
            }
            _ => answer_removal(log),
        });
        let started = Instant::now();
        // The shortest timeout that the client accepts.
        let error = create(&engine, Duration::from_secs(1)).await.unwrap_err();
        assert!(started.elapsed() < Duration::from_millis(2900), "{:?}", started.elapsed());
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Temporary));
        until_removed(&engine).await;
    }

    #[tokio::test]
    async fn a_container_whose_answer_is_lost_is_searched_for() {
        let engine = FakeEngine::start(|request, log| match request.method.as_str() {
            "POST" => Answer::lost(),
            // The container exists at the second attempt.
            _ => {
                let answer = answer_removal(log);
                log.add("created");
                answer
            }
        });
        let cause = create(&engine, TEST_TIMEOUT).await.unwrap();
        assert!(cause.is_some_and(|cause| !is_answer(&cause)));
        until_removed(&engine).await;
    }
}
