//! A backend whose detached sandboxes are created in the supervisor, so that they outlive this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Instance,
    Layer, ListQuery, Page, Result, SandboxId, SandboxInfo, SnapshotInfo, Variant, wrap_backend,
};
use tokio::time::sleep;

use super::client_env;
use super::connect::{connect_existing, connect_or_start, has_ended};

/// Maximum time to retry a creation while the supervisor that answers is about to end.
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Hint of errors about a sandbox that does not exist.
pub const NOT_FOUND_HINT: &str = "`Sandbox::list()` shows what there is";

/// Creates detached sandboxes in the supervisor, and finds them there.
#[derive(Clone, Copy, Debug, Default)]
pub struct DetachedLayer;

impl Layer for DetachedLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(SupervisedBackend { inner }))
    }
}

/// A backend of this process, together with the supervisor's backend of the same variant.
#[derive(Debug)]
struct SupervisedBackend {
    inner: Arc<dyn Backend>,
}

impl SupervisedBackend {
    fn variant(&self) -> Variant {
        self.inner.variant()
    }
}

#[async_trait]
impl BackendWrapper for SupervisedBackend {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        // The supervisor adds these for its own sandboxes; each sandbox declares its own capabilities.
        let inner = self.inner.capabilities();
        Capabilities { detached: true, idempotent_create: true, logs: true, ..inner }
    }

    async fn create(&self, call: &CallContext, mut spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        if spec.detached.is_none() {
            return self.inner.create(call, spec).await;
        }
        client_env::complete(self.variant(), &mut spec);
        let until = Instant::now() + RETRY_TIMEOUT;
        loop {
            let supervisor = connect_or_start(self.variant()).await?;
            match supervisor.create(call, spec.clone()).await {
                // A supervisor that is about to end has created nothing, and no sandbox outlives its supervisor.
                Err(error) if has_ended(&error) && Instant::now() < until => {
                    sleep(RETRY_INTERVAL).await;
                }
                created => return created,
            }
        }
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        match connect_existing(self.variant()).await? {
            Some(supervisor) => supervisor.attach(call, id).await,
            // The same error as that of a supervisor without such a sandbox.
            None => {
                let wanted = id.local();
                let message = format!("there is no sandbox {wanted}");
                Err(Error::new(ErrorKind::NotFound, "attach", message)
                    .with_context("sandbox_id", wanted)
                    .with_hint(NOT_FOUND_HINT))
            }
        }
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let is_first = query.cursor.is_none();
        let mut page = self.inner.list(call, query.clone()).await?;
        if is_first && let Some(supervisor) = connect_existing(self.variant()).await? {
            match supervisor.list(call, query).await {
                Ok(detached) => page.items.extend(detached.items),
                // A supervisor that ends because it is idle has no sandbox.
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        // All processes see the same files; each process knows the interpreters of its own sandboxes.
        let mut all = self.inner.list_snapshots(call).await?;
        if let Some(supervisor) = connect_existing(self.variant()).await? {
            for detached in supervisor.list_snapshots(call).await? {
                if let Some(known) = all.iter_mut().find(|known| known.id == detached.id) {
                    known.contexts.extend(detached.contexts);
                }
            }
        }
        Ok(all)
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let Some(supervisor) = connect_existing(self.variant()).await? else {
            return self.inner.delete_snapshot(call, name).await;
        };
        let all = self.inner.list_snapshots(call).await?;
        let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.id == name);
        let Some(found) = found else { return self.inner.delete_snapshot(call, name).await };
        // By id, because the supervisor, which has the interpreters, may have been started with another directory.
        let found_there = |deleted: Result<()>| match deleted {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            deleted => deleted.map(|()| true),
        };
        let deleted = found_there(supervisor.delete_snapshot(call, &found.id).await)?;
        match self.inner.delete_snapshot(call, &found.id).await {
            Err(error) if deleted && error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}
