//! Where containers come from.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::models::ImageInspect;
use sandbox_cells::launchers::CellLaunchers;
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance, ListQuery,
    Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
};
use sandbox_engine::checks::{check_of, check_size, health_of};
use sandbox_engine::{InstanceRegistry, SnapshotStore};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::agentless::{self, AgentlessInstance};
use crate::commit::{self, check_engine};
use crate::config::{CodeRunner, DockerConfig, Options};
use crate::container_host::AgentBootstrap;
use crate::create::Sandbox;
use crate::engine::Engine;
use crate::error::{image_not_found, parse_error};
use crate::instance::DockerInstance;
use crate::network;
use crate::prune::prune;

/// Makes sandboxes in containers. The engine is looked for once, when it is first needed, and shared by all of them.
#[derive(Debug, Default)]
pub struct DockerBackend {
    pub(crate) config: DockerConfig,
    daemon: OnceCell<Engine>,
    pruned: OnceCell<()>,
    pub(crate) arrival: AgentBootstrap,
    pub(crate) snapshots: SnapshotStore,
    /// What opens gates.
    pub(crate) launchers: CellLaunchers,
    made: InstanceRegistry<DockerInstance>,
    /// Those without anything that runs code.
    agentless: InstanceRegistry<AgentlessInstance>,
}

impl DockerBackend {
    /// A backend with defaults of its own.
    pub fn new(config: DockerConfig) -> Self {
        let snapshots = SnapshotStore::new(config.snapshot_directory.clone());
        let arrival = AgentBootstrap { silence: config.silence, ..AgentBootstrap::default() };
        Self { config, arrival, snapshots, ..Self::default() }
    }

    /// The engine, which answers. One that was not found is looked for again.
    async fn daemon(&self) -> Result<&Engine> {
        if let Some(known) = self.daemon.get() {
            known.check().await?;
            return Ok(known);
        }
        self.daemon.get_or_try_init(|| Engine::connect(&self.config)).await
    }
}

/// What a sandbox can do. Some of it takes workers, and some the program that runs in kernels of IPython.
pub(crate) fn capabilities(engine: &CodeRunner, ipython: bool) -> Capabilities {
    if *engine == CodeRunner::None {
        return agentless::capabilities(true);
    }
    let workers = *engine == CodeRunner::Python;
    Capabilities {
        run_code: true,
        run_stdin: ipython,
        run_script: ipython,
        rich_results: true,
        live_output: true,
        contexts: true,
        variables: ipython,
        interrupt: true,
        restart: true,
        tools: ipython,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: ipython,
        files: true,
        watch: true,
        expose_port: true,
        metrics: true,
        pause: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
        snapshot: workers,
        restore_snapshot: workers,
        images: true,
        mounts: true,
        limit_memory: true,
        limit_cpu: true,
        limit_disk: true,
        limit_processes: true,
        limit_open_files: true,
        limit_output: true,
        gpu: true,
        network_none: true,
        network_allowlist: true,
        network_all: true,
        isolation_strict: true,
        ..Capabilities::default()
    }
}

/// Refuses what a sandbox with that engine cannot be asked for.
pub(crate) fn check(spec: &CreateSpec, engine: &CodeRunner) -> Result<()> {
    capabilities(engine, true).check(spec).map_err(|error| {
        let hint = match engine {
            CodeRunner::None => "without Python in its image a container has no mounts, no snapshots and no network; it enforces memory, cpu, disk, processes, lifetime and idle timeout",
            _ => "local-docker enforces memory, cpu, disk, processes, GPUs by number, lifetime, idle timeout, mounts and the network",
        };
        error.with_context("variant", Variant::LOCAL_DOCKER.as_str()).with_hint(hint)
    })?;
    check_size(spec)?;
    let own = |name: &str| matches!(name, "local-docker" | "docker" | "python-cpu-env");
    match spec.environment.as_deref().filter(|name| !own(name)) {
        Some(name) => Err(Error::new(
            ErrorKind::NotFound,
            "create",
            format!("environment {name:?} not found (available: local-docker)"),
        )
        .with_hint("an image is named with `--image` or .image(..)")),
        None => Ok(()),
    }
}

