//! Streams in memory, between the messages of a kernel and the reader of a process's streams.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use sandbox_engine::host::{Readable, Writable};
use tokio::sync::Notify;

/// Maximum number of bytes that wait before the writer does. With one more chunk, this is the amount of output that is
/// read before a reply is reported.
const CAPACITY: usize = (1 << 20) - CHUNK_SIZE;

/// Maximum number of bytes to add at once.
pub(crate) const CHUNK_SIZE: usize = 64 << 10;

/// A stream with one reader and one writer.
#[derive(Default)]
pub(crate) struct Buffer {
    state: Mutex<State>,
    /// Notified after every read and write.
    changed: Notify,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    taken: usize,
    /// The number of writes, and that number when the reader last found nothing.
    added: u64,
    settled: u64,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl State {
    fn waiting(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("waiting", &self.state().waiting()).finish()
    }
}

impl Buffer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds bytes, without a limit.
    pub(crate) fn push(&self, data: &[u8]) {
        let mut state = self.state();
        state.bytes.extend_from_slice(data);
        state.added += 1;
        let reader = state.reader.take();
        drop(state);
        wake(reader);
        self.changed.notify_waiters();
    }

    /// Waits until there is room for a chunk.
    pub(crate) async fn room(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.waiting() < CAPACITY || state.closed {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Returns the number of writes.
    pub(crate) fn added(&self) -> u64 {
        self.state().added
    }

    /// Waits until the reader has processed all writes, which it shows by reading again. Returns at once if nothing was
    /// written since `before`, even without a reader.
    pub(crate) async fn settled(&self, before: u64) {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.added == before || state.settled == state.added || state.closed {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Ends the stream, and releases a waiting writer.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        let (reader, writer) = (state.reader.take(), state.writer.take());
        drop(state);
        wake(reader);
        wake(writer);
        self.changed.notify_waiters();
    }

    /// Returns true if the stream has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Waits for bytes. Returns `None` at the end.
    pub(crate) async fn next(&self, limit: usize) -> Option<Vec<u8>> {
        loop {
            let changed = self.changed.notified();
            let mut data = vec![0; limit];
            match self.try_read(&mut data) {
                Ok(0) => return None,
                Ok(count) => {
                    data.truncate(count);
                    return Some(data);
                }
                Err(_) => changed.await,
            }
        }
    }

    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.waiting() > 0 || state.closed {
            return Poll::Ready(Ok(()));
        }
        state.reader = Some(cx.waker().clone());
        let was_behind = state.settled != state.added;
        state.settled = state.added;
        drop(state);
        if was_behind {
            self.changed.notify_waiters();
        }
        Poll::Pending
    }

    pub(crate) fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.state();
        let waiting = state.waiting();
        if waiting == 0 {
            return if state.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = waiting.min(buffer.len());
        let start = state.taken;
        buffer[..count].copy_from_slice(&state.bytes[start..start + count]);
        state.taken += count;
        if state.taken == state.bytes.len() {
            state.taken = 0;
            // Releases the memory of a large buffer.
            if state.bytes.capacity() > CAPACITY {
                state.bytes = Vec::new()
            } else {
                state.bytes.clear()
            }
        } else if state.taken > CAPACITY {
            let taken = std::mem::take(&mut state.taken);
            state.bytes.drain(..taken);
        }
        let writer = if state.waiting() < CAPACITY { state.writer.take() } else { None };
        drop(state);
        wake(writer);
        self.changed.notify_waiters();
        Ok(count)
    }

    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.waiting() < CAPACITY || state.closed {
            return Poll::Ready(Ok(()));
        }
        state.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        let room = {
            let state = self.state();
            if state.closed {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            CAPACITY.saturating_sub(state.waiting())
        };
        if room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = room.min(data.len());
        self.push(&data[..count]);
        Ok(count)
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The writing end of a run's standard input. Dropping it ends the input.
#[derive(Debug)]
pub(crate) struct InputWriter(pub(crate) Arc<Buffer>);

impl Writable for InputWriter {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_writable(cx)
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.0.try_write(data)
    }
}

impl Drop for InputWriter {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The output of a kernel: published text, and what its process writes to a descriptor, if that belongs to runs.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) published: Arc<Buffer>,
    pub(crate) own: Option<Box<dyn Readable>>,
}

impl Readable for Output {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let published = self.published.poll_readable(cx);
        match &self.own {
            Some(own) if published.is_pending() => own.poll_readable(cx),
            _ => published,
        }
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let published = self.published.try_read(buffer);
        match (&self.own, published) {
            (Some(own), Ok(0) | Err(_)) => own.try_read(buffer),
            (_, published) => published,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn writers_wait_for_room_and_readers_for_bytes() {
        let buffer = Arc::new(Buffer::default());
        buffer.push(&vec![1; CAPACITY]);
        let writing = tokio::spawn({
            let buffer = Arc::clone(&buffer);
            async move {
                buffer.room().await;
                buffer.push(b"more");
            }
        });
        tokio::task::yield_now().await;
        assert!(!writing.is_finished(), "there is no room");
        let mut seen = 0;
        while seen < CAPACITY + 4 {
            seen += buffer.next(1000).await.unwrap().len();
        }
        writing.await.unwrap();
        buffer.close();
        assert_eq!(buffer.next(1).await, None);
    }

    #[test]
    fn an_input_ends_with_its_writer() {
        let buffer = Arc::new(Buffer::default());
        let writer = InputWriter(Arc::clone(&buffer));
        assert_eq!(writer.try_write(b"abc").unwrap(), 3);
        assert_eq!(writer.try_write(&vec![0; CAPACITY]).unwrap(), CAPACITY - 3);
        assert_eq!(writer.try_write(b"x").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(writer);
        assert!(buffer.is_closed());
        assert_eq!(buffer.try_read(&mut [0; 2]).unwrap(), 2, "what was written is still there");
    }
}
