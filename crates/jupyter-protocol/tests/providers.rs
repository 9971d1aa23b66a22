//! Faults of servers and of networks: connections that break, hang or are slow, error responses, and untrusted
//! certificates.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/fake_server.rs"]
mod fake_server;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fake_server::{FakeServer, Faults};
use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::{Client, ClientError, CloseReason, Effect};
use jupyter_protocol::execution::{Event, GracePeriods};
use jupyter_protocol::test_kernel::Behaviour;
use jupyter_protocol::websocket::{Options, ServerClient, ServerError, ServerOptions, Token};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// An upper bound for every operation in these tests.
const SOON: Duration = Duration::from_secs(20);

fn options() -> Options {
    let mut options = Options::default();
    options.client.connect_timeout = Duration::from_secs(2);
    options.client.reconnect_timeout = Duration::from_secs(5);
    let soon = Duration::from_millis(500);
    options.client.grace = GracePeriods::default().with_idle(soon).with_reply(soon);
    options
}

async fn start(faults: Faults) -> (FakeServer, Client) {
    let fake = FakeServer::start(Behaviour::default(), faults).await;
    let server = ServerClient::new(&fake.address, Token::new("secret")).unwrap();
    let client = server.connect("the-kernel", options()).await.unwrap();
    client.ready(SOON).await.unwrap();
    (fake, client)
}

/// However a connection ends while code runs, that is reported and the code is sent once.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_ends_in_a_run_does_not_run_it_twice() {
    let closed = |code: u16| {
        let [high, low] = code.to_be_bytes();
        vec![0x88, 2, high, low]
    };
    for (what, bytes) in [
        ("closed in order", closed(1000)),
        ("closed for an error", closed(1011)),
        ("a reserved close code", closed(1006)),
        ("no word", Vec::new()),
        ("half a frame", vec![0x82, 0x7e, 0x01]),
        ("a masked frame", vec![0x82, 0x81, 1, 2, 3, 4, 5]),
        ("an unknown kind of frame", vec![0x83, 0x00]),
        ("a piece of nothing", vec![0x80, 0x01, b'x']),
    ] {
        let faults = Faults { last_bytes: Some(bytes), ..Faults::default() };
        let (fake, client) = start(faults).await;
        let start = Instant::now();
        let outcome = client.execute(ExecuteRequest::new("print x")).await.unwrap().outcome().await;
        assert!(start.elapsed() < SOON, "{what}: {:?}", start.elapsed());
        assert!(outcome.losses.disconnected || !outcome.is_ok(), "{what}: {outcome:?}");
        assert_eq!(fake.executions.load(Ordering::Relaxed), 1, "{what}");
        // The client continues over another connection.
        let outcome = client.execute(ExecuteRequest::new("print y")).await.unwrap().outcome().await;
        assert!(outcome.is_ok(), "{what}: {outcome:?}");
        assert_eq!(fake.requests.lock().unwrap().len(), 2, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frame_that_announces_two_gigabytes_ends_it_and_takes_no_memory() {
    let mut bytes = vec![0x82, 0x7f];
    bytes.extend_from_slice(&(2_u64 << 30).to_be_bytes());
    let (fake, client) = start(Faults { last_bytes: Some(bytes), ..Faults::default() }).await;
    let before = peak_memory();
    let running = client.execute(ExecuteRequest::new("print x")).await.unwrap();
    let outcome = running.outcome().await;
    assert!(!outcome.is_ok(), "{outcome:?}");
    assert!(matches!(client.close_reason(), Some(CloseReason::Violation { .. })), "{client:?}");
    assert_eq!(fake.executions.load(Ordering::Relaxed), 1);
    assert!(peak_memory() < before + (256 << 20), "{before} {}", peak_memory());
}

/// Returns the peak memory of this process, in bytes.
fn peak_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_in_pieces_are_whole() {
    for old in [false, true] {
        let (_fake, client) = start(Faults { old, in_pieces: true, ..Faults::default() }).await;
        let mut running = client.execute(ExecuteRequest::new("print a\nprint b")).await.unwrap();
        let mut text = String::new();
        while let Some(event) = running.next().await {
            if let Event::Stream(stream) = event {
                text.push_str(&stream.text);
            }
        }
        assert_eq!((text.as_str(), client.rejected()), ("a\nb\n", 0), "old: {old}");
    }
}

/// A text frame in the binary framing is decoded by its form, or counted as rejected.
#[tokio::test(flavor = "multi_thread")]
async fn text_in_the_binary_framing_does_no_harm() {
    let text = b"{\"no\": \"message\"}";
    let mut bytes = vec![0x81, u8::try_from(text.len()).unwrap()];
    bytes.extend_from_slice(text);
    let (fake, client) = start(Faults { last_bytes: Some(bytes), ..Faults::default() }).await;
    client.execute(ExecuteRequest::new("print x")).await.unwrap().outcome().await;
    assert_eq!(client.rejected(), 1);
    assert_eq!(fake.executions.load(Ordering::Relaxed), 1);
    assert!(client.execute(ExecuteRequest::new("1")).await.unwrap().outcome().await.is_ok());
}

/// Answers every connection with these bytes, one every 20 milliseconds after the first `at_once`.
async fn dripping(bytes: &'static [u8], at_once: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let _ = stream.write_all(&bytes[..at_once]).await;
                for byte in bytes[at_once..].iter().cycle() {
                    if stream.write_all(&[*byte]).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
    });
    address
}

/// Accepts no connection: the backlog is full.
async fn full() -> (String, TcpListener, Vec<TcpStream>) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    let moment = Duration::from_millis(300);
    while let Ok(connected) = tokio::time::timeout(moment, TcpStream::connect(address)).await {
        waiting.push(connected.unwrap());
    }
    (format!("http://{address}"), listener, waiting)
}

