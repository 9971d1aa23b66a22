//! A backend whose sandboxes may outlive this process: those are the supervisor's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Instance,
    Layer, ListQuery, Page, Result, SandboxId, SandboxInfo, SnapshotInfo, Variant, wrap_backend,
};
use tokio::time::sleep;

use super::client_env;
use super::connect::{existing, has_ended, needed};

/// How long a supervisor is looked for that does not end in the moment it is asked.
const AGAIN_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// What helps who asked for a sandbox that is not there.
pub const NOT_FOUND_HINT: &str = "`sandboxes ls` shows what there is";

/// Makes detached sandboxes in the supervisor, and finds them there.
#[derive(Clone, Copy, Debug, Default)]
pub struct DetachedLayer;

impl Layer for DetachedLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(Detachable { inner }))
    }
}

/// A backend of this host, with the supervisor for sandboxes that are to outlive this process.
#[derive(Debug)]
struct Detachable {
    inner: Arc<dyn Backend>,
}

impl Detachable {
    fn variant(&self) -> Variant {
        self.inner.variant()
    }
}

#[async_trait]
impl BackendWrapper for Detachable {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        // What the supervisor adds holds for its own sandboxes; each sandbox says what it can.
        let inner = self.inner.capabilities();
        Capabilities { detached: true, idempotent_create: true, logs: true, ..inner }
    }

    async fn create(&self, call: &CallContext, mut spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        if spec.detached.is_none() {
            return self.inner.create(call, spec).await;
        }
        client_env::complete(self.variant(), &mut spec);
        let until = Instant::now() + AGAIN_TIMEOUT;
        loop {
            let supervisor = needed(self.variant()).await?;
            match supervisor.create(call, spec.clone()).await {
                // One that was about to end has made nothing, and nothing outlives one that has ended.
                Err(error) if has_ended(&error) && Instant::now() < until => {
                    sleep(PAUSE).await;
                }
                created => return created,
            }
        }
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        match existing(self.variant()).await? {
            Some(supervisor) => supervisor.attach(call, id).await,
            // Without a supervisor nothing else is true than with one that has no such sandbox.
            None => {
                let wanted = id.local();
                let message = format!("no sandbox {wanted}");
                Err(Error::new(ErrorKind::NotFound, "attach", message)
                    .with_context("sandbox_id", wanted)
                    .with_hint(NOT_FOUND_HINT))
            }
        }
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let is_first = query.cursor.is_none();
        let mut page = self.inner.list(call, query.clone()).await?;
        if is_first && let Some(supervisor) = existing(self.variant()).await? {
            match supervisor.list(call, query).await {
                Ok(kept) => page.items.extend(kept.items),
                // One that ends because it is idle has none.
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        // The files are the same for all; the interpreters are with those who have the sandboxes.
        let mut all = self.inner.list_snapshots(call).await?;
        if let Some(supervisor) = existing(self.variant()).await? {
            for kept in supervisor.list_snapshots(call).await? {
                if let Some(known) = all.iter_mut().find(|known| known.id == kept.id) {
                    known.contexts.extend(kept.contexts);
                }
            }
        }
        Ok(all)
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let Some(supervisor) = existing(self.variant()).await? else {
            return self.inner.delete_snapshot(call, name).await;
        };
        let all = self.inner.list_snapshots(call).await?;
        let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.id == name);
        let Some(found) = found else { return self.inner.delete_snapshot(call, name).await };
        // By its id, because the supervisor may have been started with another directory. It has the interpreters.
        let gone = |deleted: Result<()>| match deleted {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            deleted => deleted.map(|()| true),
        };
        let deleted = gone(supervisor.delete_snapshot(call, &found.id).await)?;
        match self.inner.delete_snapshot(call, &found.id).await {
            Err(error) if deleted && error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}
