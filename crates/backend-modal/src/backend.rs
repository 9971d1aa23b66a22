//! The backend: create, attach, list, environments, health, snapshots.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::health::{failed, health, passed};
use sandbox_cloud::{Backoff, CreateLocks, Identity, find_one, page};
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance, ListQuery,
    Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SandboxStatus, SnapshotInfo, Tags,
    Variant,
};
use tokio::runtime::Handle;

use crate::api::{Api, Created, from_tags};
use crate::capabilities::{capabilities, check};
use crate::client_factory::ApiFactory;
use crate::config::ModalConfig;
use crate::create::{self, create, key_digest};
use crate::describe::{self, KEY, name_of_key, status_of};
use crate::instance::open;
use crate::records;
use crate::sandbox;
use crate::wire::ListedSandbox;

/// Time for which a sandbox is looked for that the service says to have.
const LOOKUP_TIME: Duration = Duration::from_secs(5);

/// Creates sandboxes of Modal. Creating the backend sends no request.
#[derive(Debug, Default)]
pub struct ModalBackend {
    factory: Arc<ApiFactory>,
}

impl ModalBackend {
    /// Creates a backend with defaults of its own.
    pub fn new(config: ModalConfig) -> Self {
        Self { factory: Arc::new(ApiFactory::new(config)) }
    }

    /// Lists what runs in the app.
    async fn running(
        &self,
        api: &Api,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<ListedSandbox>> {
        let app = self.factory.app(api, call, operation).await?;
        let mut all = api.list(call, operation, &app).await?;
        all.retain(|listed| !listed.id.is_empty() && !status_of(listed).is_over());
        Ok(all)
    }

    /// Opens a sandbox that was found.
    fn found(&self, api: &Api, listed: ListedSandbox) -> Result<Arc<dyn Instance>> {
        let record = records::sandboxes(&self.factory.config).read(&listed.id).unwrap_or_default();
        let server = (api.account.server.as_str(), Handle::current().id());
        let created = Created {
            task_id: listed
                .task_info
                .as_ref()
                .map(|task| task.id.clone())
                .filter(|id| !id.is_empty()),
            ..Created::default()
        };
        let spec = CreateSpec::default();
        let opened = create::open(&self.factory, listed, record, spec, false, server, created)?;
        if let Some(left) = sandbox::info(&opened.0).remaining_time() {
            opened.0.end_in(left);
        }
        Ok(open(opened))
    }

    /// Finds the sandbox that a create with the same key and tags has created before.
    async fn find_existing(&self, call: &CallContext, tags: &Tags) -> Result<Existing> {
        let key = call.idempotency_key.as_deref().map(key_digest);
        let Some(key) = key else { return Ok(Existing::None) };
        let api = self.factory.api()?;
        let mut all = self.running(&api, call, "create").await?;
        all.retain(|listed| from_tags(&listed.tags).get(KEY) == Some(&key));
        let has_tags = |listed: &ListedSandbox| {
            let own = from_tags(&listed.tags);
            tags.iter().all(|(name, value)| own.get(name) == Some(value))
        };
        match all.iter().rposition(has_tags) {
            Some(at) => self.found(&api, all.swap_remove(at)).map(Existing::Same),
            None if all.is_empty() => Ok(Existing::None),
            None => Ok(Existing::Other),
        }
    }

    /// Finds the sandbox that has the name of the key. A list may show a new one late.
    async fn find_other(
        &self,
        call: &CallContext,
        tags: &Tags,
    ) -> Result<Option<Arc<dyn Instance>>> {
        let mut backoff = Backoff::new(LOOKUP_TIME);
        loop {
            match self.find_existing(call, tags).await? {
                Existing::Same(existing) => return Ok(Some(existing)),
                Existing::Other => return Ok(None),
                Existing::None => {}
            }
            if !backoff.wait(call).await {
                return Ok(None);
            }
        }
    }

    /// Takes the locks of a create, which processes of this computer share.
    async fn lock(&self, call: &CallContext, spec: &CreateSpec) -> Result<CreateLocks> {
        let key = call.idempotency_key.as_ref().map(|key| format!("key:{key}"));
        let name = spec.name.as_ref().map(|name| format!("name:{name}"));
        let records = records::sandboxes(&self.factory.config);
        let keys = key.into_iter().chain(name);
        CreateLocks::acquire(records.directory(), call, "create", keys).await
    }
}

/// What a create with the same key has made before.
enum Existing {
    None,
    Same(Arc<dyn Instance>),
    /// Its tags were changed since: it is another sandbox now.
    Other,
}

/// Returns what a sandbox is found by.
fn identity(listed: &ListedSandbox) -> Identity<'_> {
    Identity { id: &listed.id, unique_name: None, name: describe::own_name(listed) }
}

