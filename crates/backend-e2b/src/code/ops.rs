//! The verbs of code, as requests of the code interpreter.

use async_trait::async_trait;
use sandbox_core::{
    CallContext, CodeOps, Context, ContextSpec, EventStream, Result, RunCode, Tool,
};
use serde_json::{Map, Value};

use super::CodeContexts;
use crate::error::unsupported;

#[async_trait]
impl CodeOps for CodeContexts {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        self.run(call, request).await
    }

    async fn create_context(&self, _: &CallContext, spec: ContextSpec) -> Result<Context> {
        self.create(spec).await
    }

    async fn list_contexts(&self, _: &CallContext) -> Result<Vec<Context>> {
        self.list().await
    }

    async fn restart_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.restart("restart_context", id).await
    }

    async fn delete_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.delete(id).await
    }

    async fn get_variable(&self, _: &CallContext, id: Option<&str>, name: &str) -> Result<Value> {
        self.read_variable(id, name).await
    }

    async fn set_variables(
        &self,
        _: &CallContext,
        id: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.write_variables(id, values).await
    }

    fn is_executing(&self, id: Option<&str>) -> bool {
        self.has_run(id)
    }

    async fn interrupt(&self, _: &CallContext, id: Option<&str>) -> Result<bool> {
        self.stop(id).await
    }

    async fn register_tool(&self, _: &CallContext, _: Tool) -> Result<()> {
        Err(unsupported("register_tool"))
    }
}
