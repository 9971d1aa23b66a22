//! One live interpreter process and its streams.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use sandbox_core::{Effect, Error, ErrorKind, OutputStream, Result};
use tokio::time::{Sleep, sleep, timeout};

use super::watchdog::Watchdog;
use crate::box_io::{BoxIo, Exit, Readable, WorkerIo, WorkerSpec, Writable};
use crate::message::{PROTOCOL_VERSION, Reply, Request};
use crate::wire::FrameReader;

/// How long an interpreter may take to say that it is ready.
const START_BOUND: Duration = Duration::from_secs(30);

/// How long the exit status of a dead or killed process may take.
const EXIT_BOUND: Duration = Duration::from_secs(2);

/// How long a process may live on after it has closed its control stream.
const DYING_BOUND: Duration = Duration::from_millis(250);

/// Most bytes taken from a stream at once.
const CHUNK: usize = 64 << 10;

/// More than a stream can hold back. After that much, whatever was written before a reply has been read, even when a
/// child process keeps writing.
const DRAIN_BOUND: usize = 1 << 20;

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// One live interpreter. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) io: WorkerIo,
    pub(crate) watchdog: Arc<Watchdog>,
    box_io: Arc<dyn BoxIo>,
    reader: FrameReader,
    buffer: Vec<u8>,
    last_id: i64,
    open: [bool; 2],
    /// Bytes of each stream to look for before the next reply is told.
    owed: [usize; 2],
    ending: bool,
    dying: Option<Pin<Box<Sleep>>>,
}

enum Heard {
    Something,
    Nothing,
    End,
}

/// What a worker did next.
#[derive(Debug)]
pub(crate) enum Happening {
    Output(OutputStream, Bytes),
    Reply(Reply),
    /// It spoke nonsense.
    Broken(String),
    /// The process is dead, and everything it said has been taken.
    Dead,
}

impl Worker {
    /// Starts an interpreter and waits until it is ready.
    pub(crate) async fn start(box_io: &Arc<dyn BoxIo>, spec: WorkerSpec) -> Result<Self> {
        let io = box_io.start_worker(spec).await?;
        let watchdog =
            Watchdog::start(Arc::clone(&io.process), Arc::clone(&io.control), Arc::clone(box_io));
        let mut worker = Self {
            io,
            watchdog,
            box_io: Arc::clone(box_io),
            reader: FrameReader::new(),
            buffer: Vec::new(),
            last_id: 0,
            open: [true; 2],
            owed: [0; 2],
            ending: false,
            dying: None,
        };
        match timeout(START_BOUND, worker.ready()).await {
            Ok(Ok(pid)) => {
                worker.io.process.register(pid).await?;
                Ok(worker)
            }
            Ok(Err(message)) => Err(start_error(message)),
            Err(_) => Err(start_error("the interpreter was not ready in time".to_owned())),
        }
    }

    async fn ready(&mut self) -> Result<u32, String> {
        loop {
            match self.next().await {
                Happening::Reply(Reply::Ready { protocol: PROTOCOL_VERSION, pid, .. }) => {
                    return Ok(pid);
                }
                Happening::Reply(Reply::Ready { protocol, .. }) => {
                    return Err(format!(
                        "the interpreter speaks protocol {protocol}, not {PROTOCOL_VERSION}"
                    ));
                }
                Happening::Reply(Reply::Refused { step, message }) => {
                    return Err(format!("isolation could not be set up ({step}: {message})"));
                }
                Happening::Reply(other) => {
                    return Err(format!("unexpected first message {other:?}"));
                }
                Happening::Broken(problem) => return Err(problem),
                Happening::Dead => return Err("the interpreter died while it started".to_owned()),
                Happening::Output(..) => {}
            }
        }
    }

    /// A new id for a request.
    pub(crate) fn next_id(&mut self) -> i64 {
        self.last_id += 1;
        self.last_id
    }

