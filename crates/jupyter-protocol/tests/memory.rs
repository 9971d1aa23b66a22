//! The memory of the client is bounded, however much a kernel sends and however it is divided into messages.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jupyter_protocol::content::{DisplayData, Status};
use jupyter_protocol::test_kernel::{Behaviour, TestServer, Wire};
use jupyter_protocol::zmq::{Dialer, Endpoints, Io, Options, connect};
use jupyter_protocol::{
    Channel, Codec, ConnectionInfo, Content, Key, Limits, MimeBundle, Session, SignatureScheme,
    Signer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Size of a large message, in bytes.
const LARGE: usize = 16 * 1024 * 1024;

/// The number of large messages.
const TIMES: usize = 60;

/// The number of small messages behind each large one.
const SMALL: usize = 20;

/// A kernel whose IOPub channel floods every client.
struct Flooding(Endpoints);

#[async_trait]
impl Dialer for Flooding {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        if channel != Channel::IoPub {
            return self.0.dial(channel).await;
        }
        let (near, mut far) = tokio::io::duplex(1024 * 1024);
        tokio::spawn(async move {
            far.write_all(&opening()).await?;
            // Greeting, READY and subscription of the client.
            far.read_exact(&mut [0; 64 + 2 + 25 + 2 + 1]).await?;
            let session = Session::new("kernel");
            let mut display = DisplayData::default();
            display.data = MimeBundle::text("x".repeat(LARGE));
            let large = message(&session, display);
            for _ in 0..TIMES {
                far.write_all(&large).await?;
                for _ in 0..SMALL {
                    far.write_all(&message(&session, Status::default())).await?;
                }
            }
            let mut end = Status::default();
            end.execution_state = "idle".into();
            far.write_all(&message(&session, end)).await?;
            std::future::pending::<io::Result<()>>().await
        });
        Ok(Box::new(near))
    }
}

/// Returns the greeting and READY of an XPUB socket.
fn opening() -> Vec<u8> {
    let mut greeting = [0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    let ready = b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB";
    [&greeting[..], ready].concat()
}

fn message(session: &Session, content: impl Into<Content>) -> Vec<u8> {
    let codec =
        Codec::new(Signer::new(SignatureScheme::default(), &Key::default()), Limits::default());
    let frames: Vec<Bytes> = codec.encode(&session.request(content).into_raw());
    let last = frames.len() - 1;
    let frame = |(at, body): (usize, &Bytes)| {
        let more = u8::from(at < last);
        [&[2 | more][..], &(body.len() as u64).to_be_bytes(), body].concat()
    };
    frames.iter().enumerate().flat_map(frame).collect()
}

/// Returns the peak memory of this process, in bytes.
fn peak() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_large_and_small_messages_stays_small() {
    let folder = tempfile::tempdir().unwrap();
    let mut info = ConnectionInfo::ipc(folder.path().join("k"));
    info.key = Key::default();
    let _server = TestServer::start(&info, Behaviour::default(), Wire::default()).await.unwrap();
    let mut options =
        Options::default().with_dialer(Flooding(Endpoints::from_connection_info(&info)));
    options.client.buffered = 1024 * 1024;
    let before = peak();
    let client = connect(&info, options).await.unwrap();
    // No events are taken: the client buffers what fits and drops the rest.
    let watches: Vec<_> = (0..3).map(|_| client.watch()).collect();
    while client.kernel_state().is_none_or(|state| state.as_str() != "idle") {
        assert_eq!(client.close_reason(), None);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(watches);
    let (sent, grown) = (LARGE * TIMES, peak() - before);
    // A large message is in memory a few times while it is sent and received.
    assert!(grown < 12 * LARGE, "{} MiB for {} MiB", grown >> 20, sent >> 20);
    assert_eq!(client.rejected(), 0);
}
