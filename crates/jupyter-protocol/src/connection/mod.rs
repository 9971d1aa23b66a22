//! Connection files: where a kernel listens, and the key to talk to it.

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

/// How a kernel is reached.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Transport {
    /// Over TCP.
    #[default]
    Tcp,
    /// Over Unix sockets of this machine.
    Ipc,
}

/// What a connection file says.
///
/// Unknown keys are kept. Keys and secrets are not shown by `Debug`.
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
    /// How the kernel is reached.
    pub transport: Transport,
    /// For TCP, the address. For Unix sockets, what their paths begin with; `-` and the port follow.
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
    /// The key that messages are signed with.
    #[serde(deserialize_with = "read_key", serialize_with = "write_key")]
    pub key: Key,
    /// How messages are signed.
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
    /// Keys that are not in the specification, as they came.
    #[serde(flatten)]
    pub extra: JsonMap,
}

impl ConnectionInfo {
    /// A kernel of this machine over Unix sockets `<prefix>-1` to `<prefix>-5`, with a new key.
    ///
    /// There are no ports that something else could take first, and no other user can connect when the
    /// folder is private. Keep the path short: a socket's path has at most [`Endpoint::MAX_PATH`] bytes. Some kernels
    /// speak TCP alone: [`ReservedPorts`].
    #[must_use]
    pub fn ipc(prefix: impl Into<PathBuf>) -> Self {
        let prefix: PathBuf = prefix.into();
        Self { transport: Transport::Ipc, ..Self::new(prefix.to_string_lossy(), [1, 2, 3, 4, 5]) }
    }

    /// A kernel over TCP, with a new key. Ports of shell, IOPub, stdin, control and heartbeat.
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

    /// The port of a channel.
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

    /// Where a client connects for a channel. A wildcard address becomes the loopback address.
    #[must_use]
    pub fn endpoint(&self, channel: Channel) -> Endpoint {
        let port = self.port(channel);
        match self.transport {
            Transport::Tcp => Endpoint::tcp(&self.ip, port),
            Transport::Ipc => Endpoint::Ipc { path: PathBuf::from(format!("{}-{port}", self.ip)) },
        }
    }

    /// A file name that no other kernel has: `kernel-<random>.json`.
    #[must_use]
    pub fn new_file_name() -> String {
        format!("kernel-{}.json", random_hex(16))
    }
}

impl Default for ConnectionInfo {
    /// TCP on the loopback address, without ports and without a key.
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

/// A port is a number; registration files have it as text.
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
