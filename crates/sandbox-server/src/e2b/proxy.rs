//! Ports of programs in a sandbox: one HTTP request, or a WebSocket, at a time.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use hyper_util::rt::TokioIo;
use sandbox_core::{CallContext, TunnelInfo};
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

use super::app::{App, may_reach_ports, unauthorized};
use super::error::{ApiError, port_closed, sandbox_gone};
use super::record::Record;

/// Passes a request on to a port of a sandbox.
pub(super) async fn forward(app: &App, record: &Record, port: u16, request: Request) -> Response {
    if !may_reach_ports(record, request.headers()) {
        return unauthorized().into_response();
    }
    if record.is_paused() {
        if !record.resumes_by_itself() {
            return sandbox_gone(&record.id);
        }
        if let Err(error) = record.resume(None).await {
            return ApiError::from(error).into_response();
        }
    }
    let tunnel = match record.instance.ports() {
        Ok(ports) => ports.expose_port(&CallContext::new(), port).await,
        Err(error) => Err(error),
    };
    let tunnel = match tunnel {
        Ok(tunnel) => tunnel,
        Err(error) => return ApiError::from(error).into_response(),
    };
    match pass(&tunnel, request).await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(id = record.id, port, domain = app.domain, %error, "nothing answers on a port");
            port_closed(&record.id, port)
        }
    }
}

/// Returns `host:port` of the address of a tunnel.
fn address(tunnel: &TunnelInfo) -> Option<String> {
    let uri: Uri = tunnel.url.parse().ok()?;
    if uri.scheme_str() != Some("http") {
        return None;
    }
    Some(format!("{}:{}", uri.host()?, uri.port_u16().unwrap_or(80)))
}

async fn pass(tunnel: &TunnelInfo, mut request: Request) -> Result<Response, String> {
    let Some(address) = address(tunnel) else {
        let message =
            format!("this server passes on http alone; the port is reached at {}", tunnel.url);
        return Ok(ApiError::new(StatusCode::NOT_IMPLEMENTED, message).into_response());
    };
    let stream = TcpStream::connect(&address).await.map_err(|error| error.to_string())?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        // Its error is that of the request.
        let _ = connection.with_upgrades().await;
    });
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let uri: Uri = path.parse().map_err(|_| "the path is no URI".to_owned())?;
    let upgrade = request.headers().contains_key(header::UPGRADE);
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = uri;
    for (name, value) in &tunnel.headers {
        if let (Ok(name), Ok(value)) =
            (name.parse::<header::HeaderName>(), value.parse::<HeaderValue>())
        {
            request.headers_mut().insert(name, value);
        }
    }
    request.headers_mut().remove("e2b-traffic-access-token");
    let mut response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    if let Some(client) = client.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
        let server = hyper::upgrade::on(&mut response);
        tokio::spawn(async move {
            if let (Ok(client), Ok(server)) = (client.await, server.await) {
                let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
                // Either side may end it at any time.
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
    Ok(response.map(Body::new))
}
