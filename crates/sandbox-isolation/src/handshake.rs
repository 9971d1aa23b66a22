//! The first messages of the launcher and of the first process of a cell.

use std::io;
use std::os::fd::OwnedFd;

use crate::cell::Identity;
use crate::diagnosis;
use crate::error::Error;
use crate::gate::GateSockets;
use crate::launcher::Privilege;
use crate::namespaces;
use crate::policy;
use crate::protocol::{from_cell, from_launcher};
use crate::socket::Socket;
use crate::wire::Reader;

/// Receives the launcher's first message: its privilege, and the kernel's Landlock version.
pub(crate) async fn handshake(socket: &Socket) -> Result<(Privilege, i32), Error> {
    let packet =
        socket.receive().await.map_err(Error::io("cannot receive from the helper program"))?;
    let packet = packet
        .ok_or_else(|| Error::Protocol("the helper exited before its first message".to_owned()))?;
    let mut reader = Reader(&packet.bytes);
    match reader.u8()? {
        from_launcher::HELLO => {
            let privilege = match reader.u8()? {
                0 => Privilege::User,
                1 => Privilege::Root,
                2 => Privilege::Plain,
                other => return Err(Error::Protocol(format!("privilege {other}"))),
            };
            Ok((privilege, reader.i32()?))
        }
        from_launcher::FAILED => {
            let source = io::Error::from_raw_os_error(reader.i32()?);
            Err(diagnosis::start(reader.text()?, source))
        }
        other => Err(Error::Protocol(format!("first message {other}"))),
    }
}

/// The ready report of a cell's first process.
pub(crate) struct ReadyReport {
    pub(crate) identity: Identity,
    pub(crate) root: OwnedFd,
    pub(crate) ruleset: Option<OwnedFd>,
    pub(crate) socket_counts: Option<OwnedFd>,
    pub(crate) gate: Option<GateSockets>,
}

/// Waits for the ready report of a cell's first process.
pub(crate) async fn await_ready(socket: &Socket, strict: bool) -> Result<ReadyReport, Error> {
    let packet = socket.receive().await.map_err(Error::io("cannot receive from the cell"))?;
    let packet =
        packet.ok_or_else(|| Error::Protocol("the cell ended during its set-up".to_owned()))?;
    let mut reader = Reader(&packet.bytes);
    match reader.u8()? {
        from_cell::READY => {
            let (launcher_uid, launcher_gid) = (reader.u32()?, reader.u32()?);
            let (has_ruleset, has_counts) = (reader.u8()? != 0, reader.u8()? != 0);
            if strict {
                let mut numbers = namespaces::Numbers::default();
                for number in &mut numbers {
                    *number = reader.u64()?;
                }
                namespaces::verify(&numbers)?;
            }
            reader.end()?;
            let mut descriptors = packet.descriptors;
            if descriptors.len() < 1 + usize::from(has_ruleset) + usize::from(has_counts) {
                return Err(Error::Protocol("the ready report lacks a descriptor".to_owned()));
            }
            let root = descriptors.remove(0);
            let ruleset = has_ruleset.then(|| descriptors.remove(0));
            let socket_counts = has_counts.then(|| descriptors.remove(0));
            let gate = GateSockets::from_report(descriptors)?;
            let (uid, gid) = if strict {
                (policy::CELL_ID, policy::CELL_ID)
            } else {
                (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
            };
            let identity = Identity { uid, gid, launcher_uid, launcher_gid };
            Ok(ReadyReport { identity, root, ruleset, socket_counts, gate })
        }
        from_cell::FAILED => {
            let source = io::Error::from_raw_os_error(reader.i32()?);
            Err(diagnosis::setup(reader.text()?, source))
        }
        other => Err(Error::Protocol(format!("ready report {other}"))),
    }
}
