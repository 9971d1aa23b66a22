//! What is known about a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::mount::Mount;
use super::variant::Variant;
use crate::spec::IsolationMode;
use crate::time::unix_now;

/// Tags of a sandbox, also called labels. Keys and values are free text without NUL: at most 256 of them, with keys of at most
/// 256 bytes and values of at most 4,096.
pub type Tags = BTreeMap<String, String>;

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum SandboxStatus {
    /// Asked for, not there yet.
    Pending,
    /// Being made.
    Starting,
    /// Ready.
    #[default]
    Running,
    /// Held; resumes with its state.
    Paused,
    /// Going away.
    Stopping,
    /// Stopped; a handle may start it again without its state.
    Stopped,
    /// Broken.
    Error,
    /// Gone for good.
    Terminated,
}

impl SandboxStatus {
    /// Whether it is gone or broken: nothing will run in it any more.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Terminated | Self::Error)
    }

    /// The wire name, such as `running`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Error => "error",
            Self::Terminated => "terminated",
        }
    }
}

/// Resources a sandbox was given. `None`: no limit was set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceConfig {
    /// CPU cores.
    pub cpu: Option<f64>,
    /// Memory in MB (2^20 bytes).
    pub memory: Option<u64>,
    /// GPU type.
    pub gpu: Option<String>,
    /// Number of GPUs.
    pub gpu_count: u32,
    /// Disk in GB (2^30 bytes).
    pub disk: Option<f64>,
}

/// What keeps the code in, as this sandbox has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IsolationInfo {
    /// The mode that was asked for, and holds.
    pub mode: IsolationMode,
    /// What encloses the code: `process`, `cell`, `container`, `microvm`; `jupyter-server` and `remote` where somebody else
    /// decides that.
    pub boundary: String,
    /// Layers in force, such as `user-namespace`.
    pub layers: Vec<String>,
    /// What the network allows.
    pub network: String,
}

/// A sandbox, as listings show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Full id, `<variant>/<id>`.
    pub id: String,
    /// Its variant.
    pub variant: Variant,
    /// Where it is in its life.
    pub status: SandboxStatus,
    /// Unix seconds.
    pub created_at: f64,
    /// When it expires, unix seconds.
    pub end_at: Option<f64>,
    /// Its name.
    pub name: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: Tags,
    /// Resources it was given.
    pub resources: Option<ResourceConfig>,
    /// What keeps the code in.
    pub isolation: Option<IsolationInfo>,
    /// What it is given of the host.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Backend-specific facts. Never a secret.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl SandboxInfo {
    /// Seconds until it expires.
    pub fn remaining_time(&self) -> Option<f64> {
        self.end_at.map(|end| (end - unix_now()).max(0.0))
    }
}

/// An execution context: an interpreter process with variables, working directory and environment of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// Its id, unique in its sandbox. `default` is always there.
    pub id: String,
    /// Its language.
    pub language: String,
    /// Its working directory when it started.
    pub cwd: Option<String>,
    /// Environment added for it.
    pub env: BTreeMap<String, String>,
}

/// A stored state that sandboxes can start from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: String,
    /// The name to give at create.
    pub name: String,
    /// The sandbox it was taken of.
    pub sandbox_id: String,
    /// Unix seconds.
    pub created_at: f64,
    /// Bytes of its files as they are stored.
    pub size: u64,
    /// Free text.
    pub description: String,
    /// Directories whose files it has. Every sandbox can start from them.
    pub directories: Vec<String>,
    /// Contexts whose interpreters it has, with their variables. Only the sandbox that it was taken of can have them back,
    /// and only while it lives; after that there are none.
    pub contexts: Vec<String>,
    /// Contexts whose variables are stored with its files. Every sandbox can start from them, in new interpreters.
    pub variables: Vec<String>,
    /// What it does not have of what was there, and what it has not as it was, in words.
    pub left_out: Vec<String>,
}
