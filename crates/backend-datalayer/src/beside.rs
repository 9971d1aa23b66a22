//! Files, programs and packages of a runtime, through a kernel beside those that run code.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{
    CreateSpec, Error, MAX_DURATION, Result, SandboxId, Variant, resolve_directory,
};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{InstanceHooks, Packages, SandboxBase, SandboxBaseSpec, StandardInstance};
use sandbox_kernel::server::KernelEnvironment;
use sandbox_kernel::sidecar::Sidecar;
use tokio::sync::OnceCell;

use crate::backend::capabilities;
use crate::kernels;
use crate::lease::Lease;

/// What a runtime has beside its interpreters.
pub(crate) type Rest = StandardInstance<Elsewhere>;

/// A machine that somebody else runs.
#[derive(Debug)]
pub(crate) struct Elsewhere;

impl InstanceHooks for Elsewhere {
    fn system_packages_hint(names: &[String]) -> String {
        let names = names.join(" ");
        format!(
            "run what installs them as a command, such as `apt-get install -y {names}`, if its user may"
        )
    }
}

/// The files and programs of one sandbox. Nothing is started before they are asked for.
#[derive(Debug)]
pub(crate) struct Beside {
    lease: Arc<Lease>,
    source: Arc<kernels::SidecarKernels>,
    sidecar: Arc<Sidecar>,
    env: BTreeMap<String, String>,
    cwd: String,
    rest: OnceCell<Rest>,
}

impl Beside {
    /// Those of a sandbox whose code begins in that directory, with these environment variables. `at` is where it is, if that
    /// is known.
    pub(crate) fn new(
        lease: Arc<Lease>,
        env: BTreeMap<String, String>,
        cwd: String,
        at: Option<KernelEnvironment>,
    ) -> Self {
        let known = OnceLock::new();
        at.into_iter().for_each(|at| drop(known.set(at)));
        let source = Arc::new(kernels::SidecarKernels { lease: Arc::downgrade(&lease), at: known });
        // Packages are in the home directory, which is of this sandbox alone and may outlive this process.
        let sidecar = Sidecar::new(Arc::clone(&source) as _, "");
        lease.watch_beside(&sidecar);
        Self { lease, source, sidecar, env, cwd, rest: OnceCell::new() }
    }

    /// What every verb about files, programs and packages is asked of.
    ///
    /// # Errors
    /// `Terminated`, and whatever keeps the kernel from running.
    pub(crate) async fn rest(&self, operation: &'static str) -> Result<&Rest> {
        self.lease.alive(operation)?;
        match self.rest.get_or_try_init(|| self.begin()).await {
            Ok(rest) => Ok(rest),
            Err(error) => Err(self.lease.explained(operation, error).await),
        }
    }

    /// Ends every command, if there was one.
    pub(crate) async fn end_commands(&self) -> Result<()> {
        match self.rest.get() {
            Some(rest) => rest.base.commands.end_all().await,
            None => Ok(()),
        }
    }

    async fn begin(&self) -> Result<Rest> {
        if self.source.at.get().is_none() {
            self.sidecar.files("/").await?;
        }
        let at = self.source.at.get().ok_or_else(|| {
            Error::unsupported("files", "the runtime does not say where its files are")
        })?;
        let info = self.lease.info();
        let cwd = resolve_directory(&at.cwd, &self.cwd);
        let mut env = at.program_env();
        env.extend(self.env.clone());
        let mut create = CreateSpec::default();
        // Who looks after its life is the lease.
        create.lifetime = Some(MAX_DURATION);
        let spec = SandboxBaseSpec {
            variant: Variant::DATALAYER_RUNTIME,
            capabilities: capabilities(),
            create: &create,
            isolation: info.isolation.unwrap_or_default(),
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let programs: Arc<dyn ProcessHost> = Arc::new(Programs(Arc::clone(&self.sidecar)));
        let ended = Arc::clone(&self.lease.ended);
        let base =
            SandboxBase::remote_with_end(Arc::clone(&ended), Arc::clone(&programs), None, spec);
        let (sidecar, directory) = (Arc::clone(&self.sidecar), cwd.clone());
        let mut base = base.with_files_of(move || {
            let (sidecar, directory) = (Arc::clone(&sidecar), directory.clone());
            async move { sidecar.files(&directory).await }
        });
        base.id = info.id.parse::<SandboxId>()?;
        let site = format!("{}/.packages", at.home);
        base.packages = Some(Packages::inside(at.python.clone().into(), site, Vec::new()));
        let worker_spec = WorkerSpec { env, cwd };
        let contexts = Contexts::new(Variant::DATALAYER_RUNTIME, programs, ended, worker_spec);
        Ok(StandardInstance { base, contexts, kind: Elsewhere })
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.sidecar.end();
    }
}

/// Programs alone: interpreters are kernels, and the box ends with the runtime.
#[derive(Debug)]
struct Programs(Arc<Sidecar>);

#[async_trait]
impl ProcessHost for Programs {
    fn start_allowance(&self) -> Duration {
        Sidecar::START_ALLOWANCE
    }

    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        self.0.spawn(spec).await
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(Error::unsupported(
            "start_interpreter",
            "a runtime has kernels and no other interpreters",
        ))
    }

    fn kill(&self) {
        self.0.end();
    }

    async fn closed(&self) {
        self.0.ended().await;
    }
}
