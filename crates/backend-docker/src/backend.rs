//! The backend: connects to its engine once, and creates, lists and snapshots sandboxes.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cells::launchers::CellLaunchers;
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance, ListQuery,
    Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
};
use sandbox_engine::checks::{check_of, health_of};
use sandbox_engine::{InstanceRegistry, SnapshotCatalog, SnapshotStore};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::agentless::AgentlessInstance;
use crate::capabilities::{capabilities, check};
use crate::commit::{self, check_engine};
use crate::config::{CodeRunner, DockerConfig, Options};
use crate::container_host::AgentBootstrap;
use crate::create::{Creator, Sandbox};
use crate::engine::Engine;
use crate::images;
use crate::instance::{DockerHooks, DockerInstance};
use crate::network;
use crate::prune::prune;

/// Creates sandboxes in containers. The engine is found once, when it is first needed, and shared by all sandboxes.
#[derive(Debug, Default)]
pub struct DockerBackend {
    config: DockerConfig,
    engine: OnceCell<Engine>,
    pruned: OnceCell<()>,
    bootstrap: AgentBootstrap,
    snapshots: SnapshotStore,
    /// Launchers of the process that opens gates.
    launchers: CellLaunchers,
    instances: InstanceRegistry<DockerInstance>,
    agentless: InstanceRegistry<AgentlessInstance>,
}

impl DockerBackend {
    /// Returns a backend with these defaults.
    pub fn new(config: DockerConfig) -> Self {
        let snapshots = SnapshotStore::new(config.snapshot_directory.clone());
        let bootstrap = AgentBootstrap { silence: config.silence, ..AgentBootstrap::default() };
        Self { config, bootstrap, snapshots, ..Self::default() }
    }

    /// Returns the engine, which answers. An engine that was not found is searched for again.
    async fn engine(&self) -> Result<&Engine> {
        if let Some(known) = self.engine.get() {
            known.check().await?;
            return Ok(known);
        }
        self.engine.get_or_try_init(|| Engine::connect(&self.config)).await
    }

    fn catalog(&self) -> SnapshotCatalog<'_, DockerHooks> {
        SnapshotCatalog::new(&self.snapshots, &self.instances, |hooks| &hooks.snapshots)
    }
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
        check(&spec, &options.runner)?;
        let engine = self.engine().await?;
        let pruned = self.pruned.get_or_try_init(|| prune(&engine.docker, &self.snapshots)).await;
        if let Err(error) = pruned {
            tracing::debug!(%error, "the engine was not pruned: the next create tries again");
        }
        let creator = Creator {
            engine,
            bootstrap: &self.bootstrap,
            snapshots: &self.snapshots,
            launchers: &self.launchers,
        };
        Ok(match creator.create(&spec, options).await? {
            Sandbox::WithAgent(instance) => {
                self.instances.add(&instance);
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
        let mut page = self.instances.list(&query);
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
        let (checks, engine) = match self.engine().await {
            Ok(engine) => {
                let description = format!("{} at {}", engine.name, engine.host);
                let name = self.config.image();
                let image = images::inspect(&engine.docker, &name).await.map(|_| name);
                (vec![check_of("engine", Ok(description)), check_of("image", image)], Some(engine))
            }
            Err(error) => (vec![check_of("engine", Err(error))], None),
        };
        let what = "Python workers or Jupyter kernels in hardened containers";
        let mut health = health_of(checks, what);
        // Shown without making the variant unusable: most sandboxes have no network.
        if let (true, Some(engine)) = (health.usable, engine) {
            health.checks.push(network::check(engine, &self.launchers).await);
        }
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.catalog().list()
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        const OPERATION: &str = "delete_snapshot";
        // Without the engine of its image, the image would be left for ever.
        let engine = match self.snapshots.find(OPERATION, name) {
            Ok(stored) if stored.image().is_some() => {
                let engine = self.engine().await?;
                check_engine(engine, &stored, OPERATION).await?;
                Some(engine)
            }
            _ => None,
        };
        let deleted = self.catalog().delete(name)?;
        if let (Some(engine), Some(image)) = (engine, deleted.image()) {
            commit::remove(&engine.docker, image).await.map_err(|error| {
                let message = format!("{name:?} is deleted, but its image {image} is left");
                Error::new(ErrorKind::Unavailable, OPERATION, message)
                    .with_source(error)
                    .with_hint(format!("docker image rm --force {image}"))
            })?;
        }
        Ok(())
    }
}
