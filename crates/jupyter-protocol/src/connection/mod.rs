//! Connection files: the addresses of a kernel, and the key of its messages.

mod endpoint;
mod file;
mod ports;

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use endpoint::Endpoint;
pub use file::ConnectionError;
pub use ports::ReservedPorts;

use crate::channel::Channel;
use crate::json::JsonMap;
use crate::session::random_hex;
use crate::signature::{Key, SignatureScheme};

/// The transport of a kernel's channels.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Transport {
    /// TCP.
    #[default]
    Tcp,
    /// Unix sockets of this machine.
    Ipc,
}

/// The content of a connection file.
///
/// Unknown fields are kept. `Debug` hides keys and secrets.
///
/// ```
/// use jupyter_protocol::{Channel, ConnectionInfo};
///
/// let info = ConnectionInfo::from_json(br#"{"transport": "tcp", "ip": "::1", "key": "k", "shell_port": 5001,
///     "iopub_port": 5002, "stdin_port": 5003, "control_port": 5004, "hb_port": 5005, "mine": true}"#)?;
/// assert_eq!(info.endpoint(Channel::Shell).to_string(), "tcp://[::1]:5001");
/// assert_eq!(info.extra["mine"], true);
/// # Ok::<(), jupyter_protocol::ConnectionError>(())
/// ```
#[derive(Clone, Deserialize, PartialEq, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// The transport of the channels.
    pub transport: Transport,
    /// The address for TCP; for Unix sockets, the prefix of their paths, which `-` and the port complete.
    pub ip: String,
    /// The port of the shell channel.
    #[serde(deserialize_with = "port")]
    pub shell_port: u16,
    /// The port of the IOPub channel.
    #[serde(deserialize_with = "port")]
    pub iopub_port: u16,
    /// The port of the stdin channel.
    #[serde(deserialize_with = "port")]
    pub stdin_port: u16,
    /// The port of the control channel.
    #[serde(deserialize_with = "port")]
    pub control_port: u16,
    /// The port of the heartbeat channel.
    #[serde(deserialize_with = "port")]
    pub hb_port: u16,
    /// The key that signs messages.
    #[serde(deserialize_with = "read_key", serialize_with = "write_key")]
    pub key: Key,
    /// The signature scheme of messages.
    #[serde(deserialize_with = "read_scheme", serialize_with = "write_scheme")]
    pub signature_scheme: SignatureScheme,
    /// The name of the kernel's specification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_name: Option<String>,
    /// The public key of the kernel, when its connections are encrypted with CURVE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub curve_publickey: Option<String>,
    /// The secret key of the kernel, when its connections are encrypted with CURVE.
    #[serde(
        deserialize_with = "read_some_key",
        serialize_with = "write_some_key",
        skip_serializing_if = "Option::is_none"
    )]
    pub curve_secretkey: Option<Key>,
    /// Fields that are not in the specification, unchanged.
    #[serde(flatten)]
    pub extra: JsonMap,
}

impl ConnectionInfo {
    /// Describes a kernel of this machine over the Unix sockets `<prefix>-1` to `<prefix>-5`, with a new key.
    ///
    /// Other programs cannot take these addresses first, as they can take ports, and no other user can connect if the
    /// directory is private. Keep the path short: the path of a socket has at most [`Endpoint::MAX_PATH`] bytes. Some
    /// kernels support only TCP: see [`ReservedPorts`].
    #[must_use]
    pub fn ipc(prefix: impl Into<PathBuf>) -> Self {
        let prefix: PathBuf = prefix.into();
        Self { transport: Transport::Ipc, ..Self::new(prefix.to_string_lossy(), [1, 2, 3, 4, 5]) }
    }

    /// Describes a kernel over TCP, with a new key. The ports are those of shell, IOPub, stdin, control and heartbeat.
    #[must_use]
    pub fn tcp(ip: impl Into<String>, ports: [u16; 5]) -> Self {
        Self::new(ip, ports)
    }

    fn new(ip: impl Into<String>, ports: [u16; 5]) -> Self {
        let [shell_port, iopub_port, stdin_port, control_port, hb_port] = ports;
        let key = Key::generate();
        let ip = ip.into();
        Self {
            ip,
            shell_port,
            iopub_port,
            stdin_port,
            control_port,
            hb_port,
            key,
            ..Self::default()
        }
    }

    /// Returns the port of a channel.
    #[must_use]
    pub fn port(&self, channel: Channel) -> u16 {
        match channel {
            Channel::Shell => self.shell_port,
            Channel::IoPub => self.iopub_port,
            Channel::Stdin => self.stdin_port,
            Channel::Control => self.control_port,
            Channel::Heartbeat => self.hb_port,
        }
    }

    /// Returns the address to which a client of a channel connects. A wildcard address becomes the loopback address.
    #[must_use]
    pub fn endpoint(&self, channel: Channel) -> Endpoint {
        let port = self.port(channel);
        match self.transport {
            Transport::Tcp => Endpoint::tcp(&self.ip, port),
            Transport::Ipc => Endpoint::Ipc { path: PathBuf::from(format!("{}-{port}", self.ip)) },
        }
    }

    /// Returns a unique name for a connection file: `kernel-<random>.json`.
    #[must_use]
    pub fn new_file_name() -> String {
        format!("kernel-{}.json", random_hex(16))
    }
}

impl Default for ConnectionInfo {
    /// Describes TCP on the loopback address, without ports and without a key.
    fn default() -> Self {
        Self {
            transport: Transport::Tcp,
            ip: "127.0.0.1".to_owned(),
            shell_port: 0,
            iopub_port: 0,
            stdin_port: 0,
            control_port: 0,
            hb_port: 0,
            key: Key::default(),
            signature_scheme: SignatureScheme::default(),
            kernel_name: None,
            curve_publickey: None,
            curve_secretkey: None,
            extra: JsonMap::new(),
        }
    }
}

impl fmt::Debug for ConnectionInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ConnectionInfo");
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            shown.field(channel.as_str(), &format_args!("{}", self.endpoint(channel)));
        }
        shown.field("key", &self.key).field("signature_scheme", &self.signature_scheme);
        shown.field("kernel_name", &self.kernel_name);
        shown.field("curve", &self.curve_publickey.is_some());
        shown.field("extra", &self.extra.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

/// Reads a port: a number, or text as in registration files.
fn port<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Port {
        Number(u16),
        Text(String),
    }
    match Port::deserialize(deserializer)? {
        Port::Number(port) => Ok(port),
        Port::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

fn read_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Key, D::Error> {
    String::deserialize(deserializer).map(Key::new)
}

fn write_key<S: Serializer>(key: &Key, serializer: S) -> Result<S::Ok, S::Error> {
    let text = std::str::from_utf8(key.expose())
        .map_err(|_| serde::ser::Error::custom("the key is not text"))?;
    serializer.serialize_str(text)
}

fn read_some_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Key>, D::Error> {
    Option::<String>::deserialize(deserializer).map(|key| key.map(Key::new))
}

fn write_some_key<S: Serializer>(key: &Option<Key>, serializer: S) -> Result<S::Ok, S::Error> {
    match key {
        Some(key) => write_key(key, serializer),
        None => serializer.serialize_none(),
    }
}

fn read_scheme<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SignatureScheme, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn write_scheme<S: Serializer>(scheme: &SignatureScheme, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(scheme.as_str())
}
