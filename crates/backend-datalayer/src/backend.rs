//! The backend: create, attach, list, environments, health, snapshots.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cloud::health::{failed, health, passed};
use sandbox_cloud::{CreateLocks, Identity, RemoteLifetime, StateStore, find_one, page};
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    ListQuery, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SandboxStatus,
    SnapshotInfo, Variant,
};

use crate::api::Api;
use crate::capabilities::{capabilities, check};
use crate::client_factory::ApiFactory;
use crate::config::DatalayerConfig;
use crate::create::create;
use crate::describe::{self, has_ended, is_paused};
use crate::instance::open;
use crate::records::{self, SandboxRecord};
use crate::resources;
use crate::runtime::{self, RemoteRuntime};
use crate::wire::{Environment, Runtime};

/// Creates sandboxes of Datalayer runtimes. Creating the backend sends no request.
#[derive(Debug, Default)]
pub struct DatalayerBackend {
    factory: Arc<ApiFactory>,
}

impl DatalayerBackend {
    /// Creates a backend with defaults of its own.
    pub fn new(config: DatalayerConfig) -> Self {
        Self { factory: Arc::new(ApiFactory::new(config)) }
    }

    /// Finds a runtime that has not ended.
    async fn find(&self, api: &Api, call: &CallContext, wanted: &str) -> Result<Runtime> {
        let mut all = api.runtimes(call, "attach").await?;
        all.retain(|runtime| !has_ended(runtime));
        find_one(Variant::DATALAYER_RUNTIME, wanted, &all, identity).cloned()
    }

    /// Finds the sandbox that a create with the same key and tags has created before.
    async fn find_existing(
        &self,
        call: &CallContext,
        spec: &CreateSpec,
    ) -> Result<Option<Arc<dyn Instance>>> {
        if call.idempotency_key.is_none() {
            return Ok(None);
        }
        let mut query = ListQuery::default();
        (query.tags, query.limit) = (spec.tags.clone(), Some(usize::MAX));
        let records = records::sandboxes(&self.factory.config);
        for info in self.list(call, query).await?.items {
            let id: SandboxId = info.id.parse()?;
            let record = records.read(id.local());
            let is_it = record.is_some_and(|record| record.key == call.idempotency_key);
            if !is_it || info.status != SandboxStatus::Running {
                continue;
            }
            match self.attach(call, &id).await {
                // The sandbox ended meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                attached => return attached.map(Some),
            }
        }
        Ok(None)
    }
}

/// Returns what a runtime is found by.
fn identity(runtime: &Runtime) -> Identity<'_> {
    Identity {
        id: runtime.id(),
        unique_name: Some(runtime.name()),
        name: runtime.given_name.as_deref(),
    }
}