    /// Sends a request; with `stdin`, returns the standard input of the run.
    pub(crate) async fn send(
        &self,
        request: &Request,
        stdin: bool,
    ) -> io::Result<Option<Box<dyn Writable>>> {
        let mut frame = Vec::new();
        request
            .encode(&mut frame)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut rest: &[u8] = &frame;
        let mut input = None;
        while !rest.is_empty() {
            let sent = if stdin && input.is_none() {
                self.io.control.try_write_with_stdin(rest).map(|(sent, writer)| {
                    input = Some(writer);
                    sent
                })
            } else {
                self.io.control.try_write(rest)
            };
            match sent {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| self.poll_writable_or_dead(cx)).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.watchdog.sent(self.last_id);
        Ok(input)
    }

    fn poll_writable_or_dead(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.io.process.poll_exited(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.io.control.poll_writable(cx)
    }

    /// Waits for what happens next. Output that was written before a reply comes before it.
    ///
    /// # Cancellation
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Happening {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Happening> {
        loop {
            if let Some(output) = self.owed_output() {
                return Poll::Ready(output);
            }
            if let Some(reply) = self.take_reply() {
                return Poll::Ready(reply);
            }
            let dead = self.io.process.poll_exited(cx).is_ready();
            match self.poll_control(cx, dead) {
                Heard::Something => {
                    self.owed = [DRAIN_BOUND; 2];
                    continue;
                }
                Heard::Nothing if !dead => {}
                // Whatever it wrote before is still to be told.
                Heard::Nothing | Heard::End if !self.ending => {
                    self.ending = true;
                    self.owed = [DRAIN_BOUND; 2];
                    continue;
                }
                Heard::Nothing | Heard::End if dead => return Poll::Ready(Happening::Dead),
                // A dying process closes its streams before it is dead.
                Heard::Nothing | Heard::End => {
                    let dying = self.dying.get_or_insert_with(|| Box::pin(sleep(DYING_BOUND)));
                    if dying.as_mut().poll(cx).is_ready() {
                        let problem = "the control stream was closed".to_owned();
                        return Poll::Ready(Happening::Broken(problem));
                    }
                }
            }
            return match self.poll_output(cx) {
                Some(output) => Poll::Ready(output),
                None => Poll::Pending,
            };
        }
    }

    fn poll_control(&mut self, cx: &mut Context<'_>, dead: bool) -> Heard {
        loop {
            if !dead && self.io.control.poll_readable(cx).is_pending() {
                return Heard::Nothing;
            }
            self.make_buffer();
            match self.io.control.try_read(&mut self.buffer) {
                Ok(0) => return Heard::End,
                Ok(count) => {
                    self.reader.push(&self.buffer[..count]);
                    return Heard::Something;
                }
                Err(error) if would_block(&error) && dead => return Heard::Nothing,
                Err(error) if would_block(&error) => {}
                Err(_) => return Heard::End,
            }
        }
    }

    fn make_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; CHUNK];
        }
    }

    /// Output that may have been written before the last thing heard on the control stream.
    fn owed_output(&mut self) -> Option<Happening> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            if self.open[index] && self.owed[index] > 0 {
                match self.try_output(index) {
                    Ok(Some(data)) => {
                        self.owed[index] = self.owed[index].saturating_sub(data.len());
                        return Some(Happening::Output(stream, data));
                    }
                    Ok(None) => self.open[index] = false,
                    Err(error) if would_block(&error) => {}
                    Err(_) => self.open[index] = false,
                }
            }
            self.owed[index] = 0;
        }
        None
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Option<Happening> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            while self.open[index] && self.source(index).poll_readable(cx).is_ready() {
                match self.try_output(index) {
                    Ok(Some(data)) => return Some(Happening::Output(stream, data)),
                    Ok(None) => self.open[index] = false,
                    Err(error) if would_block(&error) => {}
                    Err(_) => self.open[index] = false,
                }
            }
        }
        None
    }

    fn source(&self, index: usize) -> &dyn Readable {
        if index == 0 { &*self.io.stdout } else { &*self.io.stderr }
    }

    fn try_output(&mut self, index: usize) -> io::Result<Option<Bytes>> {
        self.make_buffer();
        let source = if index == 0 { &self.io.stdout } else { &self.io.stderr };
        let count = source.try_read(&mut self.buffer)?;
        Ok((count > 0).then(|| Bytes::copy_from_slice(&self.buffer[..count])))
    }

    fn take_reply(&mut self) -> Option<Happening> {
        match self.reader.next_frame() {
            Ok(None) => None,
            Ok(Some(frame)) => Some(match Reply::decode(frame) {
                Ok(reply) => Happening::Reply(reply),
                Err(error) => Happening::Broken(error.to_string()),
            }),
            Err(error) => Some(Happening::Broken(error.to_string())),
        }
    }

    /// Ends it and whatever it started, and says how it ended. Bounded in time.
    pub(crate) async fn bury(self) -> Option<Exit> {
        let process = Arc::clone(&self.io.process);
        let box_io = Arc::clone(&self.box_io);
        self.watchdog.close();
        if timeout(EXIT_BOUND, process.kill_tree()).await.is_err() {
            box_io.kill();
        }
        let exit = pin!(process.exit());
        timeout(EXIT_BOUND, exit).await.ok().and_then(Result::ok)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.watchdog.close();
        const SIGKILL: i32 = 9;
        let _ = self.io.process.signal(SIGKILL);
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn start_error(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_interpreter", message).with_effect(Effect::Applied)
}
