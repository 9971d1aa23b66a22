//! Programs that ask for each connection, as one asks a proxy.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use sandbox_core::NetworkPolicy;
use sandbox_egress::{Gate, GateConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::support::{Shared, World, denied, echo_server, fresh_address, http_server};

const SOON: Duration = Duration::from_secs(20);

/// A gate that is asked, on a port of this host.
struct Asked {
    gate: Gate,
    world: Arc<World>,
    port: u16,
}

impl Asked {
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
        let world = Arc::new(World::default());
        let mut config = GateConfig::new(policy);
        config.upstream = Arc::new(Shared(Arc::clone(&world)));
        config.limits.first_bytes = Duration::from_secs(2);
        Self { gate: Gate::proxy(connections, config), world, port }
    }

    async fn connected(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.port)).await.unwrap()
    }

    /// What is answered to those words, up to the end. What is refused later may be a reset, which takes answers along.
    async fn say(&self, words: &str) -> String {
        let mut stream = self.connected().await;
        stream.write_all(words.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let _ = timeout(SOON, stream.read_to_end(&mut heard)).await.unwrap();
        String::from_utf8(heard).unwrap()
    }
}

fn connect(host: &str) -> String {
    format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

fn get(url: &str) -> String {
    format!("GET {url} HTTP/1.1\r\nHost: ignored.example\r\n\r\n")
}

#[tokio::test]
async fn what_is_allowed_is_reached_by_tunnel_and_by_request() {
    let address = fresh_address();
    let asked = Asked::allowing(&["a.example", &address]).await;
    asked.world.name("a.example", &[&address]);
    http_server(&address, 80, "a").await;
    echo_server(&address, 5432).await;

    assert!(asked.say(&get("http://a.example/")).await.ends_with("\r\n\r\na"));
    assert!(asked.say(&get(&format!("http://{address}/x"))).await.ends_with("\r\n\r\na"));
    // Words that come with the question are for the other end.
    let mut stream = asked.connected().await;
    stream.write_all((connect("A.Example.:5432") + "hello").as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut heard = String::new();
    timeout(SOON, stream.read_to_string(&mut heard)).await.unwrap().unwrap();
    assert_eq!(heard, "HTTP/1.1 200 Connection established\r\n\r\nHELLO");
    assert_eq!(denied(&asked.gate), [""; 0]);
}

#[tokio::test]
async fn what_is_not_allowed_is_answered_and_told() {
    let asked = Asked::allowing(&["a.example:443", "b.example"]).await;
    asked.world.name("b.example", &["10.0.0.1"]);
    for (words, told) in [
        (connect("evil.example:443"), "--allow evil.example:443"),
        (get("http://evil.example/"), "--allow evil.example:80"),
        (connect("a.example:80"), "--allow a.example:80"),
        (connect("b.example:443"), "--allow 10.0.0.1:443"),
        (connect("198.51.100.1:443"), "--allow 198.51.100.1:443"),
        (connect("[::1]:443"), "--allow [::1]:443"),
        (connect("169.254.169.254:80"), "--allow 169.254.169.254:80"),
        (connect("198.18.0.2:80"), "the network policy refused 198.18.0.2:80"),
    ] {
        let answer = asked.say(&words).await;
        assert!(answer.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{words}: {answer}");
        assert!(answer.contains(told), "{words}: {answer}");
    }
    assert!(asked.world.dialled.lock().unwrap().is_empty());
    assert_eq!(*asked.world.asked.lock().unwrap(), ["b.example"], "no name leaves this host");
    assert_eq!(
        denied(&asked.gate)[..3],
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
    let asked = Asked::with(policy).await;
    // As the resolver of a host reads them.
    for name in ["2852039166", "0xa9fea9fe", "0251.0376.0251.0376"] {
        asked.world.name(name, &["169.254.169.254"]);
    }
    asked.world.name("nine.example", &["9.9.9.9"]);
    for host in [
        "2852039166:80",
        "0xA9FEA9FE:80",
        "0251.0376.0251.0376:80",
        "nine.example:80",
        "[::ffff:9.9.9.9]:80",
    ] {
        let answer = asked.say(&connect(host)).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{host}: {answer}");
    }
    assert!(asked.world.dialled.lock().unwrap().is_empty());
}

#[tokio::test]
async fn no_other_host_is_named_on_a_connection_that_is_allowed() {
    let address = fresh_address();
    let asked = Asked::allowing(&["a.example", &address]).await;
    asked.world.name("a.example", &[&address]);
    http_server(&address, 80, "a").await;
    echo_server(&address, 443).await;
    let evil = "GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n";
    // In the tunnel, and after the request that was looked at.
    let established = "HTTP/1.1 200 Connection established\r\n\r\n";
    let answer = asked.say(&(connect("a.example:80") + evil)).await;
    assert!(["", established].contains(&&*answer), "{answer}");
    let answer = asked.say(&(get("http://a.example/") + evil)).await;
    assert!(!answer.contains("evil"), "{answer}");
    // What is no TLS.
    let answer = asked.say(&(connect("a.example:443") + evil)).await;
    assert!(["", established].contains(&&*answer), "{answer}");
    let told = denied(&asked.gate);
    assert!(told.iter().any(|line| line.starts_with("evil.example:80 wrong_host")), "{told:?}");
    assert!(told.iter().any(|line| line.contains("a.example:443 wrong_protocol")), "{told:?}");
}

#[tokio::test]
async fn nonsense_and_silence_are_answered_within_their_time() {
    let asked = Asked::allowing(&["a.example"]).await;
    let long = format!("GET http://a.example/{} HTTP/1.1\r\n", "x".repeat(100_000));
    for words in [
        "\u{16}\u{3}\u{1}hello",
        "GET / HTTP/1.1\r\n\r\n",
        "CONNECT a.example HTTP/1.1\r\n\r\n",
        &long,
    ] {
        let answer = asked.say(words).await;
        assert!(answer.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{words:?}: {answer}");
    }
    let answer = asked.say("CONNECT a.example:443").await;
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    // A name that does not exist, and a server that does not.
    let answer = asked.say(&connect("a.example:443")).await;
    assert!(answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"), "{answer}");
    // Nothing is answered any more once the gate is closed.
    let mut stream = asked.connected().await;
    asked.gate.close();
    let _ = stream.write_all(connect("a.example:443").as_bytes()).await;
    let mut heard = Vec::new();
    let _ = timeout(SOON, stream.read_to_end(&mut heard)).await.unwrap();
    assert_eq!(heard, b"");
}
