//! The handshake. Its form never changes, so that two versions can recognize each other.

use std::io;

use sandbox_core::{Effect, Error, ErrorKind, Result, Variant};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Version of the protocol after the handshake.
pub const PROTOCOL: u32 = 2;

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const MAGIC: [u8; 4] = *b"CSBX";
const MAX_HELLO: u32 = 64 << 10;

/// The first message of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The protocol of the client.
    pub protocol: u32,
    /// The version of the client.
    pub version: String,
    /// The request: `serve`, or another one that a certain server knows.
    #[serde(default)]
    pub wants: String,
}

/// The answer of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerHello {
    /// The protocol of the server.
    pub protocol: u32,
    /// The version of the server.
    pub version: String,
    /// The variant of its sandboxes.
    pub variant: Variant,
    /// The capabilities of its backend, by name.
    pub capabilities: Vec<String>,
    /// Other facts about the server.
    #[serde(default)]
    pub about: Map<String, Value>,
}

impl ClientHello {
    /// Makes the hello of this version with a request.
    pub fn new(wants: impl Into<String>) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.into(), wants: wants.into() }
    }
}

/// Sends a hello.
pub(crate) async fn write_hello(
    to: &mut (impl AsyncWrite + Unpin),
    hello: &impl Serialize,
) -> io::Result<()> {
    let json = serde_json::to_vec(hello)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    let bytes = [&MAGIC[..], &length.to_le_bytes(), &json].concat();
    to.write_all(&bytes).await?;
    to.flush().await
}

/// Receives the hello of the other side.
pub(crate) async fn read_hello<T: serde::de::DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<T> {
    let mut start = [0; 8];
    from.read_exact(&mut start).await?;
    let [a, b, c, d, length @ ..] = start;
    let length = u32::from_le_bytes(length);
    if [a, b, c, d] != MAGIC || length > MAX_HELLO {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a sandbox server or client"));
    }
    let mut json = vec![0; length as usize];
    from.read_exact(&mut json).await?;
    serde_json::from_slice(&json).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Returns the error of a connection that failed before its first request.
pub(crate) fn connect_error(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => ErrorKind::Protocol,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "connect", "the sandbox server did not answer").with_source(error)
}

/// Refuses a server with another protocol.
pub(crate) fn check_protocol(hello: &ServerHello) -> Result<()> {
    if hello.protocol == PROTOCOL {
        return Ok(());
    }
    let message = format!(
        "the sandbox server is version {} and speaks protocol {}, but this program speaks protocol {PROTOCOL}",
        hello.version, hello.protocol
    );
    Err(Error::new(ErrorKind::Protocol, "connect", message)
        .with_effect(Effect::NotSent)
        .with_context("server_version", hello.version.clone())
        .with_hint("use the same version of both"))
}
