//! The backend: create, attach, list, environments, health.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::auth::process_env;
use sandbox_cloud::health::{failed, health, passed};
use sandbox_cloud::http::is_loopback;
use sandbox_cloud::{
    Connections, CreateLocks, Identity, RemoteLifetime, StateStore, find_one, page,
};
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance, ListQuery,
    Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
    resolve_directory, unix_now,
};
use sandbox_shell::ShellHost as _;
use serde_json::Value;

use crate::api::{Api, Generation};
use crate::capabilities::{capabilities, check};
use crate::client_factory::ApiFactory;
use crate::config::CloudflareConfig;
use crate::create::{Plan, WORKSPACE, create, id_of_key};
use crate::instance::{open, open_attached};
use crate::records::{self, SandboxRecord, describe};
use crate::remote::{RemoteSandbox, end_overdue};
use crate::snapshots;

/// Creates sandboxes behind the bridge Worker of a user. Creating the backend sends no request.
#[derive(Debug, Default)]
pub struct CloudflareBackend {
    factory: Arc<ApiFactory>,
}

impl CloudflareBackend {
    /// Creates a backend with defaults of its own.
    pub fn new(config: CloudflareConfig) -> Self {
        Self { factory: Arc::new(ApiFactory::new(config)) }
    }

    /// Returns the records of sandboxes of this bridge. Those whose time is over are ended.
    fn records(&self, operation: &'static str) -> Result<Vec<(String, SandboxRecord)>> {
        let account = self.factory.config.account(operation, &process_env)?;
        let records = records::sandboxes(&self.factory.config);
        records.prune();
        let mut all = records.all();
        all.retain(|(id, record)| {
            let is_own = record.bridge == account.bridge.as_str();
            let is_over = record.end_at.is_some_and(|end| end <= unix_now());
            if is_own && is_over {
                end_overdue(&self.factory, id.clone());
            }
            is_own && !is_over
        });
        Ok(all)
    }

    /// Returns the id of a new sandbox: that of its key, so that another computer comes to the same container, or one that
    /// the bridge makes up where a sandbox has that of the key, be it of another bridge.
    async fn new_id(
        api: &Api,
        call: &CallContext,
        records: &StateStore<SandboxRecord>,
    ) -> Result<String> {
        let own = call.idempotency_key.as_deref().map(id_of_key);
        match own.filter(|id| records.read(id).is_none()) {
            Some(id) => Ok(id),
            None => api.mint(call).await,
        }
    }
}

/// Returns what a sandbox is found by.
fn identity((id, record): &(String, SandboxRecord)) -> Identity<'_> {
    Identity { id, unique_name: record.name.as_deref(), name: None }
}

fn name_is_taken(name: &str, id: &str) -> Error {
    let message = format!("the name {name:?} is that of cloudflare/{id}");
    Error::new(ErrorKind::AlreadyExists, "create", message)
        .with_hint(format!("use another name, or end cloudflare/{id}: `.terminate()`"))
}

/// Describes a generation for users.
fn described(generation: Generation) -> &'static str {
    match generation {
        Generation::Exec => "the stable bridge, with `exec`",
        Generation::Processes => "the next bridge, with processes",
    }
}

/// Describes the containers of the Worker. The next bridge does not tell their maximum.
fn containers(stats: &Value) -> String {
    let count = |name: &str| stats[name].as_u64();
    let in_use = count("assigned").map_or_else(String::new, |count| format!("{count} in use"));
    match count("maxInstances") {
        Some(max) => format!("{in_use}, {max} at most"),
        None => in_use,
    }
}

