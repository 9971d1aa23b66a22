//! Reserves TCP ports for a kernel that is about to start.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::TcpListener;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ConnectionInfo;

/// Five TCP ports that are held until this value is dropped.
///
/// Drop it right before the kernel starts. Another program may take a port before the kernel does; the kernel then
/// fails to start, and another attempt helps. To make that rare, the ports are taken from a range below those that
/// systems and kernels assign, if one is free there. Unix sockets do not have this problem: see
/// [`ConnectionInfo::ipc`].
///
/// ```
/// use jupyter_protocol::ReservedPorts;
///
/// let folder = tempfile::tempdir()?;
/// let ports = ReservedPorts::reserve("127.0.0.1")?;
/// let info = ports.connection()?;
/// info.write_new(folder.path().join("kernel.json"))?;
/// drop(ports);
/// // Start the kernel here, and retry with other ports if it ends at once.
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ReservedPorts(Vec<TcpListener>);

impl ReservedPorts {
    /// Reserves five free ports at an address of this machine.
    ///
    /// # Errors
    /// If the address does not belong to this machine, or no ports are free.
    pub fn reserve(ip: &str) -> io::Result<Self> {
        let listeners = (0..5).map(|_| listen(ip)).collect::<io::Result<_>>()?;
        Ok(Self(listeners))
    }

    /// Returns connection information with these ports and a new key.
    ///
    /// # Errors
    /// If the system does not report the ports.
    pub fn connection(&self) -> io::Result<ConnectionInfo> {
        let mut ports = [0; 5];
        let mut ip = String::new();
        for (port, listener) in ports.iter_mut().zip(&self.0) {
            let address = listener.local_addr()?;
            *port = address.port();
            ip = address.ip().to_string();
        }
        Ok(ConnectionInfo::tcp(ip, ports))
    }
}

/// Ports that are tried first. Linux assigns ports from 32768, IPython binds its own from 49152.
const PREFERRED_PORTS: Range<u16> = 20_000..32_768;

/// Maximum number of preferred ports to try.
const MAX_ATTEMPTS: usize = 64;

/// The next preferred port to try, from a random start. A port is free between the end of its reservation and the start
/// of its kernel, so ports are taken in turn: no two kernels that this process starts at that time get the same one.
static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    AtomicU64::new(random % u64::from(PREFERRED_PORTS.end - PREFERRED_PORTS.start))
});

fn listen(ip: &str) -> io::Result<TcpListener> {
    for _ in 0..MAX_ATTEMPTS {
        let next = NEXT.fetch_add(1, Ordering::Relaxed)
            % u64::from(PREFERRED_PORTS.end - PREFERRED_PORTS.start);
        let port = PREFERRED_PORTS.start + u16::try_from(next).unwrap_or_default();
        if let Ok(listener) = TcpListener::bind((ip, port)) {
            return Ok(listener);
        }
    }
    TcpListener::bind((ip, 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Channel;
    use std::collections::HashSet;

    #[test]
    fn ports_differ_and_are_free_afterwards() {
        let reserved = ReservedPorts::reserve("127.0.0.1").unwrap();
        let info = reserved.connection().unwrap();
        let ports: HashSet<u16> = Channel::MESSAGES.map(|channel| info.port(channel)).into();
        assert_eq!(ports.len(), 4);
        assert!(TcpListener::bind(("127.0.0.1", info.shell_port)).is_err());
        drop(reserved);
        assert!(TcpListener::bind(("127.0.0.1", info.shell_port)).is_ok());
    }

    /// The kernels may not listen yet.
    #[test]
    fn ports_that_were_given_out_are_not_given_out_again_soon() {
        let mut given = HashSet::new();
        for _ in 0..200 {
            let info = ReservedPorts::reserve("127.0.0.1").unwrap().connection().unwrap();
            assert!(Channel::MESSAGES.into_iter().all(|channel| given.insert(info.port(channel))));
        }
    }
}
