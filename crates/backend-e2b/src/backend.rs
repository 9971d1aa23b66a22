//! The backend: create, attach, list, environments, health, snapshots.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::health::{failed, health, passed};
use sandbox_cloud::{CreateLocks, Identity, RemoteLifetime, find_one};
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance, ListQuery,
    Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Tags, Variant,
    check_path,
};

use crate::addresses::ENVD_PORT;
use crate::api::Api;
use crate::capabilities::{check, of_any_template};
use crate::client_factory::E2bClients;
use crate::config::E2bConfig;
use crate::create::create;
use crate::describe;
use crate::instance::{E2bInstance, open};
use crate::labels;
use crate::records;
use crate::remote::{self, RemoteSandbox};
use crate::signed_url::{FileAccess, sign};
use crate::wire::{Connected, Described};

/// Entries of a page whose request names no number.
const PAGE_SIZE: usize = 100;

/// Creates sandboxes of E2B. Creating the backend sends no request.
#[derive(Debug)]
pub struct E2bBackend {
    clients: Arc<E2bClients>,
}

impl Default for E2bBackend {
    fn default() -> Self {
        Self::new(E2bConfig::default())
    }
}

impl E2bBackend {
    /// Creates a backend with defaults of its own.
    pub fn new(config: E2bConfig) -> Self {
        Self { clients: Arc::new(E2bClients::new(config)) }
    }

    /// Returns an address by which a program without a key can read or write one file of a sandbox, for that long, or as long
    /// as the sandbox lives. Every holder of the address can use it.
    ///
    /// # Errors
    /// `NotFound` for a sandbox that is not there, `InvalidArgument` for what is no path, `Unsupported` for a sandbox whose
    /// files need no key.
    pub async fn signed_url(
        &self,
        id: &SandboxId,
        path: &str,
        access: FileAccess,
        expires_in: Option<Duration>,
    ) -> Result<String> {
        check_path("path", path)?;
        let call = CallContext::new();
        let found = self.find(&self.clients.api()?, &call, id.local()).await?;
        let remote = self.remote(&call, found).await?;
        let daemon = remote.tunnel(ENVD_PORT)?.url;
        let token = remote.connected().envd_access_token;
        sign(&daemon, token.as_ref(), path, access, expires_in)
    }

    /// Finds a sandbox by its id, its name, or a unique prefix of its id.
    async fn find(&self, api: &Api, call: &CallContext, wanted: &str) -> Result<Described> {
        match api.sandbox(call, "attach", wanted).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) => {}
            found => return found,
        }
        let all = api.all(call, "attach", &Tags::new()).await?;
        let names: Vec<_> = all.iter().map(|found| labels::read(found.metadata.as_ref())).collect();
        let named: Vec<_> = all.iter().zip(&names).collect();
        let (found, _) = find_one(Variant::E2B, wanted, &named, |(found, labels)| Identity {
            id: &found.sandbox_id,
            unique_name: None,
            name: labels.name.as_deref(),
        })?;
        Ok((*found).clone())
    }

    /// Returns a sandbox with its tokens. A paused one stays paused, and has the tokens when it is resumed.
    async fn remote(&self, call: &CallContext, found: Described) -> Result<RemoteSandbox> {
        let connected = match found.is_paused() {
            true => Connected { sandbox_id: found.sandbox_id.clone(), ..Connected::default() },
            // The time of a running sandbox is never shortened by that.
            false => {
                let api = self.clients.api()?;
                let second = Duration::from_secs(1);
                let connected = api.connect(call, "attach", &found.sandbox_id, second).await?;
                Connected { sandbox_id: found.sandbox_id.clone(), ..connected }
            }
        };
        Ok(RemoteSandbox::new(Arc::clone(&self.clients), connected, found, false))
    }

    /// Finds the oldest running sandbox that a create with the same key and tags has created before.
    async fn find_existing(
        &self,
        call: &CallContext,
        spec: &CreateSpec,
    ) -> Result<Option<Described>> {
        let Some(key) = &call.idempotency_key else { return Ok(None) };
        let filter = labels::with_key(key);
        let mut all = self.clients.api()?.all(call, "create", &filter).await?;
        let wanted = filter.values().next();
        all.retain(|found| {
            let labels = labels::read(found.metadata.as_ref());
            labels.key.as_ref() == wanted && labels.tags == spec.tags && !found.is_paused()
        });
        all.sort_by(|a, b| (a.started_at, &a.sandbox_id).cmp(&(b.started_at, &b.sandbox_id)));
        Ok(all.into_iter().next())
    }

    async fn attach_found(
        &self,
        call: &CallContext,
        found: Described,
    ) -> Result<Arc<dyn Instance>> {
        let is_paused = found.is_paused();
        let handle = Arc::new(RemoteLifetime::new(self.remote(call, found).await?, false));
        if let Some(left) = remote::info(&handle).remaining_time() {
            handle.end_in(left);
        }
        let instance = E2bInstance::new(Arc::clone(&handle));
        if !is_paused {
            let prepared = instance.prepare().await;
            if let Err(error) = prepared {
                return Err(handle.map_error("attach", error).await);
            }
        }
        Ok(open(instance))
    }
}

