//! The network gate of a cell: routes, rules, and the sockets that the host gets.
//!
//! Nothing leaves the namespace. Every connection of the cell's code arrives at a socket on which the host listens, and
//! the local address of the accepted connection is its destination. The rules come from the plan; this file only sends
//! them to the kernel.

use crate::protocol::{GATE_ADDRESS, GATE_PORT};
use crate::sys::{self, EINVAL, Errno, Result};

/// Number of sockets: connections, DNS by UDP, DNS by TCP.
pub const SOCKETS: usize = 3;

const AF_INET: usize = 2;
const AF_INET6: usize = 10;
const AF_NETLINK: usize = 16;
const SOCK_STREAM: usize = 1;
const SOCK_DGRAM: usize = 2;
const SOCK_RAW: usize = 3;
const SOCK_NONBLOCK: usize = 0o4000;
const NETLINK_ROUTE: usize = 0;
const NETLINK_NETFILTER: usize = 12;
const NETLINK_SOCK_DIAG: usize = 4;
/// The kernel reduces it to the allowed maximum.
const BACKLOG: usize = 1024;
const DNS: ([u8; 4], u16) = ([127, 0, 0, 1], 53);

/// Opens the gate. Needs capabilities over the network namespace, with a loopback that is up.
pub fn open(routes: &[u8], rules: &[u8]) -> Result<[i32; SOCKETS]> {
    send_messages(NETLINK_ROUTE, routes)?;
    send_messages(NETLINK_NETFILTER, rules)?;
    let mut sockets = [-1; SOCKETS];
    let outcome = make(&mut sockets);
    if outcome.is_err() {
        sockets.iter().filter(|socket| **socket >= 0).for_each(|socket| sys::close(*socket));
    }
    outcome.map(|()| sockets)
}

/// Makes a socket that lists the sockets of this network namespace, whichever process uses it.
pub fn socket_counts() -> Result<i32> {
    sys::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, NETLINK_SOCK_DIAG)
}

fn make([connections, packets, questions]: &mut [i32; SOCKETS]) -> Result<()> {
    *connections = socket(SOCK_STREAM)?;
    accept_any_destination(*connections)?;
    sys::bind(*connections, &address(GATE_ADDRESS, GATE_PORT))?;
    sys::listen(*connections, BACKLOG)?;
    *packets = socket(SOCK_DGRAM)?;
    sys::bind(*packets, &address(DNS.0, DNS.1))?;
    *questions = socket(SOCK_STREAM)?;
    sys::bind(*questions, &address(DNS.0, DNS.1))?;
    sys::listen(*questions, BACKLOG).map(drop)
}

/// Makes a stream socket in the network of this process, over IPv4 or IPv6.
pub fn stream_socket(over_ipv6: bool) -> Result<i32> {
    let family = if over_ipv6 { AF_INET6 } else { AF_INET };
    sys::socket(family, SOCK_STREAM | SOCK_NONBLOCK, 0)
}

fn socket(kind: usize) -> Result<i32> {
    sys::socket(AF_INET, kind | SOCK_NONBLOCK, 0)
}

fn accept_any_destination(socket: i32) -> Result {
    const SOL_IP: usize = 0;
    const IP_TRANSPARENT: usize = 19;
    sys::set_option(socket, SOL_IP, IP_TRANSPARENT, 1)
}

fn address(address: [u8; 4], port: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&address);
    bytes
}

/// Sends messages, and checks the kernel's acknowledgement of each that requests one.
fn send_messages(protocol: usize, messages: &[u8]) -> Result<()> {
    let socket = sys::socket(AF_NETLINK, SOCK_RAW | SOCK_NONBLOCK, protocol)?;
    let outcome = sys::write(socket, messages).and_then(|_| confirmed(socket, expected(messages)?));
    sys::close(socket);
    outcome.map(drop)
}

/// Reads acknowledgements. They are available as soon as the messages are sent, so this never blocks.
fn confirmed(socket: i32, mut expected: usize) -> Result {
    let mut buffer = [0_u8; 4096];
    while expected > 0 {
        let length = sys::read(socket, &mut buffer)?;
        let mut rest = &buffer[..length];
        while !rest.is_empty() {
            let (header, after) = message(rest)?;
            if header.kind == NLMSG_ERROR {
                match i32::from_ne_bytes(header.body.first_chunk().copied().ok_or(EINVAL)?) {
                    0 => expected = expected.saturating_sub(1),
                    errno => return Err(Errno(-errno)),
                }
            }
            rest = after;
        }
    }
    Ok(0)
}

fn expected(messages: &[u8]) -> Result {
    const NLM_F_ACK: u16 = 4;
    let (mut rest, mut count) = (messages, 0);
    while !rest.is_empty() {
        let (header, after) = message(rest)?;
        count += usize::from(header.flags & NLM_F_ACK != 0);
        rest = after;
    }
    Ok(count)
}

const NLMSG_ERROR: u16 = 2;

struct Message<'a> {
    kind: u16,
    flags: u16,
    body: &'a [u8],
}

fn message(bytes: &[u8]) -> Result<(Message<'_>, &[u8])> {
    const HEADER: usize = 16;
    let header = bytes.first_chunk::<HEADER>().ok_or(EINVAL)?;
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let body = bytes.get(HEADER..length).ok_or(EINVAL)?;
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    let flags = u16::from_ne_bytes([header[6], header[7]]);
    let after = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    Ok((Message { kind, flags, body }, after))
}
