//! Finds a sandbox by its tags, or makes one.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::backend::Backend;
use crate::builder::{BackendResolver, SandboxBuilder};
use crate::call::CallContext;
use crate::error::{Error, ErrorKind, Result};
use crate::id::SandboxId;
use crate::model::{SandboxInfo, SandboxStatus, Tags};
use crate::request::ListQuery;
use crate::reuse_key::{EPHEMERAL, REUSE_KEY};
use crate::sandbox::Sandbox;

/// Default lifetime of a sandbox that is to be found again.
pub const DEFAULT_DETACHED: Duration = Duration::from_secs(24 * 3600);

impl<R: BackendResolver> SandboxBuilder<R> {
    /// Finds a running sandbox with all these tags, or makes one that outlives this process: for the time of
    /// [`detached`](SandboxBuilder::detached), or for 24 hours.
    ///
    /// It is atomic across processes: of several that ask for the same tags at one time, one makes the sandbox and all
    /// get it. A sandbox that is there must be what was asked for: with another isolation, a wider network, or another
    /// value of something that was set, it is refused. Variables, secrets, working directory and times only matter for a
    /// new one.
    ///
    /// # Errors
    /// `InvalidArgument` without tags, or with what the sandbox that is there differs in; otherwise as [`SandboxBuilder::create`].
    ///
    /// # Cancellation
    /// Dropping the future may leave the sandbox, to be found by the next call.
    pub async fn get_or_create(mut self) -> Result<R::Sandbox> {
        if self.spec.tags.is_empty() {
            return Err(Error::invalid("tags", "must not be empty to find a sandbox by them"));
        }
        self.spec.detached.get_or_insert(DEFAULT_DETACHED);
        let (backend, spec, timeout) = self.checked()?;
        let sandbox = match Sandbox::find(&backend, &spec.tags).await? {
            Some(sandbox) => {
                spec.agrees_with(&sandbox.info())?;
                sandbox
            }
            None => {
                let call = CallContext::new().with_idempotency_key(key(&spec.tags));
                let instance = backend.create(&call, spec.clone()).await?;
                let info = instance.info();
                // Another process may have made it in this moment.
                if info.metadata.contains_key(REUSE_KEY) {
                    spec.agrees_with(&info)?;
                }
                Sandbox::from_instance(backend, instance)
            }
        };
        sandbox.set_timeout(timeout)?;
        Ok(sandbox.into())
    }
}

impl Sandbox {
    /// The oldest running sandbox of a backend with all these tags that outlives its process.
    ///
    /// # Errors
    /// Whatever keeps the backend from listing its sandboxes.
    pub async fn find(backend: &Arc<dyn Backend>, tags: &Tags) -> Result<Option<Self>> {
        let call = CallContext::new();
        let mut found = Vec::new();
        let mut query = ListQuery { tags: tags.clone(), ..ListQuery::default() };
        loop {
            let page = backend.list(&call, query.clone()).await?;
            found.extend(page.items);
            match page.next {
                Some(cursor) => query.cursor = Some(cursor),
                None => break,
            }
        }
        found.retain(|info: &SandboxInfo| {
            let is_transient = info.metadata.get(EPHEMERAL) == Some(&Value::Bool(true));
            info.status == SandboxStatus::Running && !is_transient
        });
        found.sort_by(|a, b| a.created_at.total_cmp(&b.created_at));
        for info in found {
            let id: SandboxId = info.id.parse()?;
            match backend.attach(&call, &id).await {
                Ok(instance) => {
                    return Ok(Some(Self::from_instance(Arc::clone(backend), instance)));
                }
                // It ended meanwhile, or belongs to this process alone.
                Err(error) if is_not_to_be_had(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

fn is_not_to_be_had(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Terminated | ErrorKind::Unsupported)
}

/// Requests with the same tags mean the same sandbox.
fn key(tags: &Tags) -> String {
    // A map of strings always has a JSON form.
    format!("tags:{}", serde_json::to_string(tags).unwrap_or_default())
}
