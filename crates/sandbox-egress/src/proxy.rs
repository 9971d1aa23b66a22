//! Connections of programs that say where they want to, as they would say it to a proxy for HTTP.
//!
//! `CONNECT host:port` becomes a tunnel (RFC 9110, 9.3.6). A request with an absolute target goes to that host in the form
//! that servers expect (RFC 9112, 3.2.2), and is the last one of its connection, so that no other host is named on it.

use std::net::IpAddr;
use std::time::Duration;

use sandbox_core::NetworkDenial;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::time::timeout;

use crate::authority;
use crate::connection::{Failed, Meant, carry, reach};
use crate::gate::Shared;
use crate::http::{LONGEST_HEAD, MOST_FIELDS, has_plain_lines, may_be_a_head};

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// How long whoever was refused may take to read why.
const FAREWELL: Duration = Duration::from_secs(2);

/// What a program asks for.
#[derive(Debug)]
struct Request {
    meant: Meant,
    asks: Asks,
    /// What it has said after the head.
    rest: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
enum Asks {
    Tunnel,
    /// One request, with this head.
    Request(Vec<u8>),
}

/// Why a request is not one for a proxy: a status with its phrase, and what to tell.
type Wrong = (&'static str, &'static str);

const BAD: &str = "400 Bad Request";

/// Serves one connection to its end. What is refused is noted, and answered if nothing else was.
pub(crate) async fn serve<C>(shared: &Shared, client: C)
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from, mut to) = split(client);
    let request = match timeout(shared.limits.first_bytes, read(&mut from)).await {
        Ok(Ok(Some(request))) => request,
        // Nothing was asked.
        Ok(Ok(None)) => return,
        Ok(Err((status, why))) => return tell(from, to, status, why).await,
        Err(_) => return tell(from, to, "408 Request Timeout", "no request has come").await,
    };
    let server = match reach(shared, &request.meant).await {
        Ok(server) => server,
        Err(failed) => {
            let (status, why) = told(&request.meant, &failed);
            failed.note(shared);
            return tell(from, to, status, &why).await;
        }
    };
    let said = match request.asks {
        Asks::Tunnel if to.write_all(ESTABLISHED).await.is_err() => return,
        Asks::Tunnel => request.rest,
        Asks::Request(head) => [head, request.rest].concat(),
    };
    if let Err(failed) = carry(shared, &request.meant, (from, to), server, said).await {
        failed.note(shared);
    }
}

/// The request that a connection begins with; none when nothing comes at all.
async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Request>, Wrong> {
    const END: &[u8] = b"\r\n\r\n";
    let mut said = Vec::new();
    loop {
        let searched = said.len().saturating_sub(END.len() - 1);
        match from.read_buf(&mut said).await {
            Ok(0) | Err(_) if said.is_empty() => return Ok(None),
            Ok(0) | Err(_) => return Err((BAD, "the request has no end")),
            Ok(_) => {}
        }
        let end = said[searched..].windows(END.len()).position(|window| window == END);
        if let Some(end) = end.map(|at| searched + at + END.len()) {
            let rest = said.split_off(end);
            return parse(&said, rest).map(Some);
        }
        if said.len() > LONGEST_HEAD || !may_be_a_head(&said) {
            return Err((BAD, "this is a proxy for HTTP, spoken to without encryption"));
        }
    }
}

