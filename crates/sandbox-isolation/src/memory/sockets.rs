//! Memory of the sockets of a cell, from the kernel (`sock_diag`).

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::read;

/// A query for one kind of sockets: a `sock_diag` request without its header.
struct Query {
    body: Vec<u8>,
    /// Offset of the attributes in an answer, offset of the socket's inode, and number of the memory attribute.
    attributes_at: usize,
    inode_at: usize,
    memory: u16,
    /// Approximate kernel memory of an empty socket of this kind.
    empty: u64,
}

/// `AF_UNIX`, `AF_INET`, `AF_INET6`.
const UNIX: u8 = 1;
const INTERNET: [u8; 2] = [2, 10];
/// `IPPROTO_TCP`, `IPPROTO_UDP`.
const PROTOCOLS: [u8; 2] = [6, 17];

impl Query {
    /// Queries local sockets (`unix_diag_req`).
    fn local() -> Self {
        const SHOW_MEMORY: u32 = 0x20;
        let mut body = vec![UNIX, 0, 0, 0];
        body.extend(u32::MAX.to_ne_bytes());
        body.extend([0; 4]);
        body.extend(SHOW_MEMORY.to_ne_bytes());
        body.extend([0; 8]);
        Self { body, attributes_at: 16, inode_at: 4, memory: 5, empty: EMPTY_LOCAL }
    }

    /// Queries internet sockets (`inet_diag_req_v2`).
    fn internet(family: u8, protocol: u8) -> Self {
        const MEMORY: u8 = 7;
        let mut body = vec![family, protocol, 1 << (MEMORY - 1), 0];
        body.extend(u32::MAX.to_ne_bytes());
        body.extend([0; 48]);
        Self { body, attributes_at: 72, inode_at: 68, memory: MEMORY.into(), empty: EMPTY_INTERNET }
    }

    fn message(&self) -> Vec<u8> {
        const BY_FAMILY: u16 = 20;
        const REQUEST_ALL: u16 = 0x301;
        let length = crate::wire::length(HEADER + self.body.len());
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(BY_FAMILY.to_ne_bytes());
        message.extend(REQUEST_ALL.to_ne_bytes());
        message.extend([0; 8]);
        message.extend(&self.body);
        message
    }

    /// Parses one answer. Missing fields are zero.
    fn answer(&self, body: &[u8]) -> SocketMemory {
        let inode = number(body, self.inode_at);
        let is_half = self.empty == EMPTY_INTERNET
            && body.get(STATE_AT).is_some_and(|state| HALF_STATES.contains(state));
        let empty = if is_half { EMPTY_HALF } else { self.empty };
        let mut rest = body.get(self.attributes_at..).unwrap_or(&[]);
        while let Some((length, kind)) = half(rest, 0).zip(half(rest, 2)) {
            let length = usize::from(length);
            let Some(value) = rest.get(4..length) else { break };
            if kind == self.memory {
                let buffer = u64::from(number(value, 12));
                return SocketMemory { inode, bytes: empty + held(value), buffer };
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        }
        SocketMemory { inode, bytes: empty, buffer: 0 }
    }
}

/// Returns the bytes that are received and not read, or sent and not received, from the counters of `SK_MEMINFO`. Bytes
/// that wait for the peer of a local socket are charged to the sender.
fn held(counters: &[u8]) -> u64 {
    let counter = |place: usize| u64::from(number(counters, 4 * place));
    let (received, allocated, queued, backlog) = (counter(0), counter(2), counter(5), counter(7));
    received + allocated.max(queued) + backlog
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|half| u16::from_ne_bytes(*half))
}

fn number(bytes: &[u8], at: usize) -> u32 {
    let number = bytes.get(at..).and_then(|rest| rest.first_chunk());
    number.map_or(0, |number| u32::from_ne_bytes(*number))
}

