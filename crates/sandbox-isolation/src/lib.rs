//! Cells: processes isolated by Linux namespaces.
//!
//! A [`Cell`] has its own processes, files, network, users and limits. A [`CellLauncher`], one small helper process per
//! host process, makes cells; each takes about a millisecond. The host application is never forked and never
//! re-executed: the helper is a static program of a few dozen kilobytes, embedded in this library and run from memory.
//!
//! ```no_run
//! # async fn example() -> Result<(), sandbox_isolation::Error> {
//! use sandbox_isolation::{CellSpec, CellLauncher, SpawnSpec};
//!
//! let launcher = CellLauncher::start().await?;
//! let cell = launcher.cell(&CellSpec::strict()).await?;
//! let process = cell.spawn(SpawnSpec::new(["true"])).await?;
//! assert_eq!(process.wait().await?.status.code(), Some(0));
//! # Ok(())
//! # }
//! ```
//!
//! # Lifetime
//!
//! A cell ends when its last handle is dropped, when it is killed, and when the host process ends for whatever reason.
//! Its processes end with its first process; its files are in memory. Every pending call then fails with
//! [`Error::Closed`]; none hangs.
//!
//! # Requirements
//!
//! Cells work as root, and as any user where unprivileged user namespaces are allowed. [`probe`] tests this by making a
//! cell, and reports what is missing and how to enable it.
#![cfg(target_os = "linux")]

mod async_fd;
mod bpf;
mod cell;
mod cgroup;
mod clock;
mod diagnosis;
mod error;
mod gate;
mod handshake;
mod helper;
mod host_view;
mod launcher;
mod loopback;
mod memfd;
mod memory;
mod mount;
mod namespaces;
pub mod options;
mod pause;
mod pending;
mod plan;
mod policy;
mod private_dir;
mod probe;
mod process;
mod protocol;
mod socket;
mod spec;
mod usage;
mod wire;

pub use cell::{Cell, Confinement, Identity, OutOfMemory};
pub use cgroup::{Enforcer, HostLimits, host_limits};
pub use clock::ProcessClock;
pub use error::{Error, SpawnStage};
pub use gate::GateSockets;
pub use host_view::{Hidden, hidden_configuration, is_of_system, system_binds};
pub use launcher::{CellLauncher, LauncherProcess, Privilege, ProcessSpec};
pub use mount::HostMount;
pub use plan::Plan;
pub use probe::{Layer, Probe, probe};
pub use process::{CellProcess, CheckpointProcess, Exit, ExitStatus, Root, SpawnSpec};
pub use spec::{Bind, CellKind, CellSpec, Resource, Rlimit, UNLIMITED};
pub use usage::Usage;
