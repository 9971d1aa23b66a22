//! The supervisor's backend: its sandboxes are in the table until they are removed, and each has a log.

use std::sync::Arc;

use crate::client::NOT_FOUND_HINT;
use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Instance,
    InstanceWrapper as _, Layer, ListQuery, Page, Result, SandboxId, SandboxInfo, Tags,
    wrap_backend, wrap_instance,
};

use super::logged_instance::LoggedInstance;
use super::registry::SandboxTable;
use super::suggest::suggest;

/// Records the sandboxes of a backend in the table, and logs what is run in them.
#[derive(Clone, Debug)]
pub(super) struct SupervisorLayer(pub(super) Arc<SandboxTable>);

impl Layer for SupervisorLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(SupervisorBackend { inner, table: Arc::clone(&self.0) }))
    }
}

/// The backend of one variant, with the sandboxes of that variant in the table.
#[derive(Debug)]
struct SupervisorBackend {
    inner: Arc<dyn Backend>,
    table: Arc<SandboxTable>,
}

impl SupervisorBackend {
    fn all(&self) -> Vec<Arc<LoggedInstance>> {
        let mut all = self.table.all();
        all.retain(|sandbox| sandbox.variant() == self.inner.variant());
        all
    }

    async fn create_logged(
        &self,
        call: &CallContext,
        mut spec: CreateSpec,
        key: Option<String>,
    ) -> Result<Arc<LoggedInstance>> {
        let Some(ttl) = spec.detached.take() else {
            let message = "must be given: the supervisor creates only detached sandboxes";
            return Err(Error::invalid("detached", message));
        };
        let reuse_key = spec.reuse_key();
        let _reservation = self.table.reserve(spec.name.as_deref())?;
        spec.lifetime = Some(spec.lifetime.map_or(ttl, |lifetime| lifetime.min(ttl)));
        let instance = self.inner.create(call, spec).await?;
        let sandbox = LoggedInstance::new(instance, reuse_key, key, &self.table);
        self.table.insert(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    fn find_by_key(&self, key: &str, tags: &Tags) -> Option<Arc<LoggedInstance>> {
        self.all().into_iter().find(|sandbox| {
            sandbox.is_running() && sandbox.key() == Some(key) && has_tags(&sandbox.info(), tags)
        })
    }

    fn not_found(&self, wanted: &str) -> Error {
        let running = self.all().into_iter().filter(|sandbox| sandbox.is_running());
        let known: Vec<String> = running
            .flat_map(|sandbox| sandbox.name().into_iter().chain([sandbox.local().to_owned()]))
            .collect();
        let similar = suggest(wanted, known.iter().map(String::as_str));
        let hint = match similar.as_slice() {
            [] => NOT_FOUND_HINT.to_owned(),
            similar => format!("similar: {}", similar.join(", ")),
        };
        Error::new(ErrorKind::NotFound, "attach", format!("there is no sandbox {wanted}"))
            .with_context("sandbox_id", wanted)
            .with_hint(hint)
    }
}

fn has_tags(info: &SandboxInfo, tags: &Tags) -> bool {
    tags.iter().all(|(key, value)| info.tags.get(key) == Some(value))
}

#[async_trait]
impl BackendWrapper for SupervisorBackend {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { detached: true, idempotent_create: true, logs: true, ..inner }
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let Some(key) = call.idempotency_key.clone() else {
            return self.create_logged(call, spec, None).await.map(wrap_instance);
        };
        let _lock = self.table.create_lock(&key).await;
        if let Some(sandbox) = self.find_by_key(&key, &spec.tags) {
            return Ok(wrap_instance(sandbox));
        }
        self.create_logged(call, spec, Some(key)).await.map(wrap_instance)
    }

    /// Attaches by id, by name, or by a unique prefix of the id. Running sandboxes take precedence.
    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let (wanted, all) = (id.local(), self.all());
        if let Some(sandbox) = all.iter().find(|sandbox| sandbox.local() == wanted) {
            return Ok(wrap_instance(Arc::clone(sandbox)));
        }
        for running in [true, false] {
            let candidates = all.iter().filter(|sandbox| sandbox.is_running() == running);
            let has_name =
                |sandbox: &&Arc<LoggedInstance>| sandbox.name().as_deref() == Some(wanted);
            if let Some(sandbox) = candidates.clone().find(has_name) {
                return Ok(wrap_instance(Arc::clone(sandbox)));
            }
            let mut matching = candidates.filter(|sandbox| sandbox.local().starts_with(wanted));
            let Some(sandbox) = matching.next() else { continue };
            let others: Vec<_> = matching.map(|sandbox| sandbox.local()).collect();
            if others.is_empty() {
                return Ok(wrap_instance(Arc::clone(sandbox)));
            }
            let ids = [&[sandbox.local()], &others[..]].concat().join(", ");
            return Err(Error::invalid("id", format!("{wanted:?} is ambiguous; it matches {ids}")));
        }
        Err(self.not_found(wanted))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let running = self.all().into_iter().filter(|sandbox| sandbox.is_running());
        let infos =
            running.map(|sandbox| sandbox.info()).filter(|info| has_tags(info, &query.tags));
        Ok(Page::last(infos.collect()))
    }
}
