//! When a connection counts as lost, and what learns of it.

use std::sync::atomic::AtomicBool;
use std::task::{Context, Wake, Waker};

use futures_util::stream;
use tokio::io::AsyncReadExt as _;
use tokio::time::advance;

use super::*;
use crate::streams::Reader;

/// A connection whose agent never sends anything.
fn silent() -> Arc<Connection> {
    Connection::open(
        Box::pin(stream::pending()),
        Bytes::new(),
        Box::pin(tokio::io::sink()),
        SILENCE_TIMEOUT,
        None,
    )
}

// An agent ends when it receives nothing, and only the engine knows when it is frozen.
#[tokio::test(start_paused = true)]
async fn what_is_held_hears_of_this_end() {
    let (near, mut far) = tokio::io::duplex(1 << 16);
    let connection = Connection::open(
        Box::pin(stream::pending()),
        Bytes::new(),
        Box::pin(near),
        SILENCE_TIMEOUT,
        None,
    );
    tokio::task::yield_now().await;
    connection.mark_paused();
    a_long_time().await;
    let mut heard = vec![0; 1 << 16];
    let count = far.read(&mut heard).await.unwrap();
    let mut frames = FrameReader::new();
    frames.push(&heard[..count]);
    let mut pings = 0;
    while frames.next_frame().unwrap().is_some() {
        pings += 1;
    }
    assert!(pings >= 10, "{pings} pings in the time of 20");
}

/// Checks the connection at the very moment in which a stream of it reports the end.
struct Looks {
    connection: Arc<Connection>,
    found: AtomicBool,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        self.found.store(self.connection.is_closed(), Ordering::Relaxed);
    }
}

#[tokio::test]
async fn who_hears_of_an_end_finds_it_closed() {
    let connection = silent();
    let reader = Reader::new(&connection, 1);
    let looks =
        Arc::new(Looks { connection: Arc::clone(&connection), found: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&looks));
    assert!(reader.poll_piece(&mut Context::from_waker(&waker)).is_pending());
    connection.close();
    assert!(looks.found.load(Ordering::Relaxed), "it is told of before it is closed");
}

async fn a_long_time() {
    for _ in 0..20 {
        advance(PING_INTERVAL).await;
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn only_what_is_not_held_is_lost_when_it_says_nothing() {
    let connection = silent();
    tokio::task::yield_now().await;
    connection.mark_paused();
    connection.mark_paused();
    a_long_time().await;
    connection.mark_resumed();
    a_long_time().await;
    assert!(!connection.is_closed(), "a box that is held was taken for lost");
    connection.mark_resumed();
    a_long_time().await;
    assert!(connection.is_closed(), "a box that says nothing counts as there");
    // It is not reported as a connection that was closed here.
    let error = connection.lost();
    assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error:?}");
    assert!(error.message().contains("45 seconds"), "{error:?}");
}
