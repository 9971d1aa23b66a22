//! Operations of a sandbox that is paused: refused, instead of the service's answer that there is no such sandbox.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cloud::Remote as _;
use sandbox_core::{
    Error, Hooks, Instance, Observer, Operation, OperationEvent, Result, intercept,
};

use crate::remote::SandboxHandle;

/// Operations that a paused sandbox has.
const ALLOWED: [&str; 6] = ["kill", "terminate", "pause", "resume", "set_lifetime", "logs"];

/// Refuses the other operations while the sandbox is paused.
pub(crate) fn check_awake(
    instance: Arc<dyn Instance>,
    handle: Arc<SandboxHandle>,
) -> Arc<dyn Instance> {
    intercept(instance, Arc::new(AwakeHooks(handle)))
}

struct AwakeHooks(Arc<SandboxHandle>);

impl fmt::Debug for AwakeHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AwakeHooks").field(&self.0.id()).finish()
    }
}

#[async_trait]
impl Hooks for AwakeHooks {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        if self.0.is_paused() && !ALLOWED.contains(&operation.name) {
            // Another handle may have resumed the sandbox.
            self.0.check().await;
            self.0.ensure_awake(operation.name)?;
        }
        Ok(Box::new(Unchanged))
    }
}

struct Unchanged;

#[async_trait]
impl Observer for Unchanged {
    async fn failed(&mut self, error: Error) -> Error {
        error
    }

    fn event(&mut self, _event: OperationEvent<'_>) -> Result<()> {
        Ok(())
    }
}
