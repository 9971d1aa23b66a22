//! What a client can get wrong, and what the server then has left: keys, envelopes, sizes, vanishing clients, faults.

use std::sync::Arc;
use std::time::Duration;

use backend_eval::EvalBackend;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use sandbox_core::ErrorKind;
use sandbox_server::AccessKey;
use sandbox_server::e2b::{E2bOptions, E2bServer, Fault, Faults};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

async fn server() -> (E2bServer, Faults) {
    let faults = Faults::default();
    let mut options = E2bOptions::default();
    options.faults = Some(faults.clone());
    let server =
        E2bServer::start(Arc::new(EvalBackend::default()), options).await.expect("a server");
    (server, faults)
}

struct Answer {
    status: StatusCode,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

async fn send(server: &E2bServer, request: Request<Full<Bytes>>) -> Result<Answer, hyper::Error> {
    let stream = TcpStream::connect(server.address()).await.expect("a server");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a server");
    tokio::spawn(connection);
    let response: Response<_> = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    Ok(Answer { status, body })
}

fn request(method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Full::new(Bytes::copy_from_slice(body))).expect("well formed")
}

async fn control(server: &E2bServer, method: &str, path: &str, body: Value) -> Answer {
    let key = server.api_key().expose().to_owned();
    let fields = [("x-api-key", key.as_str()), ("content-type", "application/json")];
    send(server, request(method, path, &fields, body.to_string().as_bytes()))
        .await
        .expect("a server")
}

async fn create(server: &E2bServer) -> (String, String) {
    let made = control(server, "POST", "/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.body);
    let made = made.json();
    let text = |name: &str| made[name].as_str().expect("well formed").to_owned();
    (text("sandboxID"), text("envdAccessToken"))
}

async fn envd(
    server: &E2bServer,
    sandbox: &(String, String),
    path: &str,
    kind: &str,
    body: &[u8],
) -> Answer {
    let fields = [
        ("e2b-sandbox-id", sandbox.0.as_str()),
        ("e2b-sandbox-port", "49983"),
        ("x-access-token", sandbox.1.as_str()),
        ("content-type", kind),
    ];
    send(server, request("POST", path, &fields, body)).await.expect("a server")
}

fn envelope(body: &Value) -> Vec<u8> {
    let body = body.to_string().into_bytes();
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(body.len()).expect("well formed").to_be_bytes());
    framed.extend(body);
    framed
}

/// The messages of a streamed answer; the last is what the stream ended with.
fn messages(mut body: &[u8]) -> Vec<Value> {
    let mut found = Vec::new();
    while let [_, a, b, c, d, rest @ ..] = body {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        found.push(serde_json::from_slice(&rest[..length]).expect("well formed"));
        body = &rest[length..];
    }
    found
}

/// What a process has printed.
fn stdout(messages: &[Value]) -> String {
    let pieces = messages.iter().filter_map(|message| message["event"]["data"]["stdout"].as_str());
    let bytes: Vec<u8> =
        pieces.flat_map(|piece| STANDARD.decode(piece).expect("well formed")).collect();
    String::from_utf8(bytes).expect("well formed")
}

async fn bash(
    server: &E2bServer,
    sandbox: &(String, String),
    line: &str,
    limit: &str,
) -> Vec<Value> {
    let start = json!({ "process": { "cmd": "/bin/bash", "args": ["-c", line] }, "stdin": false });
    let fields = [
        ("e2b-sandbox-id", sandbox.0.as_str()),
        ("x-access-token", sandbox.1.as_str()),
        ("connect-timeout-ms", limit),
        ("content-type", "application/connect+json"),
    ];
    let request = request("POST", "/process.Process/Start", &fields, &envelope(&start));
    messages(&send(server, request).await.expect("a server").body)
}

