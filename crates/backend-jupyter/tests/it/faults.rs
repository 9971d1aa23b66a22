//! What cannot work is a clear error, in time, and leaves nothing.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::{Duration, Instant};

use sandbox_core::{Error, ErrorKind, IsolationMode, NetworkPolicy, SandboxBuilder, SingleBackend};

use super::support::server::{TOKEN, free_port};
use super::{builder, jupyter, kernels, on, until};

const WRONG: &str = "another-token-that-is-wrong";

async fn error_of(builder: SandboxBuilder<SingleBackend>) -> Error {
    let begun = Instant::now();
    let error = builder.create().await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    let told = format!("{error} {error:?} {:?}", error.hint());
    assert!(!told.contains(WRONG) && !told.contains(TOKEN), "{told}");
    error
}

fn at(url: &str) -> SandboxBuilder<SingleBackend> {
    builder().provider_option("server_url", url).provider_option("token", WRONG)
}

#[tokio::test]
async fn a_wrong_token_is_told_and_not_shown() {
    let Some(server) = jupyter() else { return };
    let error = error_of(at(&server.url)).await;
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    assert!(error.hint().unwrap().contains("not its token"), "{error:?}");
    let without = || builder().provider_option("server_url", server.url.clone());
    for none in [without(), without().provider_option("token", "")] {
        let error = error_of(none).await;
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        assert!(error.hint().unwrap().contains("JUPYTER_TOKEN"), "{error:?}");
    }
    let shown = format!("{:?}", at(&server.url));
    assert!(!shown.contains(WRONG), "{shown}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_told() {
    let error = error_of(at(&format!("http://127.0.0.1:{}", free_port()))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    for url in ["127.0.0.1:8888", "ftp://x", "http://me:another-token-that-is-wrong@h"] {
        let error = error_of(at(url)).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// What the server prints when it starts, pasted as it is.
#[tokio::test]
async fn the_address_that_a_server_prints_is_one() {
    let Some(server) = jupyter() else { return };
    for page in ["/lab", "/tree", "/", ""] {
        let url = format!("{}{page}?token={TOKEN}", server.url);
        let sandbox = builder().provider_option("server_url", url).create().await.unwrap();
        assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
        let info = sandbox.info();
        assert!(!format!("{info:?}").contains(TOKEN), "{info:?}");
        sandbox.terminate().await.unwrap();
    }
    let error = error_of(
        builder().provider_option("server_url", format!("{}/lab?token={WRONG}", server.url)),
    )
    .await;
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    // Who gives a token besides means that one.
    let both = at(&format!("{}/lab?token={WRONG}", server.url)).provider_option("token", TOKEN);
    both.create().await.unwrap();
    for url in ["ftp://x", "127.0.0.1:8888"] {
        let error = error_of(builder().provider_option("server_url", url)).await;
        let hint = error.hint().unwrap();
        assert!(hint.contains("http://127.0.0.1:8888/") && !hint.contains("token"), "{hint}");
    }
}

#[tokio::test]
async fn a_server_that_asks_to_wait_is_told() {
    let answer = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let error = error_of(at(&other_server(Some(answer)))).await;
    assert_eq!(error.kind(), ErrorKind::RateLimited, "{error}");
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)), "{error:?}");
}

/// Serves one answer to every connection, or none at all.
fn other_server(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if let Some(answer) = answer {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(answer.as_bytes());
            } else {
                open.push(stream);
            }
        }
    });
    url
}

#[tokio::test]
async fn what_is_no_jupyter_server_is_told() {
    let error = error_of(at(&other_server(Some(
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
    ))))
    .await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no Jupyter Server"), "{error}");
    let error = error_of(at(&other_server(Some("hello\r\n\r\n")))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = error_of(at(&other_server(None))).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_kernel_that_is_not_there_is_told_with_those_that_are() {
    let Some(server) = jupyter() else { return };
    let error = error_of(on(server).provider_option("kernel", "no-such-kernel")).await;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("bash") && error.to_string().contains("python3"), "{error}");
    let error = error_of(on(server).provider_option("kernel_id", "no-such-id")).await;
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn a_kernel_that_exits_at_once_on_a_server_is_told() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("broken", "exit 3");
    let error = error_of(on(server).provider_option("kernel", "broken")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    until("it is left", async || kernels(server, "broken").await.is_empty()).await;
}

#[tokio::test]
async fn what_nobody_there_enforces_is_refused_before_anybody_is_asked() {
    let nowhere = || at("http://127.0.0.1:9");
    for mode in [IsolationMode::Strict, IsolationMode::BestEffort] {
        let error = error_of(nowhere().isolation(mode)).await;
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().unwrap().contains("IsolationMode::Off"), "{error:?}");
    }
    let error = error_of(nowhere().network(NetworkPolicy::none())).await;
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[tokio::test]
async fn a_connection_file_that_leads_nowhere_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kernel.json");
    let at = || builder().provider_option("connection_file", file.display().to_string());
    let error = error_of(at()).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let port = free_port();
    let whole = format!(
        r#"{{"transport": "tcp", "ip": "127.0.0.1", "shell_port": {port}, "iopub_port": {port}, "stdin_port": {port},
        "control_port": {port}, "hb_port": {port}, "key": "{WRONG}", "signature_scheme": "hmac-sha256"}}"#
    );
    for (text, kind) in [
        (whole[..80].to_owned(), ErrorKind::InvalidArgument),
        ("[]".to_owned(), ErrorKind::InvalidArgument),
        (whole.replace("hmac-sha256", "hmac-md4"), ErrorKind::InvalidArgument),
        (whole, ErrorKind::Unavailable),
    ] {
        fs::write(&file, text).unwrap();
        let error = error_of(at()).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!error.to_string().contains("struct"), "{error}");
    }
}