#[async_trait]
impl Backend for ModalBackend {
    fn variant(&self) -> Variant {
        Variant::MODAL
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec)?;
        let (config, options) = self.factory.config.with_options(&spec.provider_options)?;
        let factory = if spec.provider_options.is_empty() {
            Arc::clone(&self.factory)
        } else {
            Arc::new(ApiFactory::new(config))
        };
        let chosen = Self { factory: Arc::clone(&factory) };
        let locks = chosen.lock(call, &spec).await?;
        if let Existing::Same(existing) = chosen.find_existing(call, &spec.tags).await? {
            return Ok(existing);
        }
        let of_key = call.idempotency_key.as_deref().map(key_digest);
        let of_key = of_key.filter(|_| spec.name.is_none()).map(|digest| name_of_key(&digest));
        let name = spec.name.clone().or_else(|| of_key.clone());
        match create(Arc::clone(&factory), call, &spec, &options, name, locks).await {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && of_key.is_some() => {}
            created => return created.map(open),
        }
        // Another computer creates one with the key at the same time, or has created it and changed its tags since.
        if let Some(existing) = chosen.find_other(call, &spec.tags).await? {
            return Ok(existing);
        }
        let locks = chosen.lock(call, &spec).await?;
        create(factory, call, &spec, &options, None, locks).await.map(open)
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let api = self.factory.api()?;
        let all = self.running(&api, call, "attach").await?;
        let found = find_one(Variant::MODAL, id.local(), &all, identity)?;
        self.found(&api, found.clone())
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let api = self.factory.api()?;
        let all = self.running(&api, call, "list").await?;
        let records = records::sandboxes(&self.factory.config);
        records.prune();
        let listed = all.iter().map(|one| describe::sandbox(one, records.read(&one.id).as_ref()));
        let listed = listed.filter(|info| info.status != SandboxStatus::Terminated);
        Ok(page(listed.collect(), &query))
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        Ok(Vec::new())
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let api = self.factory.api()?;
        let token = api.account.token("health").map(drop);
        let mut checks = vec![match &token {
            Ok(()) => passed("credentials", format!("a token from {}", api.account.source())),
            Err(error) => failed("credentials", error),
        }];
        if token.is_ok() {
            checks.push(match api.hello(call).await {
                Ok(hello) => {
                    let at = api.account.server.as_str().trim_end_matches('/');
                    let warning = match hello.warning.trim() {
                        "" => String::new(),
                        warning => format!("; it says: {warning}"),
                    };
                    passed("service", format!("the token is accepted at {at}{warning}"))
                }
                Err(error) => failed("service", &error),
            });
        }
        Ok(health("Sandboxes of Modal", checks))
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let api = self.factory.api()?;
        let records = records::snapshots(&self.factory.config);
        records.prune();
        let all = records.all();
        let own = all.iter().filter(|(_, record)| record.server == api.account.server.as_str());
        Ok(own.map(|(id, record)| describe::snapshot(id, record)).collect())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let records = records::snapshots(&self.factory.config);
        let all = records.all();
        let found = all.iter().find(|(id, record)| record.name == name || id == name);
        let (id, _) = found.ok_or_else(|| {
            let message = format!("there is no snapshot {name:?}");
            Error::new(ErrorKind::NotFound, "delete_snapshot", message)
        })?;
        match self.factory.api()?.delete_image(call, id).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => {
                records.remove(id);
                Ok(())
            }
        }
    }
}