#[async_trait]
impl Backend for DatalayerBackend {
    fn variant(&self) -> Variant {
        Variant::DATALAYER_RUNTIME
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec)?;
        let factory = if spec.provider_options.is_empty() {
            Arc::clone(&self.factory)
        } else {
            Arc::new(ApiFactory::new(self.factory.config.with_options(&spec.provider_options)?))
        };
        let key = call.idempotency_key.as_ref().map(|key| format!("key:{key}"));
        let name = spec.name.as_ref().map(|name| format!("name:{name}"));
        let (keys, records) = (key.into_iter().chain(name), records::sandboxes(&factory.config));
        let locks = CreateLocks::acquire(records.directory(), call, "create", keys).await?;
        let chosen = Self { factory: Arc::clone(&factory) };
        if let Some(existing) = chosen.find_existing(call, &spec).await? {
            return Ok(existing);
        }
        let (handle, surroundings) = create(factory, call, &spec, locks).await?;
        let cwd = surroundings.cwd.clone();
        handle.change_record(|record| record.cwd = Some(cwd.clone()));
        let mut env = spec.env.clone();
        let secrets = spec.secrets.iter();
        env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
        Ok(open(handle, cwd, env, Some(surroundings)))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let api = self.factory.api().await?;
        let (found, environments, checkpoints) = tokio::join!(
            self.find(&api, call, id.local()),
            api.environments(call),
            api.checkpoints(call)
        );
        let (found, checkpoints) = (found?, checkpoints?);
        // The list need not have the token.
        let runtime = api.runtime(call, "attach", found.name()).await?;
        let environments = environments.unwrap_or_default();
        let environment = environment_of(&runtime, &environments);
        let records = records::sandboxes(&self.factory.config);
        let record = records.read(runtime.id()).unwrap_or_default();
        let paused = is_paused(&runtime, &checkpoints);
        let remote = RemoteRuntime::new(Arc::clone(&self.factory), runtime, record, environment);
        let handle = Arc::new(RemoteLifetime::new(remote, false));
        handle.set_paused(paused);
        if let Some(left) = runtime::info(&handle).remaining_time() {
            handle.end_in(left);
        }
        // Nothing is started or waited for before code runs, so that a runtime that does not come up can be ended.
        let (env, cwd) = handle.initial_environment();
        Ok(open(handle, cwd.unwrap_or_else(|| ".".into()), env, None))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let api = self.factory.api().await?;
        let (runtimes, checkpoints, environments) =
            tokio::join!(api.runtimes(call, "list"), api.checkpoints(call), api.environments(call));
        let (mut runtimes, checkpoints) = (runtimes?, checkpoints?);
        // Prices and sizes are nice to have, and no reason to list nothing.
        let environments = environments.unwrap_or_default();
        runtimes.retain(|runtime| !runtime.id().is_empty());
        let records = records::sandboxes(&self.factory.config);
        records.prune();
        let listed = runtimes.iter().map(|runtime| {
            let mut info = listed(runtime, &records, &environments);
            if is_paused(runtime, &checkpoints) {
                info.status = SandboxStatus::Paused;
            }
            info
        });
        Ok(page(listed.collect(), &query))
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let all = self.factory.api().await?.environments(call).await?;
        Ok(all.iter().map(Environment::listed).collect())
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let api = self.factory.api().await?;
        let key = api.endpoints().key("health");
        let mut checks = vec![match &key {
            Ok(key) => passed("credentials", format!("an API key from {}", key.source)),
            Err(error) => failed("credentials", error),
        }];
        if key.is_ok() {
            let (environments, usage) = tokio::join!(api.environments(call), api.usage(call));
            checks.push(match &environments {
                Ok(all) => {
                    let at = api.endpoints().runtimes.as_str().trim_end_matches('/');
                    passed("service", format!("{} environments at {at}", all.len()))
                }
                Err(error) => failed("service", error),
            });
            // A key that cannot see the account may still be able to use it.
            checks.extend(usage.ok().map(|usage| match usage.left() {
                left if left > 0.0 => passed("credits", format!("{left:.2} left")),
                _ => Check {
                    fix: Some("add credits to the account".into()),
                    ok: false,
                    ..passed("credits", "none left")
                },
            }));
        }
        Ok(health("Datalayer runtimes in the cloud", checks))
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.factory.api().await?.snapshots(call, "list_snapshots").await?;
        let records = records::snapshots(&self.factory.config);
        records.prune();
        Ok(all.iter().map(|snapshot| describe::snapshot(snapshot, &records)).collect())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let api = self.factory.api().await?;
        let all = api.snapshots(call, "delete_snapshot").await?;
        let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.uid == name);
        let found = found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                "delete_snapshot",
                format!("there is no snapshot {name:?}"),
            )
        })?;
        api.delete_snapshot(call, &found.uid).await?;
        records::snapshots(&self.factory.config).remove(&found.uid);
        Ok(())
    }
}

fn environment_of<'a>(runtime: &Runtime, all: &'a [Environment]) -> Option<&'a Environment> {
    all.iter().find(|environment| Some(environment.name.as_str()) == runtime.environment())
}

fn listed(
    runtime: &Runtime,
    records: &StateStore<SandboxRecord>,
    environments: &[Environment],
) -> SandboxInfo {
    let record = records.read(runtime.id());
    let gpu = record.as_ref().and_then(|record| record.gpu.as_deref());
    let resources = environment_of(runtime, environments)
        .map(|environment| resources::from_environment(environment, gpu));
    describe::sandbox(runtime, record.as_ref(), resources)
}
