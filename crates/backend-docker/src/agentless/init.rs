//! Init process of a container without an agent: a shell that ends with its input, and with it the container.
//!
//! The shell runs as another user than code, which could otherwise keep the shell's input open, or end the shell.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::container::AttachContainerResults;
use bollard::models::ContainerCreateBody;
use futures_util::StreamExt as _;
use sandbox_core::{CreateSpec, Error, ErrorKind, FailureKind, Result};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::config::{Options, SHELL, User};
use crate::container::open_files;
use crate::container_guard::ContainerGuard;
use crate::error::NEEDS_SHELL;
use crate::exec::ContainerLife;

/// Script of the shell.
const PROGRAM: &str = include_str!("init.sh");

/// Output of a shell that runs.
const READY: &[u8] = b"ready\n";

/// Limits the start of the shell.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Users without any files in images.
const UNPRIVILEGED_USERS: [User; 2] =
    [User { id: 65533, group: 65533 }, User { id: 65532, group: 65532 }];

/// Changes the request for a container to one whose init process is the shell.
pub(super) fn use_init_shell(
    request: &mut ContainerCreateBody,
    options: &Options,
    spec: &CreateSpec,
) {
    let code = options.user();
    let other = UNPRIVILEGED_USERS.into_iter().find(|user| user.id != code.id).unwrap_or(code);
    request.user = Some(other.to_string());
    request.entrypoint = Some(vec![SHELL.to_owned()]);
    request.cmd = Some(vec!["-c".to_owned(), PROGRAM.to_owned()]);
    // No agent lowers the limit for code.
    let limits = request.host_config.as_mut().and_then(|host| host.ulimits.as_mut());
    for limit in limits.into_iter().flatten() {
        if limit.name.as_deref() == Some("nofile") {
            limit.hard = Some(open_files(spec).hard.into());
        }
    }
}

/// The shell, and with it the container.
#[derive(Debug)]
pub(super) struct InitShell {
    pub(super) guard: Arc<ContainerGuard>,
    /// Makes the task that holds the shell's input close it.
    close_input: Arc<Notify>,
    closed: watch::Sender<bool>,
}

impl InitShell {
    /// Waits for the shell, and holds its input from then on. `clock_ahead` is how many seconds the engine's clock is ahead of
    /// this host's.
    ///
    /// # Errors
    /// `Unavailable` when the image has no shell that runs.
    pub(super) async fn start(
        guard: ContainerGuard,
        attached: AttachContainerResults,
        options: &Options,
        clock_ahead: i64,
    ) -> Result<Arc<Self>> {
        let AttachContainerResults { mut output, input } = attached;
        let mut received = Vec::new();
        let ready = async {
            while !received.ends_with(READY) && received.len() < 4096 {
                match output.next().await {
                    Some(Ok(chunk)) => received.extend_from_slice(&chunk.into_bytes()),
                    _ => return false,
                }
            }
            received.ends_with(READY)
        };
        if !timeout(START_TIMEOUT, ready).await.unwrap_or(false) {
            return Err(no_shell(&received, options));
        }
        let init = Arc::new(Self {
            guard: Arc::new(guard),
            close_input: Arc::default(),
            closed: watch::Sender::new(false),
        });
        let weak = Arc::downgrade(&init);
        let (docker, name) = (init.guard.docker.clone(), init.guard.name.clone());
        let (exit, close_input) = (Arc::clone(&init.guard.exit), Arc::clone(&init.close_input));
        init.guard.runtime.spawn(async move {
            let mut input = Some(input);
            let mut close_input = std::pin::pin!(close_input.notified());
            loop {
                tokio::select! {
                    // The end of its input ends the shell.
                    () = &mut close_input, if input.is_some() => drop(input.take()),
                    chunk = output.next() => match chunk {
                        Some(Ok(_)) => {}
                        _ => break,
                    },
                }
            }
            exit.find_reason(&docker, &name, clock_ahead).await;
            if let Some(init) = weak.upgrade() {
                init.closed.send_replace(true);
            }
        });
        Ok(init)
    }

    /// Ends the container.
    pub(super) fn kill(&self) {
        self.guard.exit.set_own();
        self.close_input.notify_one();
        self.guard.end();
    }
}

#[async_trait]
impl ContainerLife for InitShell {
    fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    async fn closed(&self) {
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        self.guard.exit.reason().map(|reason| reason.failure())
    }
}

impl Drop for InitShell {
    fn drop(&mut self) {
        self.close_input.notify_one();
    }
}

fn no_shell(received: &[u8], options: &Options) -> Error {
    let received = String::from_utf8_lossy(received);
    let last = received.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let message = format!("the image has neither Python nor a shell that runs: {SHELL} has ended");
    let error = Error::new(ErrorKind::Unavailable, "create", message)
        .with_context("image", options.image.clone())
        .with_hint(NEEDS_SHELL);
    if last.is_empty() { error } else { error.with_context("said", last.trim().to_owned()) }
}