/// What an image says of itself. One that is not there is an error that says how to get it.
pub(crate) async fn image(docker: &Docker, name: &str) -> Result<ImageInspect> {
    docker.inspect_image(name).await.map_err(|error| match error {
        Cause::DockerResponseServerError { status_code: 404, .. } => image_not_found(name),
        error => parse_error("create", error),
    })
}

#[async_trait]
impl Backend for DockerBackend {
    fn variant(&self) -> Variant {
        Variant::LOCAL_DOCKER
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(&CodeRunner::Python, true)
    }

    async fn create(&self, _call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let options = Options::from_spec(&self.config, &spec)?;
        check(&spec, &options.engine)?;
        let daemon = self.daemon().await?;
        let pruned = self.pruned.get_or_try_init(|| prune(&daemon.docker, &self.snapshots)).await;
        if let Err(error) = pruned {
            tracing::debug!(%error, "the next sandbox has the engine asked again for what the dead have left");
        }
        Ok(match self.make(daemon, &spec, options).await? {
            Sandbox::WithAgent(instance) => {
                self.made.add(&instance);
                instance
            }
            Sandbox::WithoutAgent(instance) => {
                self.agentless.add(&instance);
                instance
            }
        })
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let message = format!("{id} cannot be attached to: its container ends with its process");
        Err(Error::unsupported("attach", message))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let mut page = self.made.list(&query);
        page.items.extend(self.agentless.list(&query).items);
        Ok(page)
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let mut environment = SandboxEnvironment::local("local-docker", "Local Docker");
        environment.metadata.insert("variant".into(), json!("local-docker"));
        environment.metadata.insert("image".into(), json!(self.config.image()));
        Ok(vec![environment])
    }

    async fn health(&self, _call: &CallContext) -> Result<Health> {
        let (checks, daemon) = match self.daemon().await {
            Ok(daemon) => {
                let engine = format!("{} at {}", daemon.name, daemon.host);
                let name = self.config.image();
                let image = image(&daemon.docker, &name).await.map(|_| name);
                (vec![check_of("engine", Ok(engine)), check_of("image", image)], Some(daemon))
            }
            Err(error) => (vec![check_of("engine", Err(error))], None),
        };
        let what = "Python workers or Jupyter kernels in hardened containers";
        let mut health = health_of(checks, what);
        // Told, and no reason against the variant: most sandboxes have no network.
        if let (true, Some(daemon)) = (health.usable, daemon) {
            health.checks.push(network::check(daemon, &self.launchers).await);
        }
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.snapshots.list("list_snapshots")?;
        let instances = self.made.instances();
        let told = all.into_iter().map(|stored| {
            // What a sandbox kept goes with it.
            let here = instances
                .iter()
                .filter(|instance| instance.base.is_running())
                .map(|instance| instance.kind.snapshots.contexts_of(&stored.info.id));
            SnapshotInfo { contexts: here.flatten().collect(), ..stored.info }
        });
        Ok(told.collect())
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        const OPERATION: &str = "delete_snapshot";
        // A part of it that nobody can reach now would be left for ever.
        let daemon = match self.snapshots.find(OPERATION, name) {
            Ok(stored) if stored.image().is_some() => {
                let daemon = self.daemon().await?;
                check_engine(daemon, &stored, OPERATION).await?;
                Some(daemon)
            }
            _ => None,
        };
        let deleted = self.snapshots.delete(OPERATION, name)?;
        for instance in self.made.instances() {
            instance.kind.snapshots.forget(&deleted.info.id);
        }
        if let (Some(daemon), Some(image)) = (daemon, deleted.image()) {
            commit::remove(&daemon.docker, image).await.map_err(|error| {
                let message = format!("{name:?} is deleted, and its image {image} is still there");
                Error::new(ErrorKind::Unavailable, OPERATION, message)
                    .with_source(error)
                    .with_hint(format!("docker image rm --force {image}"))
            })?;
        }
        Ok(())
    }
}
