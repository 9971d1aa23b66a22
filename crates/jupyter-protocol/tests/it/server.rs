//! Tests with a real Jupyter Server.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::{Client, ClientError, CloseReason};
use jupyter_protocol::content::{CompleteReply, CompleteRequest};
use jupyter_protocol::execution::{End, Event, Loss};
use jupyter_protocol::websocket::{
    ContentFormat, ContentKind, KernelModel, Options, SaveContents, ServerClient, ServerError,
    ServerKernel, ServerOptions, Token,
};
use tokio::task::JoinHandle;

use crate::Case;
use crate::harness::{READY, collect, execute, python, run};

pub(crate) const CASES: &[Case] = &[
    ("kernels_are_managed_over_rest", rest),
    ("the_kernel_of_a_notebook_is_found", sessions),
    ("a_kernel_is_started_used_and_ended", whole_life),
    ("code_runs_over_a_websocket", websocket),
    ("the_older_form_works_too", older_form),
    ("restarts_and_ends_are_reported", restarts),
    ("output_dropped_by_the_server_is_reported", rate_limit),
    ("a_broken_connection_misses_nothing", resume),
    ("files_are_read_and_written", contents),
    ("strangers_are_refused", strangers),
    ("encrypted_connections_are_checked", encrypted),
    ("a_call_takes_no_forty_milliseconds", latency),
];

pub(crate) const TOKEN: &str = "the token & more";

/// A server that ends with the test.
pub(crate) struct RealServer {
    process: Child,
    pub(crate) port: u16,
    folder: tempfile::TempDir,
}

impl RealServer {
    pub(crate) async fn start(arguments: &[&str]) -> (Self, ServerClient) {
        Self::start_at("http", arguments, ServerOptions::default()).await
    }

