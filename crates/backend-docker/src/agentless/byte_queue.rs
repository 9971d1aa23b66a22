//! Bytes on their way between the engine's connection and whoever reads or writes them here.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use sandbox_engine::chunk_queue::ChunkQueue;
use sandbox_engine::host::{Readable, Writable};
use tokio::sync::Notify;

/// Bytes that wait, after which no more are taken.
const MAX_WAITING: usize = 256 << 10;

/// A stream with one end that gives and one that takes.
#[derive(Debug, Default)]
pub(super) struct ByteQueue {
    state: Mutex<State>,
    /// Told to the task at the other end: something has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: ChunkQueue,
    /// Nothing more comes.
    ended: bool,
    /// Nobody takes anything any more.
    abandoned: bool,
    waker: Option<Waker>,
}

impl ByteQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds what has come, however much waits already.
    pub(super) fn push(&self, piece: Bytes) {
        let mut state = self.state();
        if piece.is_empty() || state.abandoned || state.ended {
            return;
        }
        state.chunks.push(piece);
        self.tell(state);
    }

    /// Bytes that nobody has taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.state().chunks.len()
    }

    /// No more comes, or is wanted to.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        self.tell(state);
    }

    /// Nobody takes anything from now on.
    pub(super) fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.chunks.clear();
        self.tell(state);
    }

    /// Waits until there is room for more.
    pub(super) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.chunks.len() < MAX_WAITING || state.abandoned {
                    return;
                }
            }
            changed.await;
        }
    }

    /// The next piece. `None`: that was all.
    pub(super) async fn next(&self) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                if let Some(piece) = state.chunks.pop() {
                    self.tell(state);
                    return Some(piece);
                }
                if state.ended {
                    return None;
                }
            }
            changed.await;
        }
    }
}

/// Where what a command puts out is read.
#[derive(Debug)]
pub(super) struct Reader(pub(super) Arc<ByteQueue>);

impl Readable for Reader {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if !state.chunks.is_empty() || state.ended {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        let count = state.chunks.read(buffer);
        if count == 0 && !state.ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.tell(state);
        Ok(count)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Where the standard input of a command is written.
#[derive(Debug)]
pub(super) struct Writer(pub(super) Arc<ByteQueue>);

impl Writable for Writer {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.state();
        if state.chunks.len() < MAX_WAITING || state.abandoned {
            return Poll::Ready(Ok(()));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let state = self.0.state();
        if state.abandoned {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = data.len().min(MAX_WAITING.saturating_sub(state.chunks.len()));
        drop(state);
        if count == 0 && !data.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.0.push(Bytes::copy_from_slice(&data[..count]));
        Ok(count)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn what_is_not_read_holds_back_and_is_all_there() {
        let flow = Arc::new(ByteQueue::default());
        let reader = Reader(Arc::clone(&flow));
        assert!(poll_fn(|cx| reader.poll_readable(cx)).now_or_never().is_none());
        flow.room().await;
        flow.push(Bytes::from(vec![7; MAX_WAITING]));
        assert!(flow.room().now_or_never().is_none());
        let mut buffer = vec![0; MAX_WAITING / 2 + 1];
        assert_eq!(reader.try_read(&mut buffer).unwrap(), buffer.len());
        flow.room().await;
        flow.end();
        assert_eq!(reader.try_read(&mut buffer).unwrap(), MAX_WAITING - buffer.len());
        assert_eq!(reader.try_read(&mut buffer).unwrap(), 0, "its end");
    }

    #[tokio::test]
    async fn a_writer_waits_and_hears_when_nobody_takes_it() {
        let flow = Arc::new(ByteQueue::default());
        let writer = Writer(Arc::clone(&flow));
        let data = vec![1; MAX_WAITING + 5];
        assert_eq!(writer.try_write(&data).unwrap(), MAX_WAITING);
        assert_eq!(writer.try_write(&data).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(flow.next().await.map(|piece| piece.len()), Some(MAX_WAITING));
        assert_eq!(writer.try_write(b"more").unwrap(), 4);
        flow.abandon();
        assert_eq!(writer.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        drop(writer);
        assert_eq!(flow.next().await, None);
    }
}
