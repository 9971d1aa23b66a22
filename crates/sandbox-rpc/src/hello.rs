//! The first words of both sides. Their form never changes, so that two versions can tell each other apart.

use std::io;

use sandbox_core::{Effect, Error, ErrorKind, Result, Variant};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The version of everything after the first words.
pub const PROTOCOL: u32 = 1;
/// The version of this program.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const MAGIC: [u8; 4] = *b"CSBX";
const MAX_HELLO: u32 = 64 << 10;

/// What the client says first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientHello {
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its version.
    pub version: String,
    /// What it wants: `serve`, or something that only a certain server knows.
    #[serde(default)]
    pub wants: String,
}

/// What the server answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerHello {
    /// The protocol it speaks.
    pub protocol: u32,
    /// Its version.
    pub version: String,
    /// The variant of its sandboxes.
    pub variant: Variant,
    /// What its backend can do, by name.
    pub capabilities: Vec<String>,
    /// Whatever else it says about itself.
    #[serde(default)]
    pub about: Map<String, Value>,
}

impl ClientHello {
    /// The first words of this program.
    pub fn new(wants: impl Into<String>) -> Self {
        Self { protocol: PROTOCOL, version: VERSION.into(), wants: wants.into() }
    }
}

/// Says something first.
pub(crate) async fn say(
    to: &mut (impl AsyncWrite + Unpin),
    hello: &impl Serialize,
) -> io::Result<()> {
    let json = serde_json::to_vec(hello)?;
    let length = u32::try_from(json.len()).map_err(io::Error::other)?;
    let bytes = [&MAGIC[..], &length.to_le_bytes(), &json].concat();
    to.write_all(&bytes).await?;
    to.flush().await
}

/// Hears what the other side says first.
pub(crate) async fn hear<T: serde::de::DeserializeOwned>(
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

/// The error of a connection that did not get as far as a request.
pub(crate) fn unreachable(error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::InvalidData => ErrorKind::Protocol,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, "connect", "the sandbox server did not answer").with_source(error)
}

/// Refuses a server that speaks another protocol.
pub(crate) fn check(hello: &ServerHello) -> Result<()> {
    if hello.protocol == PROTOCOL {
        return Ok(());
    }
    let message = format!(
        "the sandbox server is version {} and speaks protocol {}, this program speaks {PROTOCOL}",
        hello.version, hello.protocol
    );
    Err(Error::new(ErrorKind::Protocol, "connect", message)
        .with_effect(Effect::NotSent)
        .with_context("server_version", hello.version.clone())
        .with_hint("use the same version of both"))
}