fn impatient(address: &str) -> ServerClient {
    let mut options = ServerOptions::default();
    options.timeout = Duration::from_millis(700);
    ServerClient::with_options(address, Token::new("secret"), options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_hangs_or_drips_ends_with_the_time_of_the_request() {
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n     ";
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let head = HEAD.len() - 5;
    let (full, _listener, _waiting) = full().await;
    for (what, address) in [
        ("nothing", format!("http://127.0.0.1:{port}")),
        ("no TLS", format!("https://127.0.0.1:{port}")),
        ("headers drip", dripping(HEAD, 0).await),
        ("the body drips", dripping(HEAD, head).await),
        ("no connection", full),
    ] {
        let server = impatient(&address);
        let start = Instant::now();
        let error = server.kernels().await.unwrap_err();
        assert!(start.elapsed() < SOON / 2, "{what}: {:?}", start.elapsed());
        assert!(matches!(error, ServerError::Unreachable { .. }), "{what}: {error:?}");
        let start = Instant::now();
        let error = server.connect("k", options()).await.unwrap_err();
        assert!(start.elapsed() < SOON / 2, "{what}: {:?}", start.elapsed());
        assert!(matches!(&error, ClientError::Closed { .. }), "{what}: {error}");
        assert_eq!(error.effect(), Effect::None, "{what}");
    }
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_asks_to_wait_is_understood() {
    let busy: &[u8] =
        b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 7\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let server = impatient(&dripping(busy, busy.len()).await);
    let error = server.kernels().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)), "{error:?}");
    assert!(matches!(error, ServerError::Status { status: 429, .. }), "{error:?}");
    // No request is retried, and one that changes something may have had an effect.
    let error = server.start_kernel("python3", None).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown);
}

/// Answers with an error `times` times, and then with a body.
async fn failing(times: usize, body: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let (status, body) = match counted.fetch_add(1, Ordering::Relaxed) {
                before if before < times => ("500 Internal Server Error", "{}"),
                _ => ("200 OK", body),
            };
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            );
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    });
    (address, requests)
}

const KERNEL: &str = "{\"id\": \"k\"}";

/// A server restarts a dead kernel by itself, and fails until that is done.
#[tokio::test(flavor = "multi_thread")]
async fn requests_during_a_restart_by_the_server_are_retried() {
    let (address, requests) = failing(2, KERNEL).await;
    let kernel = impatient(&address).restart_kernel("k").await.unwrap();
    assert_eq!((kernel.id.as_str(), requests.load(Ordering::Relaxed)), ("k", 3));
    let (address, requests) = failing(2, KERNEL).await;
    impatient(&address).delete_kernel("k").await.unwrap();
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    let (address, requests) = failing(usize::MAX, KERNEL).await;
    let start = Instant::now();
    let error = impatient(&address).restart_kernel("k").await.unwrap_err();
    assert!(matches!(error, ServerError::Status { status: 500, .. }), "{error:?}");
    assert!(
        start.elapsed() < SOON && requests.load(Ordering::Relaxed) > 3,
        "{:?}",
        start.elapsed()
    );
    // This request is not retried.
    let (address, requests) = failing(1, KERNEL).await;
    impatient(&address).interrupt_kernel("k").await.unwrap_err();
    assert_eq!(requests.load(Ordering::Relaxed), 1);
}

