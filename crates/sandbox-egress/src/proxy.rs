//! Serves programs that use the gate as an HTTP proxy.
//!
//! `CONNECT host:port` becomes a tunnel (RFC 9110, 9.3.6). A request with an absolute target is forwarded in the form
//! that servers expect (RFC 9112, 3.2.2), and is the last one of its connection, so that no other host can be named on
//! it.

use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::time::timeout;

use crate::authority;
use crate::connection::{ConnectError, Destination, connect, proxy_bytes};
use crate::gate::Shared;
use crate::http::{MAX_FIELDS, MAX_HEAD_SIZE, has_plain_lines, may_be_a_head};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Timeout for a refused client to read the reason.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The first request of a proxy connection.
#[derive(Debug)]
struct ProxyRequest {
    destination: Destination,
    kind: RequestKind,
    /// The bytes received after the head.
    rest: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
enum RequestKind {
    Tunnel,
    /// One request, with its rewritten head.
    Forward(Vec<u8>),
}

/// Reason why a request is invalid: a status with its phrase, and a text.
type BadRequest = (&'static str, &'static str);

const BAD: &str = "400 Bad Request";

/// Serves one connection until it ends. A refusal is recorded, and answered unless an answer was already sent.
pub(crate) async fn serve<C>(shared: &Shared, client: C)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from, mut to) = split(client);
    let request = match timeout(shared.limits.first_bytes, read(&mut from)).await {
        Ok(Ok(Some(request))) => request,
        // The client sent nothing.
        Ok(Ok(None)) => return,
        Ok(Err((status, why))) => return respond(from, to, status, why).await,
        Err(_) => {
            return respond(from, to, "408 Request Timeout", "no request arrived in time").await;
        }
    };
    let server = match connect(shared, &request.destination).await {
        Ok(server) => server,
        Err(error) => {
            let (status, why) = error_response(&request.destination, &error);
            error.record(shared);
            return respond(from, to, status, &why).await;
        }
    };
    let received = match request.kind {
        RequestKind::Tunnel if to.write_all(ESTABLISHED).await.is_err() => return,
        RequestKind::Tunnel => request.rest,
        RequestKind::Forward(head) => [head, request.rest].concat(),
    };
    if let Err(error) =
        proxy_bytes(shared, &request.destination, (from, to), server, received).await
    {
        error.record(shared);
    }
}

/// Reads the first request of a connection; `None` when the client sends nothing.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<ProxyRequest>, BadRequest> {
    const END: &[u8] = b"\r\n\r\n";
    let mut received = Vec::new();
    loop {
        let searched = received.len().saturating_sub(END.len() - 1);
        match from.read_buf(&mut received).await {
            Ok(0) | Err(_) if received.is_empty() => return Ok(None),
            Ok(0) | Err(_) => return Err((BAD, "the request is incomplete")),
            Ok(_) => {}
        }
        let end = received[searched..].windows(END.len()).position(|window| window == END);
        if let Some(end) = end.map(|at| searched + at + END.len()) {
            let rest = received.split_off(end);
            return parse(&received, rest).map(Some);
        }
        if received.len() > MAX_HEAD_SIZE || !may_be_a_head(&received) {
            return Err((BAD, "this proxy expects an unencrypted HTTP request"));
        }
    }
}

fn parse(head: &[u8], rest: Vec<u8>) -> Result<ProxyRequest, BadRequest> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let whole =
        request.parse(head).is_ok_and(|status| status == httparse::Status::Complete(head.len()));
    let (true, true, Some(method), Some(target), Some(version)) =
        (whole, has_plain_lines(head), request.method, request.path, request.version)
    else {
        return Err((BAD, "the request is not valid HTTP"));
    };
    if method == "CONNECT" {
        let destination =
            parse_destination(target, None).ok_or((BAD, "CONNECT needs a host and a port"))?;
        return Ok(ProxyRequest { destination, kind: RequestKind::Tunnel, rest });
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let Some(target) = scheme.and_then(|_| target.get(7..)) else {
        let why = "this proxy accepts only CONNECT, and requests for http://HOST/";
        return Err((BAD, why));
    };
    let end = target.find(['/', '?', '#']).unwrap_or(target.len());
    let (authority, path) = target.split_at(end);
    let destination =
        parse_destination(authority, Some(80)).ok_or((BAD, "the request target names no host"))?;
    let path = match path.split('#').next().unwrap_or_default() {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let head = rewrite_head(method, &path, authority, version, request.headers);
    Ok(ProxyRequest { destination, kind: RequestKind::Forward(head), rest })
}

/// Parses `host:port`, with the host in lower case and without a final dot.
fn parse_destination(text: &str, default: Option<u16>) -> Option<Destination> {
    let (host, port) = authority::split(text)?;
    let port = port.or(default).filter(|port| *port != 0)?;
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Destination::address(address, port));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = (1..=253).contains(&host.len())
        && authority::is_plain(host)
        && host.split('.').all(|label| (1..=63).contains(&label.len()));
    is_name.then(|| Destination::name(host.to_ascii_lowercase(), port))
}

