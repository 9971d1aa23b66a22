//! The backend: create, attach, list, environments, health, snapshots.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cloud::auth::process_env;
use sandbox_cloud::health::{failed, health, passed};
use sandbox_cloud::{
    Connections, CreateLocks, Identity, RemoteLifetime, find_one, page, state_directory,
};
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    ListQuery, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Tags,
    Variant, random_hex,
};

use crate::capabilities::{capabilities, check};
use crate::client_factory::ApiFactory;
use crate::config::DaytonaConfig;
use crate::create::{create, until_started, working_directory};
use crate::describe::{self, has_ended};
use crate::instance::{open, open_with};
use crate::plan::{fingerprint, plan};
use crate::remote::{self, Handle, RemoteSandbox};
use crate::volumes;
use crate::wire::Sandbox;

/// Creates sandboxes of Daytona. Creating the backend sends no request.
#[derive(Debug, Default)]
pub struct DaytonaBackend {
    factory: Arc<ApiFactory>,
}

impl DaytonaBackend {
    /// Creates a backend with defaults of its own.
    pub fn new(config: DaytonaConfig) -> Self {
        Self { factory: Arc::new(ApiFactory::new(config)) }
    }

    /// Finds a sandbox that has not ended.
    async fn find(&self, call: &CallContext, wanted: &str) -> Result<Sandbox> {
        let api = self.factory.api("attach")?;
        if let Some(found) = api.find(call, "attach", wanted).await?
            && !has_ended(&found)
        {
            return Ok(found);
        }
        let mut all = api.sandboxes(call, "attach", &Tags::new()).await?;
        all.retain(|sandbox| !has_ended(sandbox));
        let id = find_one(Variant::DAYTONA, wanted, &all, identity)?.id.clone();
        // Entries of a list lack some of it.
        api.sandbox(call, "attach", &id).await
    }

    /// Attaches to a sandbox. One that still starts, for another process, is waited for.
    async fn attach_to(&self, call: &CallContext, found: Sandbox) -> Result<Arc<dyn Instance>> {
        let directory = found.labels.get(describe::DIRECTORY).cloned();
        let starts = describe::is_starting(&found);
        let remote = RemoteSandbox::new(Arc::clone(&self.factory), found);
        let handle = Arc::new(RemoteLifetime::new(remote, false));
        if starts {
            self.wait_for_start(call, &handle).await?;
        }
        if let Some(left) = remote::info(&handle).remaining_time() {
            handle.end_in(left);
        }
        let cwd = match handle.is_paused() {
            // Its toolbox does not answer.
            true => directory.unwrap_or_else(|| "/".to_owned()),
            false => {
                working_directory(call, &handle, directory.as_deref(), Connections::Shared).await?
            }
        };
        let kept = match handle.is_paused() {
            true => Vec::new(),
            false => handle.programs.kept().await?,
        };
        open_with(handle, &cwd, &CreateSpec::default(), kept)
    }

    /// Waits until a sandbox that another process creates has started.
    ///
    /// # Errors
    /// `NotFound` for one that ended instead; otherwise as [`until_started`].
    async fn wait_for_start(&self, call: &CallContext, handle: &Handle) -> Result<()> {
        let (api, timeout) = (self.factory.api("attach")?, self.factory.config.ready_timeout());
        until_started(&api, call, handle, timeout, false).await.map_err(|error| {
            match handle.has_ended() {
                true => Error::new(ErrorKind::NotFound, "attach", error.message().to_owned()),
                false => error,
            }
        })
    }

    /// Finds the sandbox that a create with the same key has made before.
    async fn find_existing(&self, call: &CallContext, name: &str, tags: &Tags) -> Result<Existing> {
        let Some(key) = &call.idempotency_key else { return Ok(Existing::None) };
        let api = self.factory.api("create")?;
        let Some(found) = api.find(call, "create", name).await? else { return Ok(Existing::None) };
        let is_it = found.labels.get(describe::KEY) == Some(&fingerprint(key));
        if !is_it || has_ended(&found) {
            return Ok(Existing::None);
        }
        if describe::tags(&found.labels) != *tags {
            return Ok(Existing::Other);
        }
        match self.attach_to(call, found).await {
            // It ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Existing::None),
            attached => attached.map(Existing::Same),
        }
    }
}

