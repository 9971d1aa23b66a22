//! Facts about a sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::mount::Mount;
use super::variant::Variant;
use crate::id::SandboxId;
use crate::spec::IsolationMode;
use crate::time::{system_time, unix_now};
use crate::units::MAX_DURATION;

/// Tags of a sandbox, also called labels. Keys and values are free text without NUL: at most 256 of them, with keys of at most
/// 256 bytes and values of at most 4,096.
pub type Tags = BTreeMap<String, String>;

/// The status of a sandbox.
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
    /// Returns true when the sandbox has ended or is broken: nothing will run in it again.
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

impl fmt::Display for SandboxStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Limits of a sandbox that hold, those of its backend included. `None`: there is no such limit, or the backend does not know it.
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

/// The isolation of a sandbox, as it is in effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IsolationInfo {
    /// The mode that was asked for, and holds.
    pub mode: IsolationMode,
    /// The boundary around the code: `process`, `cell`, `container`, `microvm`; `jupyter-server` and `remote` where the
    /// other side decides it.
    pub boundary: String,
    /// Layers in force, such as `user-namespace`.
    pub layers: Vec<String>,
    /// The network policy, in words.
    pub network: String,
}

/// A sandbox, as listings show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxInfo {
    /// Full id, `<variant>/<id>`.
    pub id: String,
    /// Its variant.
    pub variant: Variant,
    /// The status.
    pub status: SandboxStatus,
    /// Unix seconds.
    pub created_at: f64,
    /// Time of expiry, unix seconds.
    pub end_at: Option<f64>,
    /// Its name.
    pub name: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: Tags,
    /// Limits that hold. `None`: the backend knows none.
    pub resources: Option<ResourceConfig>,
    /// The isolation in effect.
    pub isolation: Option<IsolationInfo>,
    /// Files of the host that are mounted.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    /// Backend-specific facts. Never a secret.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

impl SandboxInfo {
    /// Describes a sandbox that runs from now on, and of which nothing else is known yet.
    pub fn new(id: &SandboxId) -> Self {
        Self {
            id: id.to_string(),
            variant: id.variant(),
            status: SandboxStatus::Running,
            created_at: unix_now(),
            end_at: None,
            name: None,
            tags: Tags::new(),
            resources: None,
            isolation: None,
            mounts: Vec::new(),
            metadata: Map::new(),
        }
    }

    /// Returns the time until it expires; zero when that time has passed.
    pub fn remaining_time(&self) -> Option<Duration> {
        let left = self.end_at? - unix_now();
        Some(Duration::try_from_secs_f64(left.max(0.0)).unwrap_or(MAX_DURATION))
    }

    /// Returns what it costs, from the facts of a provider that tells its price. `None` where none is told.
    pub fn cost(&self) -> Option<Cost> {
        let fact = |name: &str| self.metadata.get(name).and_then(Value::as_f64);
        Some(Cost { credits: fact("credits_used")?, per_second: fact("credits_per_second")? })
    }

    /// Returns the time of creation, of which the field `created_at` has the unix seconds.
    pub fn created_at(&self) -> SystemTime {
        system_time(self.created_at)
    }

    /// Returns the time of expiry, of which the field `end_at` has the unix seconds.
    pub fn end_at(&self) -> Option<SystemTime> {
        self.end_at.map(system_time)
    }
}

/// What a sandbox costs, in credits of its provider.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Credits that it has used up to now.
    pub credits: f64,
    /// Credits that it uses in a second.
    pub per_second: f64,
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
    /// Parts of the sandbox that the snapshot does not carry, or carries changed, in words.
    pub left_out: Vec<String>,
}
