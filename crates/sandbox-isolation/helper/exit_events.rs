//! Reports starts and exits of processes to the host.

use crate::gate;
use crate::protocol::{from_cell, stage};
use crate::roots::{Phase, Root, Roots};
use crate::spawn::Refusal;
use crate::subreaper::{self, Report};
use crate::sys::{self, EAGAIN, EINTR, ESRCH, Errno, Result};
use crate::wire::{Packet, Reader};

/// Descriptor of the socket in the first process of a cell.
pub const CONTROL: i32 = 3;

/// Reads the reports of a starting process or a subreaper. `last` means that no further report can follow.
pub fn read_pipe(roots: &mut Roots, index: usize, strict: bool, last: bool) {
    while roots.at(index).pipe != 0 {
        let more =
            if strict { read_start(roots, index, last) } else { read_subreaper(roots, index) };
        if !more {
            return;
        }
    }
}

/// Reads the reports of a starting process: its tag, then a refusal, or the end of the stream when the program starts.
fn read_start(roots: &mut Roots, index: usize, last: bool) -> bool {
    let root = roots.at(index);
    let mut bytes = [0_u8; 8];
    let wanted = if root.tag == 0 { 4 } else { 8 };
    match sys::read(root.pipe, &mut bytes[..wanted]) {
        Ok(4) if wanted == 4 => {
            give_tag(roots, index, u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
            true
        }
        Ok(8) => {
            let mut reader = Reader::new(&bytes);
            let errno = Errno(reader.u32().unwrap_or(0) as i32);
            let refusal = Refusal { errno, stage: reader.u32().unwrap_or(0) };
            let _ = send_refusal(root.id, &refusal);
            roots.remove(index);
            false
        }
        Err(EAGAIN | EINTR) if !last => false,
        _ => {
            root.close_pipe();
            if root.tag == 0 {
                // The process was killed before its first report.
                let _ = send_refusal(root.id, &Refusal { stage: stage::PREPARE, errno: ESRCH });
                roots.remove(index);
            } else {
                root.phase = Phase::Running;
                root.program = root.pid;
                send_started(root.id, root.pid);
            }
            false
        }
    }
}

/// Notes the tag of a starting process. Roots that had it before have ended with their trees.
fn give_tag(roots: &mut Roots, index: usize, tag: u32) {
    let starting = |root: &Root| root.phase == Phase::Starting && root.tag == tag;
    while let Some(ended) = roots.find(starting) {
        // Its last report is there, and is not read without its tag.
        read_pipe(roots, ended, true, true);
    }
    roots.retire_tag(tag);
    roots.at(index).tag = tag;
}

/// Reads what has come from processes that start, so that the tags of all that run their programs are known.
pub fn read_starts(roots: &mut Roots, strict: bool) {
    for index in roots.indices() {
        if roots.get(index).phase == Phase::Starting {
            read_pipe(roots, index, strict, false);
        }
    }
}

fn read_subreaper(roots: &mut Roots, index: usize) -> bool {
    let root = roots.at(index);
    match subreaper::read_report(root.pipe) {
        Ok(Report::Started { pid }) => {
            root.phase = Phase::Running;
            root.program = pid;
            send_started(root.id, pid);
            true
        }
        Ok(Report::Refused(refusal)) => {
            let _ = send_refusal(root.id, &refusal);
            roots.remove(index);
            false
        }
        Ok(Report::Exited { status, user_us, system_us, peak_kib }) => {
            root.program = 0;
            send_exited(root.id, status, [user_us, system_us, peak_kib]);
            true
        }
        Err(EAGAIN) => false,
        _ => {
            root.close_pipe();
            // The tree below the subreaper is gone, or the subreaper was killed: report either.
            if root.phase == Phase::Starting {
                let _ = send_refusal(root.id, &Refusal { stage: stage::FORK, errno: ESRCH });
            } else if root.program != 0 {
                let _ = sys::kill(root.program, sys::SIGKILL);
                send_exited(root.id, sys::SIGKILL, [0; 3]);
            }
            root.program = 0;
            root.phase = Phase::Dead;
            if root.forgotten {
                roots.remove(index);
            }
            false
        }
    }
}

/// Reaps all dead children, and reports those that are roots to the host.
pub fn reap(roots: &mut Roots, strict: bool) {
    while let Ok(Some(death)) = sys::wait(sys::WNOHANG) {
        let Some(index) = roots
            .find(|root| root.pid == death.pid && root.phase != Phase::Dead && !root.is_adopted())
        else {
            continue;
        };
        read_pipe(roots, index, strict, true);
        let root = roots.at(index);
        if strict && root.phase == Phase::Running {
            root.phase = Phase::Dead;
            send_exited(root.id, death.status, [death.user_us, death.system_us, death.peak_kib]);
        }
    }
}

fn send_started(id: u32, pid: i32) {
    let mut packet = Packet::new(from_cell::STARTED);
    let _ = packet.u32(id).u32(pid as u32).send(CONTROL, None);
}

fn send_exited(id: u32, status: i32, usage: [u64; 3]) {
    let mut packet = Packet::new(from_cell::EXITED);
    packet.u32(id).u32(status as u32).u64(usage[0]).u64(usage[1]).u64(usage[2]);
    let _ = packet.send(CONTROL, None);
}

pub fn send_refusal(id: u32, refusal: &Refusal) -> Result<()> {
    let mut packet = Packet::new(from_cell::SPAWN_FAILED);
    packet.u32(id).errno(refusal.errno).u32(refusal.stage).send(CONTROL, None).map(drop)
}

pub fn answer(request: u32, outcome: Result<u32>) -> Result<()> {
    let (errno, value) = outcome.map_or_else(|errno| (errno, 0), |value| (Errno(0), value));
    let mut packet = Packet::new(from_cell::DONE);
    packet.u32(request).errno(errno).u32(value).send(CONTROL, None).map(drop)
}

/// Sends a socket of the cell's network to the host. The host connects it, because that may take a while.
pub fn send_socket(request: u32, over_ipv6: bool) -> Result<()> {
    let socket = match gate::stream_socket(over_ipv6) {
        Ok(socket) => socket,
        Err(errno) => return answer(request, Err(errno)),
    };
    let sent = Packet::new(from_cell::SOCKET).u32(request).send(CONTROL, Some(socket));
    sys::close(socket);
    sent.map(drop)
}
