//! A container from the request for it to its removal, however late its engine answers.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::{ContainerCreateBody, ContainerCreateResponse};
use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use sandbox_core::{Effect, Error, ErrorKind, FailureKind, Result, Retry};
use sandbox_engine::background;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use crate::commit::BaseImage;

/// How long an answer is waited for when nobody waits for the container any more: what is made then has to be removed.
const CREATE_TIMEOUT: Duration = Duration::from_hours(1);

/// When a container is looked for again that could not be removed, or that an engine may still make whose answer got lost.
const RETRY_DELAYS: [Duration; 4] = [
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(10),
];

/// How often it is looked whether a container is paused in which something does not end.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A container that exists. Dropping this removes it.
#[derive(Debug)]
pub(crate) struct ContainerGuard {
    pub(crate) docker: Docker,
    pub(crate) name: String,
    pub(crate) runtime: Handle,
    pub(crate) end: Arc<ContainerExit>,
    /// The snapshot's image that it was made of.
    origin: Option<BaseImage>,
    /// Whether it may come to exist after it was removed.
    may_come: bool,
}

/// How a container has ended.
#[derive(Debug, Default)]
pub(crate) struct ContainerExit {
    /// Whether it was ended here.
    pub(crate) is_ours: AtomicBool,
    /// Why it has ended otherwise, if anybody knows.
    pub(crate) reason: OnceLock<(FailureKind, String)>,
}

impl ContainerGuard {
    /// Has the engine make a container, and waits as long as for any other answer of that engine.
    ///
    /// # Cancellation
    /// What the engine makes after that is removed.
    ///
    /// # Errors
    /// `Unavailable` when the engine has not answered in time. What it has answered is the inner one.
    pub(crate) async fn create(
        docker: &Docker,
        name: String,
        platform: Option<&str>,
        origin: Option<BaseImage>,
        request: ContainerCreateBody,
    ) -> Result<(Self, std::result::Result<ContainerCreateResponse, Cause>)> {
        let mut options = CreateContainerOptionsBuilder::default().name(&name);
        if let Some(platform) = platform {
            options = options.platform(platform);
        }
        let (options, docker, limit) = (options.build(), docker.clone(), docker.timeout());
        let making = background(async move {
            let patient = docker.clone().with_timeout(CREATE_TIMEOUT);
            let created = patient.create_container(Some(options), request).await;
            let may_come = created.as_ref().is_err_and(|error| !has_answered(error));
            let (runtime, end) = (Handle::current(), Arc::default());
            (Self { docker, name, runtime, end, origin, may_come }, created)
        });
        timeout(limit, making).await.unwrap_or_else(|_| Err(slow(limit)))
    }
}

impl ContainerGuard {
    /// Waits until the engine says that the container is paused, at a moment at which this process does not hold it, and
    /// notes that as the reason of its end. Asks a second later at the earliest: hardly anything takes that long to end.
    pub(crate) async fn paused_by_others(&self, is_held_here: impl Fn() -> bool + Send) {
        loop {
            sleep(PAUSE_POLL_INTERVAL).await;
            let found =
                timeout(PAUSE_POLL_INTERVAL, self.docker.inspect_container(&self.name, None)).await;
            let state = found.ok().and_then(Result::ok).and_then(|found| found.state);
            if state.and_then(|state| state.paused) == Some(true) && !is_held_here() {
                let why = "its container was paused from outside, where nothing can be ended";
                let _ = self.end.reason.set((FailureKind::Terminated, why.to_owned()));
                return;
            }
        }
    }
}

/// Whether it was the engine that said no.
fn has_answered(error: &Cause) -> bool {
    matches!(error, Cause::DockerResponseServerError { .. })
}

fn slow(limit: Duration) -> Error {
    let message = format!("the engine has made no container in {limit:?}");
    Error::new(ErrorKind::Unavailable, "create", message)
        .with_effect(Effect::Unknown)
        .with_retry(Retry::Temporary)
        .with_hint("the engine's own log says more; what it makes later is removed")
}

impl Drop for ContainerGuard {
    fn drop(&mut self) {
        let (docker, name) = (self.docker.clone(), self.name.clone());
        let (origin, may_come) = (self.origin.take(), self.may_come);
        // It has ended with its connection by then, and the engine removes it itself. This is for one that has not, and for
        // the image that it had.
        self.runtime.spawn(async move {
            let end = async || {
                let is_gone = remove(&docker, &name).await;
                match &origin {
                    Some(origin) if is_gone => origin.end(&docker).await,
                    _ => is_gone,
                }
            };
            let mut is_over = end().await;
            for pause in RETRY_DELAYS {
                if is_over && !may_come {
                    break;
                }
                sleep(pause).await;
                is_over = end().await;
            }
        });
    }
}

/// Removes a container, whatever state it is in. Whether it is gone; one that is being removed is not yet.
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
    use crate::fake_engine::{Answer, FakeEngine};

    const TEST_TIMEOUT: Duration = Duration::from_secs(20);

    async fn create(engine: &FakeEngine, limit: Duration) -> Result<Option<Cause>> {
        let docker = engine.docker().with_timeout(limit);
        let body = ContainerCreateBody::default();
        let (_made, created) =
            ContainerGuard::create(&docker, "late".to_owned(), None, None, body).await?;
        Ok(created.err())
    }

    /// Answers as an engine that has the container from the moment when it has made it.
    async fn until_removed(engine: &FakeEngine) {
        let removed = |heard: &[String]| heard.iter().any(|line| line == "removed");
        let began = Instant::now();
        while !removed(&engine.said()) {
            assert!(began.elapsed() < TEST_TIMEOUT, "it stays: {:?}", engine.said());
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn removes(said: &crate::fake_engine::Said) -> Answer {
        let is_there = said.has("made");
        said.add(if is_there { "removed" } else { "not there" });
        match is_there {
            true => Answer::now(204, json!(null)),
            false => Answer::now(404, json!({"message": "No such container"})),
        }
    }

    #[tokio::test]
    async fn a_container_that_is_made_after_the_limit_is_removed() {
        let engine = FakeEngine::start(|request, said| match request.method.as_str() {
            "POST" => {
                Answer::after(Duration::from_secs(3), 201, json!({"Id": "x", "Warnings": []}))
                    .saying("made")
            }
            _ => removes(said),
        });
        let began = Instant::now();
        // The least that the client can be given.
        let error = create(&engine, Duration::from_secs(1)).await.unwrap_err();
        assert!(began.elapsed() < Duration::from_millis(2900), "{:?}", began.elapsed());
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Temporary));
        until_removed(&engine).await;
    }

    #[tokio::test]
    async fn a_container_whose_answer_is_lost_is_looked_for() {
        let engine = FakeEngine::start(|request, said| match request.method.as_str() {
            "POST" => Answer::lost(),
            // It is there when it is looked for a second time.
            _ => {
                let answer = removes(said);
                said.add("made");
                answer
            }
        });
        let cause = create(&engine, TEST_TIMEOUT).await.unwrap();
        assert!(cause.is_some_and(|cause| !has_answered(&cause)));
        until_removed(&engine).await;
    }
}
