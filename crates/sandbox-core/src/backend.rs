//! The contract of a backend.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::error::Result;
use crate::id::SandboxId;
use crate::instance::Instance;
use crate::model::{SandboxEnvironment, SandboxInfo, SnapshotInfo, Variant};
use crate::request::{ListQuery, Page};
use crate::spec::CreateSpec;

/// A source of sandboxes. Users hold [`Sandbox`](crate::Sandbox) instead.
///
/// Every method is required, so that a wrapper cannot forget one. A verb that is not declared in
/// [`Backend::capabilities`] answers [`ErrorKind::Unsupported`](crate::ErrorKind) without an effect.
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// The variant this backend is.
    fn variant(&self) -> Variant;

    /// Returns what this stack can do and enforce.
    fn capabilities(&self) -> Capabilities;

    /// Makes a sandbox and waits until it can run code.
    ///
    /// The spec is validated and checked against the capabilities by the caller.
    /// An attached sandbox lives as long as the returned instance.
    ///
    /// # Errors
    /// `InvalidArgument` for options that the backend does not know, `Unsupported` for what it cannot enforce after all,
    /// `IsolationUnavailable` when the host lacks what the isolation needs, `NotFound` for an environment or an image,
    /// and whatever keeps the place from being reached.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>>;

    /// Connects to a running sandbox. Requires `detached`.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id; `Unsupported` when sandboxes do not outlive their process.
    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>>;

    /// Lists sandboxes, one page at a time.
    ///
    /// # Errors
    /// Whatever keeps it from listing; never an empty page instead.
    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>>;

    /// Environments that a sandbox can be created from.
    ///
    /// # Errors
    /// Whatever keeps it from listing; never an empty list instead.
    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>>;

    /// Checks whether sandboxes can be created here and now, and if not, says what to do.
    ///
    /// # Errors
    /// Only what keeps it from looking. That nothing works is a [`Health`] with `usable` false.
    async fn health(&self, call: &CallContext) -> Result<Health>;

    /// Stored snapshots. Requires `snapshot`.
    ///
    /// # Errors
    /// `Unsupported` without `snapshot`; whatever keeps it from listing.
    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>>;

    /// Deletes a snapshot by name or id. Requires `snapshot`.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name; `Unsupported` without `snapshot`.
    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()>;
}

/// The health of a backend, as `doctor` shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Health {
    /// True when a sandbox with default settings can be created.
    pub usable: bool,
    /// One line: what was found, or what is missing.
    pub detail: String,
    /// The command or setting that fixes it.
    pub fix: Option<String>,
    /// Single checks by name.
    pub checks: Vec<Check>,
}

/// One check of [`Health`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Check {
    /// The name of the check.
    pub name: String,
    /// True when the check passed.
    pub ok: bool,
    /// The finding.
    pub detail: String,
    /// The command or setting that fixes it.
    pub fix: Option<String>,
}