/// Starts a program, and returns the connection without reading the answer.
async fn start_unread(
    server: &E2bServer,
    sandbox: &(String, String),
    program: &str,
    arguments: &[&str],
) -> TcpStream {
    let start = json!({ "process": { "cmd": program, "args": arguments }, "stdin": false });
    let start = envelope(&start);
    let head = format!(
        "POST /process.Process/Start HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n\
         Content-Type: application/connect+json\r\nContent-Length: {}\r\n\r\n",
        sandbox.0,
        sandbox.1,
        start.len()
    );
    let mut stream = TcpStream::connect(server.address()).await.expect("a server");
    stream.write_all(&[head.as_bytes(), &start].concat()).await.expect("a server");
    stream
}

#[tokio::test]
async fn keys_are_needed() {
    let (server, _) = server().await;
    for fields in [&[][..], &[("x-api-key", "e2b_wrong")]] {
        let answer = send(&server, request("GET", "/v2/sandboxes", fields, b"")).await.unwrap();
        assert_eq!((answer.status.as_u16(), &answer.json()["code"]), (401, &json!(401)));
    }
    let mut options = E2bOptions::default();
    options.address = ([0, 0, 0, 0], 0).into();
    let refused = E2bServer::start(Arc::new(EvalBackend::default()), options.clone()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    options.api_key = Some(AccessKey::new("chosen"));
    E2bServer::start(Arc::new(EvalBackend::default()), options).await.unwrap().shutdown().await;
    let mut options = E2bOptions::default();
    options.address = server.address();
    let taken = E2bServer::start(Arc::new(EvalBackend::default()), options).await.unwrap_err();
    assert!(taken.to_string().contains("cannot be listened on"), "{taken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_message_is_refused() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let unary = "application/json";
    let stream = "application/connect+json";
    let stat = "/filesystem.Filesystem/Stat";
    let start = "/process.Process/Start";
    let proto = envd(&server, &sandbox, stat, "application/proto", b"").await;
    assert_eq!(proto.status.as_u16(), 415);
    let nonsense = envd(&server, &sandbox, stat, unary, b"nonsense").await;
    assert_eq!(
        (nonsense.status.as_u16(), &nonsense.json()["code"]),
        (400, &json!("invalid_argument"))
    );
    let head = format!(
        "POST {stat} HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {}\r\nX-Access-Token: {}\r\n\
         Content-Type: {unary}\r\nContent-Length: {}\r\n\r\n",
        sandbox.0,
        sandbox.1,
        (16 << 20) + 1
    );
    let mut large = TcpStream::connect(server.address()).await.unwrap();
    large.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 300];
    let length = large.read(&mut answer).await.unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 429"), "before any of the body has come: {answer}");
    for (body, code) in [
        (&b"\0\0\0\0\x09{"[..], "invalid_argument"),
        (&b"\0\xff\xff\xff\xff"[..], "resource_exhausted"),
        (&envelope(&json!({}))[..], "invalid_argument"),
        (&b""[..], "invalid_argument"),
    ] {
        let answer = envd(&server, &sandbox, start, stream, body).await;
        assert_eq!(answer.status.as_u16(), 200, "errors of streams are in the stream");
        let found = messages(&answer.body);
        assert_eq!(found.last().unwrap()["error"]["code"], code, "{body:?}");
    }
    for body in [
        json!("text"),
        json!({ "timeout": "soon" }),
        json!({ "templateID": "base", "timeout": 0 }),
        json!({}),
    ] {
        let wrong = control(&server, "POST", "/v2/sandboxes", body.clone()).await;
        assert_eq!((wrong.status.as_u16(), &wrong.json()["code"]), (400, &json!(400)), "{body}");
    }
    let missing = json!({ "process": { "cmd": "/no/such/program" } });
    let missing = envd(&server, &sandbox, start, stream, &envelope(&missing)).await;
    let missing = messages(&missing.body);
    assert_eq!(missing.last().unwrap()["error"]["code"], "invalid_argument");
    let unknown = envd(&server, &sandbox, "/no.Service/Method", unary, b"{}").await;
    assert_eq!(unknown.status.as_u16(), 404);
    let no_sandbox = ("nosuchsandbox".to_owned(), String::new());
    let gone = envd(&server, &no_sandbox, stat, unary, b"{}").await;
    assert_eq!(gone.status.as_u16(), 502);
    assert_eq!(gone.json()["message"], "The sandbox was not found");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_sandboxes_than_the_ceiling() {
    let mut options = E2bOptions::default();
    options.ceiling.max_sandboxes = 1;
    let server = E2bServer::start(Arc::new(EvalBackend::default()), options).await.unwrap();
    let (id, _) = create(&server).await;
    let refused = control(&server, "POST", "/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(refused.status.as_u16(), 429);
    control(&server, "DELETE", &format!("/sandboxes/{id}"), json!({})).await;
    create(&server).await;
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_counts_against_the_ceiling() {
    let mut options = E2bOptions::default();
    options.ceiling.max_sandboxes = 1;
    let server = E2bServer::start(Arc::new(EvalBackend::default()), options).await.unwrap();
    let sandbox = create(&server).await;
    let holds = "x=$(head -c 60000000 /dev/zero | tr '\\0' x); echo held >ready; sleep 600; true";
    let _client = start_unread(&server, &sandbox, "/bin/bash", &["-c", holds]).await;
    let wait = "until test -s ready; do sleep 0.05; done; echo holds";
    assert_eq!(stdout(&bash(&server, &sandbox, wait, "30000").await), "holds\n");
    let path = |rest: &str| format!("/sandboxes/{}{rest}", sandbox.0);
    let used = async || {
        let measured = control(&server, "GET", &path("/metrics"), json!({})).await.json();
        measured[0]["memUsed"].as_u64().unwrap_or_default()
    };
    let create_another =
        async || control(&server, "POST", "/v2/sandboxes", json!({ "templateID": "base" })).await;
    let before = used().await;
    assert!(before >= 60_000_000, "control: {before} bytes are used");

    let paused = control(&server, "POST", &path("/pause"), json!({})).await;
    assert_eq!(paused.status, StatusCode::NO_CONTENT, "{:?}", paused.body);
    let shown = control(&server, "GET", &path(""), json!({})).await.json();
    assert_eq!(shown["state"], "paused");
    assert!(used().await >= 60_000_000, "the last figures");
    let at = control(&server, "GET", &path("/metrics"), json!({})).await.json();
    let at = at[0]["timestampUnix"].as_i64().expect("a time");
    let many = format!("/sandboxes/metrics?sandbox_ids={},another", sandbox.0);
    let many = control(&server, "GET", &many, json!({})).await.json();
    assert_eq!(many["sandboxes"].as_object().map(|all| all.len()), Some(1), "{many}");
    for (asked, count) in [
        (format!("start={at}&end={at}"), 1),
        (format!("start={}", at + 1), 0),
        (format!("end={}", at - 1), 0),
    ] {
        let found = control(&server, "GET", &path(&format!("/metrics?{asked}")), json!({})).await;
        assert_eq!(found.json().as_array().map(Vec::len), Some(count), "{asked}: {:?}", found.body);
    }
    let refused = create_another().await;
    assert_eq!(refused.status.as_u16(), 429, "{:?}", refused.body);
    assert_eq!(server.sandbox_count(), 1);

    let resumed = control(&server, "POST", &path("/connect"), json!({ "timeout": 60 })).await;
    assert_eq!(resumed.status, StatusCode::CREATED, "it has its room: {:?}", resumed.body);
    let after = used().await;
    assert!(after >= 60_000_000, "the memory of it was kept: {after} bytes are used");
    control(&server, "POST", &path("/pause"), json!({})).await;
    let killed = control(&server, "DELETE", &path(""), json!({})).await;
    assert_eq!(killed.status, StatusCode::NO_CONTENT);
    assert_eq!(create_another().await.status, StatusCode::CREATED, "its room is free");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_leaves_nothing_open() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let mut stream = start_unread(&server, &sandbox, "/bin/bash", &["-c", "yes"]).await;
    let mut first = [0; 1000];
    stream.read_exact(&mut first).await.unwrap();
    // It reads no more: the process waits, and the server holds nothing for it.
    sleep(Duration::from_millis(300)).await;
    drop(stream);
    let listed = envd(&server, &sandbox, "/process.Process/List", "application/json", b"{}").await;
    assert_eq!(listed.json()["processes"].as_array().unwrap().len(), 1, "it outlives its client");
    timeout(Duration::from_secs(10), server.shutdown()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_happen_on_demand() {
    let (server, faults) = server().await;
    faults.fail("POST /v2/sandboxes", Fault::RateLimited { retry_after: 7 }, 1);
    let limited = control(&server, "POST", "/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(limited.status.as_u16(), 429);
    faults.fail("POST /v2/sandboxes", Fault::LostAnswer, 1);
    let key = server.api_key().expose().to_owned();
    let fields = [
        ("x-api-key", key.as_str()),
        ("content-type", "application/json"),
        ("idempotency-key", "k-1"),
    ];
    let body = json!({ "templateID": "base" }).to_string();
    let lost = send(&server, request("POST", "/v2/sandboxes", &fields, body.as_bytes())).await;
    assert!(lost.is_err(), "the answer is lost");
    assert_eq!(server.sandbox_count(), 1, "and the sandbox is there");
    let again =
        send(&server, request("POST", "/v2/sandboxes", &fields, body.as_bytes())).await.unwrap();
    assert_eq!((again.status.as_u16(), server.sandbox_count()), (201, 1), "one for one key");
    faults.fail("GET /v2/sandboxes", Fault::Status(503), 1);
    let busy = control(&server, "GET", "/v2/sandboxes", json!({})).await;
    assert_eq!(busy.status.as_u16(), 503);
    assert_eq!(control(&server, "GET", "/v2/sandboxes", json!({})).await.status.as_u16(), 200);
    let sandbox = create(&server).await;
    faults.fail("POST /process.Process/Start", Fault::CutAfter(60), 1);
    let start =
        json!({ "process": { "cmd": "/bin/bash", "args": ["-c", "seq 1000"] }, "stdin": false });
    let fields = [
        ("e2b-sandbox-id", sandbox.0.as_str()),
        ("x-access-token", sandbox.1.as_str()),
        ("content-type", "application/connect+json"),
    ];
    let cut =
        send(&server, request("POST", "/process.Process/Start", &fields, &envelope(&start))).await;
    assert!(cut.is_err(), "the stream is cut in the middle");
    assert!(faults.take_calls().contains(&"POST /process.Process/Start".to_owned()));
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_traps_of_the_real_envd_are_there_on_demand() {
    let (server, faults) = server().await;
    let sandbox = create(&server).await;
    let count =
        "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done | grep -c '^sleep 77[78]'";
    let left = async |server: &E2bServer| stdout(&bash(server, &sandbox, count, "10000").await);
    let line = "sleep 777 & sleep 778; true";
    let ended = bash(&server, &sandbox, line, "400").await;
    assert_eq!(ended.last().unwrap()["error"]["code"], "deadline_exceeded", "{ended:?}");
    assert_eq!(left(&server).await, "0\n", "a deadline leaves no child");
    faults.set_process_traps(true);
    let ended = bash(&server, &sandbox, line, "400").await;
    assert!(format!("{ended:?}").contains("start"), "{ended:?}");
    faults.set_process_traps(false);
    assert_eq!(left(&server).await, "2\n", "as with the real envd");
    let begin = std::time::Instant::now();
    bash(&server, &sandbox, "sleep 1 & echo", "10000").await;
    assert!(begin.elapsed() < Duration::from_millis(900), "an open output does not delay the end");
    faults.set_process_traps(true);
    let begin = std::time::Instant::now();
    bash(&server, &sandbox, "sleep 1 & echo", "10000").await;
    assert!(begin.elapsed() > Duration::from_millis(900), "as with the real envd");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_slow_loses_its_connection() {
    let mut options = E2bOptions::default();
    options.client_timeout = Duration::from_millis(400);
    let server = E2bServer::start(Arc::new(EvalBackend::default()), options).await.unwrap();
    let answer = async |start: String| {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = timeout(Duration::from_secs(5), stream.read_to_end(&mut answer));
        read.await.expect("the server waits for more").unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let no_head = answer("POST /v2/sandboxes HTTP/1.1\r\nHost: loc".to_owned()).await;
    assert!(no_head.is_empty() || no_head.starts_with("HTTP/1.1 408"), "{no_head}");
    let key = server.api_key().expose().to_owned();
    let no_body = answer(format!(
        "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Length: 30\r\n\r\n{{"
    ));
    let no_body = no_body.await;
    assert!(no_body.starts_with("HTTP/1.1 408") && no_body.contains("\"code\":408"), "{no_body}");
    let (id, token) = create(&server).await;
    let no_file = answer(format!(
        "POST /files?path=half HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nX-Access-Token: {token}\r\n\
         Content-Type: application/octet-stream\r\nContent-Length: 30\r\n\r\nhalf"
    ));
    let no_file = no_file.await;
    assert!(!no_file.starts_with("HTTP/1.1 2"), "{no_file}");
    let listed = bash(&server, &(id, token), "ls -A", "10000").await;
    assert_eq!(stdout(&listed), "", "half a file is not left");
    // A call whose input comes for as long as the client likes is no slow one, and neither is a silent process.
    let sandbox = create(&server).await;
    let silent = bash(&server, &sandbox, "sleep 1; echo late", "10000").await;
    assert_eq!(stdout(&silent), "late\n");
    server.shutdown().await;
}

/// Answers one WebSocket, and sends back what comes on it.
const ECHO: &str = r#"
import base64, hashlib, socket
server = socket.create_server(("127.0.0.1", 8765))
print("ready", flush=True)
client, _ = server.accept()
head = b""
while not head.endswith(b"\r\n\r\n"):
    head += client.recv(1000)
key = [l.split(b": ")[1] for l in head.split(b"\r\n") if l.lower().startswith(b"sec-websocket-key")][0]
told = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
client.sendall(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
               b"Sec-WebSocket-Accept: " + told + b"\r\n\r\n")
while data := client.recv(1000):
    client.sendall(data[::-1])
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_websocket_passes_to_a_port_of_a_sandbox() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let arguments = ["python3", "-c", ECHO];
    let mut process = start_unread(&server, &sandbox, "/usr/bin/env", &arguments).await;
    let (mut said, ready) = (Vec::new(), STANDARD.encode("ready\n"));
    while !String::from_utf8_lossy(&said).contains(&ready) {
        let read = timeout(Duration::from_secs(10), process.read_buf(&mut said)).await;
        assert!(read.unwrap().unwrap() > 0, "{}", String::from_utf8_lossy(&said));
    }
    let mut socket = TcpStream::connect(server.address()).await.unwrap();
    let head = format!(
        "GET /socket HTTP/1.1\r\nHost: 8765-{}.localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        sandbox.0
    );
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        let read = timeout(Duration::from_secs(10), socket.read_buf(&mut answer)).await;
        assert!(read.unwrap().unwrap() > 0, "{}", String::from_utf8_lossy(&answer));
    }
    let answer = String::from_utf8_lossy(&answer).to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 101"), "{answer}");
    // The key and its answer of RFC 6455.
    assert!(answer.contains("s3pplmbitxaq9kygzzhzrbk+xoo="), "{answer}");
    for message in [&b"\x81\x02hi"[..], b"\x82\x03abc"] {
        socket.write_all(message).await.unwrap();
        let mut back = vec![0; message.len()];
        timeout(Duration::from_secs(10), socket.read_exact(&mut back)).await.unwrap().unwrap();
        back.reverse();
        assert_eq!(back, message);
    }
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_of_a_sandbox_is_told() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    bash(&server, &sandbox, "exit 3", "10000").await;
    let path = |query: &str| format!("/v2/sandboxes/{}/logs{query}", sandbox.0);
    let log = control(&server, "GET", &path(""), json!({})).await.json();
    let told =
        |name: &str| log["logs"].as_array().unwrap().iter().any(|one| one["message"] == name);
    assert!(told("Sandbox created") && told("Process started"), "{log}");
    let ended = control(&server, "GET", &path("?search=ended&direction=backward"), json!({})).await;
    let ended = ended.json();
    assert_eq!(ended["logs"][0]["fields"]["exitCode"], "3", "{ended}");
    let first = format!("/sandboxes/{}/logs", sandbox.0);
    let first = control(&server, "GET", &first, json!({})).await.json();
    assert_eq!(first["logs"].as_array().unwrap().len(), log["logs"].as_array().unwrap().len());
    let wrong = control(&server, "GET", &path("?limit=5000"), json!({})).await;
    assert_eq!(wrong.status.as_u16(), 400);
    let gone = control(&server, "GET", "/v2/sandboxes/nosuchsandbox/logs", json!({})).await;
    assert_eq!(gone.status.as_u16(), 404);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_answers_as_the_edge_does() {
    let (server, _) = server().await;
    let made = json!({ "templateID": "base", "timeout": 1 });
    let made = control(&server, "POST", "/v2/sandboxes", made).await.json();
    let text = |name: &str| made[name].as_str().expect("well formed").to_owned();
    let sandbox = (text("sandboxID"), text("envdAccessToken"));
    let stat = async || {
        envd(&server, &sandbox, "/filesystem.Filesystem/Stat", "application/json", b"{}").await
    };
    assert_eq!(stat().await.status.as_u16(), 200, "while it lives");
    sleep(Duration::from_millis(1500)).await;
    let gone = stat().await;
    assert_eq!((gone.status.as_u16(), &gone.json()["sandboxId"]), (502, &json!(sandbox.0)));
    let path = format!("/sandboxes/{}", sandbox.0);
    assert_eq!(control(&server, "GET", &path, json!({})).await.status.as_u16(), 404);
    let host = format!("8000-{}.localhost", sandbox.0);
    let port = Request::builder().uri("/").header("host", host).body(Full::default()).unwrap();
    assert_eq!(send(&server, port).await.unwrap().status.as_u16(), 502, "its ports have ended too");
    assert_eq!(server.sandbox_count(), 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_are_no_files_of_the_sandbox_are_refused() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let line = "mkfifo pipe; mkdir dir; ln -s loop loop; ln -s /dev/zero zero; echo x >file";
    bash(&server, &sandbox, line, "10000").await;
    let fields = [
        ("e2b-sandbox-id", sandbox.0.as_str()),
        ("x-access-token", sandbox.1.as_str()),
        ("content-type", "application/octet-stream"),
    ];
    let ask = async |method: &str, path: &str| {
        let request = request(method, &format!("/files?path={path}"), &fields, b"data");
        // What can be waited for, such as a pipe, is not.
        let answer = timeout(Duration::from_secs(10), send(&server, request)).await;
        let answer = answer.expect("it waits").expect("a server");
        (answer.status.as_u16(), answer.json()["code"].as_u64().unwrap_or_default())
    };
    let long = "x".repeat(5000);
    for (path, read, written) in [
        ("pipe", 400, 400),
        ("dir", 400, 400),
        ("loop", 400, 400),
        ("zero", 400, 400),
        ("/dev/zero", 400, 0),
        ("/proc/1/environ", 403, 403),
        ("/etc/new", 404, 403),
        ("../../../../../../etc/new", 404, 403),
        ("file/below", 400, 400),
        ("a%00b", 400, 400),
        (&long, 400, 400),
        ("", 400, 400),
    ] {
        assert_eq!(ask("GET", path).await, (read, read.into()), "reading {path:.30}");
        if written != 0 {
            assert_eq!(ask("POST", path).await, (written, written.into()), "writing {path:.30}");
        }
    }
    assert_eq!(ask("GET", "file").await.0, 200, "control: a file is one");
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_not_read() {
    let (server, _) = server().await;
    let key = server.api_key().expose().to_owned();
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    let head = format!(
        "POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        (16 << 20) + 1
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 1000];
    let read = timeout(Duration::from_secs(10), stream.read(&mut answer)).await;
    let length = read.expect("it waits for the body").unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413") && answer.contains("\"code\":413"), "{answer}");
    assert_eq!(server.sandbox_count(), 0);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_upload_has_its_answer_while_its_body_is_sent() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let body = vec![b'x'; 600_000];
    let head = format!(
        "POST /files?path=new&username=root HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {}\r\n\
         X-Access-Token: {}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\r\n",
        sandbox.0,
        sandbox.1,
        body.len()
    );
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in body.chunks(100_000) {
        // A connection that is closed meanwhile refuses the next piece.
        sleep(Duration::from_millis(50)).await;
        stream.write_all(piece).await.unwrap();
    }
    let mut answer = vec![0; 1000];
    let length = timeout(Duration::from_secs(10), stream.read(&mut answer)).await.unwrap().unwrap();
    let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    server.shutdown().await;
}

#[tokio::test]
async fn the_lines_of_a_run_come_with_it_and_a_short_one_tells_its_length() {
    let (server, _) = server().await;
    let sandbox = create(&server).await;
    let run = async |code: &str| {
        let fields = [
            ("e2b-sandbox-id", sandbox.0.as_str()),
            ("e2b-sandbox-port", "49999"),
            ("x-access-token", sandbox.1.as_str()),
            ("content-type", "application/json"),
        ];
        let body = json!({ "code": code }).to_string();
        let stream = TcpStream::connect(server.address()).await.expect("a server");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a server");
        tokio::spawn(connection);
        let request = request("POST", "/execute", &fields, body.as_bytes());
        let mut response = sender.send_request(request).await.expect("an answer").into_body();
        let length = hyper::body::Body::size_hint(&response).exact();
        let (mut pieces, mut all) = (0, Vec::new());
        while let Some(frame) = response.frame().await {
            pieces += 1;
            all.extend(frame.expect("an answer").into_data().expect("data"));
        }
        let lines = String::from_utf8(all).expect("text");
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (length, pieces, lines)
    };
    let last = |lines: &[Value]| lines.last().expect("an end")["type"].clone();

    let (length, _, lines) = run("1+1").await;
    assert!(length.is_some_and(|length| length > 0));
    assert_eq!((&lines[1]["text"], last(&lines)), (&json!("2"), json!("end_of_execution")));

    // What is slow, and what is much, comes while it runs.
    let slow = "import time\nfor n in range(3):\n    print(n, flush=True)\n    time.sleep(0.2)";
    let (length, pieces, lines) = run(slow).await;
    assert_eq!(length, None);
    assert!(pieces >= 3, "{pieces} pieces");
    let text: String = lines.iter().filter_map(|line| line["text"].as_str()).collect();
    assert_eq!((&*text, last(&lines)), ("0\n1\n2\n", json!("end_of_execution")));

    let many = "for n in range(40):\n    display(n)";
    let (_, _, lines) = run(many).await;
    let shown = lines.iter().filter(|line| line["type"] == "result").count();
    assert_eq!((shown, last(&lines)), (40, json!("end_of_execution")));
    server.shutdown().await;
}
