//! The streams of a connection, with their flow control.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::io::copy_bidirectional;
use tokio::net::UnixStream;

use crate::connection::Connection;
use crate::message::{AgentError, AgentRequest, NARROW_WINDOW, STDIN, STDOUT, WINDOW, stream};
use crate::tunnel::Tunnel;
use sandbox_engine::ChunkQueue;
use sandbox_engine::host::{Control, Endpoint, Readable, SideChannel, Writable};

/// A stream from the sandbox, with what was not read yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) number: i64,
    state: Mutex<Arrived>,
}

#[derive(Debug, Default)]
struct Arrived {
    chunks: ChunkQueue,
    /// Bytes that were read, and of which the agent was not told yet.
    read: usize,
    ended: Option<Option<AgentError>>,
    waker: Option<Waker>,
}

impl Incoming {
    pub(crate) fn new(number: i64) -> Self {
        Self { number, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, Arrived> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds data. Returns false when it exceeds the window.
    pub(crate) fn push(&self, data: &[u8]) -> bool {
        let mut state = self.state();
        if state.chunks.len() + data.len() + state.read > WINDOW {
            return false;
        }
        state.chunks.push(Bytes::copy_from_slice(data));
        wake(state);
        true
    }

    pub(crate) fn end(&self, error: Option<AgentError>) {
        let mut state = self.state();
        state.ended.get_or_insert(error);
        wake(state);
    }

    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if !state.chunks.is_empty() || state.ended.is_some() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Returns credit for the agent, once it is worth a message.
    fn credit(state: &mut Arrived) -> Option<usize> {
        let due = state.read >= WINDOW / 4 && state.ended.is_none();
        due.then(|| std::mem::take(&mut state.read))
    }
}

fn wake(mut state: MutexGuard<'_, Arrived>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// The reading end. Dropping it ends the stream in the sandbox.
#[derive(Debug)]
pub(crate) struct Reader {
    connection: Arc<Connection>,
    stream: Arc<Incoming>,
}

impl Reader {
    pub(crate) fn new(connection: &Arc<Connection>, number: i64) -> Self {
        Self { connection: Arc::clone(connection), stream: connection.add_incoming(number) }
    }

    fn took(&self, bytes: usize, credit: Option<usize>) {
        self.connection.took(bytes);
        if let Some(bytes) = credit {
            let _ = self
                .connection
                .send_first(&AgentRequest::Credit { stream: self.stream.number, bytes });
        }
    }

    /// Polls the next chunk as it came, or the end of the stream.
    pub(crate) fn poll_piece(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<std::result::Result<Option<Bytes>, AgentError>> {
        if self.stream.poll(cx).is_pending() {
            return Poll::Pending;
        }
        let mut state = self.stream.state();
        let Some(chunk) = state.chunks.pop() else {
            let ended = state.ended.clone().flatten();
            return Poll::Ready(ended.map_or(Ok(None), Err));
        };
        state.read += chunk.len();
        let credit = Incoming::credit(&mut state);
        drop(state);
        self.took(chunk.len(), credit);
        Poll::Ready(Ok(Some(chunk)))
    }
}

impl Readable for Reader {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.poll(cx).map(Ok)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut state = self.stream.state();
        let count = state.chunks.read(buffer);
        if count == 0 && state.ended.is_none() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.read += count;
        let credit = Incoming::credit(&mut state);
        drop(state);
        self.took(count, credit);
        Ok(count)
    }

    fn is_remote(&self) -> bool {
        true
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let unread = self.stream.state().chunks.len();
        self.connection.remove_incoming(self.stream.number, unread);
    }
}

/// The credit of a stream into the sandbox.
#[derive(Debug)]
pub(crate) struct Outgoing {
    state: Mutex<Allowed>,
}

#[derive(Debug)]
struct Allowed {
    credit: usize,
    broken: bool,
    waker: Option<Waker>,
}

impl Outgoing {
    pub(crate) fn new(window: usize) -> Self {
        Self { state: Mutex::new(Allowed { credit: window, broken: false, waker: None }) }
    }

    fn state(&self) -> MutexGuard<'_, Allowed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn credited(&self, bytes: usize) {
        let mut state = self.state();
        state.credit = state.credit.saturating_add(bytes).min(WINDOW);
        drop(state);
        self.wake();
    }

    pub(crate) fn set_broken(&self) {
        self.state().broken = true;
        self.wake();
    }

    pub(crate) fn wake(&self) {
        let waker = self.state().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// What the agent makes for a worker with the data: the number of its stream.
#[derive(Clone, Copy, Debug)]
enum With {
    Nothing,
    Input(i64),
    Channel(i64),
    Copy(i64),
}

/// The writing end. Dropping it is the end of the stream.
#[derive(Debug)]
pub(crate) struct Writer {
    connection: Arc<Connection>,
    number: i64,
    stream: Arc<Outgoing>,
    /// Set for messages to a worker, which come before data.
    first: bool,
}

impl Writer {
    pub(crate) fn new(connection: &Arc<Connection>, number: i64, first: bool) -> Self {
        Self {
            connection: Arc::clone(connection),
            number,
            stream: connection.add_outgoing(number, WINDOW),
            first,
        }
    }

    /// Makes a writer with a narrow window, because many of its kind may be unread.
    pub(crate) fn narrow(connection: &Arc<Connection>, number: i64) -> Self {
        let stream = connection.add_outgoing(number, NARROW_WINDOW);
        Self { connection: Arc::clone(connection), number, stream, first: false }
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.stream.state().broken
    }

    fn write(&self, data: &[u8], with: With) -> io::Result<usize> {
        if data.is_empty() {
            return Ok(0);
        }
        let mut state = self.stream.state();
        if state.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = self.connection.reserve(data.len().min(state.credit));
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.credit -= count;
        drop(state);
        let (stream, data) = (self.number, &data[..count]);
        let message = match with {
            With::Nothing => AgentRequest::Data { stream, data },
            With::Input(new) => AgentRequest::Input { stream, new, data },
            With::Channel(new) => AgentRequest::Channel { stream, new, data },
            With::Copy(copy) => AgentRequest::Copy { stream, copy, data },
        };
        let sent = if self.first {
            self.connection.send_first(&message)
        } else {
            self.connection.send_in_order(&message)
        };
        sent.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(count)
    }
}

impl Writable for Writer {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.stream.state();
        // Set before the connection's credit is read: a credit that arrives in between wakes it.
        state.waker = Some(cx.waker().clone());
        let may = state.broken || state.credit > 0;
        drop(state);
        if may && (self.is_broken() || self.connection.has_credit()) {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.write(data, With::Nothing)
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.connection.remove_outgoing(self.number);
        let end = AgentRequest::End(self.number);
        let _ = if self.first {
            self.connection.send_first(&end)
        } else {
            self.connection.send_in_order(&end)
        };
    }
}

/// The control stream of a worker.
#[derive(Debug)]
pub(crate) struct ControlStream {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl Readable for ControlStream {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.reader.poll_readable(cx)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.try_read(buffer)
    }
}

impl Writable for ControlStream {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.poll_writable(cx)
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.writer.try_write(data)
    }
}

impl Control for ControlStream {
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)> {
        let connection = &self.writer.connection;
        let number = stream(connection.new_key(), STDIN);
        let input = Writer::new(connection, number, false);
        let sent = self.writer.write(data, With::Input(number));
        if sent.is_err() {
            // The agent does not know the stream.
            connection.remove_outgoing(number);
        }
        Ok((sent?, Box::new(input)))
    }

    fn try_write_with_fd(&self, data: &[u8], channel: &SideChannel) -> io::Result<usize> {
        let file = match &channel.0 {
            Endpoint::File(file) => file,
            Endpoint::Copy(key) => return self.writer.write(data, With::Copy(*key)),
        };
        let connection = &self.writer.connection;
        let key = connection.new_key();
        let tunnel = Tunnel::new(
            Reader::new(connection, stream(key, STDOUT)),
            Writer::new(connection, stream(key, STDIN), false),
        );
        let end = std::os::unix::net::UnixStream::from(file.try_clone()?);
        end.set_nonblocking(true)?;
        let mut end = UnixStream::from_std(end)?;
        let sent = self.writer.write(data, With::Channel(stream(key, STDIN)))?;
        tokio::spawn(async move {
            let mut tunnel = tunnel;
            // The end of either stream shows on both sides.
            let _ = copy_bidirectional(&mut end, &mut tunnel).await;
        });
        Ok(sent)
    }
}
