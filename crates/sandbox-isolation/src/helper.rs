//! The helper program: embedded, and run from memory.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use crate::error::Error;
use crate::memory_file;
use crate::spec::CellKind;

/// Of a thousand: as much as half of the memory of the host.
const OOM_SCORE: i32 = 500;

static PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sandbox-helper"));

/// Starts the helper as a maker, with this socket and nothing else of ours.
pub(crate) fn start(socket: OwnedFd, kind: CellKind) -> Result<Child, Error> {
    let file = memory_file::executable("sandbox-maker", PROGRAM)
        .map_err(Error::io("cannot hold the helper program in memory"))?;
    let child = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .arg0("sandbox-maker")
        .args((kind == CellKind::Off).then_some("plain"))
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(Error::io("cannot start the helper program"))?;
    if kind == CellKind::Strict {
        end_first(child.id());
    }
    Ok(child)
}

/// When the host runs out of memory, what runs in cells is ended before this process and others: as engines do it with
/// containers. It holds for all that the helper starts.
fn end_first(pid: u32) {
    let file = format!("/proc/{pid}/oom_score_adj");
    let now = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if now.is_some_and(|now| now < OOM_SCORE) {
        // Everybody may raise that of a process of their own. Where there is no such file nothing is lost.
        let _ = fs::write(file, OOM_SCORE.to_string());
    }
}