/// Memory of empty sockets. It counts, because connections that wait to be accepted have no descriptor whose number is
/// limited.
const EMPTY_LOCAL: u64 = 2 * 1024;
const EMPTY_INTERNET: u64 = 4 * 1024;
/// Memory of connections that are being made or have ended: `TCP_SYN_RECV`, `TCP_TIME_WAIT`, `TCP_NEW_SYN_RECV`.
/// Programs that connect often have thousands of them.
const EMPTY_HALF: u64 = 512;
const HALF_STATES: [u8; 3] = [3, 6, 12];
/// Offset of the state in an answer about an internet socket.
const STATE_AT: usize = 1;

const HEADER: usize = 16;
/// `net.core.wmem_default` of most hosts.
const DEFAULT_BUFFER: u64 = 212_992;

/// One socket and its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SocketMemory {
    pub(super) inode: u32,
    pub(super) bytes: u64,
    /// Size of its send buffer.
    pub(super) buffer: u64,
}

/// Memory of all sockets of a cell.
#[derive(Debug, Default)]
pub(super) struct SocketUsage {
    pub(super) sockets: Vec<SocketMemory>,
    /// Upper bound for local sockets that are closed while their peer has not read what they sent.
    pub(super) closed: u64,
}

impl SocketUsage {
    pub(super) fn total(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.bytes).sum::<u64>().saturating_add(self.closed)
    }
}

/// Lists the sockets of a cell.
#[derive(Debug)]
pub(super) struct Sockets {
    kernel: Mutex<OwnedFd>,
    /// Largest send buffer of the sockets seen so far, in bytes.
    largest_buffer: AtomicU64,
}

impl Sockets {
    /// Uses a netlink socket made by the cell's set-up. Fails if this kernel does not support the queries.
    pub(super) fn new(kernel: OwnedFd) -> io::Result<Self> {
        static SUPPORTED: OnceLock<bool> = OnceLock::new();
        let default = fs::read_to_string("/proc/sys/net/core/wmem_default").ok();
        let default = default.and_then(|text| text.trim().parse().ok()).unwrap_or(DEFAULT_BUFFER);
        let sockets = Self { kernel: Mutex::new(kernel), largest_buffer: AtomicU64::new(default) };
        if !SUPPORTED.get_or_init(|| sockets.query_all(true).is_ok()) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(sockets)
    }

    /// Measures the sockets. An idle cell has only sockets made by this process, and needs just two reads.
    pub(super) fn count(&self, processes: &OwnedFd) -> io::Result<SocketUsage> {
        let Some(used) = NamespaceCounts::read(processes) else {
            return Ok(SocketUsage::default());
        };
        if used.all <= 1 {
            return Ok(SocketUsage::default());
        }
        let (mut sockets, local) = self.query_all(used.internet)?;
        let protocols = read(processes, "1/net/protocols").unwrap_or_default();
        // One netlink socket is this process's own.
        if count_sockets(&protocols, &[NETLINK]) > 1 {
            sockets.extend(netlink(processes));
        }
        let mut counted = SocketUsage { sockets, closed: 0 };
        // The kernel does not list closed sockets. Each has sent at most one packet more than its buffer takes.
        let closed = count_sockets(&protocols, &LOCAL).saturating_sub(local);
        let max = self.largest_buffer.load(Ordering::Relaxed).saturating_mul(2);
        counted.closed = closed.saturating_mul(max);
        Ok(counted)
    }

    /// Returns all sockets, and how many of them are local.
    fn query_all(&self, internet: bool) -> io::Result<(Vec<SocketMemory>, u64)> {
        let kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = Vec::new();
        send_query(&kernel, &Query::local(), |socket| {
            self.largest_buffer.fetch_max(socket.buffer, Ordering::Relaxed);
            all.push(socket);
        })?;
        let local = all.len() as u64;
        if internet {
            for family in INTERNET {
                for protocol in PROTOCOLS {
                    let query = Query::internet(family, protocol);
                    send_query(&kernel, &query, |socket| all.push(socket))?;
                }
            }
        }
        Ok((all, local))
    }
}

