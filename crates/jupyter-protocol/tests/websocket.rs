//! The client of a Jupyter Server, against a faulty server.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "support/fake_server.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod fake_server;

use std::process::Command;
use std::time::{Duration, Instant};

use fake_server::{FakeServer, Faults};
use jupyter_protocol::client::{Client, ClientError, CloseReason, Effect};
use jupyter_protocol::content::CompleteRequest;
use jupyter_protocol::execution::{End, Event, GracePeriods, Loss};
use jupyter_protocol::test_kernel::Behaviour;
use jupyter_protocol::websocket::{Options, ServerClient, ServerError, Token};
use jupyter_protocol::{Channel, ExecuteRequest, Limits};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const READY: Duration = Duration::from_secs(10);

fn quick() -> Options {
    let mut options = Options::default();
    options.client.connect_timeout = Duration::from_secs(5);
    options.client.reconnect_timeout = Duration::from_secs(5);
    options.client.grace = GracePeriods::default()
        .with_idle(Duration::from_millis(500))
        .with_reply(Duration::from_millis(500));
    options
}

async fn connect(fake: &FakeServer) -> Result<Client, ClientError> {
    let server = ServerClient::new(&fake.address, Token::new("secret")).unwrap();
    server.connect("the-kernel", quick()).await
}

async fn start(behaviour: Behaviour, faults: Faults) -> (FakeServer, Client) {
    let fake = FakeServer::start(behaviour, faults).await;
    let client = connect(&fake).await.unwrap();
    client.ready(READY).await.unwrap();
    (fake, client)
}

async fn text(client: &Client, code: &str) -> String {
    let mut request = ExecuteRequest::new(code);
    request.allow_stdin = true;
    let mut running = client.execute(request).await.unwrap();
    let mut out = String::new();
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) => out.push_str(&stream.text),
            Event::InputRequest(_) => running.reply_input("line").await.unwrap(),
            _ => {}
        }
    }
    out
}

#[tokio::test]
async fn both_forms_carry_everything() {
    for old in [false, true] {
        let (fake, client) = start(Behaviour::default(), Faults { old, ..Faults::default() }).await;
        assert_eq!(
            text(&client, "print a\ninput name\nprint b").await,
            "a\nline\nb\n",
            "old: {old}"
        );
        let mut running = client.execute(ExecuteRequest::new("buffers 100000")).await.unwrap();
        let mut size = 0;
        while let Some(event) = running.next().await {
            if let Event::Display { buffers, .. } = event {
                size = buffers[0].len();
            }
        }
        assert_eq!(size, 100_000, "old: {old}");
        let request = fake.requests.lock().unwrap().last().unwrap().clone();
        let expected =
            format!("/base/api/kernels/the-kernel/channels?session_id={}", client.session().id());
        assert_eq!(request, format!("{expected} token secret"), "the token is in a header");
    }
}

#[tokio::test]
async fn a_flood_is_complete_when_it_is_taken() {
    let (_fake, client) = start(Behaviour::default(), Faults::default()).await;
    assert_eq!(text(&client, "flood 20000 100").await.len(), 2_000_000);
}

#[tokio::test]
async fn a_broken_connection_is_made_again_in_the_same_session() {
    let (fake, client) = start(Behaviour::default(), Faults::default()).await;
    let running =
        client.execute(ExecuteRequest::new("print x\ndrop shell\nprint y")).await.unwrap();
    // The server delivers the messages of the time without a connection.
    let outcome = running.outcome().await;
    assert!(outcome.losses.disconnected, "{outcome:?}");
    assert_eq!(text(&client, "print again").await, "again\n");
    let requests = fake.requests.lock().unwrap().clone();
    assert!(requests.len() == 2 && requests[0] == requests[1], "{requests:?}");
}

#[tokio::test]
async fn a_kernel_that_is_gone_ends_it() {
    let faults = Faults { status_again: Some(404), ..Faults::default() };
    let (_fake, client) = start(Behaviour::default(), faults).await;
    let running = client.execute(ExecuteRequest::new("sleep 50\ndrop shell")).await.unwrap();
    let behind = client.request(CompleteRequest::default());
    let (outcome, error) = tokio::join!(running.outcome(), behind);
    assert_eq!(outcome.end, End::ConnectionLost);
    assert_eq!(error.unwrap_err().effect(), Effect::Unknown);
    assert!(
        matches!(client.close_reason(), Some(CloseReason::Refused(why)) if why.contains("because"))
    );
}