    async fn start_at(
        scheme: &str,
        arguments: &[&str],
        options: ServerOptions,
    ) -> (Self, ServerClient) {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(python().unwrap());
        command.args([
            "-m",
            "jupyter_server",
            "--no-browser",
            "--allow-root",
            "--ServerApp.port_retries=0",
        ]);
        command.arg(format!("--ServerApp.port={port}")).arg("--ServerApp.ip=127.0.0.1");
        command.arg(format!("--IdentityProvider.token={TOKEN}"));
        command.arg("--ServerApp.base_url=/user/me");
        command.arg(format!("--ServerApp.root_dir={}", folder.path().display())).args(arguments);
        command.env("HOME", folder.path()).env_remove("JUPYTER_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let real = Self { process, port, folder };
        let address = format!("{scheme}://localhost:{port}/user/me");
        let server = ServerClient::with_options(&address, Token::new(TOKEN), options).unwrap();
        let end = Instant::now() + READY;
        while let Err(error) = server.version().await {
            assert!(Instant::now() < end, "the server does not start: {error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        (real, server)
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // SIGTERM makes the server end its kernels.
        let id = self.process.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &id]).status();
        let _ = self.process.wait();
    }
}

async fn start_kernel(server: &ServerClient) -> (KernelModel, Client) {
    let kernel = server.start_kernel("python3", None).await.unwrap();
    let client = server.connect(&kernel.id, Options::default()).await.unwrap();
    client.ready(READY).await.unwrap();
    (kernel, client)
}

fn rest() {
    run(async {
        let (_real, server) = RealServer::start(&[]).await;
        assert!(server.version().await.unwrap().starts_with('2'));
        let specs = server.kernelspecs().await.unwrap();
        assert_eq!(specs.default.as_deref(), Some("python3"));
        assert!(specs.kernelspecs["bash"].spec["argv"].is_array());
        assert_eq!(server.kernels().await.unwrap(), []);
        let kernel = server.start_kernel("bash", None).await.unwrap();
        assert_eq!(server.kernel(&kernel.id).await.unwrap().name, "bash");
        assert_eq!(server.kernels().await.unwrap().len(), 1);
        assert_eq!(server.status().await.unwrap()["kernels"], 1);
        server.delete_kernel(&kernel.id).await.unwrap();
        assert!(matches!(server.kernel(&kernel.id).await, Err(ServerError::NotFound { .. })));
        assert!(server.start_kernel("none", None).await.is_err());
    });
}

fn sessions() {
    run(async {
        let (real, server) = RealServer::start(&[]).await;
        assert_eq!(server.sessions().await.unwrap(), []);
        // A browser does this when it opens a notebook.
        let opens = "import json, sys, urllib.request as u\n\
                     about = {'path': 'a/b é.ipynb', 'name': 'b', 'type': 'notebook', 'kernel': {'name': 'bash'}}\n\
                     headers = {'Authorization': 'token ' + sys.argv[2]}\n\
                     u.urlopen(u.Request(sys.argv[1], json.dumps(about).encode(), headers))";
        let address = format!("http://127.0.0.1:{}/user/me/api/sessions", real.port);
        let mut browser = Command::new(python().unwrap());
        browser.args(["-c", opens, &address, TOKEN]);
        assert!(browser.status().unwrap().success());
        let [session] = &server.sessions().await.unwrap()[..] else { panic!("one is open") };
        assert_eq!((session.path.as_str(), session.kind.as_str()), ("a/b é.ipynb", "notebook"));
        let kernel = session.kernel.as_ref().unwrap();
        assert_eq!(kernel.name, "bash");
        let kernel = ServerKernel::existing(&server, &kernel.id).await.unwrap();
        assert_eq!(execute(kernel.client(), "echo 1").await.stdout, "1\n");
        kernel.shutdown().await.unwrap();
    });
}

/// The same as for a kernel of this machine in `manager.rs`.
fn whole_life() {
    run(async {
        let (real, _) = RealServer::start(&[]).await;
        // The URL of a browser, with a header as for a proxy in front of the server.
        let mut options = ServerOptions::default();
        options.headers = vec![("X-Proxy".to_owned(), Token::new("1"))];
        let token = TOKEN.replace(' ', "%20").replace('&', "%26");
        let page = format!("http://localhost:{}/user/me/lab?token={token}", real.port);
        let server =
            ServerClient::from_page_with_options(&page, Token::default(), options).unwrap();

        let error = ServerKernel::start(&server, "none").await.unwrap_err().to_string();
        assert!(error.contains("\"none\"") && error.contains("python3"), "{error}");
        assert_eq!(server.kernels().await.unwrap(), []);

        let mut kernel = ServerKernel::start(&server, "python3").await.unwrap();
        assert_eq!(kernel.kernel_info().implementation, "ipython");
        assert_eq!(kernel.name(), "python3");
        let ran = kernel.client().execute("x = 42; print('in')\nx").await.unwrap().collect().await;
        assert_eq!((ran.stdout.as_str(), ran.value().as_deref()), ("in\n", Some("42")));

        let code = "print('in', flush=True)\nimport time; time.sleep(60)";
        let mut running = kernel.client().execute(code).await.unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        let other = ServerKernel::existing(&server, kernel.id()).await.unwrap();
        other.interrupt().await.unwrap();
        assert_eq!(running.collect().await.error().unwrap().ename, "KeyboardInterrupt");
        assert_eq!(execute(other.client(), "x").await.value().as_deref(), Some("42"));

        kernel.restart().await.unwrap();
        assert_eq!(execute(kernel.client(), "x").await.outcome.error.unwrap().ename, "NameError");
        assert!(kernel.is_alive().await.unwrap());
        kernel.shutdown().await.unwrap();
        assert!(!other.is_alive().await.unwrap());
        assert_eq!(server.kernels().await.unwrap(), []);
        other.shutdown().await.unwrap();
    });
}

async fn everything(server: &ServerClient) {
    let (kernel, client) = start_kernel(server).await;
    let ran =
        execute(&client, "import sys\nprint('out é'); print('err', file=sys.stderr)\n6 * 7").await;
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("out é\n", "err\n"));
    assert_eq!(ran.value().as_deref(), Some("42"));
    assert!(ran.outcome.is_ok() && ran.outcome.losses.is_none(), "{:?}", ran.outcome);

    let mut request = ExecuteRequest::new("print(input('?'))");
    request.allow_stdin = true;
    let mut running = client.execute(request).await.unwrap();
    let mut out = String::new();
    while let Some(event) = running.next().await {
        match event {
            Event::InputRequest(_) => running.reply_input("answer").await.unwrap(),
            Event::Stream(stream) => out.push_str(&stream.text),
            _ => {}
        }
    }
    assert_eq!(out, "answer\n");

    let code = "from comm import create_comm\ncreate_comm('t', buffers=[bytes(range(256)) * 1000])";
    let ran = execute(&client, code).await;
    let buffers = ran.events.iter().find_map(|event| match event {
        Event::Message { message, .. } if message.header.msg_type == "comm_open" => {
            Some(&message.buffers)
        }
        _ => None,
    });
    let expected: Vec<u8> = (0..=255).cycle().take(256_000).collect();
    assert!(buffers.unwrap() == &[expected]);

    let mut running = client
        .execute(ExecuteRequest::new("print('in', flush=True)\nimport time; time.sleep(60)"))
        .await
        .unwrap();
    while !matches!(running.next().await, Some(Event::Stream(_))) {}
    server.interrupt_kernel(&kernel.id).await.unwrap();
    assert_eq!(collect(running).await.outcome.error.unwrap().ename, "KeyboardInterrupt");
    assert_eq!(client.rejected(), 0);
}

fn websocket() {
    run(async {
        let (_real, server) = RealServer::start(&[]).await;
        everything(&server).await;
    });
}

