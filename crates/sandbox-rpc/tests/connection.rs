//! Connections whose other side ends, or violates the protocol.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::sync::Arc;
use std::time::Duration;

use backend_eval::EvalBackend;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, CallContext, ErrorKind, EventKind, FailureKind, ListQuery, Sandbox, SandboxStatus,
};
use sandbox_rpc::{ClientHello, PROTOCOL, RemoteBackend, connect, handshake, serve};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const TIMEOUT: Duration = Duration::from_secs(20);

type Served = JoinHandle<sandbox_core::Result<()>>;

async fn pair(backend: Arc<dyn Backend>) -> (RemoteBackend, Served) {
    let (near, far) = UnixStream::pair().unwrap();
    let served = tokio::spawn(serve(backend, far));
    (connect(near).await.unwrap(), served)
}

async fn running(backend: &Arc<dyn Backend>) -> usize {
    backend.list(&CallContext::new(), ListQuery::default()).await.unwrap().items.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_handle_closes_the_connection_and_ends_its_sandboxes() {
    let backend: Arc<dyn Backend> = Arc::new(EvalBackend::default());
    for round in 0..20 {
        let (remote, served) = pair(Arc::clone(&backend)).await;
        if round % 5 == 0 {
            let sandbox = Sandbox::builder(Arc::new(remote)).create().await.unwrap();
            assert_eq!(running(&backend).await, 1);
            drop(sandbox);
        } else {
            drop(remote);
        }
        timeout(TIMEOUT, served).await.expect("it ends").unwrap().unwrap();
        assert_eq!(running(&backend).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_server_is_reported_as_a_lost_connection() {
    let (remote, served) = pair(Arc::new(EvalBackend::default())).await;
    let sandbox = Sandbox::builder(Arc::new(remote)).create().await.unwrap();
    let mut events = sandbox.run_code("import time; time.sleep(60)").stream().await.unwrap();
    assert!(matches!(events.next().await.unwrap().kind, EventKind::Started { .. }));
    served.abort();
    let last = timeout(TIMEOUT, events.next()).await.unwrap().unwrap();
    let EventKind::Finished(outcome) = last.kind else { panic!("{last:?}") };
    assert_eq!(outcome.failure.unwrap().kind, FailureKind::ConnectionLost);
    assert_eq!(last.seq, 1);
    assert!(events.next().await.is_none());
    let refused = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionLost);
    assert_eq!(sandbox.status(), SandboxStatus::Error);
    assert!(!sandbox.is_executing());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_protocol_is_refused_by_both() {
    let (near, far) = UnixStream::pair().unwrap();
    let served = tokio::spawn(serve(Arc::new(EvalBackend::default()), far));
    let hello = ClientHello { protocol: PROTOCOL + 1, ..ClientHello::new("serve") };
    let negotiated = handshake(near, &hello).await.unwrap();
    assert_eq!(negotiated.hello().protocol, PROTOCOL);
    timeout(TIMEOUT, served).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_bytes_end_their_connection_only() {
    let backend: Arc<dyn Backend> = Arc::new(EvalBackend::default());
    let mut hello = serde_json::to_vec(&ClientHello::new("serve")).unwrap();
    let mut good = b"CSBX".to_vec();
    good.extend((hello.len() as u32).to_le_bytes());
    good.append(&mut hello);
    let frame = |length: u32, kind: u8, stream: u64| {
        [&length.to_le_bytes()[..], &[kind, 0], &stream.to_le_bytes()].concat()
    };
    for (case, after) in [
        ("a long frame", frame(u32::MAX, 1, 1)),
        ("an unknown kind", frame(0, 77, 1)),
        ("a stream of the server", frame(0, 1, 2)),
        ("a request without a head", frame(0, 1, 1)),
    ] {
        let (mut near, far) = UnixStream::pair().unwrap();
        let served = tokio::spawn(serve(Arc::clone(&backend), far));
        near.write_all(&[&good[..], &after].concat()).await.unwrap();
        let ended = timeout(TIMEOUT, served).await.expect(case).unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Protocol, "{case}");
        let mut rest = Vec::new();
        near.read_to_end(&mut rest).await.unwrap();
    }
    for start in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"CSBX\xff\xff\xff\xff"] {
        let (mut near, far) = UnixStream::pair().unwrap();
        let served = tokio::spawn(serve(Arc::clone(&backend), far));
        near.write_all(start).await.unwrap();
        let ended = timeout(TIMEOUT, served).await.unwrap().unwrap();
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Protocol);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_of_unknown_streams_are_ignored() {
    let (mut near, far) = UnixStream::pair().unwrap();
    let served = tokio::spawn(serve(Arc::new(EvalBackend::default()), far));
    let hello = serde_json::to_vec(&ClientHello::new("serve")).unwrap();
    near.write_all(b"CSBX").await.unwrap();
    near.write_all(&(hello.len() as u32).to_le_bytes()).await.unwrap();
    near.write_all(&hello).await.unwrap();
    // Late frames of streams that have ended: cancel, stop, release, end.
    for kind in [6_u8, 7, 8, 4] {
        let bytes = [&0_u32.to_le_bytes()[..], &[kind, 0], &99_u64.to_le_bytes()].concat();
        near.write_all(&bytes).await.unwrap();
    }
    near.shutdown().await.unwrap();
    timeout(TIMEOUT, served).await.unwrap().unwrap().unwrap();
}