/// Sends one query and reads all answers. They are available as soon as the query is sent.
fn send_query(
    kernel: &OwnedFd,
    query: &Query,
    mut on_socket: impl FnMut(SocketMemory),
) -> io::Result<()> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
    // Drain unread answers of an earlier query.
    let mut buffer = vec![0; 64 * 1024];
    while recv(kernel, buffer.as_mut_slice(), RecvFlags::DONTWAIT).is_ok() {}
    send(kernel, &query.message(), SendFlags::DONTWAIT)?;
    loop {
        let (length, _) = recv(kernel, buffer.as_mut_slice(), RecvFlags::DONTWAIT)?;
        let mut rest = buffer.get(..length).unwrap_or(&[]);
        while rest.len() >= HEADER {
            let length = number(rest, 0) as usize;
            let body = rest.get(HEADER..length).ok_or(io::ErrorKind::InvalidData)?;
            match half(rest, 4) {
                Some(DONE) => return Ok(()),
                Some(ERROR) => {
                    let errno = number(body, 0).cast_signed();
                    return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
                }
                _ => on_socket(query.answer(body)),
            }
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}

/// Socket counts of a cell's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct NamespaceCounts {
    /// Sockets of any kind, including closed ones that still hold memory.
    all: u64,
    /// True when there are internet sockets.
    internet: bool,
}

impl NamespaceCounts {
    /// `None` when the cell is gone.
    fn read(processes: &OwnedFd) -> Option<Self> {
        let first = read(processes, "1/net/sockstat")?;
        let second = read(processes, "1/net/sockstat6").unwrap_or_default();
        let all = field_after(&first, "sockets:", 1).unwrap_or(u64::MAX);
        let some = |text, name| field_after(text, name, 1).is_some_and(|count| count > 0);
        let internet = some(&first, "TCP:")
            || some(&first, "UDP:")
            || some(&second, "TCP6:")
            || some(&second, "UDP6:");
        Some(Self { all, internet })
    }
}

/// Prefixes of lines of the kernel's protocol table.
const LOCAL: [&str; 2] = ["UNIX ", "UNIX-STREAM "];
const NETLINK: &str = "NETLINK ";

/// Counts the sockets of some protocols, including closed ones that still hold memory.
fn count_sockets(protocols: &str, names: &[&str]) -> u64 {
    names.iter().filter_map(|name| field_after(protocols, name, 1)).sum()
}

/// Measures only netlink sockets, whose data no control group counts.
pub(super) fn count_netlink(processes: &OwnedFd) -> SocketUsage {
    let used = NamespaceCounts::read(processes).is_some_and(|used| used.all > 0);
    let protocols = used.then(|| read(processes, "1/net/protocols")).flatten();
    let some = protocols.is_some_and(|text| count_sockets(&text, &[NETLINK]) > 0);
    let sockets = if some { netlink(processes) } else { Vec::new() };
    SocketUsage { sockets, closed: 0 }
}

/// Lists netlink sockets, which are only in a table of `/proc`.
fn netlink(processes: &OwnedFd) -> Vec<SocketMemory> {
    let text = read(processes, "1/net/netlink").unwrap_or_default();
    text.lines().filter_map(parse_netlink_row).collect()
}

/// Parses one row: bytes received and not read, and bytes sent. Sockets of the kernel itself have no inode.
fn parse_netlink_row(line: &str) -> Option<SocketMemory> {
    const RECEIVED: usize = 4;
    const SENT: usize = 5;
    const INODE: usize = 9;
    let words: Vec<_> = line.split_whitespace().collect();
    let number = |place: usize| words.get(place)?.parse::<u64>().ok();
    let inode = u32::try_from(number(INODE)?).ok().filter(|inode| *inode != 0)?;
    let held = number(RECEIVED)?.saturating_add(number(SENT)?);
    Some(SocketMemory { inode, bytes: EMPTY_LOCAL.saturating_add(held), buffer: 0 })
}