/// Jupyter Server fails to list kernels while it starts one.
#[tokio::test(flavor = "multi_thread")]
async fn queries_during_a_start_by_the_server_are_retried() {
    let (address, requests) = failing(2, "[{\"id\": \"k\"}]").await;
    let kernels = impatient(&address).kernels().await.unwrap();
    assert_eq!((kernels[0].id.as_str(), requests.load(Ordering::Relaxed)), ("k", 3));
    let (address, requests) = failing(2, "[]").await;
    assert_eq!(impatient(&address).sessions().await.unwrap(), []);
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    let (address, requests) = failing(2, KERNEL).await;
    assert_eq!(impatient(&address).kernel("k").await.unwrap().id, "k");
    assert_eq!(requests.load(Ordering::Relaxed), 3);
    // A start is not retried: the server may have started a kernel before it failed.
    let (address, requests) = failing(1, KERNEL).await;
    impatient(&address).start_kernel("k", None).await.unwrap_err();
    assert_eq!(requests.load(Ordering::Relaxed), 1);
}

/// Serves TLS with a self-signed certificate for this name, valid until this end.
async fn encrypted(folder: &Path, name: &str, end: &str) -> (String, Vec<u8>) {
    let config = format!(
        "[ca]\ndefault_ca=own\n[own]\ndir=.\ndatabase=./index.txt\nnew_certs_dir=.\nserial=./serial\nrand_serial=yes\n\
         default_md=sha256\npolicy=any\nx509_extensions=server\n[any]\n[server]\nsubjectAltName={name}\n\
         basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n"
    );
    fs::write(folder.join("ca.cnf"), config).unwrap();
    fs::write(folder.join("index.txt"), "").unwrap();
    let run = |arguments: &str| {
        let mut command = Command::new("openssl");
        command.args(arguments.split(' ')).current_dir(folder);
        assert!(
            command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success(),
            "{arguments}"
        );
    };
    run("req -new -newkey rsa:2048 -nodes -keyout key.pem -out request.pem -subj /CN=test");
    run(&format!(
        "ca -batch -config ca.cnf -selfsign -keyfile key.pem -in request.pem -out cert.pem -notext \
         -startdate 200101000000Z -enddate {end}"
    ));
    let shown = CertificateDer::from_pem_file(folder.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(
        tokio_rustls::rustls::crypto::ring::default_provider(),
    ));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![shown], key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n[]";
                let _ = stream.write_all(answer).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    (address, fs::read(folder.join("cert.pem")).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_that_are_not_to_be_trusted_are_refused() {
    for (what, name, end, roots, trusted) in [
        // The control: this certificate is trusted, so the others are rejected for their faults.
        ("in order", "IP:127.0.0.1", "391231235959Z", true, true),
        ("expired", "IP:127.0.0.1", "200201000000Z", true, false),
        ("of another host", "DNS:other.example", "391231235959Z", true, false),
        ("untrusted", "IP:127.0.0.1", "391231235959Z", false, false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (address, certificate) = encrypted(folder.path(), name, end).await;
        let mut own = ServerOptions::default();
        own.timeout = Duration::from_secs(10);
        if roots {
            own.extra_roots = certificate;
        }
        let server = ServerClient::with_options(&address, Token::new("secret"), own).unwrap();
        match server.kernels().await {
            Ok(kernels) => assert!(trusted && kernels.is_empty(), "{what}"),
            Err(error) => {
                assert!(!trusted, "{what}: {error}");
                assert!(error.to_string().contains("certificate"), "{what}: {error}");
                assert_eq!(error.effect(), Effect::None, "{what}: {error}");
                let error = server.connect("k", options()).await.unwrap_err().to_string();
                assert!(
                    error.contains("certificate") && !error.contains("secret"),
                    "{what}: {error}"
                );
            }
        }
    }
}
