//! A container without an agent as a process host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, FailureKind, Result};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_shell::{ShellFiles, ShellHost, start_command};

use super::init::{InitShell, use_init_shell};
use crate::container::{ContainerSpec, open_files};
use crate::engine::Engine;
use crate::error::NEEDS_PYTHON_FOR_MORE;
use crate::exec::{ContainerLife as _, Execs, RootShell};
use crate::optional_features::SupportedFeatures;
use crate::start::{StartedContainer, start_container};

/// A container whose init process is a shell of its image.
#[derive(Debug)]
pub(crate) struct AgentlessHost {
    shell: Arc<dyn ShellHost>,
    root: RootShell,
    container: String,
    has_terminals: bool,
    init: Arc<InitShell>,
}

impl AgentlessHost {
    /// Starts a container with a shell as its init process.
    ///
    /// # Errors
    /// `Unsupported` for an engine that may leave out limits silently, or for a limit of open files that it refuses, and those
    /// of the start.
    pub(crate) async fn start(
        engine: &Engine,
        container: &ContainerSpec<'_>,
        features: &SupportedFeatures,
        id: &str,
        env: &BTreeMap<String, String>,
        cwd: &str,
    ) -> Result<Self> {
        let ContainerSpec { spec, options, engine: info, .. } = *container;
        check_engine(engine, container)?;
        let StartedContainer { guard, attached, .. } =
            start_container(engine, container, features, id, |request| {
                use_init_shell(request, options, spec);
            })
            .await?;
        if spec.open_files.is_some() && !features.get().open_file_limits {
            let message =
                "a limit of open files is not available: the engine has no right to set it";
            return Err(Error::unsupported("create", message).with_context("field", "open_files"));
        }
        let (container, runtime) = (guard.name.clone(), guard.runtime.clone());
        let init = InitShell::start(guard, attached, options, info.clock_ahead).await?;
        let socket = engine.host.strip_prefix("unix://").map(str::to_owned);
        let has_terminals = socket.is_some();
        let execs = Execs {
            docker: engine.docker.clone(),
            socket,
            container: container.clone(),
            user: options.user(),
            path: env.get("PATH").cloned().unwrap_or_default(),
            open_files: open_files(spec),
            runtime,
            life: Arc::clone(&init) as _,
        };
        let root = RootShell::new(&execs, cwd);
        Ok(Self { shell: Arc::new(execs), root, container, has_terminals, init })
    }

    /// Returns the files of the container. Relative paths start at `base`.
    pub(crate) fn files(&self, base: &str) -> ShellFiles {
        ShellFiles::new(Arc::clone(&self.shell), base, NEEDS_PYTHON_FOR_MORE)
    }

    /// Returns the container's name.
    pub(crate) fn name(&self) -> &str {
        &self.container
    }

    /// Returns true if commands can have terminals.
    pub(crate) fn has_terminals(&self) -> bool {
        self.has_terminals
    }
}

/// Refuses an engine that may leave out limits silently: without Python the container cannot be verified.
fn check_engine(engine: &Engine, container: &ContainerSpec<'_>) -> Result<()> {
    let doubtful = if engine.is_podman() {
        "Podman"
    } else if container.engine.is_rootless {
        "an engine without root"
    } else if container.options.runtime.is_some() {
        "a runtime that is named"
    } else {
        return Ok(());
    };
    let message = format!(
        "{doubtful} may leave out limits silently, and a container without Python cannot be verified"
    );
    Err(Error::unsupported("create", message).with_hint(NEEDS_PYTHON_FOR_MORE))
}

#[async_trait]
impl ProcessHost for AgentlessHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        match spec.as_root {
            true => self.root.start(spec).await,
            false => start_command(&self.shell, spec).await,
        }
    }

    /// A busy engine takes a second and more.
    fn start_allowance(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        let message = "the image has no Python to run code";
        Err(Error::unsupported("run_code", message).with_hint(NEEDS_PYTHON_FOR_MORE))
    }

    async fn paused_by_others(&self) {
        self.init.guard.paused_by_others(|| false).await;
    }

    fn kill(&self) {
        self.init.kill();
    }

    async fn closed(&self) {
        self.init.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        self.init.end_reason()
    }
}
