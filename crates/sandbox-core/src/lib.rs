//! The core of Code Sandboxes: models, traits, errors, and the [`Sandbox`] handle.
//!
//! Users hold a [`Sandbox`]; backends implement [`Backend`] and [`Instance`]. This crate brings no runtime, and does no I/O
//! but for transfers of local files.
//!
//! - [`model`](Event): what goes in and out, with stable JSON names.
//! - [`CreateSpec`], [`RunCode`], [`StartCommand`]: what can be asked for, and its checks.
//! - [`Capabilities`]: what a backend can do and enforce. Whatever it cannot enforce is refused before anything starts.
//! - [`Error`]: what failed, whether a retry helps, whether anything happened. Code that fails is a result, not an error.

#![warn(clippy::missing_errors_doc)]

mod backend;
mod builder;
mod call;
mod callbacks;
mod capability;
mod collect;
mod command;
mod commands;
mod compat;
mod directory;
mod error;
mod events;
mod files;
mod get_or_create;
mod hint;
mod hooks;
mod id;
mod instance;
mod json_depth;
mod layer;
mod model;
mod operation_layer;
mod packages;
mod path;
mod request;
mod reuse_key;
mod run;
mod sandbox;
mod script;
mod secret;
mod spec;
pub mod tar;
mod time;
mod tool;
mod transfer;
mod units;
mod unstarted;
mod variables;
mod wrapper;

pub use backend::{Backend, Check, Health};
pub use builder::{BackendResolver, IntoBackend, SandboxBuilder, SingleBackend};
pub use call::CallContext;
pub use callbacks::{Callbacks, NoCallbacks};
pub use capability::Capabilities;
pub use collect::{CollectedEvent, KEEP_EACH_END, ResultCollector, StreamCollector, Utf8Decoder};
pub use command::{
    Command, CommandControl, CommandEvent, CommandEvents, CommandInfo, CommandOutcome,
};
pub use commands::{CommandBuilder, Commands};
pub use directory::{check_directory, resolve_directory};
pub use error::{Effect, Error, ErrorKind, Result, Retry};
pub use events::{Lines, RunEvents};
pub use files::{Files, MAX_READ_SIZE};
pub use get_or_create::DEFAULT_DETACHED;
pub use hint::with_flags;
pub use hooks::{
    Hooks, Observer, Operation, OperationEvent, OperationRequest, intercept, intercept_backend,
};
pub use id::{SandboxId, new_run_id, random_hex};
pub use instance::{
    CodeOps, CommandOps, EventStream, FileOps, Instance, Life, LogStream, Metrics, PackageOps,
    PortOps, SnapshotOps, TunnelInfo, WatchStream,
};
pub use layer::Layer;
pub use model::variant::IntoVariant;
pub use model::{
    CodeError, CommandResult, Context, Cost, DenialReason, DisplayKind, Event, EventKind,
    ExecutionResult, Failure, FailureKind, FileInfo, FileKind, Finding, GpuType, HostPattern,
    InterpreterState, IsolationInfo, Logs, MimeType, Mount, NetworkDenial, NetworkMode,
    NetworkPolicy, OutputMessage, OutputStream, ResourceConfig, ResultItem, RunError, RunOutcome,
    SandboxEnvironment, SandboxInfo, SandboxStatus, SnapshotInfo, StreamTotals, Tags, Usage,
    Variant, WatchEvent, WatchEventKind,
};
pub use operation_layer::OperationLayer;
pub use request::{
    ByteRange, ByteStream, CodeMode, CommandSpec, ContextSpec, FindFiles, FoundFile,
    InstallPackages, ListQuery, Page, PtySize, RunCode, StartCommand, Stdin, WriteOptions,
    check_context_id,
};
pub use reuse_key::{EPHEMERAL, REUSE_KEY};
pub use run::RunCodeBuilder;
pub use sandbox::{DEFAULT_TIMEOUT, Sandbox};
pub use secret::Secret;
pub use spec::{CreateSpec, IsolationMode, SandboxConfig, SingleUse, check_env, check_path};
pub use time::{system_time, unix_now};
pub use tool::{Tool, ToolFunction, ToolResult};
pub use transfer::{Progress, Transfer, Transferred, wait_for_transfers};
pub use units::{
    ByteSize, IntoByteSize, IntoDuration, MAX_DURATION, check_duration, check_lifetime,
    format_duration, parse_duration, seconds,
};
pub use unstarted::UnstartedSandbox;
pub use variables::{clear_variable, set_variable, variable};
pub use wrapper::{BackendWrapper, InstanceWrapper, wrap_backend, wrap_instance};
