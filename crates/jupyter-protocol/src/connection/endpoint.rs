//! Addresses of channels.

use std::fmt;
use std::path::PathBuf;

/// The address of one channel of a kernel.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// A host name or an address, without brackets.
        host: String,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Ipc {
        /// Its path.
        path: PathBuf,
    },
}

impl Endpoint {
    /// The longest path that a Unix socket can have on this system, in bytes.
    pub const MAX_PATH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

    /// Reads the address of a connection file. Brackets are optional; a wildcard becomes the loopback address.
    pub(super) fn tcp(ip: &str, port: u16) -> Self {
        let bare = ip.strip_prefix('[').and_then(|ip| ip.strip_suffix(']')).unwrap_or(ip);
        let host = match bare {
            "" | "*" | "0.0.0.0" => "127.0.0.1",
            "::" => "::1",
            other => other,
        };
        Self::Tcp { host: host.to_owned(), port }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::Ipc { path } => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_zeromq_does() {
        for (ip, shown) in [
            ("127.0.0.1", "tcp://127.0.0.1:1"),
            ("localhost", "tcp://localhost:1"),
            ("::1", "tcp://[::1]:1"),
            ("[fe80::1%eth0]", "tcp://[fe80::1%eth0]:1"),
            ("*", "tcp://127.0.0.1:1"),
            ("0.0.0.0", "tcp://127.0.0.1:1"),
            ("::", "tcp://[::1]:1"),
        ] {
            assert_eq!(Endpoint::tcp(ip, 1).to_string(), shown);
        }
    }
}