/// Rewrites the head of a request for its server. Fields about the proxy connection are removed, and the server closes
/// the connection after its answer.
fn rewrite_head(
    method: &str,
    path: &str,
    authority: &str,
    version: u8,
    fields: &[httparse::Header<'_>],
) -> Vec<u8> {
    const OWN: [&str; 7] = [
        "host",
        "connection",
        "proxy-connection",
        "proxy-authorization",
        "keep-alive",
        "upgrade",
        "te",
    ];
    let mut head =
        format!("{method} {path} HTTP/1.{version}\r\nHost: {authority}\r\n").into_bytes();
    for field in
        fields.iter().filter(|field| !OWN.iter().any(|own| field.name.eq_ignore_ascii_case(own)))
    {
        head.extend(field.name.as_bytes());
        head.extend(b": ");
        head.extend(field.value);
        head.extend(b"\r\n");
    }
    head.extend(b"Connection: close\r\n\r\n");
    head
}

/// Returns the status and text for a host that was not reached.
fn error_response(destination: &Destination, error: &ConnectError) -> (&'static str, String) {
    match error {
        ConnectError::Denied(denial) => {
            // Code reads the answer, and cannot open the network: the advice is for its caller.
            let text = format!("the network policy refused {denial}: {}", denial.reason);
            ("403 Forbidden", text)
        }
        ConnectError::Broken(error) => (
            "502 Bad Gateway",
            format!("{}:{} could not be reached: {error}", destination.host, destination.port),
        ),
    }
}

/// Sends a response and drains the client: closing a socket with unread bytes would discard the response.
async fn respond(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    status: &str,
    why: &str,
) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    );
    let send = async {
        to.write_all(answer.as_bytes()).await?;
        to.shutdown().await?;
        let mut rest = from.take(1 << 20);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(CLOSE_TIMEOUT, send).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(head: &str) -> Result<(String, u16, RequestKind), &'static str> {
        let request = parse(head.as_bytes(), Vec::new()).map_err(|(status, _)| status)?;
        Ok((request.destination.host, request.destination.port, request.kind))
    }

    #[test]
    fn a_tunnel_is_to_a_host_and_a_port() {
        let connect = |target: &str| parsed(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        for (target, host, port) in [
            ("a.example:443", "a.example", 443),
            ("A.Example.:8443", "a.example", 8443),
            ("192.0.2.1:22", "192.0.2.1", 22),
            ("[2001:db8::1]:443", "2001:db8::1", 443),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1", 443),
        ] {
            assert_eq!(
                connect(target),
                Ok((host.to_owned(), port, RequestKind::Tunnel)),
                "{target}"
            );
        }
        for invalid in [
            "a.example",
            "a.example:",
            "a.example:0",
            "a.example:65536",
            ":443",
            ".:443",
            "a..b:1",
            "-",
            "2001:db8::1:443",
            "user@a.example:443",
            "a.example:443/x",
            "[::1]",
            "[::1]443",
            "a%00b:1",
            "http://a.example:443",
            "/",
        ] {
            assert_eq!(connect(invalid), Err(BAD), "{invalid}");
        }
    }

    #[test]
    fn a_request_becomes_one_for_its_server() {
        let head = "GET http://A.example:8080/x?y#z HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n\
                    Connection: keep-alive\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nAccept: */*\r\n\r\n";
        let expected =
            "GET /x?y HTTP/1.1\r\nHost: A.example:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n";
        let kind = RequestKind::Forward(expected.as_bytes().to_vec());
        assert_eq!(parsed(head), Ok(("a.example".to_owned(), 8080, kind)));
        let line = |target: &str, method: &str| {
            let (_, port, kind) = parsed(&format!("{method} {target} HTTP/1.0\r\n\r\n")).unwrap();
            let RequestKind::Forward(head) = kind else { panic!("no request") };
            let text = String::from_utf8(head).unwrap();
            (port, text.split_once("\r\n").unwrap().0.to_owned())
        };
        assert_eq!(line("http://a.example", "GET"), (80, "GET / HTTP/1.0".to_owned()));
        assert_eq!(line("HTTP://a.example?q", "GET"), (80, "GET /?q HTTP/1.0".to_owned()));
        assert_eq!(line("http://[::1]:81", "OPTIONS"), (81, "OPTIONS * HTTP/1.0".to_owned()));
    }

    #[test]
    fn requests_that_are_not_for_a_proxy_are_refused() {
        for invalid in [
            "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET https://a.example/ HTTP/1.1\r\n\r\n",
            "GET http:/// HTTP/1.1\r\n\r\n",
            "GET http://a@b.example/ HTTP/1.1\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\nX: y\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
            "malformed\r\n\r\n",
        ] {
            assert_eq!(parsed(invalid), Err(BAD), "{invalid:?}");
        }
    }
}
