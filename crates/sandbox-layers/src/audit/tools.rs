//! Calls of functions of the host by code, in the log.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{
    Backend, BackendWrapper, CallContext, CreateSpec, Error, ErrorKind, Instance, InstanceWrapper,
    Observer as _, OperationEvent, Result, SandboxId, Tool, ToolFunction, wrap_instance,
};
use serde_json::{Map, Value};

use super::{AuditLayer, TOOL_CALL, noted};

/// A backend or a sandbox whose tools are noted when they are called.
#[derive(Debug)]
pub(super) struct ToolAudit<T: ?Sized> {
    inner: Arc<T>,
    layer: AuditLayer,
}

impl ToolAudit<dyn Backend> {
    pub(super) fn new(inner: Arc<dyn Backend>, layer: AuditLayer) -> Self {
        Self { inner, layer }
    }
}

impl<T: ?Sized> ToolAudit<T> {
    fn wrap(&self, inner: Arc<dyn Instance>) -> Arc<dyn Instance> {
        wrap_instance(Arc::new(ToolAudit { inner, layer: self.layer.clone() }))
    }
}

#[async_trait]
impl BackendWrapper for ToolAudit<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        self.inner.create(call, spec).await.map(|made| self.wrap(made))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.inner.attach(call, id).await.map(|found| self.wrap(found))
    }
}

#[async_trait]
impl InstanceWrapper for ToolAudit<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        self.inner.life().fork(call).await.map(|copy| self.wrap(copy))
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        let tool = noting(tool, self.inner.info().id, self.layer.clone());
        self.inner.code()?.register_tool(call, tool).await
    }
}

/// Puts the lines of the log around each call of a tool.
fn noting(tool: Tool, sandbox: String, layer: AuditLayer) -> Tool {
    let (name, function) = (tool.name.clone(), Arc::clone(&tool.call));
    let call: ToolFunction = Arc::new(move |arguments: Map<String, Value>| {
        let (name, function) = (name.clone(), Arc::clone(&function));
        let (sandbox, layer) = (sandbox.clone(), layer.clone());
        Box::pin(async move {
            let content = layer.log.policy.content;
            let text = Value::Object(arguments.clone()).to_string();
            let mut request = Map::new();
            request.insert("tool".to_owned(), name.into());
            request.insert("arguments".to_owned(), noted(text.as_bytes(), content));
            let begun = layer.begin(TOOL_CALL, Some(sandbox), None, request, false).await;
            let mut noting = begun.map_err(|error| error.to_string())?;
            let answer = function(arguments).await;
            match &answer {
                Ok(value) => {
                    noting.content.take(value.to_string().as_bytes(), content);
                    // It has happened, so there is nothing to refuse.
                    let _ = noting.event(OperationEvent::Succeeded);
                }
                Err(message) => {
                    let error = Error::new(ErrorKind::Unexpected, TOOL_CALL, message.clone());
                    let _ = noting.failed(error).await;
                }
            }
            answer
        })
    });
    Tool { call, ..tool }
}
