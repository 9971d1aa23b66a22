//! The handle with a builder that knows every variant of this build.

use std::ops::Deref;

use sandbox_core::{
    CallContext, IntoVariant, Result, SandboxBuilder, SandboxEnvironment, SandboxId, SandboxInfo,
};

use crate::Registry;

/// A handle to one sandbox, of any variant of this build.
///
/// It adds the constructors; every verb is that of [`sandbox_core::Sandbox`], which it dereferences to.
#[derive(Clone, Debug)]
pub struct Sandbox(sandbox_core::Sandbox);

impl Sandbox {
    /// Begins a sandbox. Without a variant it is `local-eval`.
    pub fn builder() -> SandboxBuilder<Registry> {
        SandboxBuilder::new(Registry::new())
    }

    /// Connects to a running sandbox by its full id, such as `local-docker/9f3a`.
    ///
    /// # Errors
    /// `NotFound`, or `Unsupported` when the variant has no sandboxes that outlive their process.
    pub async fn from_id(id: &str) -> Result<Self> {
        let id: SandboxId = id.parse()?;
        let backend = Registry::new().backend(id.variant())?;
        let instance = backend.attach(&CallContext::new(), &id).await?;
        Ok(sandbox_core::Sandbox::from_instance(backend, instance).into())
    }

    /// Sandboxes of a variant: those of this process, and those that outlive theirs.
    ///
    /// # Errors
    /// Whatever keeps the backend from listing them; never an empty list instead.
    pub async fn list(variant: impl IntoVariant) -> Result<Vec<SandboxInfo>> {
        let backend = Registry::new().backend(variant.into_variant()?)?;
        let call = CallContext::new();
        let mut all = Vec::new();
        let mut query = sandbox_core::ListQuery::default();
        loop {
            let page = backend.list(&call, query.clone()).await?;
            all.extend(page.items);
            match page.next {
                Some(cursor) => query.cursor = Some(cursor),
                None => return Ok(all),
            }
        }
    }

    /// The same as the function [`list_environments`].
    ///
    /// # Errors
    /// Those of the function.
    pub async fn list_environments(variant: impl IntoVariant) -> Result<Vec<SandboxEnvironment>> {
        list_environments(variant).await
    }
}

/// Environments that sandboxes of a variant can be created from.
///
/// # Errors
/// Whatever keeps the backend from listing them; never an empty list instead.
pub async fn list_environments(variant: impl IntoVariant) -> Result<Vec<SandboxEnvironment>> {
    let backend = Registry::new().backend(variant.into_variant()?)?;
    backend.environments(&CallContext::new()).await
}

impl From<sandbox_core::Sandbox> for Sandbox {
    fn from(sandbox: sandbox_core::Sandbox) -> Self {
        Self(sandbox)
    }
}

impl Deref for Sandbox {
    type Target = sandbox_core::Sandbox;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl AsRef<sandbox_core::Sandbox> for Sandbox {
    fn as_ref(&self) -> &sandbox_core::Sandbox {
        &self.0
    }
}