/// What a create with the same key has made before.
enum Existing {
    None,
    Same(Arc<dyn Instance>),
    /// Its tags were changed since: it is another sandbox now, and keeps the name.
    Other,
}

/// Returns what a sandbox is found by.
fn identity(sandbox: &Sandbox) -> Identity<'_> {
    Identity { id: &sandbox.id, unique_name: Some(&sandbox.name), name: None }
}

#[async_trait]
impl Backend for DaytonaBackend {
    fn variant(&self) -> Variant {
        Variant::DAYTONA
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec)?;
        let (config, mut options) = self.factory.config.with_options(&spec.provider_options)?;
        let factory = match spec.provider_options.is_empty() {
            true => Arc::clone(&self.factory),
            false => Arc::new(ApiFactory::new(config)),
        };
        let target = factory.account()?.target;
        if options.volumes.iter().any(|volume| volume.get("name").is_some()) {
            let api = factory.api("create")?;
            options.volumes = volumes::resolve(&api, call, options.volumes).await?;
        }
        let key = call.idempotency_key.as_deref();
        let mut plan = plan(&spec, &options, key, target.as_deref())?;
        let directory = factory.config.state_dir.clone();
        let directory = directory.or_else(|| state_directory("daytona", &process_env));
        let keys = [format!("name:{}", plan.name)];
        let locks = CreateLocks::acquire(directory.as_deref(), call, "create", keys).await?;
        let chosen = Self { factory: Arc::clone(&factory) };
        match chosen.find_existing(call, &plan.name, &spec.tags).await? {
            Existing::Same(existing) => return Ok(existing),
            Existing::Other if spec.name.is_none() => {
                plan.rename(format!("sandbox-{}", random_hex(8)))
            }
            _ => {}
        }
        let name = plan.name.clone();
        let created = create(factory, call, plan, spec.working_dir.clone(), locks).await;
        match created {
            Ok((handle, cwd)) => open(handle, &cwd, &spec),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                // Another computer may have made it in this moment.
                match chosen.find_existing(call, &name, &spec.tags).await? {
                    Existing::Same(existing) => Ok(existing),
                    _ => Err(error.with_hint(format!(
                        "use another name, or end daytona/{name}: `.terminate()`"
                    ))),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let found = self.find(call, id.local()).await?;
        self.attach_to(call, found).await
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let api = self.factory.api("list")?;
        let mut all = api.sandboxes(call, "list", &query.tags).await?;
        all.retain(|sandbox| !has_ended(sandbox));
        Ok(page(all.iter().map(describe::sandbox).collect(), &query))
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let all = self.factory.api("environments")?.snapshots(call, "environments").await?;
        Ok(all.iter().map(describe::environment).collect())
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let account = self.factory.account()?;
        let key = account.key("health");
        let mut checks = vec![match &key {
            Ok(key) => passed("credentials", format!("from {}", key.source)),
            Err(error) => failed("credentials", error),
        }];
        if key.is_ok() {
            let api = self.factory.api("health")?;
            // Costs nothing, and makes no sandbox.
            checks.push(match api.snapshots(call, "health").await {
                Ok(all) => {
                    let at = api.account.api.as_str().trim_end_matches('/').to_owned();
                    passed("service", format!("{} snapshots at {at}", all.len()))
                }
                Err(error) => failed("service", &error),
            });
            let region = account.target.unwrap_or_else(|| "the organization's default".to_owned());
            checks.push(Check { ok: true, ..passed("region", region) });
        }
        Ok(health("sandboxes of Daytona in the cloud", checks))
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.factory.api("list_snapshots")?.snapshots(call, "list_snapshots").await?;
        // The provider's own are environments, which no user can delete.
        Ok(all.iter().filter(|found| !found.general).map(describe::snapshot).collect())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let operation = "delete_snapshot";
        let api = self.factory.api(operation)?;
        let all = api.snapshots(call, operation).await?;
        let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.id == name);
        let found = found.ok_or_else(|| {
            Error::new(ErrorKind::NotFound, operation, format!("there is no snapshot {name:?}"))
        })?;
        api.delete_snapshot(call, &found.id).await
    }
}
