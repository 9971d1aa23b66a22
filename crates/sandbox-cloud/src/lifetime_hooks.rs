//! Operations of a sandbox that has ended, or ends meanwhile.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{
    Error, Hooks, Instance, Observer, Operation, OperationEvent, Result, intercept,
};

use crate::remote_lifetime::{Remote, RemoteLifetime};

/// Operations that end a sandbox, and succeed when it has ended.
const ENDS: [&str; 2] = ["kill", "terminate"];

/// Refuses the operations of a sandbox that has ended, and replaces errors that its end is the cause of.
pub fn check_lifetime<R: Remote>(
    instance: Arc<dyn Instance>,
    lifetime: Arc<RemoteLifetime<R>>,
) -> Arc<dyn Instance> {
    intercept(instance, Arc::new(LifetimeHooks(lifetime)))
}

struct LifetimeHooks<R: Remote>(Arc<RemoteLifetime<R>>);

impl<R: Remote> fmt::Debug for LifetimeHooks<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LifetimeHooks").field(&self.0.id()).finish()
    }
}

#[async_trait]
impl<R: Remote> Hooks for LifetimeHooks<R> {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        let is_end = ENDS.contains(&operation.name);
        if !is_end {
            self.0.ensure_running(operation.name)?;
        }
        let lifetime = (!is_end).then(|| Arc::clone(&self.0));
        Ok(Box::new(ErrorMapper { operation: operation.name, lifetime }))
    }
}

struct ErrorMapper<R: Remote> {
    operation: &'static str,
    lifetime: Option<Arc<RemoteLifetime<R>>>,
}

#[async_trait]
impl<R: Remote> Observer for ErrorMapper<R> {
    async fn failed(&mut self, error: Error) -> Error {
        match &self.lifetime {
            Some(lifetime) => lifetime.map_error(self.operation, error).await,
            None => error,
        }
    }

    fn event(&mut self, _event: OperationEvent<'_>) -> Result<()> {
        Ok(())
    }
}
