//! One live interpreter process and its streams.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::hash::{BuildHasher as _, RandomState};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{io, mem};

use bytes::Bytes;
use sandbox_core::{Effect, Error, ErrorKind, OutputStream, Result};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::idle::Idle;
use super::inbox::{CHUNK, Inbox, InboxPoll, ReadAhead};
use super::lines::Lines;
use super::output_reader::OutputReader;
use super::tools::Outbox;
use super::watchdog::{Cause, Ended, Watchdog};
use crate::host::{
    Control, Exit, ProcessHost, Readable, SideChannel, Spawn, WorkerIo, WorkerSpec, Writable,
};
use crate::message::{PROTOCOL_VERSION, Reply, Request};
use crate::process::{EndReason, kill_tree};

/// How long an interpreter may take to report that it is ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the exit status of a dead or killed process may take.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a sandbox may take to answer whether it is there.
const HOST_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long a process may live after it has closed its control stream.
const DYING_TIMEOUT: Duration = Duration::from_millis(250);

/// How long a worker may be silent while text and displays wait for each other. Both arrive together, unless code has
/// interfered.
const ORDER_TIMEOUT: Duration = Duration::from_secs(1);

/// Stands in for a marker in the message of a worker that marks the start of each later run.
const MARKS_STARTS: i64 = -1;

/// The step in which a worker enters its working directory.
const DIRECTORY_STEP: &str = "work dir";

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// One live interpreter. Dropping it kills the process and everything it started.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) io: WorkerIo,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) outbox: Arc<Outbox>,
    host: Arc<dyn ProcessHost>,
    ended: Arc<EndReason>,
    inbox: Arc<Inbox>,
    /// Reads its output between requests.
    idle: Idle,
    buffer: Vec<u8>,
    /// Keyed with random bits, so that ids do not follow from each other.
    ids: RandomState,
    requests: u64,
    last_id: i64,
    /// The time at which the last run was known to have ended.
    idle_since: Option<Instant>,
    /// Standard output and standard error.
    texts: [OutputReader; 2],
    /// Set when other writers than code may have its output, so that it marks where each run starts.
    marks_starts: bool,
    /// Ends when text and displays have waited for each other in vain.
    stalled: Option<Pin<Box<Sleep>>>,
    /// The event after the text that was held for something that did not come.
    last: Option<WorkerEvent>,
    ending: bool,
    /// Set when the worker cannot be killed, and is awaited no longer.
    given_up: bool,
    dying: Option<Pin<Box<Sleep>>>,
    lines: Lines,
}

/// The reason why a worker does not become ready.
enum StartError {
    /// Code may have put something else in the place of the working directory.
    NoDirectory(String),
    /// A layer of the isolation is not in effect, so no code ran.
    NotIsolated(String),
    Broken(String),
}

/// The next event of a worker.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    Output(OutputStream, Bytes),
    Reply(Reply),
    /// A malformed message.
    Broken(String),
    /// The process is dead, and everything that it sent has been taken.
    Dead,
}

impl Worker {
    /// Starts an interpreter and waits until it is ready.
    ///
    /// When the sandbox turns out to be gone, sets its reason in `ended`.
    pub(crate) async fn start(
        host: &Arc<dyn ProcessHost>,
        ended: &Arc<EndReason>,
        spec: WorkerSpec,
    ) -> Result<Self> {
        match Self::try_start(host, ended, spec).await {
            Err(_) if is_gone(&**host).await => {
                ended.set_gone(&**host);
                let message = ended.explain("the sandbox has ended");
                Err(Error::new(ErrorKind::Terminated, "start_interpreter", message))
            }
            started => started,
        }
    }

    async fn try_start(
        host: &Arc<dyn ProcessHost>,
        ended: &Arc<EndReason>,
        spec: WorkerSpec,
    ) -> Result<Self> {
        let cwd = spec.cwd.clone();
        let io = host.start_worker(spec).await?;
        Self::begin(io, host, ended, &cwd).await
    }

