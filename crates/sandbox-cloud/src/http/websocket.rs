//! WebSockets of a service, opened with its credentials, and whose refusals are errors by its rules.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL};
use rustls::pki_types::ServerName;
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Retry};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::error::{ProtocolError, SubProtocolError};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use super::client::Client;
use super::request::set_header;
use super::tls;
use crate::auth::Auth;

/// Largest message that is received, in bytes.
const MAX_MESSAGE: usize = 64 << 20;
/// Time to connect, where the call has no deadline.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Stream = WebSocketStream<Box<dyn Io>>;

/// A message of a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketMessage {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
    /// The other side has closed the connection. Always last.
    Closed {
        /// The reason as a number, which a connection that broke has none of.
        code: Option<u16>,
        /// The reason in words, or as the service writes it.
        reason: String,
    },
}

/// A WebSocket that is not opened yet.
#[derive(Clone, Debug)]
pub struct SocketRequest {
    operation: &'static str,
    url: Url,
    headers: HeaderMap,
    protocols: Vec<String>,
}

impl SocketRequest {
    /// Creates a request for the address, which begins with `http` or `https`.
    pub fn new(operation: &'static str, url: Url) -> Self {
        Self { operation, url, headers: HeaderMap::new(), protocols: Vec::new() }
    }

    /// Adds a parameter to the address.
    #[must_use]
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    /// Sets a header.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that no header can have.
    pub fn header(mut self, name: &'static str, value: &str) -> Result<Self> {
        set_header(&mut self.headers, name, value)?;
        Ok(self)
    }

    /// Offers a subprotocol. The service need not choose one.
    #[must_use]
    pub fn protocol(mut self, name: impl Into<String>) -> Self {
        self.protocols.push(name.into());
        self
    }
}

/// An open WebSocket.
pub struct WebSocket {
    operation: &'static str,
    stream: Stream,
}

/// The sending half of a WebSocket.
pub struct SocketSender {
    operation: &'static str,
    sink: SplitSink<Stream, Message>,
}

/// The receiving half of a WebSocket. It answers pings.
pub struct SocketReceiver {
    stream: SplitStream<Stream>,
    is_over: bool,
}