fn older_form() {
    run(async {
        let argument = "--ZMQChannelsWebsocketConnection.kernel_ws_protocol=";
        let (_real, server) = RealServer::start(&[argument]).await;
        everything(&server).await;
    });
}

fn restarts() {
    run(async {
        let (_real, server) = RealServer::start(&[]).await;
        let (kernel, client) = start_kernel(&server).await;
        let code = "print('in', flush=True)\nimport time; time.sleep(60)";
        let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        // The request is queued behind the code.
        let behind = asked(&client).await;
        server.restart_kernel(&kernel.id).await.unwrap();
        assert_eq!(collect(running).await.outcome.end, End::KernelRestarted);
        assert!(matches!(behind.await.unwrap(), Err(ClientError::KernelRestarted)));
        client.ready(READY).await.unwrap();
        assert_eq!(execute(&client, "print('new')").await.stdout, "new\n");

        // The server restarts a kernel that dies by itself.
        let code = "import os, time; time.sleep(1); os._exit(1)";
        let running = client.execute(ExecuteRequest::new(code)).await.unwrap();
        let behind = asked(&client).await;
        assert_eq!(collect(running).await.outcome.end, End::KernelRestarted);
        assert!(matches!(behind.await.unwrap(), Err(ClientError::KernelRestarted)));
        client.ready(READY).await.unwrap();
        let code = "print('in', flush=True)\nimport time; time.sleep(60)";

        let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
        while !matches!(running.next().await, Some(Event::Stream(_))) {}
        server.delete_kernel(&kernel.id).await.unwrap();
        // The server interrupts the kernel first, so either can be faster.
        let outcome = collect(running).await.outcome;
        assert!(!outcome.is_ok(), "{outcome:?}");
    });
}

/// Sends a request, whose reply comes after the running code.
async fn asked(client: &Client) -> JoinHandle<Result<CompleteReply, ClientError>> {
    let client = client.clone();
    let waiting = tokio::spawn(async move { client.request(CompleteRequest::at_end("pri")).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    waiting
}

fn rate_limit() {
    run(async {
        let (_real, server) = RealServer::start(&[]).await;
        let (_kernel, client) = start_kernel(&server).await;
        let code = "for i in range(200): print('x' * 100_000, flush=True)";
        let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
        let (mut lost, mut text, mut outcome) = (0, String::new(), None);
        while let Some(event) = running.next().await {
            match event {
                Event::Lost(Loss::RateLimited) => lost += 1,
                Event::Stream(stream) => text.push_str(&stream.text),
                Event::Finished(finished) => outcome = Some(finished),
                _ => {}
            }
        }
        let outcome = outcome.unwrap();
        assert!(lost > 0 && outcome.losses.rate_limited && outcome.is_ok(), "{lost} {outcome:?}");
        assert!(text.len() < 20_000_000 && !text.contains("IOPub"), "{}", text.len());
        assert_eq!(execute(&client, "print('after')").await.stdout, "after\n");
    });
}

/// A proxy of the server whose connections can be cut.
struct Cable {
    port: u16,
    cut: Arc<AtomicBool>,
}

impl Cable {
    async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let is_cut = Arc::clone(&cut);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let is_cut = Arc::clone(&is_cut);
                tokio::spawn(async move {
                    let mut far =
                        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let copy = tokio::io::copy_bidirectional(&mut near, &mut far);
                    let watch = async {
                        while !is_cut.load(Ordering::Relaxed) {
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                    };
                    tokio::select! { _ = copy => {} () = watch => {} }
                });
            }
        });
        Self { port: own, cut }
    }
}

