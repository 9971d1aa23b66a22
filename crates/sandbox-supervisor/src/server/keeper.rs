//! A backend whose sandboxes stay in the ledger until they end.

use std::sync::Arc;

use crate::client::NOT_FOUND_HINT;
use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Instance,
    InstanceWrapper as _, Layer, ListQuery, Page, Result, SandboxId, SandboxInfo, Tags,
    wrap_backend, wrap_instance,
};

use super::kept::Kept;
use super::ledger::Ledger;
use super::similar::similar;

/// Keeps the sandboxes of a backend in a ledger until they end, and writes down what is run in them.
#[derive(Clone, Debug)]
pub(super) struct KeepLayer(pub(super) Arc<Ledger>);

impl Layer for KeepLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        wrap_backend(Arc::new(Keeper { inner, ledger: Arc::clone(&self.0) }))
    }
}

/// The sandboxes of one variant.
#[derive(Debug)]
struct Keeper {
    inner: Arc<dyn Backend>,
    ledger: Arc<Ledger>,
}

impl Keeper {
    fn all(&self) -> Vec<Arc<Kept>> {
        let mut all = self.ledger.all();
        all.retain(|kept| kept.variant() == self.inner.variant());
        all
    }

    async fn make(
        &self,
        call: &CallContext,
        mut spec: CreateSpec,
        key: Option<String>,
    ) -> Result<Arc<Kept>> {
        let Some(ttl) = spec.detached.take() else {
            let message = "must be given: nothing else is made here";
            return Err(Error::invalid("detached", message));
        };
        let terms = spec.reuse_key();
        let _creating = self.ledger.creating(spec.name.as_deref())?;
        spec.lifetime = Some(spec.lifetime.map_or(ttl, |lifetime| lifetime.min(ttl)));
        let instance = self.inner.create(call, spec).await?;
        let kept = Kept::new(instance, terms, key, &self.ledger);
        self.ledger.keep(Arc::clone(&kept));
        Ok(kept)
    }

    fn made_with(&self, key: &str, tags: &Tags) -> Option<Arc<Kept>> {
        self.all().into_iter().find(|kept| {
            kept.is_running() && kept.key() == Some(key) && has_tags(&kept.info(), tags)
        })
    }

    fn not_found(&self, wanted: &str) -> Error {
        let running = self.all().into_iter().filter(|kept| kept.is_running());
        let known: Vec<String> = running
            .flat_map(|kept| kept.name().into_iter().chain([kept.local().to_owned()]))
            .collect();
        let close = similar(wanted, known.iter().map(String::as_str));
        let hint = match close.as_slice() {
            [] => NOT_FOUND_HINT.to_owned(),
            close => format!("similar: {}", close.join(", ")),
        };
        Error::new(ErrorKind::NotFound, "attach", format!("no sandbox {wanted}"))
            .with_context("sandbox_id", wanted)
            .with_hint(hint)
    }
}

fn has_tags(info: &SandboxInfo, tags: &Tags) -> bool {
    tags.iter().all(|(key, value)| info.tags.get(key) == Some(value))
}

#[async_trait]
impl BackendWrapper for Keeper {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        let inner = self.inner.capabilities();
        Capabilities { detached: true, idempotent_create: true, logs: true, ..inner }
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let Some(key) = call.idempotency_key.clone() else {
            return self.make(call, spec, None).await.map(wrap_instance);
        };
        let _turn = self.ledger.turn(&key).await;
        if let Some(kept) = self.made_with(&key, &spec.tags) {
            return Ok(wrap_instance(kept));
        }
        self.make(call, spec, Some(key)).await.map(wrap_instance)
    }

    /// By id, by name, or by a prefix of the id that only one has. Those that run come first.
    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let (wanted, all) = (id.local(), self.all());
        if let Some(kept) = all.iter().find(|kept| kept.local() == wanted) {
            return Ok(wrap_instance(Arc::clone(kept)));
        }
        for running in [true, false] {
            let mut some = all.iter().filter(|kept| kept.is_running() == running);
            if let Some(kept) = some.clone().find(|kept| kept.name().as_deref() == Some(wanted)) {
                return Ok(wrap_instance(Arc::clone(kept)));
            }
            let Some(kept) = some.find(|kept| kept.local().starts_with(wanted)) else { continue };
            let others: Vec<_> = some
                .filter(|kept| kept.local().starts_with(wanted))
                .map(|kept| kept.local())
                .collect();
            if others.is_empty() {
                return Ok(wrap_instance(Arc::clone(kept)));
            }
            let ids = [&[kept.local()], &others[..]].concat().join(", ");
            return Err(Error::invalid("id", format!("{wanted:?} is the beginning of {ids}")));
        }
        Err(self.not_found(wanted))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let running = self.all().into_iter().filter(|kept| kept.is_running());
        let infos = running.map(|kept| kept.info()).filter(|info| has_tags(info, &query.tags));
        Ok(Page::last(infos.collect()))
    }
}
