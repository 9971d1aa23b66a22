//! Kernels that a server was asked for, when its answer is late or lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbox_core::{Effect, SandboxBuilder, SingleBackend};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};

use super::support::server::{JupyterServer, TOKEN};
use super::{builder, jupyter, kernels, rest, support, until};

/// What becomes of the answer to a request for a kernel.
#[derive(Clone, Copy)]
enum Answer {
    Late(Duration),
    Lost,
}

/// What stands before a server, and whether it has passed a request for a kernel on.
struct Between {
    url: String,
    asked: Arc<AtomicBool>,
}

impl Between {
    async fn start(server: &JupyterServer, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let there = server.url.trim_start_matches("http://").to_owned();
        let asked = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&there).await.unwrap();
                tokio::spawn(carry(client, server, answer, Arc::clone(&told)));
            }
        });
        Self { url, asked }
    }

    fn builder(&self, kernel: &str) -> SandboxBuilder<SingleBackend> {
        builder()
            .provider_option("server_url", self.url.as_str())
            .provider_option("token", TOKEN)
            .environment(kernel)
    }
}

async fn carry(client: TcpStream, server: TcpStream, answer: Answer, asked: Arc<AtomicBool>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let is_asked = Arc::new(AtomicBool::new(false));
    let hears = Arc::clone(&is_asked);
    let there = tokio::spawn(async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
            if bytes[..count].starts_with(b"POST /api/kernels ") {
                hears.store(true, Ordering::Release);
                asked.store(true, Ordering::Release);
            }
            if to_server.write_all(&bytes[..count]).await.is_err() {
                break;
            }
        }
    });
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from_server.read(&mut bytes).await {
        if is_asked.swap(false, Ordering::AcqRel) {
            match answer {
                Answer::Late(delay) => sleep(delay).await,
                Answer::Lost => break,
            }
        }
        if to_client.write_all(&bytes[..count]).await.is_err() {
            break;
        }
    }
    there.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_whose_start_was_not_answered_is_named() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("lost", &support::python_kernel());
    let between = Between::start(server, Answer::Lost).await;
    let error = between.builder("lost").create().await.unwrap_err();
    assert!(between.asked.load(Ordering::Acquire));
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    let left = kernels(server, "lost").await;
    assert_eq!(left.len(), 1, "the control: {left:?}");
    let hint = error.hint().unwrap();
    assert!(hint.contains(&left[0].id) && hint.contains("DELETE"), "{error:?}");
    rest(server).delete_kernel(&left[0].id).await.unwrap();
}

/// As a signal does that ends the process after this.
#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_given_up_waits_for_the_kernel_that_was_asked_for() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("given-up", &support::python_kernel());
    let between = Between::start(server, Answer::Late(Duration::from_millis(1500))).await;
    let creating = between.builder("given-up").create();
    let asked = until("no kernel was asked for", async || between.asked.load(Ordering::Acquire));
    let given_up = async {
        tokio::select! {
            created = creating => panic!("it was not given up: {created:?}"),
            () = asked => {}
        }
    };
    timeout(Duration::from_secs(30), given_up).await.unwrap();
    let left = kernels(server, "given-up").await;
    assert!(left.is_empty(), "{left:?}");
}