#[tokio::test]
async fn requests_that_went_with_the_kernel_fail() {
    for (code, expected) in [
        ("publish status {\"execution_state\": \"restarting\"}", "the kernel was restarted"),
        ("publish status {\"execution_state\": \"autorestarting\"}", "the kernel was restarted"),
        ("publish status {\"execution_state\": \"dead\"}", "the kernel died"),
        // The server reports nothing, but the new process does.
        ("restart", "the kernel was restarted"),
    ] {
        let ignored = vec![(Channel::Shell, "complete_request")];
        let behaviour = Behaviour { ignored, ..Behaviour::default() };
        let (_fake, client) = start(behaviour, Faults::default()).await;
        let asks = client.request(CompleteRequest::default());
        let restarts = async {
            // After the request.
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.execute(ExecuteRequest::new(code)).await.unwrap().outcome().await
        };
        let both = async { tokio::join!(asks, restarts) };
        let (reply, _) = tokio::time::timeout(READY, both).await.expect(code);
        let error = reply.unwrap_err();
        assert_eq!((error.to_string().as_str(), error.effect()), (expected, Effect::Unknown));
        assert_eq!(text(&client, "print again").await, "again\n", "{code}");
    }
}

#[tokio::test]
async fn requests_that_the_new_process_got_are_answered() {
    let (_fake, client) = start(Behaviour::default(), Faults::default()).await;
    let running = client.execute(ExecuteRequest::new("print x\nrestart\nsleep 500")).await.unwrap();
    let (reply, _) = tokio::join!(client.request(CompleteRequest::default()), running.outcome());
    assert_eq!(reply.unwrap().matches, ["print"]);
}

#[tokio::test]
async fn refusals_are_reported_at_once() {
    for status in [401, 403, 404] {
        let fake = FakeServer::start(
            Behaviour::default(),
            Faults { status: Some(status), ..Faults::default() },
        )
        .await;
        let before = Instant::now();
        let error = connect(&fake).await.unwrap_err();
        assert!(before.elapsed() < Duration::from_secs(2));
        assert!(
            matches!(&error, ClientError::Closed { reason: CloseReason::Refused(_), .. }),
            "{error}"
        );
        assert!(
            error.to_string().contains("because") && !error.to_string().contains("secret"),
            "{error}"
        );
        assert_eq!(error.effect(), Effect::None);
    }
}

#[tokio::test]
async fn a_server_in_trouble_is_waited_for() {
    let fake =
        FakeServer::start(Behaviour::default(), Faults { status: Some(503), ..Faults::default() })
            .await;
    let server = ServerClient::new(&fake.address, Token::default()).unwrap();
    let mut options = quick();
    options.client.connect_timeout = Duration::from_millis(700);
    let error = server.connect("k", options).await.unwrap_err();
    assert!(error.to_string().contains("503"), "{error}");
    assert!(fake.requests.lock().unwrap().len() > 2, "it was tried again");
}

