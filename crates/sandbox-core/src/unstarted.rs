//! A sandbox that has been described and checked, and not started.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::Backend;
use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::error::Result;
use crate::model::{Tags, Variant};
use crate::sandbox::Sandbox;
use crate::spec::CreateSpec;
use crate::tool::Tool;

/// A sandbox that is not started: what [`SandboxBuilder::build`](crate::SandboxBuilder::build) gives. Nothing of it exists yet,
/// so it has no id.
#[must_use = "nothing happens until start()"]
pub struct UnstartedSandbox<S = Sandbox> {
    backend: Arc<dyn Backend>,
    spec: CreateSpec,
    timeout: Duration,
    tools: Vec<Tool>,
    handle: PhantomData<fn() -> S>,
}

impl<S: From<Sandbox>> UnstartedSandbox<S> {
    pub(crate) fn new(backend: Arc<dyn Backend>, spec: CreateSpec, timeout: Duration) -> Self {
        Self { backend, spec, timeout, tools: Vec::new(), handle: PhantomData }
    }

    /// Starts the sandbox. Each call of a clone makes another one.
    ///
    /// # Errors
    /// Whatever keeps the backend from creating it.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn start(self) -> Result<S> {
        let instance = self.backend.create(&CallContext::new(), self.spec.clone()).await?;
        let sandbox = Sandbox::started(self.backend, instance, self.spec, self.timeout);
        for tool in self.tools {
            sandbox.add_tool(tool).await?;
        }
        Ok(sandbox.into())
    }

    /// Returns the variant.
    pub fn variant(&self) -> Variant {
        self.backend.variant()
    }

    /// Returns the capabilities of the backend.
    pub fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    /// Returns the time limit of runs that set none. Default 30 s.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the tags, also called labels.
    pub fn tags(&self) -> Tags {
        self.spec.tags.clone()
    }

    /// Lets code in the sandbox call a function of this program: see [`Sandbox::register_tool`].
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier, or parameters that are no JSON schema.
    pub fn with_tool(mut self, tool: Tool) -> Result<Self> {
        tool.check()?;
        self.tools.retain(|known| known.name != tool.name);
        self.tools.push(tool);
        Ok(self)
    }
}

impl<S> Clone for UnstartedSandbox<S> {
    fn clone(&self) -> Self {
        Self {
            backend: Arc::clone(&self.backend),
            spec: self.spec.clone(),
            timeout: self.timeout,
            tools: self.tools.clone(),
            handle: PhantomData,
        }
    }
}

impl<S> fmt::Debug for UnstartedSandbox<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnstartedSandbox")
            .field("variant", &self.backend.variant())
            .field("timeout", &self.timeout)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}