/// Returns the word at a position after a line's prefix.
fn field_after(text: &str, name: &str, place: usize) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use rustix::net::{AddressFamily, SocketType, netlink, socket};

    use super::*;

    fn own_sockets() -> Sockets {
        let kernel = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::SOCK_DIAG));
        Sockets::new(kernel.unwrap()).unwrap()
    }

    fn held_by(counted: &SocketUsage, socket: &impl AsRawFd) -> u64 {
        let path = format!("/proc/self/fd/{}", socket.as_raw_fd());
        let inode = fs::metadata(path).unwrap().ino();
        let found = counted.sockets.iter().find(|socket| u64::from(socket.inode) == inode);
        found.expect("the list contains it").bytes
    }

    #[test]
    fn unread_data_is_counted() {
        let processes = OwnedFd::from(File::open("/proc").unwrap());
        let (mut sender, reader) = UnixStream::pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let count = || own_sockets().count(&processes).unwrap();
        let before = count();
        assert_eq!(held_by(&before, &sender), EMPTY_LOCAL);
        sender.write_all(&[1; 50_000]).unwrap();
        client.write_all(&[1; 50_000]).unwrap();
        let after = count();
        assert!(held_by(&after, &sender) >= 50_000, "{after:?}");
        assert_eq!(held_by(&after, &reader), EMPTY_LOCAL);
        let internet = held_by(&after, &client) + held_by(&after, &server);
        assert!(internet >= 50_000, "{internet}");
        assert!(after.total() >= 100_000);
    }

    #[test]
    fn connections_that_wait_to_be_accepted_count_each() {
        let processes = OwnedFd::from(File::open("/proc").unwrap());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..20)
            .map(|_| {
                let mut client = std::net::TcpStream::connect(address).unwrap();
                client.write_all(&[1; 50_000]).unwrap();
                client
            })
            .collect();
        drop(clients);
        let counted = own_sockets().count(&processes).unwrap();
        let waiting = counted.sockets.iter().filter(|socket| socket.inode == 0);
        let bytes: u64 = waiting.map(|socket| socket.bytes).sum();
        assert!(bytes >= 20 * 50_000, "{bytes}");
    }

    #[test]
    fn data_in_netlink_sockets_is_counted() {
        let processes = OwnedFd::from(File::open("/proc").unwrap());
        let asks = socket(AddressFamily::NETLINK, SocketType::RAW, None).unwrap();
        // `RTM_GETLINK` for all interfaces.
        let mut query = vec![17, 0, 0, 0, 18, 0, 1, 3];
        query.extend([0; 9]);
        send(&asks, &query, SendFlags::DONTWAIT).unwrap();
        assert!(held_by(&count_netlink(&processes), &asks) >= 2 * EMPTY_LOCAL);
        let row = "0000000000000000 0   0   00000000 7   2   0   2   0   70139";
        let expected = SocketMemory { inode: 70139, bytes: EMPTY_LOCAL + 9, buffer: 0 };
        assert_eq!(parse_netlink_row(row), Some(expected));
        assert_eq!(parse_netlink_row(&row.replace("70139", "0")), None);
        assert_eq!(parse_netlink_row("sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode"), None);
    }

    #[test]
    fn truncated_answers_are_no_sockets() {
        let query = Query::local();
        let mut whole = vec![1, 1, 1, 0, 7, 0, 0, 0];
        whole.extend([0; 8]);
        whole.extend([40, 0, 5, 0]);
        for counter in [1_u32, 9, 20, 99, 0, 300, 0, 4000, 0] {
            whole.extend(counter.to_ne_bytes());
        }
        let all = query.answer(&whole);
        assert_eq!(all, SocketMemory { inode: 7, bytes: EMPTY_LOCAL + 4301, buffer: 99 });
        for end in 0..whole.len() {
            assert_eq!(query.answer(&whole[..end]).bytes, EMPTY_LOCAL, "{end}");
        }
        assert_eq!(query.answer(&[255; 90]).bytes, EMPTY_LOCAL);
    }

    #[test]
    fn fields_of_kernel_tables_are_found() {
        let text = "sockets: used 12\nTCP: inuse 0 orphan 0\nUDP: inuse 3 mem 0\n";
        assert_eq!(field_after(text, "sockets:", 1), Some(12));
        assert_eq!(
            (field_after(text, "TCP:", 1), field_after(text, "UDP:", 1)),
            (Some(0), Some(3))
        );
        assert_eq!(field_after("UNIX      1152      7     -1\n", "UNIX ", 1), Some(7));
        assert_eq!((field_after(text, "RAW:", 1), field_after("x", "x", 0)), (None, None));
    }
}
