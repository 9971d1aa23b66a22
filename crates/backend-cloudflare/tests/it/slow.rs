//! A bridge that is far away: every byte takes its time, in both directions.

use std::io;
use std::time::Duration;

use sandbox_core::{FailureKind, InterpreterState};
use sandbox_test_server::cloudflare::Generation;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::Fixture;

/// The time of a byte on its way.
const DELAY: Duration = Duration::from_millis(270);

/// Passes on bytes, each after the delay.
async fn carry(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    let (send, mut due) = mpsc::unbounded_channel();
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let piece = (Instant::now() + DELAY, buffer[..count].to_vec());
            if send.send(piece).is_err() {
                break;
            }
        }
    });
    while let Some((at, bytes)) = due.recv().await {
        sleep_until(at).await;
        to.write_all(&bytes).await?;
        to.flush().await?;
    }
    reader.abort();
    to.shutdown().await
}

/// Returns an address of the server that takes as long to reach as one far away.
async fn far_away(server: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let server = server.trim_start_matches("http://").trim_end_matches('/').to_owned();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let server = server.clone();
            tokio::spawn(async move {
                let far = TcpStream::connect(server).await?;
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                tokio::try_join!(carry(near_in, far_out), carry(far_in, near_out))
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_keeps_the_variables() {
    let f = Fixture::new(Generation::Processes).await;
    let address = far_away(&f.server.url()).await;
    let builder = f.builder().provider_option("base_url", address);
    let sandbox = builder.create().await.unwrap();
    sandbox.run_code("x = 41").await.unwrap();
    let late = sandbox.run_code("import time; time.sleep(60)").timeout(Duration::from_secs(1));
    let late = late.await.unwrap();
    assert_eq!(late.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!(late.state, InterpreterState::Kept, "{late:?}");
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().text(), Some("42"));
    sandbox.terminate().await.unwrap();
}
