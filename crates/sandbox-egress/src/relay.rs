//! Relays bytes between a sandbox and a host, in both directions.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::config::Limits;
use crate::inspect::{Inspector, Refusal};
use crate::retry::ServerObserver;
use crate::rules::Rules;

/// Buffer size of each direction. A side that does not read holds the other side back.
const CHUNK_SIZE: usize = 16 * 1024;

/// Reason why a connection ended early.
#[derive(Debug)]
pub(crate) enum RelayEnd {
    Refused(Refusal),
    /// One side broke, or the connection was idle for too long.
    Broken,
}

impl From<io::Error> for RelayEnd {
    fn from(_: io::Error) -> Self {
        Self::Broken
    }
}

/// The bytes from the client in the sandbox, and their inspection.
pub(crate) struct ClientStream<'a> {
    /// The bytes that were received before the relay started.
    pub(crate) received: Vec<u8>,
    pub(crate) inspector: Inspector,
    pub(crate) rules: &'a Rules,
}

/// Relays bytes until both sides have ended. A side that ends closes only its own direction.
pub(crate) async fn relay<R, W>(
    (from_client, to_client): (R, W),
    server: &mut TcpStream,
    client: ClientStream<'_>,
    limits: &Limits,
) -> Result<(), RelayEnd>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let clock = ActivityClock::new();
    let (from_server, to_server) = server.split();
    let observer = client.inspector.observer();
    let both = async {
        let out = client.forward_all(from_client, to_server, limits, &clock);
        tokio::try_join!(out, relay_to_client(from_server, to_client, observer, &clock)).map(drop)
    };
    tokio::select! {
        outcome = both => outcome,
        () = clock.idle(limits.idle) => Err(RelayEnd::Broken),
    }
}

impl ClientStream<'_> {
    async fn forward_all(
        mut self,
        mut from: impl AsyncRead + Unpin,
        mut to: WriteHalf<'_>,
        limits: &Limits,
        clock: &ActivityClock,
    ) -> Result<(), RelayEnd> {
        let deadline = Instant::now() + limits.first_bytes;
        let mut held = Vec::new();
        let received = std::mem::take(&mut self.received);
        self.forward(&received, &mut held, &mut to).await?;
        let mut buffer = vec![0; CHUNK_SIZE];
        loop {
            let read = from.read(&mut buffer);
            let count = if self.inspector.is_decided() {
                read.await?
            } else {
                timeout_at(deadline, read).await.map_err(|_| RelayEnd::Broken)??
            };
            if count == 0 {
                return Ok(to.shutdown().await?);
            }
            clock.tick();
            self.forward(&buffer[..count], &mut held, &mut to).await?;
            clock.tick();
        }
    }

    async fn forward(
        &mut self,
        bytes: &[u8],
        held: &mut Vec<u8>,
        to: &mut WriteHalf<'_>,
    ) -> Result<(), RelayEnd> {
        if self.inspector.is_open() {
            return Ok(to.write_all(bytes).await?);
        }
        self.inspector.push(bytes, held, self.rules).map_err(RelayEnd::Refused)?;
        to.write_all(held).await?;
        held.clear();
        Ok(())
    }
}

async fn relay_to_client(
    mut from: ReadHalf<'_>,
    mut to: impl AsyncWrite + Unpin,
    mut observer: Option<ServerObserver>,
    clock: &ActivityClock,
) -> Result<(), RelayEnd> {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        let count = from.read(&mut buffer).await?;
        if count == 0 {
            return Ok(to.shutdown().await?);
        }
        clock.tick();
        if let Some(observer) = &mut observer {
            observer.push(&buffer[..count]);
        }
        to.write_all(&buffer[..count]).await?;
        clock.tick();
    }
}

/// Time of the last activity.
struct ActivityClock {
    start: Instant,
    last: AtomicU64,
}

impl ActivityClock {
    fn new() -> Self {
        Self { start: Instant::now(), last: AtomicU64::new(0) }
    }

    fn tick(&self) {
        let passed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(passed, Ordering::Relaxed);
    }

    /// Waits until the connection has been idle for this long.
    async fn idle(&self, limit: Duration) {
        loop {
            let last = self.start + Duration::from_millis(self.last.load(Ordering::Relaxed));
            if last.elapsed() >= limit {
                return;
            }
            sleep_until(last + limit).await;
        }
    }
}
