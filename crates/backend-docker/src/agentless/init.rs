//! The first process of a container without an agent: a shell that ends with its input, and the container with it.
//!
//! It is another user than code, who could otherwise hold its input open, or end it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bollard::container::AttachContainerResults;
use bollard::models::ContainerCreateBody;
use futures_util::StreamExt as _;
use sandbox_core::{CreateSpec, Error, ErrorKind, FailureKind, Result};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::{NEEDS_SHELL, SHELL};
use crate::config::{Options, User};
use crate::container::open_files;
use crate::container_guard::{ContainerGuard, remove};
use crate::exit_reason;

/// What it runs.
const PROGRAM: &str = include_str!("init.sh");

/// What it says when it is there.
const READY: &[u8] = b"ready\n";

/// How long it may take.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a container may take to end with its connection before the engine is told to end it.
const GRACEFUL_END_TIMEOUT: Duration = Duration::from_secs(2);

/// Users who are nobody in images.
const UNPRIVILEGED_USERS: [User; 2] =
    [User { id: 65533, group: 65533 }, User { id: 65532, group: 65532 }];

/// Makes the request for a container one whose first process is that shell.
pub(crate) fn apply(body: &mut ContainerCreateBody, options: &Options, spec: &CreateSpec) {
    let code = options.user();
    let other = UNPRIVILEGED_USERS.into_iter().find(|user| user.id != code.id).unwrap_or(code);
    body.user = Some(other.to_string());
    body.entrypoint = Some(vec![SHELL.to_owned()]);
    body.cmd = Some(vec!["-c".to_owned(), PROGRAM.to_owned()]);
    // Nobody in there lowers them for code.
    let limits = body.host_config.as_mut().and_then(|host| host.ulimits.as_mut());
    for limit in limits.into_iter().flatten() {
        if limit.name.as_deref() == Some("nofile") {
            limit.hard = Some(open_files(spec).max.into());
        }
    }
}

/// That process, and with it the container.
#[derive(Debug)]
pub(super) struct InitShell {
    pub(super) made: Arc<ContainerGuard>,
    /// Told to who holds its input.
    end: Arc<Notify>,
    closed: watch::Sender<bool>,
}

impl InitShell {
    /// Waits until it is there, and holds its input from then on. The engine's clock is so many seconds ahead.
    ///
    /// # Errors
    /// `Unavailable` when the image has no shell that runs.
    pub(super) async fn start(
        made: ContainerGuard,
        attached: AttachContainerResults,
        options: &Options,
        ahead: i64,
    ) -> Result<Arc<Self>> {
        let AttachContainerResults { mut output, input } = attached;
        let mut heard = Vec::new();
        let arrival = async {
            while !heard.ends_with(READY) && heard.len() < 4096 {
                match output.next().await {
                    Some(Ok(piece)) => heard.extend_from_slice(&piece.into_bytes()),
                    _ => return false,
                }
            }
            heard.ends_with(READY)
        };
        if !timeout(START_TIMEOUT, arrival).await.unwrap_or(false) {
            return Err(no_shell(&heard, options));
        }
        let made = Arc::new(made);
        let first = Arc::new(Self { made, end: Arc::default(), closed: watch::Sender::new(false) });
        let held = Arc::downgrade(&first);
        let (docker, name) = (first.made.docker.clone(), first.made.name.clone());
        let end = Arc::clone(&first.made.end);
        let asked = Arc::clone(&first.end);
        first.made.runtime.spawn(async move {
            let mut input = Some(input);
            let mut asked = std::pin::pin!(asked.notified());
            loop {
                tokio::select! {
                    // Letting go of its input is what ends it.
                    () = &mut asked, if input.is_some() => drop(input.take()),
                    piece = output.next() => match piece {
                        Some(Ok(_)) => {}
                        _ => break,
                    },
                }
            }
            if !end.is_ours.load(Ordering::Acquire)
                && let Some(reason) = exit_reason::query(&docker, &name, ahead).await
            {
                let _ = end.reason.set(reason);
            }
            if let Some(first) = held.upgrade() {
                first.closed.send_replace(true);
            }
        });
        Ok(first)
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        self.made.end.is_ours.store(true, Ordering::Release);
        self.end.notify_one();
        let made = Arc::clone(&self.made);
        self.made.runtime.spawn(async move {
            tokio::time::sleep(GRACEFUL_END_TIMEOUT).await;
            remove(&made.docker, &made.name).await;
        });
    }

    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until it has ended.
    pub(super) async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Why it has ended, when nobody here has ended it.
    pub(super) fn reason(&self) -> Option<(FailureKind, String)> {
        self.made.end.reason.get().cloned()
    }
}

impl Drop for InitShell {
    fn drop(&mut self) {
        self.end.notify_one();
    }
}

fn no_shell(heard: &[u8], options: &Options) -> Error {
    let said = String::from_utf8_lossy(heard);
    let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let message = format!("the image has neither Python nor a shell that runs: {SHELL} has ended");
    let error = Error::new(ErrorKind::Unavailable, "create", message)
        .with_context("image", options.image.clone())
        .with_hint(NEEDS_SHELL);
    if said.is_empty() { error } else { error.with_context("said", said.trim().to_owned()) }
}