fn parse(head: &[u8], rest: Vec<u8>) -> Result<Request, Wrong> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    let whole =
        request.parse(head).is_ok_and(|status| status == httparse::Status::Complete(head.len()));
    let (true, true, Some(method), Some(target), Some(version)) =
        (whole, has_plain_lines(head), request.method, request.path, request.version)
    else {
        return Err((BAD, "this is no request of HTTP"));
    };
    if method == "CONNECT" {
        let meant = place(target, None).ok_or((BAD, "CONNECT needs a host and a port"))?;
        return Ok(Request { meant, asks: Asks::Tunnel, rest });
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let Some(target) = scheme.and_then(|_| target.get(7..)) else {
        let why = "this is a proxy: it takes CONNECT, and requests for http://HOST/";
        return Err((BAD, why));
    };
    let end = target.find(['/', '?', '#']).unwrap_or(target.len());
    let (authority, path) = target.split_at(end);
    let meant = place(authority, Some(80)).ok_or((BAD, "the target names no host"))?;
    let path = match path.split('#').next().unwrap_or_default() {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    let head = rewritten(method, &path, authority, version, request.headers);
    Ok(Request { meant, asks: Asks::Request(head), rest })
}

/// What `host:port` means. A host is in lower case and has no final dot.
fn place(text: &str, usual: Option<u16>) -> Option<Meant> {
    let (host, port) = authority::split(text)?;
    let port = port.or(usual).filter(|port| *port != 0)?;
    if let Ok(address) = host.parse::<IpAddr>() {
        return Some(Meant::address(address, port));
    }
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = (1..=253).contains(&host.len())
        && authority::is_plain(host)
        && host.split('.').all(|label| (1..=63).contains(&label.len()));
    is_name.then(|| Meant::name(host.to_ascii_lowercase(), port))
}

/// The head of a request as its server expects it. What is about the connection to a proxy is left out, and the connection
/// to the server ends with the answer.
fn rewritten(
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

/// What to answer when a host is not reached.
fn told(meant: &Meant, failed: &Failed) -> (&'static str, String) {
    match failed {
        Failed::Denied(denial) => {
            let hint = NetworkDenial::hint(std::slice::from_ref(denial));
            ("403 Forbidden", hint.unwrap_or_default())
        }
        Failed::Broken(error) => {
            ("502 Bad Gateway", format!("{}:{} was not reached: {error}", meant.host, meant.port))
        }
    }
}

/// Answers, and waits until that may have been read: what is not read of a connection takes along what was sent on it.
async fn tell(
    from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    status: &str,
    why: &str,
) {
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    );
    let farewell = async {
        to.write_all(answer.as_bytes()).await?;
        to.shutdown().await?;
        let mut rest = from.take(1 << 20);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(FAREWELL, farewell).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(head: &str) -> Result<(String, u16, Asks), &'static str> {
        let request = parse(head.as_bytes(), Vec::new()).map_err(|(status, _)| status)?;
        Ok((request.meant.host, request.meant.port, request.asks))
    }

    #[test]
    fn a_tunnel_is_to_a_host_and_a_port() {
        let connect = |target: &str| asked(&format!("CONNECT {target} HTTP/1.1\r\n\r\n"));
        for (target, host, port) in [
            ("a.example:443", "a.example", 443),
            ("A.Example.:8443", "a.example", 8443),
            ("192.0.2.1:22", "192.0.2.1", 22),
            ("[2001:db8::1]:443", "2001:db8::1", 443),
            ("[::ffff:192.0.2.1]:443", "192.0.2.1", 443),
        ] {
            assert_eq!(connect(target), Ok((host.to_owned(), port, Asks::Tunnel)), "{target}");
        }
        for wrong in [
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
            assert_eq!(connect(wrong), Err(BAD), "{wrong}");
        }
    }

    #[test]
    fn a_request_becomes_one_for_its_server() {
        let head = "GET http://A.example:8080/x?y#z HTTP/1.1\r\nHost: other.example\r\nProxy-Authorization: x\r\n\
                    Connection: keep-alive\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nAccept: */*\r\n\r\n";
        let expected =
            "GET /x?y HTTP/1.1\r\nHost: A.example:8080\r\nAccept: */*\r\nConnection: close\r\n\r\n";
        let asks = Asks::Request(expected.as_bytes().to_vec());
        assert_eq!(asked(head), Ok(("a.example".to_owned(), 8080, asks)));
        let line = |target: &str, method: &str| {
            let (_, port, asks) = asked(&format!("{method} {target} HTTP/1.0\r\n\r\n")).unwrap();
            let Asks::Request(head) = asks else { panic!("no request") };
            let text = String::from_utf8(head).unwrap();
            (port, text.split_once("\r\n").unwrap().0.to_owned())
        };
        assert_eq!(line("http://a.example", "GET"), (80, "GET / HTTP/1.0".to_owned()));
        assert_eq!(line("HTTP://a.example?q", "GET"), (80, "GET /?q HTTP/1.0".to_owned()));
        assert_eq!(line("http://[::1]:81", "OPTIONS"), (81, "OPTIONS * HTTP/1.0".to_owned()));
    }

    #[test]
    fn what_is_for_no_proxy_is_told_so() {
        for wrong in [
            "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET https://a.example/ HTTP/1.1\r\n\r\n",
            "GET http:/// HTTP/1.1\r\n\r\n",
            "GET http://a@b.example/ HTTP/1.1\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\nX: y\r\n\r\n",
            "GET http://a.example/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            assert_eq!(asked(wrong), Err(BAD), "{wrong:?}");
        }
    }
}