#[async_trait]
impl Backend for CloudflareBackend {
    fn variant(&self) -> Variant {
        Variant::CLOUDFLARE
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec)?;
        let (config, options) = self.factory.config.with_options(&spec.provider_options)?;
        let factory = match spec.provider_options.is_empty() {
            true => Arc::clone(&self.factory),
            false => Arc::new(ApiFactory::new(config)),
        };
        let chosen = Self { factory: Arc::clone(&factory) };
        let api = factory.api("create", Connections::Shared)?;
        api.generation("create").await?;
        let key = call.idempotency_key.as_ref().map(|key| format!("key:{key}"));
        let name = spec.name.as_ref().map(|name| format!("name:{name}"));
        let records = records::sandboxes(&factory.config);
        let keys = key.into_iter().chain(name);
        let locks = CreateLocks::acquire(records.directory(), call, "create", keys).await?;
        let known = chosen.records("create")?;
        if let Some(key) = &call.idempotency_key {
            let is_it = |record: &SandboxRecord| {
                record.key.as_ref() == Some(key) && record.tags == spec.tags
            };
            if let Some((id, _)) = known.iter().find(|(_, record)| is_it(record)) {
                let id = SandboxId::new(Variant::CLOUDFLARE, id.as_str())?;
                return chosen.attach(call, &id).await;
            }
        }
        if let Some(name) = &spec.name {
            let has_name = |record: &SandboxRecord| record.name.as_ref() == Some(name);
            if let Some((id, _)) = known.iter().find(|(_, record)| has_name(record)) {
                return Err(name_is_taken(name, id));
            }
        }
        let snapshot = spec.snapshot.as_deref();
        let snapshot = snapshot.map(|name| snapshots::find(&factory.config, "create", name));
        let snapshot = snapshot.transpose()?.map(|(id, _)| id);
        let id = Self::new_id(&api, call, &records).await?;
        let cwd = resolve_directory(WORKSPACE, spec.working_dir.as_deref().unwrap_or("."));
        let record = SandboxRecord {
            bridge: api.account.bridge.as_str().to_owned(),
            name: spec.name.clone(),
            tags: spec.tags.clone(),
            key: call.idempotency_key.clone(),
            ephemeral: spec.detached.is_none(),
            terms: spec.reuse_key(),
            isolation: spec.isolation,
            created_at: unix_now(),
            end_at: spec.detached.map(|stay| unix_now() + stay.as_secs_f64()),
            directory: Some(cwd.clone()),
            env: spec.env.clone(),
            lost: false,
            fresh: cwd == WORKSPACE,
        };
        // Before anything runs: a create that is killed leaves a container that is known.
        records.write(&id, &record);
        let (is_owned, mounts) = (spec.detached.is_none(), options.mounts);
        let plan = Plan { id: id.clone(), record, is_owned, mounts, snapshot };
        match create(factory, plan, locks).await {
            Ok(handle) => {
                if let Some(stay) = spec.detached {
                    handle.end_in(stay);
                }
                open(handle, &cwd, &spec)
            }
            Err(error) => {
                records.remove(&id);
                Err(error)
            }
        }
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let all = self.records("attach")?;
        let (id, record) = find_one(Variant::CLOUDFLARE, id.local(), &all, identity)?.clone();
        let directory = record.directory.clone().unwrap_or_else(|| WORKSPACE.to_owned());
        let remote = RemoteSandbox::new(Arc::clone(&self.factory), &id, record)?;
        let handle = Arc::new(RemoteLifetime::new(remote, false));
        if let Some(end) = handle.record().end_at {
            let left = Duration::try_from_secs_f64(end - unix_now()).unwrap_or_default();
            handle.end_in(left);
        }
        // A container that has slept begins again without files and processes, which `info` says.
        match handle.programs.run(":", &[]).await {
            Err(_) if handle.programs.has_lost_container() => {}
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        open_attached(handle, &directory).await
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let all = self.records("list")?;
        Ok(page(all.iter().map(|(id, record)| describe(id, record)).collect(), &query))
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        // The image is that of the Worker's container, and no request chooses another one.
        Ok(vec![SandboxEnvironment {
            name: "worker".into(),
            title: "the image of the Worker's container".into(),
            owner: "the Worker".into(),
            visibility: "private".into(),
            ..SandboxEnvironment::default()
        }])
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let api = match self.factory.api("health", Connections::Shared) {
            Ok(api) => api,
            Err(error) => return Ok(health("", vec![failed("address", &error)])),
        };
        let address = api.account.bridge.as_str().trim_end_matches('/').to_owned();
        let is_local = is_loopback(&api.account.bridge);
        let mut checks = vec![match &api.account.key {
            Some(key) => passed("credentials", format!("from {}", key.source)),
            None if is_local => passed("credentials", "none, for a bridge of this computer"),
            None => {
                let error = Error::new(ErrorKind::Unauthenticated, "health", "there is no key");
                let hint = "set CLOUDFLARE_API_TOKEN to the secret SANDBOX_API_KEY of the bridge";
                failed("credentials", &error.with_hint(hint))
            }
        }];
        if api.account.key.is_some() || is_local {
            // None of these starts a container.
            checks.push(match api.generation("health").await {
                Ok(generation) => {
                    passed("bridge", format!("{} at {address}", described(generation)))
                }
                Err(error) => failed("bridge", &error),
            });
            checks.push(match api.health(call).await {
                Ok(()) => passed("service", "up"),
                Err(error) => failed("service", &error),
            });
            checks.push(match api.pool(call).await {
                Ok(stats) => passed("containers", containers(&stats)),
                Err(error) => failed("containers", &error),
            });
        }
        Ok(health("sandboxes of Cloudflare behind a bridge Worker", checks))
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        Ok(snapshots::list(&self.factory.config))
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        snapshots::delete(&self.factory.config, name).await
    }
}
