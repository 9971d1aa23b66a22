//! The handle with a builder that knows every variant of this build.

use std::ops::Deref;
use std::sync::Arc;

use futures_util::future::join_all;
use sandbox_core::{
    Backend, CallContext, Error, ErrorKind, Instance, IntoVariant, ListQuery, Result,
    SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Tags, Variant,
};

use crate::{Registry, SandboxBuilder, manager};

/// A handle to one sandbox, of any variant of this build.
///
/// It adds the constructors; every verb is that of [`sandbox_core::Sandbox`], which it dereferences to.
#[derive(Clone, Debug)]
pub struct Sandbox(sandbox_core::Sandbox);

impl Sandbox {
    /// Makes a sandbox with default settings and starts it: of the variant `local-eval`, with no network, 30 seconds for each
    /// run, and a life of 24 hours at most. For other settings see [`Sandbox::builder`].
    ///
    /// ```
    /// use code_sandboxes::Sandbox;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> code_sandboxes::Result<()> {
    /// let sandbox = Sandbox::create().await?;
    /// assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
    /// sandbox.terminate().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`SandboxBuilder::create`].
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn create() -> Result<Self> {
        Self::builder().create().await
    }

    /// Describes a sandbox. Without a variant it is `local-eval`.
    pub fn builder() -> SandboxBuilder {
        SandboxBuilder::new(Registry::new())
    }

    /// Makes a handle to a sandbox that runs already, such as one that was attached to through layers.
    pub fn from_instance(backend: Arc<dyn Backend>, instance: Arc<dyn Instance>) -> Self {
        sandbox_core::Sandbox::from_instance(backend, instance).into()
    }

    /// Connects to a running sandbox by its full id, such as `local-docker/9f3a`: one that [`Sandbox::list`] shows.
    ///
    /// # Errors
    /// `NotFound`; `Unsupported` for a sandbox of this process, which ends with its handle and is not found again: clone the
    /// handle instead.
    pub async fn from_id(id: &str) -> Result<Self> {
        let id: SandboxId = id.parse()?;
        Self::connect(&id).await
    }

    async fn connect(id: &SandboxId) -> Result<Self> {
        let backend = Registry::new().backend(id.variant())?;
        let instance = backend.attach(&CallContext::new(), id).await?;
        Ok(sandbox_core::Sandbox::from_instance(backend, instance).into())
    }

