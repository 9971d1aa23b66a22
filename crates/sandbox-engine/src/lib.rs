//! What a sandbox on any host is made of.
//!
//! A backend brings a [`ProcessHost`](host::ProcessHost), which starts processes, and a [`FileSystem`](host::FileSystem).
//! On top of them are [`interpreter`] (contexts and runs), [`commands`], packages, snapshots and the end of a sandbox's
//! life. [`SandboxBase`] is a sandbox without interpreters; a [`StandardInstance`] has interpreters and every verb of a
//! sandbox, which a backend changes with [`InstanceHooks`].
//!
//! Code runs in a *worker*, a process that executes code and does nothing else. [`Request`] and [`Reply`] are the
//! messages between host and worker.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempts;
pub mod background_runtime;
mod base;
pub mod checkpoint_slot;
pub mod checks;
mod chunk_queue;
pub mod commands;
mod denial_report;
pub mod environment;
mod expiry;
mod file_verbs;
pub mod files;
pub mod host;
pub mod host_files;
mod instance;
mod instances;
pub mod interpreter;
pub mod message;
pub mod network;
mod packages;
mod pause;
mod ports;
mod prewarm;
pub mod process;
pub mod programs;
mod snapshots;
pub mod system_packages;
mod tree_limit;
pub mod wire;

pub use attempts::Attempts;
pub use background_runtime::background;
pub use base::{
    ClosedSignal, Files, KeepAliveStream, SandboxBase, SandboxBaseSpec, SandboxMetadata,
};
pub use chunk_queue::ChunkQueue;
pub use expiry::{ActivityGuard, ActivityTracker, Expiry};
pub use instance::{InstanceHooks, StandardInstance};
pub use instances::InstanceRegistry;
pub use message::{
    Encoding, MimeData, PROTOCOL_VERSION, Reply, Request, Run, RunMode, WireDisplayKind,
    WireFailureKind,
};
pub use packages::{Packages, is_option as is_pip_option, pip_options};
pub use pause::{pause_context, pause_contexts};
pub use ports::{Connection, Ports, Servers, check_port, on_loopback};
pub use prewarm::{PrewarmPool, is_prewarmable};
pub use snapshots::{
    EngineImage, MAX_SNAPSHOT_SIZE, STATE_DIRECTORY_VARIABLE, SnapshotCatalog, SnapshotStore,
    SnapshotWriter, Snapshots, StoredContext, StoredSnapshot, check_snapshot_name,
};
pub use wire::{Frame, FrameReader, WireError};
