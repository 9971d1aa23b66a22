//! Starts the helper program, which is embedded and run from memory.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use crate::error::Error;
use crate::memfd;
use crate::spec::CellKind;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-helper"));

/// Starts the helper as a launcher. It inherits this socket, and no other descriptor of the host process.
pub(crate) fn start(socket: OwnedFd, kind: CellKind) -> Result<Child, Error> {
    let file = memfd::executable("sandbox-launcher", PROGRAM)
        .map_err(Error::io("cannot make a memory file for the helper program"))?;
    Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .arg0("sandbox-launcher")
        .args((kind == CellKind::Off).then_some("plain"))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::io("cannot start the helper program"))
}
