//! Containers of images without Python: commands and files, and no code.
//!
//! There is no agent. The first process is a shell that ends with the connection, commands are started by the engine, and
//! files are worked with by programs of the image.

mod archive;
mod byte_queue;
mod command;
mod exec;
mod files;
mod find;
mod init;
mod instance;
mod parse_listing;
mod process;
mod sentinel;
mod tty_attach;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{CreateSpec, Error, FailureKind, Result};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};

use self::exec::Execs;
pub(crate) use self::files::AgentlessFiles;
use self::init::InitShell;
pub(crate) use self::init::apply;
pub(crate) use self::instance::{AgentlessInstance, assemble, capabilities};
use crate::config::{CodeRunner, Options};
use crate::container::{ContainerSpec, open_files};
use crate::container_host::{AgentBootstrap, running};
use crate::engine::Engine;

/// The shell of the image.
pub(crate) const SHELL: &str = "/bin/sh";

/// What an image needs at the least.
pub(crate) const NEEDS_SHELL: &str = "the image needs /bin/sh, and Python 3.9 or later for code";

/// What says in an error that the image has no Python that can be used.
pub(crate) const NO_PYTHON: (&str, &str) = ("missing", "python3");

/// What to do about that.
pub(crate) const HINT: &str = "the image has no python3, which all but commands and files takes: put Python 3.9 or later \
                               into it, or name another image";

/// Whether a sandbox is made all the same of an image that turned out to have no Python: nobody has asked for what that takes.
pub(crate) fn can_fall_back(error: &Error, spec: &CreateSpec, options: &Options) -> bool {
    let asked = |name: &str| spec.provider_options.contains_key(name);
    error.context().iter().any(|(key, value)| (*key, value.as_str()) == NO_PYTHON)
        && options.engine == CodeRunner::Python
        && !["engine", "python", "interpreter", "pip"].into_iter().any(asked)
        && spec.single_use != Some(sandbox_core::SingleUse::Code)
        && capabilities(false).check(spec).is_ok()
}

/// Refuses what cannot be looked at without Python.
///
/// # Errors
/// `Unsupported`.
pub(crate) fn check(daemon: &Engine, wanted: &ContainerSpec<'_>) -> Result<()> {
    let doubtful = if daemon.is_podman() {
        "Podman"
    } else if wanted.about.is_rootless {
        "an engine without root"
    } else if wanted.options.runtime.is_some() {
        "a runtime that is named"
    } else {
        return Ok(());
    };
    let message = format!(
        "{doubtful} may leave out limits without a word, and containers without Python cannot be looked at"
    );
    Err(Error::unsupported("create", message).with_hint(HINT))
}

/// A container without an agent.
#[derive(Debug)]
pub(crate) struct AgentlessHost {
    execs: Execs,
    first: Arc<InitShell>,
}

impl AgentlessHost {
    /// Makes a container whose first process is a shell.
    pub(crate) async fn start(
        daemon: &Engine,
        wanted: &ContainerSpec<'_>,
        arrival: &AgentBootstrap,
        id: &str,
        env: &BTreeMap<String, String>,
    ) -> Result<Self> {
        check(daemon, wanted)?;
        let running = running(daemon, wanted, arrival, id).await?;
        if wanted.spec.open_files.is_some() && !arrival.features.get().open_files {
            let message =
                "a limit of open files cannot be had: the engine has not the rights for it";
            return Err(Error::unsupported("create", message).with_context("field", "open_files"));
        }
        let name = running.made.name.clone();
        let runtime = running.made.runtime.clone();
        let first =
            InitShell::start(running.made, running.attached, wanted.options, wanted.about.ahead)
                .await?;
        let execs = Execs {
            docker: daemon.docker.clone(),
            socket: daemon.host.strip_prefix("unix://").map(str::to_owned),
            container: name,
            user: wanted.options.user(),
            path: env.get("PATH").cloned().unwrap_or_default(),
            open_files: open_files(wanted.spec),
            runtime,
            first: Arc::clone(&first),
        };
        Ok(Self { execs, first })
    }

    /// The files in it. Relative paths begin at `base`.
    pub(crate) fn files(&self, base: &str) -> AgentlessFiles {
        AgentlessFiles::new(self.execs.clone(), base)
    }

    /// The container's name.
    pub(crate) fn name(&self) -> &str {
        &self.execs.container
    }

    /// Whether programs can have terminals.
    pub(crate) fn has_terminals(&self) -> bool {
        self.execs.socket.is_some()
    }
}

#[async_trait]
impl ProcessHost for AgentlessHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        command::start(&self.execs, spec).await
    }

    /// An engine with much to do takes a second and more.
    fn start_allowance(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(Error::unsupported("run_code", "the image has no Python to run code").with_hint(HINT))
    }

    async fn paused_by_others(&self) {
        self.first.made.paused_by_others(|| false).await;
    }

    fn kill(&self) {
        self.first.kill();
    }

    async fn closed(&self) {
        self.first.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        self.first.reason()
    }
}