    /// Connects to a running sandbox by its id, with or without the variant, by a prefix of the id that no other has, or
    /// by its name.
    ///
    /// # Errors
    /// `NotFound`, with similar ids as the hint; `InvalidArgument` for a prefix of several; `Unsupported` when no variant
    /// has sandboxes that outlive their process.
    pub async fn attach(id_or_name: &str) -> Result<Self> {
        if id_or_name.contains('/') {
            return Self::from_id(id_or_name).await;
        }
        let mut refused = None;
        for variant in detachable() {
            let Ok(id) = SandboxId::new(variant, id_or_name) else { continue };
            match Self::connect(&id).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    refused.get_or_insert(error);
                }
                Err(error) if lacks_credentials(&error) => {}
                found => return found,
            }
        }
        if let Some(sandbox) = Self::named(id_or_name).await? {
            return Ok(sandbox);
        }
        Err(refused.unwrap_or_else(|| {
            let message = format!("{id_or_name:?} is no id and no name of a sandbox");
            Error::new(ErrorKind::NotFound, "attach", message)
        }))
    }

    async fn named(name: &str) -> Result<Option<Self>> {
        for variant in detachable() {
            let all = match Self::list_variant(variant).await {
                Err(error) if lacks_credentials(&error) => continue,
                all => all?,
            };
            let found = all.into_iter().find(|info| info.name.as_deref() == Some(name));
            if let Some(info) = found {
                return Self::from_id(&info.id).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Finds a running sandbox with all these tags that outlives its process. The variants of this build are asked at the
    /// same time; of several that have one the first in their order counts, and the oldest sandbox there.
    ///
    /// # Errors
    /// Where none was found and a variant could not be asked: an error that names each such variant with its reason.
    pub async fn find<K: Into<String>, V: Into<String>>(
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Option<Self>> {
        let tags: Tags = tags.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
        let places = detachable().into_iter().map(|variant| Registry::new().backend(variant));
        manager::find(&places.collect::<Result<Vec<_>>>()?, &tags).await
    }

    /// Finds a sandbox with all these tags, or makes one with default settings that lives for 24 hours. For other settings
    /// see [`SandboxBuilder::get_or_create`].
    ///
    /// It is atomic across processes: of several that ask at one time, one makes the sandbox and all get it.
    ///
    /// # Errors
    /// `InvalidArgument` without tags; otherwise as [`SandboxBuilder::create`].
    pub async fn get_or_create<K: Into<String>, V: Into<String>>(
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self> {
        Self::builder().tags(tags).get_or_create().await
    }

    /// Lists the sandboxes of every variant of this build, which are asked at the same time: those of this process, and those
    /// that outlive theirs. A cloud without credentials is left out.
    ///
    /// # Errors
    /// Whatever keeps a backend from listing them; never a part of the list instead. [`Sandbox::list_variant`] asks one alone,
    /// and [`Manager::list_all`](crate::Manager::list_all) gives what there is along with the errors.
    pub async fn list() -> Result<Vec<SandboxInfo>> {
        let available = Registry::new().variants().into_iter().filter(|status| status.available);
        let listed = join_all(available.map(|status| Self::list_variant(status.variant))).await;
        let mut all = Vec::new();
        for sandboxes in listed {
            match sandboxes {
                Ok(sandboxes) => all.extend(sandboxes),
                Err(error) if lacks_credentials(&error) => {}
                // A container engine that is not installed has no sandboxes.
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    /// Lists the sandboxes of a variant: those of this process, and those that outlive theirs.
    ///
    /// # Errors
    /// Whatever keeps the backend from listing them; never an empty list instead.
    pub async fn list_variant(variant: impl IntoVariant) -> Result<Vec<SandboxInfo>> {
        let backend = Registry::new().backend(variant.into_variant()?)?;
        manager::pages(&backend, &CallContext::new(), ListQuery::default()).await
    }

    /// Snapshots of a variant, the oldest first: what [`snapshot_name`](SandboxBuilder::snapshot_name) can name.
    ///
    /// # Errors
    /// `Unsupported` when the variant has none; whatever keeps the backend from listing them.
    pub async fn list_snapshots(variant: impl IntoVariant) -> Result<Vec<SnapshotInfo>> {
        let backend = Registry::new().backend(variant.into_variant()?)?;
        backend.list_snapshots(&CallContext::new()).await
    }

    /// Deletes a snapshot of a variant, by its name or its id. Sandboxes that started from it stay.
    ///
    /// # Errors
    /// `NotFound`, or `Unsupported` when the variant has none.
    pub async fn delete_snapshot(variant: impl IntoVariant, name: &str) -> Result<()> {
        let backend = Registry::new().backend(variant.into_variant()?)?;
        backend.delete_snapshot(&CallContext::new(), name).await
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

/// Returns true when a variant was not asked because it has no credentials. A search of all variants leaves it out.
pub fn lacks_credentials(error: &Error) -> bool {
    error.kind() == ErrorKind::Unauthenticated
        && error.context().iter().any(|(key, value)| *key == "credentials" && value == "none")
}

/// Variants of this build whose sandboxes may outlive their process.
fn detachable() -> Vec<Variant> {
    let registry = Registry::new();
    let can = |variant: &Variant| {
        registry.backend(*variant).is_ok_and(|backend| backend.capabilities().detached)
    };
    let available = registry.variants().into_iter().filter(|status| status.available);
    available.map(|status| status.variant).filter(can).collect()
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