    /// Takes over an interpreter that is about to be ready.
    pub(crate) async fn begin(
        mut io: WorkerIo,
        host: &Arc<dyn ProcessHost>,
        ended: &Arc<EndReason>,
        cwd: &str,
    ) -> Result<Self> {
        let inbox = Arc::new(Inbox::new(Arc::clone(&io.control)));
        let watchdog =
            Watchdog::start(&io, Arc::clone(&inbox), Arc::clone(host), Arc::clone(ended));
        let control = Arc::<dyn Control>::clone(&io.control);
        let outbox = Outbox::new(control, Arc::clone(&io.process));
        let idle = Idle::new(&mut io);
        let mut worker = Self {
            io,
            watchdog,
            outbox,
            host: Arc::clone(host),
            ended: Arc::clone(ended),
            inbox,
            idle,
            buffer: Vec::new(),
            ids: RandomState::new(),
            requests: 0,
            last_id: 0,
            idle_since: None,
            texts: [OutputReader::new(), OutputReader::new()],
            marks_starts: false,
            stalled: None,
            last: None,
            ending: false,
            given_up: false,
            dying: None,
            lines: Lines::default(),
        };
        match timeout(START_TIMEOUT, worker.ready()).await {
            Ok(Ok(pid)) => {
                worker.io.process.register(pid).await?;
                Ok(worker)
            }
            Ok(Err(StartError::NoDirectory(problem))) => Err(no_directory(cwd, &problem)),
            Ok(Err(StartError::NotIsolated(problem))) => Err(not_isolated(&problem)),
            Ok(Err(StartError::Broken(problem))) => Err(start_error(problem)),
            Err(_) => Err(start_error("the interpreter was not ready in time".to_owned())),
        }
    }

    async fn ready(&mut self) -> Result<u32, StartError> {
        let problem = loop {
            match self.next().await {
                WorkerEvent::Reply(Reply::Ready { protocol: PROTOCOL_VERSION, pid, .. }) => {
                    return Ok(pid);
                }
                WorkerEvent::Reply(Reply::Ready { protocol, .. }) => {
                    break format!(
                        "the interpreter speaks protocol {protocol}, not {PROTOCOL_VERSION}"
                    );
                }
                WorkerEvent::Reply(Reply::Refused { step, message }) if step == DIRECTORY_STEP => {
                    return Err(StartError::NoDirectory(message));
                }
                WorkerEvent::Reply(Reply::Refused { step, message }) => {
                    return Err(StartError::NotIsolated(format!("{step}: {message}")));
                }
                WorkerEvent::Reply(other) => break format!("unexpected first message {other:?}"),
                WorkerEvent::Broken(problem) => break problem,
                WorkerEvent::Dead => break "the interpreter died while it started".to_owned(),
                WorkerEvent::Output(..) => {}
            }
        };
        Err(StartError::Broken(problem))
    }

    /// Makes the id of a request. Code of an earlier one cannot guess it, and so cannot answer in its place.
    pub(crate) fn next_id(&mut self) -> i64 {
        self.idle.end();
        self.requests += 1;
        self.last_id = self.ids.hash_one(self.requests).cast_signed();
        // What is there when a request comes is dropped. What is still on its way comes before the mark.
        for (text, stream) in self.texts.iter_mut().zip([&self.io.stdout, &self.io.stderr]) {
            text.begin(self.last_id, self.marks_starts && stream.is_remote());
        }
        self.last_id
    }

    /// Sends a request; with `stdin`, returns the standard input of the run.
    pub(crate) async fn send(
        &self,
        request: &Request,
        stdin: bool,
    ) -> io::Result<Option<Box<dyn Writable>>> {
        let mut input = None;
        self.write(request, |rest| {
            if !stdin || input.is_some() {
                return self.io.control.try_write(rest);
            }
            let (sent, writer) = self.io.control.try_write_with_stdin(rest)?;
            input = Some(writer);
            Ok(sent)
        })
        .await?;
        Ok(input)
    }

    /// Sends a request with the worker's end of a side channel.
    pub(crate) async fn send_with_channel(
        &self,
        request: &Request,
        channel: SideChannel,
    ) -> io::Result<()> {
        let mut channel = Some(channel);
        self.write(request, |rest| match &channel {
            None => self.io.control.try_write(rest),
            Some(unsent) => {
                let sent = self.io.control.try_write_with_fd(rest, unsent)?;
                channel = None;
                Ok(sent)
            }
        })
        .await
    }

