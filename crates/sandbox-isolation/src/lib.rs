//! Cells: processes isolated by Linux namespaces.
//!
//! A [`Cell`] has its own processes, files, network, users and limits. A [`Maker`], one small
//! helper process per host process, makes cells; each takes about a millisecond. The host
//! application is never forked and never started again: the helper is a static program of a few
//! dozen kilobytes, embedded in this library and run from memory.
//!
//! ```no_run
//! # async fn example() -> Result<(), sandbox_isolation::Error> {
//! use sandbox_isolation::{CellSpec, Maker, SpawnSpec};
//!
//! let maker = Maker::start().await?;
//! let cell = maker.cell(&CellSpec::strict()).await?;
//! let process = cell.spawn(SpawnSpec::new(["true"])).await?;
//! assert_eq!(process.wait().await?.status.code(), Some(0));
//! # Ok(())
//! # }
//! ```
//!
//! # Life
//!
//! A cell ends when its last handle is dropped, when it is killed, and when the host process ends
//! for whatever reason. With its first process everything in it ends; its files were memory.
//! Every pending call then fails with [`Error::Closed`]; none hangs.
//!
//! # Where it works
//!
//! As root, or as any user where unprivileged user namespaces are allowed. [`probe`] finds out by
//! making a cell, and says what is missing and how to get it.
#![cfg(target_os = "linux")]

mod bpf;
mod cell;
mod clock;
mod diagnosis;
mod error;
mod gate;
mod groups;
mod helper;
mod host_view;
mod loopback;
mod maker;
mod memory;
mod memory_file;
mod mount;
mod namespaces;
pub mod options;
mod plan;
mod policy;
mod private;
mod probe;
mod process;
mod protocol;
mod replies;
mod reports;
mod socket;
mod spec;
mod still;
mod usage;
mod watched;
mod wire;

pub use cell::{Cell, Confinement, Identity, OutOfMemory};
pub use clock::ProcessClock;
pub use error::{Error, SpawnStage};
pub use gate::GateSockets;
pub use groups::{Enforcer, HostLimits, host_limits};
pub use host_view::{Hidden, hidden_configuration, is_of_system, system_binds};
pub use maker::{Maker, MakerProcess, Privilege, ProcessSpec};
pub use mount::HostMount;
pub use plan::Plan;
pub use probe::{Layer, Probe, probe};
pub use process::{CellProcess, Exit, ExitStatus, HeldProcess, Root, SpawnSpec};
pub use spec::{Bind, CellKind, CellSpec, Resource, Rlimit, UNLIMITED};
pub use usage::Usage;