/// The variable with which the test starts itself as a child process; it contains the server's URL.
const SERVER: &str = "JUPYTER_PROTOCOL_TEST_SERVER";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_of_the_environment_are_not_used() {
    if let Ok(address) = std::env::var(SERVER) {
        let server = ServerClient::new(&address, Token::new("secret")).unwrap();
        assert_eq!(server.version().await.unwrap(), "1");
        return;
    }
    let answers = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/", answers.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = answers.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await.unwrap();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{\"version\":\"1\"}";
        stream.write_all(answer.as_bytes()).await.unwrap();
    });
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    proxy.set_nonblocking(true).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "proxies_of_the_environment_are_not_used"]).env(SERVER, address);
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, format!("http://{}", proxy.local_addr().unwrap()));
    }
    command.env_remove("no_proxy").env_remove("NO_PROXY");
    let mut child = command.spawn().unwrap();
    let ended = tokio::task::spawn_blocking(move || {
        loop {
            assert!(proxy.accept().is_err(), "the proxy is asked");
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    assert!(ended.await.unwrap().success());
}

#[tokio::test]
async fn a_silent_server_is_noticed() {
    let fake =
        FakeServer::start(Behaviour::default(), Faults { mute: true, ..Faults::default() }).await;
    let server = ServerClient::new(&fake.address, Token::default()).unwrap();
    let mut options = quick();
    options.ping = Duration::from_millis(100);
    let client = server.connect("k", options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(fake.requests.lock().unwrap().len() > 1, "it was connected again");
    drop(client);
}

#[tokio::test]
async fn a_quiet_server_is_no_dead_one() {
    let fake = FakeServer::start(Behaviour::default(), Faults::default()).await;
    let server = ServerClient::new(&fake.address, Token::default()).unwrap();
    let mut options = quick();
    options.ping = Duration::from_millis(50);
    let client = server.connect("k", options).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(fake.requests.lock().unwrap().len(), 1);
    assert_eq!(text(&client, "print x").await, "x\n");
}

#[tokio::test]
async fn dropped_output_is_reported_as_a_loss() {
    let (_fake, client) =
        start(Behaviour::default(), Faults { rate_notice: true, ..Faults::default() }).await;
    let mut running = client
        .execute(ExecuteRequest::new("print x\nerr IOPub data rate exceeded."))
        .await
        .unwrap();
    let (mut lost, mut out) = (0, String::new());
    let mut outcome = None;
    while let Some(event) = running.next().await {
        match event {
            Event::Lost(Loss::RateLimited) => lost += 1,
            Event::Stream(stream) => out.push_str(&stream.text),
            Event::Finished(finished) => outcome = Some(finished),
            _ => {}
        }
    }
    assert_eq!(lost, 1);
    assert_eq!(out, "x\nIOPub data rate exceeded.\n", "what the code writes is output");
    assert!(outcome.unwrap().losses.rate_limited);
}

#[tokio::test]
async fn hostile_frames_do_no_harm() {
    for greeting in [
        u64::MAX.to_le_bytes().to_vec(),
        (u64::MAX / 8).to_le_bytes().to_vec(),
        vec![0xff; 100],
        Vec::new(),
        b"not a message".to_vec(),
    ] {
        for old in [false, true] {
            let faults = Faults { old, greeting: Some(greeting.clone()), ..Faults::default() };
            let (_fake, client) = start(Behaviour::default(), faults).await;
            assert_eq!(text(&client, "print x").await, "x\n");
            assert_eq!(client.rejected(), 1);
        }
    }
}

#[tokio::test]
async fn a_message_above_the_limit_is_cut() {
    let fake = FakeServer::start(Behaviour::default(), Faults::default()).await;
    let server = ServerClient::new(&fake.address, Token::default()).unwrap();
    let mut options = quick();
    options.client.limits = Limits::default().with_message(100_000);
    let client = server.connect("k", options).await.unwrap();
    assert_eq!(text(&client, "print x").await, "x\n");
    let running = client.execute(ExecuteRequest::new("buffers 3000000")).await.unwrap();
    assert_eq!(running.outcome().await.end, End::ConnectionLost);
    assert!(matches!(client.close_reason(), Some(CloseReason::Violation { .. })), "{client:?}");
}

/// A server with one response to all requests.
async fn answering(response: &'static [u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(response).await;
        }
    });
    address
}

#[tokio::test]
async fn answers_are_errors_as_data() {
    let json = |status: &str, body: &str| -> &'static [u8] {
        let text = format!(
            "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        );
        Box::leak(text.into_bytes().into_boxed_slice())
    };
    let ask = |response| async move {
        let server = ServerClient::new(&answering(response).await, Token::new("secret")).unwrap();
        server.kernels().await.unwrap_err()
    };
    let error = ask(json("403 Forbidden", "{\"message\": \"no\"}")).await;
    assert!(
        matches!(&error, ServerError::Unauthorized { status: 403, message } if message == "no")
    );
    assert!(matches!(ask(json("404 Not Found", "<html>")).await, ServerError::NotFound { .. }));
    assert!(
        matches!(ask(json("302 Found", "")).await, ServerError::Status { status: 302, .. }),
        "not followed"
    );
    assert!(matches!(ask(json("200 OK", "{")).await, ServerError::Malformed { .. }));
    let unreachable = ServerClient::new("http://127.0.0.1:1", Token::new("secret")).unwrap();
    let error = unreachable.kernels().await.unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    assert!(!format!("{error} {error:?} {unreachable:?}").contains("secret"));
}

#[tokio::test]
async fn an_endless_answer_is_cut() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await;
        while stream.write_all(&[b' '; 65536]).await.is_ok() {}
    });
    let mut options = jupyter_protocol::websocket::ServerOptions::default();
    options.max_body = 1_000_000;
    let server = ServerClient::with_options(&address, Token::default(), options).unwrap();
    assert!(matches!(server.kernels().await, Err(ServerError::TooLong { limit: 1_000_000 })));
}