    async fn write(
        &self,
        request: &Request,
        mut write: impl FnMut(&[u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let mut frame = Vec::new();
        request
            .encode(&mut frame)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        // The answer to a call of an earlier run may be written in part.
        let _turn = self.outbox.turn().await;
        let mut rest: &[u8] = &frame;
        while !rest.is_empty() {
            match write(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll_fn(|cx| self.poll_writable_or_dead(cx)).await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.watchdog.sent(self.last_id);
        Ok(())
    }

    fn poll_writable_or_dead(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.io.process.poll_exited(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.io.control.poll_writable(cx)
    }

    /// Waits for the next event. Output that was written before a reply comes before it.
    ///
    /// # Cancellation
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> WorkerEvent {
        poll_fn(|cx| {
            let mut lines = mem::take(&mut self.lines);
            let polled = lines.poll(cx, |cx| self.poll_next(cx));
            self.lines = lines;
            polled
        })
        .await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<WorkerEvent> {
        loop {
            if let Some(output) = self.pending_output() {
                return Poll::Ready(output);
            }
            match self.poll_wanted(cx) {
                Poll::Ready(None) => {}
                Poll::Ready(Some(output)) => return Poll::Ready(output),
                Poll::Pending if self.has_stalled(cx) => continue,
                Poll::Pending => return Poll::Pending,
            }
            if let Some(last) = self.last.take() {
                return Poll::Ready(last);
            }
            match self.inbox.take(cx) {
                InboxPoll::Nothing => {}
                InboxPoll::News => {
                    self.mark_received();
                    continue;
                }
                InboxPoll::Reply(Reply::Marked { id, stdout, .. })
                    if id == self.last_id && stdout == MARKS_STARTS =>
                {
                    self.marks_starts = true;
                    continue;
                }
                InboxPoll::Reply(Reply::Marked { id, stdout, stderr }) if id == self.last_id => {
                    self.texts[0].want(stdout);
                    self.texts[1].want(stderr);
                    continue;
                }
                InboxPoll::Reply(reply @ Reply::Done { .. }) => {
                    self.report_last(WorkerEvent::Reply(reply));
                    continue;
                }
                InboxPoll::Reply(reply) => {
                    self.texts.iter_mut().for_each(OutputReader::reply_reported);
                    return Poll::Ready(WorkerEvent::Reply(reply));
                }
                InboxPoll::Broken(problem) => {
                    self.report_last(WorkerEvent::Broken(problem));
                    continue;
                }
            }
            self.given_up |= self.watchdog.poll_given_up(cx);
            let dead = self.io.process.poll_exited(cx).is_ready() || self.given_up;
            self.make_buffer();
            match self.inbox.poll_read(cx, dead, &mut self.buffer) {
                ReadAhead::Something => {
                    self.mark_received();
                    continue;
                }
                ReadAhead::Nothing if !dead => {}
                // Everything that it wrote before is still to be reported.
                ReadAhead::Nothing | ReadAhead::End if !self.ending => {
                    self.ending = true;
                    self.release_text();
                    continue;
                }
                ReadAhead::Nothing | ReadAhead::End if dead => {
                    return Poll::Ready(WorkerEvent::Dead);
                }
                // A dying process closes its streams before it is dead.
                ReadAhead::Nothing | ReadAhead::End => {
                    let dying = self.dying.get_or_insert_with(|| Box::pin(sleep(DYING_TIMEOUT)));
                    if dying.as_mut().poll(cx).is_ready() {
                        let problem = "the control stream was closed".to_owned();
                        return Poll::Ready(WorkerEvent::Broken(problem));
                    }
                }
            }
            if let Some(output) = self.poll_output(cx) {
                return Poll::Ready(output);
            }
            if !self.has_stalled(cx) {
                return Poll::Pending;
            }
        }
    }

    /// Records that the control stream had something. Text that was written before that comes first.
    fn mark_received(&mut self) {
        self.stalled = None;
        self.texts.iter_mut().for_each(OutputReader::expect_pending);
    }

    /// Reports the last event of a run, after all text that is left of the run.
    fn report_last(&mut self, last: WorkerEvent) {
        if self.texts.iter().any(OutputReader::is_held) {
            self.release_text();
        }
        self.last = Some(last);
    }

    fn release_text(&mut self) {
        self.texts.iter_mut().for_each(OutputReader::release_all);
        self.mark_received();
    }

    /// Returns true when text and displays have waited for each other long enough. They are released then.
    fn has_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.texts.iter().any(OutputReader::is_held) {
            self.stalled = None;
            return false;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(ORDER_TIMEOUT)));
        if stalled.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.stalled = None;
        self.texts.iter_mut().for_each(OutputReader::release);
        true
    }

    /// Returns true when it has closed its control stream.
    pub(crate) fn is_dying(&self) -> bool {
        self.dying.is_some()
    }

    fn make_buffer(&mut self) {
        if self.buffer.is_empty() {
            self.buffer = vec![0; CHUNK];
        }
    }

    /// Returns output that may have been written before the last message of the control stream.
    fn pending_output(&mut self) -> Option<WorkerEvent> {
        self.first_text(|text, source, buffer| text.pending_output(source, buffer))
    }

    /// Polls output that comes before the next reply, because it was written before a marker.
    fn poll_wanted(&mut self, cx: &mut Context<'_>) -> Poll<Option<WorkerEvent>> {
        let mut waits = false;
        let output =
            self.first_text(|text, source, buffer| match text.poll_wanted(cx, source, buffer) {
                Poll::Ready(output) => output,
                Poll::Pending => {
                    waits = true;
                    None
                }
            });
        if waits && output.is_none() { Poll::Pending } else { Poll::Ready(output) }
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Option<WorkerEvent> {
        self.first_text(|text, source, buffer| text.poll(cx, source, buffer))
    }

    fn first_text(
        &mut self,
        mut next: impl FnMut(&mut OutputReader, &dyn Readable, &mut [u8]) -> Option<Bytes>,
    ) -> Option<WorkerEvent> {
        self.make_buffer();
        let sources = [&*self.io.stdout, &*self.io.stderr];
        let streams = STREAMS.into_iter().zip(sources).zip(&mut self.texts);
        for ((stream, source), text) in streams {
            if let Some(data) = next(text, source, &mut self.buffer) {
                return Some(WorkerEvent::Output(stream, data));
            }
        }
        None
    }

    /// Ends a run that started at `started`, and returns what was done to it. Processes that a killed run has started are
    /// killed too, as far as they can be told from those of others.
    pub(crate) async fn end_run(&mut self, id: i64, started: Instant) -> Ended {
        let ended = self.watchdog.end(id);
        let former = self.idle_since.replace(Instant::now());
        self.idle.begin();
        let from_outside = matches!(ended.cause, Some(cause) if cause != Cause::Interrupt);
        // A kill has taken all of them.
        if from_outside && !ended.killed {
            let process = Arc::clone(&self.io.process);
            // A task of its own, so that the work is finished when the caller is cancelled.
            let ending = tokio::spawn(async move { process.end_started(started, former).await });
            drop(ending.await);
        }
        ended
    }

    /// Records the answer to a request that was no run.
    pub(crate) fn answered(&self, id: i64) {
        self.watchdog.end(id);
        self.idle.begin();
    }

    /// Returns true when it lives and waits for a request, with nothing of an earlier one left to report.
    pub(crate) fn is_fit(&self) -> bool {
        !self.io.process.is_dead() && self.inbox.is_idle() && self.lines.is_empty()
    }

    /// Kills it and everything that it started, and returns how it ended. Bounded in time.
    pub(crate) async fn reap(self) -> Option<Exit> {
        let process = Arc::clone(&self.io.process);
        let host = Arc::clone(&self.host);
        self.watchdog.close();
        if self.given_up {
            return None;
        }
        kill_tree(&*process, &*host, &self.ended).await;
        let exit = pin!(process.exit());
        timeout(EXIT_TIMEOUT, exit).await.ok().and_then(Result::ok)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.watchdog.close();
        const SIGKILL: i32 = 9;
        let _ = self.io.process.signal(SIGKILL);
    }
}

fn no_directory(cwd: &str, problem: &str) -> Error {
    let message = format!("the working directory {cwd} cannot be entered: {problem}");
    Error::new(ErrorKind::NotFound, "start_interpreter", message).with_hint(
        "code has put something else in its place; a command that starts elsewhere can mend that: `.cwd(\"/\")`",
    )
}

fn not_isolated(problem: &str) -> Error {
    let message = format!("isolation could not be set up ({problem})");
    Error::new(ErrorKind::IsolationUnavailable, "start_interpreter", message)
        .with_effect(Effect::Applied)
        .with_hint("`Backend::health()` says what this host has; or give up isolation explicitly: `.isolation(IsolationMode::Off)`")
}

fn start_error(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_interpreter", message).with_effect(Effect::Applied)
}

/// Returns true when nothing can be started in the sandbox any more. Tries a program that cannot be executed.
async fn is_gone(host: &dyn ProcessHost) -> bool {
    let root = String::from("/");
    let ask = Spawn {
        argv: vec![root.clone()],
        env: BTreeMap::new(),
        cwd: root,
        stdin: false,
        terminal: None,
        label: None,
        as_root: false,
        limit: None,
    };
    match timeout(HOST_PROBE_TIMEOUT, host.spawn(ask)).await {
        Ok(answer) => answer.is_err_and(|error| error.kind() == ErrorKind::Terminated),
        Err(_) => false,
    }
}