fn resume() {
    run(async {
        let (real, server) = RealServer::start(&[]).await;
        let kernel = server.start_kernel("python3", None).await.unwrap();
        let cable = Cable::to(real.port).await;
        let address = format!("http://localhost:{}/user/me", cable.port);
        let far = ServerClient::new(&address, Token::new(TOKEN)).unwrap();
        let client = far.connect(&kernel.id, Options::default()).await.unwrap();
        client.ready(READY).await.unwrap();
        let code =
            "import time\nfor i in range(20):\n    print(i, flush=True)\n    time.sleep(0.1)";
        let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
        let mut seen = Vec::new();
        let mut outcome = None;
        while let Some(event) = running.next().await {
            match event {
                Event::Stream(stream) => {
                    seen.extend(lines(&stream.text));
                    if seen.len() >= 5 && !cable.cut.load(Ordering::Relaxed) {
                        cable.cut.store(true, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        cable.cut.store(false, Ordering::Relaxed);
                        // Allocated once.
                        seen.reserve(1000);
                    }
                }
                Event::Finished(finished) => outcome = Some(finished),
                _ => {}
            }
            if seen.len() >= 5 && seen.capacity() >= 1000 {
                break;
            }
        }
        while let Some(event) = running.next().await {
            match event {
                Event::Stream(stream) => seen.extend(lines(&stream.text)),
                Event::Finished(finished) => outcome = Some(finished),
                _ => {}
            }
        }
        let outcome = outcome.unwrap();
        assert!(outcome.losses.disconnected && outcome.is_ok(), "{outcome:?}");
        let expected: Vec<String> = (0..20).map(|line| line.to_string()).collect();
        assert_eq!(seen, expected, "what came meanwhile was handed over");
    });
}

fn contents() {
    run(async {
        let (real, server) = RealServer::start(&[]).await;
        server.save_contents("a folder", &SaveContents::directory()).await.unwrap();
        let path = "a folder/é #1.txt";
        let saved = server.save_contents(path, &SaveContents::text("text é")).await.unwrap();
        assert_eq!((saved.kind, saved.path.as_str()), (ContentKind::File, path));
        let on_disk = std::fs::read_to_string(real.folder.path().join(path)).unwrap();
        assert_eq!(on_disk, "text é");
        let read = server.contents(path, true, None).await.unwrap();
        assert_eq!(
            (read.content.as_str(), read.format),
            (Some("text é"), Some(ContentFormat::Text))
        );
        let bytes = server.contents(path, true, Some(ContentFormat::Base64)).await.unwrap();
        assert_eq!(bytes.content.as_str().unwrap().trim(), "dGV4dCDDqQ==");
        server.save_contents("b", &SaveContents::base64("AP8=")).await.unwrap();
        assert_eq!(std::fs::read(real.folder.path().join("b")).unwrap(), [0, 255]);
        server.rename_contents("b", "a folder/c").await.unwrap();
        let listed = server.contents("a folder", true, None).await.unwrap();
        assert_eq!(
            (listed.kind, listed.content.as_array().unwrap().len()),
            (ContentKind::Directory, 2)
        );
        server.delete_contents("a folder/c").await.unwrap();
        assert!(matches!(
            server.contents("a folder/c", false, None).await,
            Err(ServerError::NotFound { .. })
        ));
    });
}

fn strangers() {
    run(async {
        let (real, server) = RealServer::start(&[]).await;
        let (kernel, _client) = start_kernel(&server).await;
        let address = format!("http://localhost:{}/user/me", real.port);
        for token in ["", "wrong"] {
            let stranger = ServerClient::new(&address, Token::new(token)).unwrap();
            let error = stranger.kernels().await.unwrap_err();
            assert!(matches!(error, ServerError::Unauthorized { .. }), "{error}");
            let error = stranger.connect(&kernel.id, Options::default()).await.unwrap_err();
            assert!(
                matches!(&error, ClientError::Closed { reason: CloseReason::Refused(_), .. }),
                "{error}"
            );
        }
        let error = server
            .connect("00000000-0000-0000-0000-000000000000", Options::default())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, ClientError::Closed { reason: CloseReason::Refused(_), .. }),
            "{error}"
        );
    });
}

fn encrypted() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
        make_certificate(&certificate, &key);
        let roots = std::fs::read(&certificate).unwrap();
        let mut options = ServerOptions::default();
        options.extra_roots = roots;
        let arguments = [
            format!("--ServerApp.certfile={}", certificate.display()),
            format!("--ServerApp.keyfile={}", key.display()),
        ];
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (real, server) = RealServer::start_at("https", &arguments, options).await;
        let (_kernel, client) = start_kernel(&server).await;
        assert_eq!(execute(&client, "print(1)").await.stdout, "1\n");

        let address = format!("https://localhost:{}/user/me", real.port);
        let unknown = ServerClient::new(&address, Token::new(TOKEN)).unwrap();
        let error = unknown.kernels().await.unwrap_err().to_string();
        assert!(error.contains("certificate"), "{error}");
    });
}

fn make_certificate(certificate: &Path, key: &Path) {
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]);
    command.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    command.args([
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-addext",
        "extendedKeyUsage=serverAuth",
    ]);
    command.arg("-out").arg(certificate).arg("-keyout").arg(key);
    assert!(command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
}

fn latency() {
    run(async {
        let (_real, server) = RealServer::start(&[]).await;
        let (_kernel, client) = start_kernel(&server).await;
        let mut samples = Vec::new();
        for _ in 0..60 {
            let before = Instant::now();
            assert!(execute(&client, "1").await.outcome.is_ok());
            samples.push(before.elapsed());
        }
        samples.sort();
        // A delayed acknowledgement takes 40 ms, and would occur in every call.
        assert!(samples[10] < Duration::from_millis(35), "{samples:?}");
    });
}

/// A line and its end may be published separately.
fn lines(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| !line.is_empty()).map(str::to_owned)
}
