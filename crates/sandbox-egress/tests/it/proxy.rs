//! Tests of programs that use the gate as a proxy.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use sandbox_core::NetworkPolicy;
use sandbox_egress::{Gate, GateConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::{Shared, TestNetwork, denied, echo_server, fresh_address, http_server};

const SOON: Duration = Duration::from_secs(20);

/// A gate that serves as a proxy, on a port of this host.
struct ProxyGate {
    gate: Gate,
    network: Arc<TestNetwork>,
    port: u16,
}

impl ProxyGate {
    async fn allowing(patterns: &[&str]) -> Self {
        Self::with(NetworkPolicy::allowlist(patterns).unwrap()).await
    }

    async fn with(policy: NetworkPolicy) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = stream::unfold(listener, async |listener| {
            let (connection, _) = listener.accept().await.unwrap();
            Some((connection, listener))
        });
        let network = Arc::new(TestNetwork::default());
        let mut config = GateConfig::new(policy);
        config.upstream = Arc::new(Shared(Arc::clone(&network)));
        config.limits.first_bytes = Duration::from_secs(2);
        Self { gate: Gate::proxy(connections, config), network, port }
    }

    async fn connected(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// Sends a request and returns the response up to its end. A later refusal may be a reset, which discards
    /// responses.
    async fn send(&self, request: &str) -> String {
        let mut stream = self.connected().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut received = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut received)).await.unwrap();
        String::from_utf8(received).unwrap()
    }
}

fn connect(host: &str) -> String {
    format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: ignored.example\r\n\r\n")
}

#[tokio::test]
async fn allowed_hosts_are_reached_by_tunnel_and_by_request() {
    let address = fresh_address();
    let proxy = ProxyGate::allowing(&["a.example", &address]).await;
    proxy.network.name("a.example", &[&address]);
    http_server(&address, 80, "a").await;
    echo_server(&address, 5432).await;

    assert!(proxy.send(&get("http://a.example/")).await.ends_with("\r\n\r\na"));
    assert!(proxy.send(&get(&format!("http://{address}/x"))).await.ends_with("\r\n\r\na"));
    // Bytes sent with the request are for the other end.
    let mut stream = proxy.connected().await;
    stream.write_all((connect("A.Example.:5432") + "hello").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut received = String::new();
    timeout(SOON, stream.read_to_string(&mut received)).await.unwrap().unwrap();
    assert_eq!(received, "HTTP/1.1 200 Connection established\r\n\r\nHELLO");
    assert_eq!(denied(&proxy.gate), [""; 0]);
}

#[tokio::test]
async fn refused_requests_are_answered_and_recorded() {
    let proxy = ProxyGate::allowing(&["a.example:443", "b.example"]).await;
    proxy.network.name("b.example", &["10.0.0.1"]);
    for (request, expected) in [
        (connect("evil.example:443"), "evil.example:443"),
        (get("http://evil.example/"), "evil.example:80"),
        (connect("a.example:80"), "a.example:80"),
        (connect("b.example:443"), "b.example:443"),
        (connect("198.51.100.1:443"), "198.51.100.1:443"),
        (connect("[::1]:443"), "::1:443"),
        (connect("169.254.169.254:80"), "169.254.169.254:80"),
        (connect("198.18.0.2:80"), "198.18.0.2:80"),
    ] {
        let answer = proxy.send(&request).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{request}: {answer}");
        assert!(
            answer.contains(&format!("the network policy refused {expected}:")),
            "{request}: {answer}"
        );
        assert!(!answer.contains("--") && !answer.contains("NetworkPolicy"), "{answer}");
    }
    assert!(proxy.network.dialled.lock().unwrap().is_empty());
    assert_eq!(*proxy.network.lookups.lock().unwrap(), ["b.example"], "no name leaves this host");
    assert_eq!(
        denied(&proxy.gate)[..3],
        [
            "evil.example:443 not_listed evil.example:443 1",
            "evil.example:80 not_listed evil.example:80 1",
            "a.example:80 not_listed a.example:80 1",
        ]
    );
}

#[tokio::test]
async fn an_address_in_any_spelling_is_that_address() {
    let mut policy = NetworkPolicy::all();
    policy.deny = vec!["9.9.9.0/24".parse().unwrap()];
    let proxy = ProxyGate::with(policy).await;
    // Addresses as the resolver of a host reads them.
    for name in ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376"] {
        proxy.network.name(name, &["169.254.169.254"]);
    }
    proxy.network.name("nine.example", &["9.9.9.9"]);
    for host in [
        "2852039166:80",
        "0xA9FEA9FE:80",
        "0251.0376.0251.0376:80",
        "nine.example:80",
        "[::ffff:9.9.9.9]:80",
    ] {
        let answer = proxy.send(&connect(host)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    assert!(proxy.network.dialled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_other_host_is_named_on_a_connection_that_is_allowed() {
    let address = fresh_address();
    let proxy = ProxyGate::allowing(&["a.example", &address]).await;
    proxy.network.name("a.example", &[&address]);
    http_server(&address, 80, "a").await;
    echo_server(&address, 443).await;
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    // In the tunnel, and after the inspected request.
    let established = "HTTP/1.1 200 Connection established\r\n\r\n";
    let answer = proxy.send(&(connect("a.example:80") + evil)).await;
    assert!(["", established].contains(&&*answer), "{answer}");
    let answer = proxy.send(&(get("http://a.example/") + evil)).await;
    assert!(!answer.contains("evil"), "{answer}");
    // Bytes that are not TLS.
    let answer = proxy.send(&(connect("a.example:443") + evil)).await;
    assert!(["", established].contains(&&*answer), "{answer}");
    let denials = denied(&proxy.gate);
    assert!(
        denials.iter().any(|line| line.starts_with("evil.example:80 wrong_host")),
        "{denials:?}"
    );
    assert!(
        denials.iter().any(|line| line.contains("a.example:443 wrong_protocol")),
        "{denials:?}"
    );
}

#[tokio::test]
async fn malformed_and_missing_requests_are_answered_in_time() {
    let proxy = ProxyGate::allowing(&["a.example"]).await;
    let long = format!("GET http://a.example/{} HTTP/1.1\r\n", "x".repeat(100_000));
    for request in [
        "\u{16}\u{3}\u{1}hello",
        "GET / HTTP/1.1\r\n\r\n",
        "CONNECT a.example HTTP/1.1\r\n\r\n",
        &long,
    ] {
        let answer = proxy.send(request).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{request:?}: {answer}");
    }
    let answer = proxy.send("CONNECT a.example:443").await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    // A name that does not exist, and a server that does not.
    let answer = proxy.send(&connect("a.example:443")).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    // A closed gate answers nothing.
    let mut stream = proxy.connected().await;
    proxy.gate.close();
    let _ = stream.write_all(connect("a.example:443").as_bytes()).await;
    let mut received = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"");
}
