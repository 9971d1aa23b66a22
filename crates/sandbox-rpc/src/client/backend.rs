//! [`RemoteBackend`] as a backend.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Health, Instance, ListQuery, Page, Result,
    SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
};

use super::RemoteBackend;
use super::instance::RemoteInstance;
use crate::wire::Listed;
use crate::wire::request::Verb;

#[async_trait]
impl Backend for RemoteBackend {
    fn variant(&self) -> Variant {
        self.variant
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let verb = Verb::Create(Box::new(spec.into()));
        Ok(Arc::new(RemoteInstance::make(&self.client, "create", call, 0, verb).await?))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let verb = Verb::Attach { id: id.to_string() };
        Ok(Arc::new(RemoteInstance::make(&self.client, "attach", call, 0, verb).await?))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let verb = Verb::List(query.into());
        let Listed { items, next } = self.client.value("list", call, 0, verb).await?;
        Ok(Page { items, next })
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        self.client.value("environments", call, 0, Verb::Environments).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.client.value("health", call, 0, Verb::Health).await
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.client.value("list_snapshots", call, 0, Verb::ListSnapshots).await
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let verb = Verb::DeleteSnapshot { name: name.into() };
        self.client.value("delete_snapshot", call, 0, verb).await
    }
}
