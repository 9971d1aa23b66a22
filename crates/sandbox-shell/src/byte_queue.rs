//! Byte queue between a connection and the reader or writer of a command's stream.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Notify;

use sandbox_engine::ChunkQueue;
use sandbox_engine::host::{Readable, Writable};

/// Bytes in a queue above which a writer has to wait.
const MAX_WAITING: usize = 256 << 10;

/// A queue with one writer and one reader.
#[derive(Debug, Default)]
pub struct ByteQueue {
    state: Mutex<State>,
    /// Wakes the task at the other end after a change.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    chunks: ChunkQueue,
    /// No more bytes come.
    ended: bool,
    /// The reader is gone.
    abandoned: bool,
    waker: Option<Waker>,
}

impl ByteQueue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notify(&self, mut state: MutexGuard<'_, State>) {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Appends a chunk, even to a full queue.
    pub fn push(&self, chunk: Bytes) {
        let mut state = self.state();
        if chunk.is_empty() || state.abandoned || state.ended {
            return;
        }
        state.chunks.push(chunk);
        self.notify(state);
    }

    /// Returns the number of unread bytes.
    pub fn waiting(&self) -> usize {
        self.state().chunks.len()
    }

    /// Ends the stream: no more bytes come.
    pub fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        self.notify(state);
    }

    /// Discards all bytes from now on: the reader is gone.
    pub fn abandon(&self) {
        let mut state = self.state();
        state.abandoned = true;
        state.chunks.clear();
        self.notify(state);
    }

    /// Waits until the queue is not full.
    pub async fn room(&self) {
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

    /// Waits for the next chunk. Returns `None` at the end.
    pub async fn next(&self) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                if let Some(chunk) = state.chunks.pop() {
                    self.notify(state);
                    return Some(chunk);
                }
                if state.ended {
                    return None;
                }
            }
            changed.await;
        }
    }
}

/// Reads the output of a command. Dropping it discards what comes later.
#[derive(Debug)]
pub struct QueueReader(pub Arc<ByteQueue>);

impl Readable for QueueReader {
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
        self.0.notify(state);
        Ok(count)
    }

    /// Returns all unread bytes: the exit of a command is set behind its output.
    fn unread(&self) -> Option<usize> {
        Some(self.0.waiting())
    }
}

impl Drop for QueueReader {
    fn drop(&mut self) {
        self.0.abandon();
    }
}

/// Writes the standard input of a command. Dropping it ends the input.
#[derive(Debug)]
pub struct QueueWriter(pub Arc<ByteQueue>);

impl Writable for QueueWriter {
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

impl Drop for QueueWriter {
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
    async fn a_full_queue_has_no_room_and_loses_nothing() {
        let queue = Arc::new(ByteQueue::default());
        let reader = QueueReader(Arc::clone(&queue));
        assert!(poll_fn(|cx| reader.poll_readable(cx)).now_or_never().is_none());
        queue.room().await;
        queue.push(Bytes::from(vec![7; MAX_WAITING]));
        assert!(queue.room().now_or_never().is_none());
        assert_eq!(reader.unread(), Some(MAX_WAITING));
        let mut buffer = vec![0; MAX_WAITING / 2 + 1];
        assert_eq!(reader.try_read(&mut buffer).unwrap(), buffer.len());
        queue.room().await;
        queue.end();
        assert_eq!(reader.try_read(&mut buffer).unwrap(), MAX_WAITING - buffer.len());
        assert_eq!(reader.try_read(&mut buffer).unwrap(), 0, "its end");
    }

    #[tokio::test]
    async fn a_writer_waits_for_room_and_fails_without_a_reader() {
        let queue = Arc::new(ByteQueue::default());
        let writer = QueueWriter(Arc::clone(&queue));
        let data = vec![1; MAX_WAITING + 5];
        assert_eq!(writer.try_write(&data).unwrap(), MAX_WAITING);
        assert_eq!(writer.try_write(&data).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(queue.next().await.map(|chunk| chunk.len()), Some(MAX_WAITING));
        assert_eq!(writer.try_write(b"more").unwrap(), 4);
        queue.abandon();
        assert_eq!(writer.try_write(b"x").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        drop(writer);
        assert_eq!(queue.next().await, None);
    }
}
