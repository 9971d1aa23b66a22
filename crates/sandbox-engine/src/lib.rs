//! What a sandbox on any host is made of.
//!
//! A backend brings a [`ProcessHost`](host::ProcessHost), which starts processes, and [`FileSystem`](host::FileSystem). On top of them
//! are [`interpreter`] (contexts and runs), [`commands`], packages, snapshots and the end of a sandbox's life. [`SandboxBase`] is
//! a box with all of that but code; a [`StandardInstance`] is one with interpreters, and every verb of a sandbox, to which a
//! backend adds what its [`InstanceHooks`] does otherwise.
//!
//! Code runs in a *worker*, a process that executes code and does nothing else: [`Request`] and [`Reply`] are what is spoken
//! with one.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempts;
mod background;
mod base;
pub mod cache;
mod cache_directory;
pub mod checks;
pub mod commands;
pub mod environment;
mod expiry;
mod file_verbs;
pub mod files;
mod hold;
pub mod host;
pub mod host_files;
mod instance;
pub mod interpreter;
mod lookout;
mod made;
pub mod message;
pub mod network;
mod packages;
mod ports;
pub mod programs;
mod snapshots;
mod spares;
pub mod system_packages;
mod tree_limit;
pub mod wire;

pub use attempts::Attempts;
pub use background::background;
pub use base::{Closing, Files, SandboxBase, SandboxBaseSpec, SandboxMetadata, Using};
pub use cache_directory::cache_directory;
pub use expiry::{ActivityGuard, ActivityTracker, Expiry};
pub use hold::{pause_context, pause_contexts};
pub use instance::{InstanceHooks, StandardInstance};
pub use made::Made;
pub use message::{
    DisplayKind, Encoding, FailureKind, MimeData, PROTOCOL_VERSION, Reply, Request, Run, RunMode,
};
pub use packages::{Packages, is_option as is_pip_option, pip_options};
pub use ports::{Connection, Ports, Servers, check_port, on_loopback};
pub use snapshots::{
    Draft, EngineImage, LARGEST as LARGEST_SNAPSHOT, STATE_DIRECTORY_VARIABLE, SnapshotStore,
    Snapshots, Stored, StoredContext, check_snapshot_name,
};
pub use spares::{PrewarmPool, is_prewarmable};
pub use wire::{Frame, FrameReader, WireError};