macro_rules! opaque {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque! { WebSocket SocketSender SocketReceiver }

impl WebSocket {
    /// Splits the connection into its directions.
    pub fn split(self) -> (SocketSender, SocketReceiver) {
        let (sink, stream) = self.stream.split();
        let sender = SocketSender { operation: self.operation, sink };
        (sender, SocketReceiver { stream, is_over: false })
    }
}

impl SocketSender {
    /// Sends text.
    ///
    /// # Errors
    /// `ConnectionLost`, with an unknown effect.
    pub async fn text(&mut self, text: impl Into<String>) -> Result<()> {
        self.send(Message::text(text.into())).await
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// As [`SocketSender::text`].
    pub async fn binary(&mut self, data: Bytes) -> Result<()> {
        self.send(Message::Binary(data)).await
    }

    /// Closes the connection. One that is closed is no error.
    pub async fn close(&mut self) {
        let _ = self.sink.close().await;
    }

    async fn send(&mut self, message: Message) -> Result<()> {
        self.sink.send(message).await.map_err(|error| lost(self.operation, &error))
    }
}

impl SocketReceiver {
    /// Waits for the next message. Returns `None` after [`SocketMessage::Closed`].
    ///
    /// # Cancellation
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<SocketMessage> {
        while !self.is_over {
            let message = match self.stream.next().await {
                Some(Ok(Message::Text(text))) => SocketMessage::Text(text.to_string()),
                Some(Ok(Message::Binary(data))) => SocketMessage::Binary(data),
                Some(Ok(Message::Close(frame))) => {
                    let code = frame.as_ref().map(|frame| frame.code.into());
                    let reason = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    SocketMessage::Closed { code, reason }
                }
                Some(Ok(_)) => continue,
                Some(Err(error)) => SocketMessage::Closed { code: None, reason: error.to_string() },
                None => SocketMessage::Closed { code: None, reason: String::new() },
            };
            self.is_over = matches!(message, SocketMessage::Closed { .. });
            return Some(message);
        }
        None
    }
}

impl<A: Auth> Client<A> {
    /// Opens a WebSocket with the credentials and the headers of the service.
    ///
    /// # Errors
    /// The refusal of the service by the service's rules; `Unavailable` where it cannot be reached; `Protocol` for an answer
    /// that opens none; `Timeout` when it does not answer within the deadline of the call or 30 seconds. Nothing has happened
    /// then.
    pub async fn websocket(
        &self,
        call: &CallContext,
        request: &SocketRequest,
    ) -> Result<WebSocket> {
        let operation = request.operation;
        if !self.service.owns(&request.url) {
            let origin = request.url.origin().ascii_serialization();
            let message = format!("{origin} is not an address of {}", self.service.name);
            return Err(Error::new(ErrorKind::Protocol, operation, message));
        }
        let left = call
            .deadline
            .map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
        let limit = left.map_or(CONNECT_TIMEOUT, |left| left.min(CONNECT_TIMEOUT));
        let credentials = self.auth.credentials(operation).await?;
        let connecting = timeout(limit, async {
            let mut headers = self.service.headers.clone();
            headers.extend(request.headers.clone());
            headers.extend(credentials.headers().clone());
            connect(request, headers).await
        });
        let error = match connecting.await {
            Ok(Ok(stream)) => return Ok(WebSocket { operation, stream }),
            Ok(Err(error)) => error,
            Err(_) => {
                let origin = request.url.origin().ascii_serialization();
                let message = format!("the service at {origin} did not answer in time");
                return Err(
                    Error::new(ErrorKind::Timeout, operation, message).with_retry(Retry::Temporary)
                );
            }
        };
        let rules = self.service.errors;
        Err(match error {
            tungstenite::Error::Http(response) if response.status().is_success() => {
                let origin = request.url.origin().ascii_serialization();
                let message = format!(
                    "the service at {origin} opened no WebSocket: it answered {}",
                    response.status()
                );
                Error::new(ErrorKind::Protocol, operation, message).with_hint(
                    "look whether a proxy on the way there keeps WebSockets from passing",
                )
            }
            tungstenite::Error::Http(response) => {
                let (head, body) = response.into_parts();
                let body = body.unwrap_or_default();
                let error = rules.parse_error(
                    operation,
                    head.status,
                    &head.headers,
                    &body,
                    credentials.secrets(),
                );
                match credentials.source() {
                    Some(source) => error.with_context("key_from", source),
                    None => error,
                }
            }
            other => {
                let origin = request.url.origin().ascii_serialization();
                let message = format!("the service at {origin} cannot be reached: {other}");
                Error::new(ErrorKind::Unavailable, operation, message)
                    .with_retry(Retry::Temporary)
                    .with_hint(rules.unreachable_hint)
            }
        })
    }
}

async fn connect(
    request: &SocketRequest,
    headers: HeaderMap,
) -> std::result::Result<Stream, tungstenite::Error> {
    let protocols = request.protocols.join(", ");
    match attempt(request, headers.clone(), &protocols).await {
        // A service that knows none of the subprotocols, and connects all the same.
        Err(tungstenite::Error::Protocol(ProtocolError::SecWebSocketSubProtocolError(
            SubProtocolError::NoSubProtocol,
        ))) => attempt(request, headers, "").await,
        other => other,
    }
}

async fn attempt(
    request: &SocketRequest,
    headers: HeaderMap,
    protocols: &str,
) -> std::result::Result<Stream, tungstenite::Error> {
    let mut url = request.url.clone();
    let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
    url.set_scheme(scheme).map_err(|()| io_error("the address has no scheme"))?;
    let mut head = url.as_str().into_client_request()?;
    head.headers_mut().extend(headers);
    if !protocols.is_empty() {
        let value = HeaderValue::try_from(protocols).map_err(|_| io_error("a bad subprotocol"))?;
        head.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
    let config = WebSocketConfig::default()
        .write_buffer_size(0)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE));
    let stream = open(&url).await?;
    let (stream, _) =
        tokio_tungstenite::client_async_with_config(head, stream, Some(config)).await?;
    Ok(stream)
}

/// Opens the byte stream of the WebSocket.
async fn open(url: &Url) -> std::result::Result<Box<dyn Io>, tungstenite::Error> {
    let host = url.host_str().unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let stream = TcpStream::connect((bare, url.port_or_known_default().unwrap_or(80))).await?;
    stream.set_nodelay(true)?;
    if url.scheme() != "wss" {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(bare.to_owned()).map_err(io_error)?;
    let config = tls::client_config().map_err(io_error)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

fn io_error(why: impl ToString) -> tungstenite::Error {
    tungstenite::Error::Io(std::io::Error::other(why.to_string()))
}

fn lost(operation: &'static str, error: &tungstenite::Error) -> Error {
    let message = format!("the connection to the service broke: {error}");
    Error::new(ErrorKind::ConnectionLost, operation, message)
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}
