//! Files, programs and packages of a runtime, through a kernel beside those that run code.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::DeferredPart;
use sandbox_core::{
    CreateSpec, Error, Instance, MAX_DURATION, Result, SandboxId, Variant, resolve_directory,
};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{InstanceHooks, Packages, SandboxBase, SandboxBaseSpec, StandardInstance};
use sandbox_kernel::server::KernelEnvironment;
use sandbox_kernel::sidecar::Sidecar;
use tokio::sync::OnceCell;

use crate::capabilities::capabilities;
use crate::kernels::SidecarKernels;
use crate::runtime::{RuntimeHandle, info};

/// Files, programs and packages as a sandbox of their own.
type SidecarInstance = StandardInstance<RuntimeHooks>;

/// Differences of runtimes from sandboxes of this computer.
#[derive(Debug)]
pub(crate) struct RuntimeHooks;

impl InstanceHooks for RuntimeHooks {
    fn system_packages_hint(names: &[String]) -> String {
        let names = names.join(" ");
        format!(
            "run what installs them as a command, such as `apt-get install -y {names}`, if its user may"
        )
    }
}

/// The files and programs of one sandbox. Their kernel is started with the first verb that needs it.
#[derive(Debug)]
pub(crate) struct RuntimeSidecar {
    handle: Arc<RuntimeHandle>,
    source: Arc<SidecarKernels>,
    sidecar: Arc<Sidecar>,
    env: BTreeMap<String, String>,
    cwd: String,
    instance: OnceCell<SidecarInstance>,
}

impl RuntimeSidecar {
    /// Creates those of a sandbox whose code starts in that directory, with these environment variables. `surroundings` are
    /// those of its kernels, if they are known.
    pub(crate) fn new(
        handle: Arc<RuntimeHandle>,
        env: BTreeMap<String, String>,
        cwd: String,
        surroundings: Option<KernelEnvironment>,
    ) -> Self {
        let surroundings = surroundings.map(OnceLock::from).unwrap_or_default();
        let source = Arc::new(SidecarKernels { handle: Arc::downgrade(&handle), surroundings });
        // Packages are in the home directory, which is of this sandbox alone and may outlive this process.
        let sidecar = Sidecar::new(Arc::clone(&source) as _, "");
        handle.attach_sidecar(&sidecar);
        Self { handle, source, sidecar, env, cwd, instance: OnceCell::new() }
    }

    /// Ends all commands.
    pub(crate) async fn end_commands(&self) -> Result<()> {
        match self.instance.get() {
            Some(instance) => instance.base.commands.end_all().await,
            None => Ok(()),
        }
    }

    async fn start(&self) -> Result<SidecarInstance> {
        if self.source.surroundings.get().is_none() {
            self.sidecar.files("/").await?;
        }
        let surroundings = self.source.surroundings.get().ok_or_else(|| {
            Error::unsupported("files", "the runtime does not say where its files are")
        })?;
        let info = info(&self.handle);
        let cwd = resolve_directory(&surroundings.cwd, &self.cwd);
        let mut env = surroundings.program_env();
        env.extend(self.env.clone());
        let mut create = CreateSpec::default();
        // The handle ends the sandbox.
        create.lifetime = Some(MAX_DURATION);
        let spec = SandboxBaseSpec {
            variant: Variant::DATALAYER_RUNTIME,
            capabilities: capabilities(),
            create: &create,
            isolation: info.isolation.unwrap_or_default(),
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let host: Arc<dyn ProcessHost> = Arc::new(SidecarHost(Arc::clone(&self.sidecar)));
        let ended = Arc::clone(self.handle.end_reason());
        let base = SandboxBase::remote_with_end(Arc::clone(&ended), Arc::clone(&host), None, spec);
        let (sidecar, directory) = (Arc::clone(&self.sidecar), cwd.clone());
        let mut base = base.with_files_of(move || {
            let (sidecar, directory) = (Arc::clone(&sidecar), directory.clone());
            async move { sidecar.files(&directory).await }
        });
        base.id = info.id.parse::<SandboxId>()?;
        let site = format!("{}/.packages", surroundings.home);
        base.packages =
            Some(Packages::inside(surroundings.python.clone().into(), site, Vec::new()));
        let worker_spec = WorkerSpec { env, cwd };
        let contexts = Contexts::new(Variant::DATALAYER_RUNTIME, host, ended, worker_spec);
        Ok(StandardInstance { base, contexts, kind: RuntimeHooks })
    }
}

#[async_trait]
impl DeferredPart for RuntimeSidecar {
    async fn part(&self) -> Result<&dyn Instance> {
        let started = self.instance.get_or_try_init(|| self.start()).await;
        started.map(|instance| instance as &dyn Instance)
    }
}

impl Drop for RuntimeSidecar {
    fn drop(&mut self) {
        self.sidecar.end();
    }
}

/// SidecarHost alone: interpreters are kernels, and the box ends with the runtime.
#[derive(Debug)]
struct SidecarHost(Arc<Sidecar>);

#[async_trait]
impl ProcessHost for SidecarHost {
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
