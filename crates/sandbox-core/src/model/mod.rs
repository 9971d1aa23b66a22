//! Plain data that goes in and out of a sandbox, with stable JSON names.

mod denial;
mod environment;
mod event;
mod file;
mod finding;
mod gpu;
mod info;
mod mime;
mod mount;
mod network;
mod output;
mod result;
pub(crate) mod variant;

pub use denial::{DenialReason, NetworkDenial};
pub use environment::SandboxEnvironment;
pub use event::{DisplayKind, Event, EventKind, RunOutcome};
pub use file::{FileInfo, FileKind, WatchEvent, WatchEventKind};
pub use finding::Finding;
pub use gpu::GpuType;
pub use info::{
    Context, Cost, IsolationInfo, ResourceConfig, SandboxInfo, SandboxStatus, SnapshotInfo, Tags,
};
pub use mime::MimeType;
pub use mount::Mount;
pub(crate) use mount::check_mounts;
pub use network::{HostPattern, NetworkMode, NetworkPolicy};
pub use output::{Logs, OutputMessage, OutputStream, StreamTotals};
pub use result::{
    CodeError, CommandResult, ExecutionResult, Failure, FailureKind, InterpreterState, ResultItem,
    RunError, Usage,
};
pub use variant::Variant;
