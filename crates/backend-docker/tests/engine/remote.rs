//! The network of containers of a remote engine.

use std::sync::Arc;

use backend_docker::{DockerBackend, DockerConfig};
use sandbox_core::{NetworkPolicy, Sandbox};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, UnixStream};

use super::container;
use super::support::{docker, has_engine};

/// With a remote engine no gate can be opened in the network of a container: a proxy enforces the policy.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn allowlists_are_enforced_with_a_remote_engine() {
    assert!(has_engine(), "there is no engine to test with");
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let allowed = server.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).await;
            let body = "x".repeat(3_000_000);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = other.local_addr().unwrap();
    let mut config = DockerConfig::default();
    config.host = Some(engine_over_tcp().await);
    let policy =
        NetworkPolicy::allowlist(["served.localhost".to_owned(), allowed.to_string()]).unwrap();
    let sandbox = Sandbox::builder(Arc::new(DockerBackend::new(config)))
        .network(policy)
        .create()
        .await
        .unwrap();
    let layers = sandbox.info().isolation.unwrap().layers;
    assert!(layers.iter().any(|layer| layer == "network-proxy"), "{layers:?}");

    // Requests, tunnels, and many connections at a time, through the proxy in the environment.
    let code = format!("
import os, socket, threading, urllib.request
assert [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:] == ['lo']
def fetch(url, kind):
    request = urllib.request.Request(url)
    request.set_proxy(os.environ[kind].removeprefix('http://'), 'http')
    return len(urllib.request.urlopen(request, timeout=20).read())
def tunnel(port):
    proxy = os.environ['https_proxy'].rpartition(':')[2]
    with socket.create_connection(('127.0.0.1', int(proxy)), 20) as s:
        s.sendall(b'CONNECT 127.0.0.1:%d HTTP/1.1\\r\\n\\r\\n' % port)
        status = s.recv(100)
        if b' 200 ' not in status: return status[9:12].decode()
        s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
        return len(s.makefile('rb').read().partition(b'\\r\\n\\r\\n')[2])
found = []
threads = [threading.Thread(target=lambda: found.append(fetch('http://{allowed}/', 'HTTP_PROXY'))) for _ in range(20)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sum(found), tunnel({port}), tunnel({other})", port = allowed.port(), other = refused.port());
    let outcome = sandbox.run_code(code).await.unwrap();
    assert_eq!(outcome.text(), Some("(60000000, 3000000, '403')"), "{outcome:?}");
    let denied: Vec<_> = outcome.network_denied.iter().map(ToString::to_string).collect();
    assert_eq!(denied, [refused.to_string()]);

    // A program that uses the proxy like a package manager, and one that ignores it.
    let command = "python3 -c 'import urllib.request as u; u.urlopen(\"http://evil.example/\")' 2>&1 | tail -1";
    let outcome = sandbox.commands().run(command).await.unwrap();
    assert_eq!(outcome.stdout.trim(), "urllib.error.HTTPError: HTTP Error 403: Forbidden");
    assert_eq!(outcome.network_denied[0].allow.as_deref(), Some("evil.example:80"));
    let direct = "import socket; socket.create_connection(('198.51.100.1', 80), 5)";
    let outcome = sandbox.run_code(direct).await.unwrap();
    let hint = outcome.hint.clone().unwrap_or_default();
    assert!(hint.contains("HTTPS_PROXY"), "{outcome:?}");
    drop(other);
    sandbox.terminate().await.unwrap();
}

/// Private addresses have to be listed explicitly; the engine's own network would reach them all.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn all_is_no_more_than_the_public_internet_with_a_remote_engine() {
    assert!(has_engine(), "there is no engine to test with");
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let mut config = DockerConfig::default();
    config.host = Some(engine_over_tcp().await);
    let builder = Sandbox::builder(Arc::new(DockerBackend::new(config)));
    let sandbox = builder.network(NetworkPolicy::all()).create().await.unwrap();
    let isolation = sandbox.info().isolation.unwrap();
    assert!(isolation.layers.iter().any(|layer| layer == "network-proxy"), "{isolation:?}");
    assert_eq!(isolation.network, "all public addresses (through a proxy)");
    let format = "{{.HostConfig.NetworkMode}}";
    assert_eq!(docker(&["inspect", "--format", format, &container(&sandbox)]).await, "none");
    let code = format!(
        "
import os, socket
def status(host, port):
    proxy = os.environ['https_proxy'].rpartition(':')[2]
    with socket.create_connection(('127.0.0.1', int(proxy)), 20) as s:
        s.sendall(b'CONNECT %s:%d HTTP/1.1\\r\\n\\r\\n' % (host.encode(), port))
        return s.recv(100)[9:12].decode()
interfaces = [line.split(':')[0].strip() for line in open('/proc/net/dev')][2:]
interfaces, status('169.254.169.254', 80), status('172.17.0.1', 22), status('127.0.0.1', {port})"
    );
    let outcome = sandbox.run_code(code).await.unwrap();
    assert_eq!(outcome.text(), Some("(['lo'], '403', '403', '403')"), "{outcome:?}");
    assert_eq!(outcome.network_denied.len(), 3, "{outcome:?}");
    drop(server);
    sandbox.terminate().await.unwrap();
}

/// Serves the engine of this host over TCP, like a remote engine.
pub(super) async fn engine_over_tcp() -> String {
    let socket = std::env::var("DOCKER_HOST").ok();
    let socket = socket.as_deref().and_then(|host| host.strip_prefix("unix://"));
    let socket = socket.unwrap_or("/var/run/docker.sock").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut here, _) = listener.accept().await.unwrap();
            let mut there = UnixStream::connect(&socket).await.unwrap();
            tokio::spawn(async move { copy_bidirectional(&mut here, &mut there).await });
        }
    });
    address
}
