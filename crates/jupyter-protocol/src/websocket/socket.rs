//! A WebSocket connection to one kernel.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::Url;
use reqwest::header::{HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::{ProtocolError, SubProtocolError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::client::ServerClient;
use super::http;
use super::quickack::QuickAckStream;
use super::tls;
use crate::channel::Channel;
use crate::framing::{FramingError, V1_SUBPROTOCOL, v0, v1};
use crate::limits::Limits;
use crate::raw::RawMessage;

/// A byte stream.
pub(super) trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection with its framing.
pub(super) struct Socket {
    pub(super) stream: WebSocketStream<Box<dyn Io>>,
    pub(super) framing: FramingVersion,
}

/// The framing of messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FramingVersion {
    V0,
    V1,
}

/// The reason why a connection failed.
#[derive(Debug)]
pub(super) enum ConnectError {
    /// A temporary error.
    Retryable(String),
    /// The server refuses the connection.
    Refused(String),
}

/// Allowance for the table of offsets and the envelope, in bytes.
const FRAMING_OVERHEAD: usize = 1024 * 1024;

/// Connects to a kernel. If the server does not support the newer framing, connects without it.
pub(super) async fn connect(
    server: &ServerClient,
    kernel_id: &str,
    session_id: &str,
    limits: &Limits,
) -> Result<Socket, ConnectError> {
    let url = server.address().channels(kernel_id, session_id);
    let connected = match attempt(server, &url, FramingVersion::V1, limits).await {
        Err(Error::Protocol(ProtocolError::SecWebSocketSubProtocolError(
            SubProtocolError::NoSubProtocol,
        ))) => attempt(server, &url, FramingVersion::V0, limits).await,
        other => other,
    };
    connected.map_err(|error| map_error(server, error))
}

async fn attempt(
    server: &ServerClient,
    url: &Url,
    framing: FramingVersion,
    limits: &Limits,
) -> Result<Socket, Error> {
    let mut request = url.as_str().into_client_request()?;
    let headers = request.headers_mut();
    let own = http::headers(server.token(), server.options());
    headers.extend(own.map_err(|error| io_error(error.to_string()))?);
    if framing == FramingVersion::V1 {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(V1_SUBPROTOCOL));
    }
    let limit = limits.message.saturating_add(FRAMING_OVERHEAD);
    let config = WebSocketConfig::default()
        .write_buffer_size(0)
        .max_message_size(Some(limit))
        .max_frame_size(Some(limit));
    let stream = open(server, url).await?;
    let connecting = tokio_tungstenite::client_async_with_config(request, stream, Some(config));
    let (stream, _) = connecting.await?;
    Ok(Socket { stream, framing })
}

/// Opens the byte stream of the WebSocket.
async fn open(server: &ServerClient, url: &Url) -> Result<Box<dyn Io>, Error> {
    let host = url.host_str().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = url.port_or_known_default().unwrap_or(80);
    let stream = QuickAckStream::new(TcpStream::connect((bare, port)).await?)?;
    if url.scheme() != "wss" {
        return Ok(Box::new(stream));
    }
    let name =
        ServerName::try_from(bare.to_owned()).map_err(|error| io_error(error.to_string()))?;
    let tls = tls::configuration(&server.options().extra_roots);
    let tls = tls.map_err(|error| io_error(error.to_string()))?;
    Ok(Box::new(TlsConnector::from(Arc::clone(&tls)).connect(name, stream).await?))
}

fn io_error(why: String) -> Error {
    Error::Io(std::io::Error::other(why))
}

/// Classifies an error: most 4xx statuses are permanent, other errors are temporary.
fn map_error(server: &ServerClient, error: Error) -> ConnectError {
    match error {
        Error::Http(response) => {
            let status = response.status();
            let body = response.body().as_deref().unwrap_or_default();
            let why = server.http().status_error(status, body).to_string();
            let passes = status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429);
            if passes { ConnectError::Retryable(why) } else { ConnectError::Refused(why) }
        }
        other => ConnectError::Retryable(other.to_string()),
    }
}

impl FramingVersion {
    /// Encodes a message.
    pub(super) fn encode(
        self,
        channel: Channel,
        message: &RawMessage,
    ) -> Result<Message, FramingError> {
        if self == Self::V1 {
            return Ok(Message::Binary(v1::encode(channel, message)));
        }
        Ok(match v0::encode(channel, message)? {
            v0::Encoded::Text(text) => Message::text(text),
            v0::Encoded::Binary(bytes) => Message::Binary(bytes),
        })
    }

    /// Decodes a WebSocket message. Returns `None` for control frames.
    pub(super) fn decode(
        self,
        message: Message,
        limits: &Limits,
    ) -> Option<Result<(Channel, RawMessage), FramingError>> {
        match (message, self) {
            (Message::Binary(bytes), Self::V1) => Some(v1::decode(&bytes, limits)),
            (Message::Binary(bytes), Self::V0) => Some(v0::decode_binary(&bytes, limits)),
            (Message::Text(text), _) => Some(v0::decode_text(&Bytes::from(text), limits)),
            _ => None,
        }
    }
}
