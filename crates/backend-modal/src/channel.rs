//! Connections for gRPC, with certificates checked as for all clouds, and single calls over them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use sandbox_cloud::http::{Url, is_loopback, tls};
use sandbox_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::NotConnected;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Bytes on their way on one stream and on one connection: a sandbox may be far away.
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;
/// Largest message of the service.
const MAX_MESSAGE: usize = 64 << 20;

/// A connection of one of the kinds that addresses ask for.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens a channel, which connects with its first call and again after a connection has broken. It belongs to the runtime
/// that opens it.
///
/// # Errors
/// `InvalidArgument` for an address without encryption that is not of this computer.
pub(crate) fn open(url: &Url) -> Result<Channel> {
    let is_plain = url.scheme() == "http";
    if is_plain && !is_loopback(url) {
        let message = format!("must begin with https://, got {url}");
        return Err(Error::invalid("server_url", message));
    }
    let endpoint = Endpoint::from_shared(url.to_string())
        .and_then(|endpoint| {
            endpoint.user_agent(concat!("code-sandboxes/", env!("CARGO_PKG_VERSION")))
        })
        .map_err(|error| {
            Error::invalid("server_url", format!("is no address of a service, got {url}"))
                .with_source(error)
        })?
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    let encryption = if is_plain { None } else { Some(encryption()?) };
    let connector = tower::service_fn(move |address: Uri| {
        let encryption = encryption.clone();
        async move {
            let connecting = timeout(CONNECT_TIMEOUT, connect(address, encryption));
            let connected =
                connecting.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
            connected.map(TokioIo::new).map_err(NotConnected)
        }
    });
    Ok(endpoint.connect_with_connector_lazy(connector))
}

fn encryption() -> Result<TlsConnector> {
    let mut config = tls::client_config()?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn connect(address: Uri, encryption: Option<TlsConnector>) -> io::Result<Box<dyn Stream>> {
    let no_host = || io::Error::new(io::ErrorKind::InvalidInput, "the address has no host");
    let host = address.host().ok_or_else(no_host)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = address.port_u16().unwrap_or(if encryption.is_some() { 443 } else { 80 });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let Some(encryption) = encryption else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(encryption.connect(name, stream).await?))
}

/// Makes a call with one answer, whose metadata is with it.
pub(crate) async fn unary<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> std::result::Result<Response<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut client = client(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    client.unary(request, PathAndQuery::from_static(path), codec).await
}

/// Makes a call whose answers are a stream.
pub(crate) async fn server_streaming<Q, A>(
    channel: &Channel,
    path: &'static str,
    request: Request<Q>,
) -> std::result::Result<Streaming<A>, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut client = client(channel).await?;
    let codec = ProstCodec::<Q, A>::default();
    let answer = client.server_streaming(request, PathAndQuery::from_static(path), codec).await?;
    Ok(answer.into_inner())
}

async fn client(channel: &Channel) -> std::result::Result<Grpc<Channel>, Status> {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE);
    client.ready().await.map_err(|error| Status::from_error(error.into()))?;
    Ok(client)
}

/// Returns the error for metadata that no header can have.
pub(crate) fn invalid_metadata(name: &'static str) -> Error {
    let message = format!("{name} has characters that no header can have");
    Error::new(ErrorKind::Unauthenticated, "authenticate", message)
}