#[async_trait]
impl Backend for E2bBackend {
    fn variant(&self) -> Variant {
        Variant::E2B
    }

    fn capabilities(&self) -> Capabilities {
        of_any_template()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec)?;
        let clients = if spec.provider_options.is_empty() {
            Arc::clone(&self.clients)
        } else {
            Arc::new(E2bClients::new(self.clients.config.with_options(&spec.provider_options)?))
        };
        let chosen = Self { clients: Arc::clone(&clients) };
        let key = call.idempotency_key.as_ref().map(|key| format!("key:{key}"));
        let name = spec.name.as_ref().map(|name| format!("name:{name}"));
        let (keys, directory) = (key.into_iter().chain(name), records::directory(&clients.config));
        let locks = CreateLocks::acquire(directory.as_deref(), call, "create", keys).await?;
        if let Some(found) = chosen.find_existing(call, &spec).await? {
            match chosen.attach_found(call, found).await {
                // The sandbox ended meanwhile.
                Err(error)
                    if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Terminated) => {}
                attached => return attached,
            }
        }
        let (handle, instance) = create(clients, call, &spec, locks).await?;
        // Another computer may have been faster: the oldest one counts there as well.
        match chosen.find_existing(call, &spec).await? {
            Some(found) if found.sandbox_id != handle.local_id() => {
                let attached = chosen.attach_found(call, found).await?;
                handle.end("create", false).await?;
                Ok(attached)
            }
            _ => Ok(open(instance)),
        }
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let found = self.find(&self.clients.api()?, call, id.local()).await?;
        self.attach_found(call, found).await
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let api = self.clients.api()?;
        let limit = query.limit.unwrap_or(PAGE_SIZE).max(1);
        let (mut items, mut cursor) = (Vec::new(), query.cursor);
        // A page of the service has a limit of its own.
        loop {
            let wanted = limit - items.len();
            let page = api.page(call, "list", &query.tags, wanted, cursor.as_deref()).await?;
            let is_stuck = page.next.is_some() && page.next == cursor;
            let has_tags = |info: &SandboxInfo| {
                query.tags.iter().all(|(key, value)| info.tags.get(key) == Some(value))
            };
            items.extend(page.items.iter().map(describe::sandbox).filter(has_tags));
            cursor = page.next;
            if is_stuck {
                let message = "the list of the service has no end";
                return Err(Error::new(ErrorKind::Protocol, "list", message));
            }
            if cursor.is_none() || items.len() >= limit {
                return Ok(Page { items, next: cursor });
            }
        }
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let all = self.clients.api()?.templates(call).await?;
        Ok(all.iter().map(describe::environment).collect())
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        let api = self.clients.api()?;
        let mut checks = Vec::new();
        match &api.endpoints().key {
            Some(key) => {
                checks.push(passed("credentials", format!("an API key from {}", key.source)));
                let listed = api.page(call, "health", &Tags::new(), 1, None).await;
                checks.push(match &listed {
                    Ok(_) => {
                        let at = api.endpoints().api.as_str().trim_end_matches('/');
                        passed("service", format!("the key is accepted at {at}"))
                    }
                    Err(error) => failed("service", error),
                });
            }
            None => {
                let error =
                    Error::new(ErrorKind::Unauthenticated, "health", "there is no E2B API key");
                let hint = "set E2B_API_KEY to one of https://e2b.dev/dashboard?tab=keys";
                checks.push(failed("credentials", &error.with_hint(hint)));
            }
        }
        Ok(health("sandboxes of E2B in the cloud", checks))
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.clients.api()?.snapshots(call, "list_snapshots").await?;
        let records = records::snapshots(&self.clients.config);
        Ok(all.iter().map(|snapshot| describe::snapshot(snapshot, &records)).collect())
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let api = self.clients.api()?;
        let all = api.snapshots(call, "delete_snapshot").await?;
        let found = all.iter().find(|snapshot| snapshot.is_called(name)).ok_or_else(|| {
            let message = format!("there is no snapshot {name:?}");
            Error::new(ErrorKind::NotFound, "delete_snapshot", message)
        })?;
        api.delete_template(call, &found.snapshot_id).await?;
        records::snapshots(&self.clients.config).remove(&records::key(&found.snapshot_id));
        Ok(())
    }
}
