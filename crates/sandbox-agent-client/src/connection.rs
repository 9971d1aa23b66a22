//! The connection with an agent: messages in both directions, and the requests that wait for answers.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use sandbox_core::{Effect, Error, ErrorKind, Result};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout};

use crate::call::LOST;
use crate::message::{
    AgentError, AgentReply, AgentRequest, CHUNK, CONNECTION, INCOMING_WINDOW, OUTGOING_WINDOW,
};
use crate::process::ProcessState;
use crate::streams::{Incoming, Outgoing};
use sandbox_engine::host::Exit;
use sandbox_engine::wire::FrameReader;

/// The bytes from an agent.
pub type AgentReader = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// The bytes to an agent. Dropping it ends the sandbox.
pub type AgentWriter = Pin<Box<dyn AsyncWrite + Send>>;

/// Maximum number of bytes that are handed to the connection at once.
const BATCH: usize = 256 << 10;

/// Interval of pings. An agent ends when it receives nothing for 30 seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// Default time without any message after which the connection counts as lost, though pings were sent.
pub(crate) const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);

/// Number of pings in that time: a few may get lost.
const PINGS_PER_SILENCE: u32 = 4;

/// How long the agent may take to close, once this side has.
const LAST: Duration = Duration::from_secs(2);

/// Bits of a key that count what one client has started.
const EPOCH_SHIFT: u32 = 32;

/// Explains the end of a connection to a resident agent.
const TAKEN_OVER: &str = "the connection to the sandbox ended, or another client has taken it over";

/// The answer of an agent to a request for a process.
pub(crate) type Start = std::result::Result<u32, (u8, i32)>;

/// The answer to a call.
pub(crate) type Answer = std::result::Result<Vec<Vec<u8>>, AgentError>;

/// One connection.
pub(crate) struct Connection {
    state: Mutex<State>,
    keys: AtomicI64,
    to_send: Notify,
    closed: watch::Sender<bool>,
    /// Set when the agent has closed its end too: nothing runs there any more.
    gone: watch::Sender<bool>,
    /// The agent outlives the connection.
    is_resident: bool,
}

#[derive(Default)]
struct State {
    small: VecDeque<Vec<u8>>,
    large: VecDeque<Vec<u8>>,
    incoming: HashMap<i64, Arc<Incoming>>,
    outgoing: HashMap<i64, Weak<Outgoing>>,
    starting: HashMap<i64, oneshot::Sender<Start>>,
    calls: HashMap<i64, oneshot::Sender<Answer>>,
    processes: HashMap<i64, Weak<ProcessState>>,
    /// Bytes that may still be sent on all streams together.
    credit: usize,
    /// Bytes that have arrived and were not taken yet, and those that were taken and not credited yet.
    held: usize,
    taken: usize,
    heard: Option<Instant>,
    /// Number of guards that hold the sandbox paused. It cannot answer meanwhile.
    pauses: usize,
    over: bool,
    /// Number of processes in the sandbox that the kernel has killed for memory.
    killed: u64,
    /// The reason of a broken connection, where its carrier reports one.
    why: Option<String>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("closed", &*self.closed.borrow()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Opens a connection. Tasks of this runtime work on it until it is closed, or nothing has arrived for `silence`.
    /// `epoch` is the number of this client among those of a resident agent.
    pub(crate) fn open(
        from: AgentReader,
        rest: Bytes,
        into: AgentWriter,
        silence: Duration,
        epoch: Option<i64>,
    ) -> Arc<Self> {
        let state = State { credit: OUTGOING_WINDOW, ..State::default() };
        let connection = Arc::new(Self {
            state: Mutex::new(state),
            // Keys of an earlier client are never those of this one.
            keys: AtomicI64::new((epoch.unwrap_or(0) << EPOCH_SHIFT) + 1),
            to_send: Notify::new(),
            closed: watch::Sender::new(false),
            gone: watch::Sender::new(false),
            is_resident: epoch.is_some(),
        });
        tokio::spawn(write(Arc::clone(&connection), into));
        tokio::spawn(read(Arc::clone(&connection), from, rest));
        tokio::spawn(ping(Arc::downgrade(&connection), silence));
        connection
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number that was not used on this connection.
    pub(crate) fn new_key(&self) -> i64 {
        self.keys.fetch_add(1, Ordering::Relaxed)
    }

    /// Closes the connection. Requests that wait for answers fail.
    pub(crate) fn close(&self) {
        self.close_because(None);
    }

    fn close_because(&self, why: Option<String>) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.over, true) {
            state.why = why;
        }
        let lost = state.lost_error();
        let (incoming, outgoing) =
            (std::mem::take(&mut state.incoming), std::mem::take(&mut state.outgoing));
        let processes = std::mem::take(&mut state.processes);
        state.starting.clear();
        state.calls.clear();
        state.small.clear();
        state.large.clear();
        drop(state);
        incoming.values().for_each(|stream| stream.end(Some(lost.clone())));
        outgoing.values().filter_map(Weak::upgrade).for_each(|stream| stream.set_broken());
        processes.values().filter_map(Weak::upgrade).for_each(|process| process.lost());
        self.closed.send_replace(true);
        self.to_send.notify_one();
    }

    /// Makes the error of a closed connection.
    pub(crate) fn lost(&self) -> Error {
        self.state().lost()
    }

    pub(crate) fn lost_error(&self) -> AgentError {
        self.state().lost_error()
    }

    /// Returns the reason of a broken connection that was not closed here.
    pub(crate) fn lost_reason(&self) -> Option<String> {
        self.state().why.clone()
    }

    /// Returns true when the agent outlives the connection.
    pub(crate) fn is_resident(&self) -> bool {
        self.is_resident
    }

    /// Returns true when the connection is closed. It is closed before any request fails for that reason.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().over
    }

    pub(crate) async fn closed(&self) {
        // Fails only when the sender is gone, and the sender is in `self`.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    pub(crate) async fn gone(&self) {
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    /// Sends before all data that waits.
    pub(crate) fn send_first(&self, message: &AgentRequest<'_>) -> Result<()> {
        self.send(message, true)
    }

    /// Sends after the data that was sent before.
    pub(crate) fn send_in_order(&self, message: &AgentRequest<'_>) -> Result<()> {
        self.send(message, false)
    }

    fn send(&self, message: &AgentRequest<'_>, small: bool) -> Result<()> {
        let frame = message
            .encode()
            .map_err(|error| Error::invalid("request", format!("is too large: {error}")))?;
        let mut state = self.state();
        if state.over {
            return Err(state.lost());
        }
        let queue = if small { &mut state.small } else { &mut state.large };
        queue.push_back(frame);
        drop(state);
        self.to_send.notify_one();
        Ok(())
    }

    /// Marks the sandbox as paused: it does not count as lost meanwhile, however long it is silent.
    pub(crate) fn mark_paused(&self) {
        self.state().pauses += 1;
    }

    /// Ends one pause; the sandbox is running again when all have ended.
    pub(crate) fn mark_resumed(&self) {
        let mut state = self.state();
        state.pauses = state.pauses.saturating_sub(1);
        state.heard = Some(Instant::now());
    }

    /// Reserves room for data on the connection.
    pub(crate) fn reserve(&self, most: usize) -> usize {
        let mut state = self.state();
        let count = most.min(CHUNK).min(state.credit);
        state.credit -= count;
        count
    }

    pub(crate) fn has_credit(&self) -> bool {
        self.state().credit > 0
    }

    pub(crate) fn add_incoming(self: &Arc<Self>, number: i64) -> Arc<Incoming> {
        let stream = Arc::new(Incoming::new(number));
        let mut state = self.state();
        if state.over {
            stream.end(Some(state.lost_error()));
        } else {
            state.incoming.insert(number, Arc::clone(&stream));
        }
        stream
    }

    pub(crate) fn add_outgoing(self: &Arc<Self>, number: i64, window: usize) -> Arc<Outgoing> {
        let stream = Arc::new(Outgoing::new(window));
        let mut state = self.state();
        if state.over {
            stream.set_broken();
        } else {
            state.outgoing.insert(number, Arc::downgrade(&stream));
        }
        stream
    }

    /// Removes a stream whose reader was dropped.
    pub(crate) fn remove_incoming(&self, number: i64, unread: usize) {
        let was_open = self.state().incoming.remove(&number).is_some();
        self.took(unread);
        if was_open {
            let _ = self.send_first(&AgentRequest::Drop(number));
        }
    }

    pub(crate) fn remove_outgoing(&self, number: i64) {
        self.state().outgoing.remove(&number);
    }

    pub(crate) fn add_process(&self, key: i64, process: &Arc<ProcessState>) {
        let mut state = self.state();
        if state.over {
            drop(state);
            process.lost();
        } else {
            state.processes.insert(key, Arc::downgrade(process));
        }
    }

    pub(crate) fn remove_life(&self, key: i64) {
        self.state().processes.remove(&key);
    }

    /// Credits data that was taken, so that more may come.
    pub(crate) fn took(&self, bytes: usize) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(bytes);
        state.taken += bytes;
        if state.taken >= INCOMING_WINDOW / 16 {
            let taken = std::mem::take(&mut state.taken);
            drop(state);
            let _ = self.send_first(&AgentRequest::Credit { stream: CONNECTION, bytes: taken });
        }
    }

    /// Registers for the result of a start.
    pub(crate) fn expect_start(&self, key: i64) -> oneshot::Receiver<Start> {
        let (tell, told) = oneshot::channel();
        self.state().starting.insert(key, tell);
        told
    }

    /// Registers for the answer to a call.
    pub(crate) fn expect_answer(&self, token: i64) -> oneshot::Receiver<Answer> {
        let (tell, told) = oneshot::channel();
        self.state().calls.insert(token, tell);
        told
    }

    /// Removes a call. Returns true when its answer was still to come.
    pub(crate) fn remove_call(&self, token: i64) -> bool {
        self.state().calls.remove(&token).is_some()
    }

    /// Handles one message; a violation of the protocol ends the connection.
    fn handle(&self, said: AgentReply<'_>) -> std::result::Result<(), &'static str> {
        match said {
            AgentReply::Data { stream, data } => self.handle_data(stream, data)?,
            AgentReply::End { stream, error } => {
                if let Some(stream) = self.state().incoming.remove(&stream) {
                    stream.end(error);
                }
            }
            AgentReply::Credit { stream: CONNECTION, bytes } => {
                let mut state = self.state();
                state.credit = state.credit.saturating_add(bytes).min(OUTGOING_WINDOW);
                let waiting: Vec<_> = state.outgoing.values().filter_map(Weak::upgrade).collect();
                drop(state);
                waiting.iter().for_each(|stream| stream.wake());
            }
            AgentReply::Credit { stream, bytes } => {
                if let Some(stream) = self.outgoing(stream) {
                    stream.credited(bytes);
                }
            }
            AgentReply::Broken(stream) => {
                if let Some(stream) = self.outgoing(stream) {
                    stream.set_broken();
                }
            }
            AgentReply::Started { key, pid } => self.started(key, Ok(pid)),
            AgentReply::NotStarted { key, stage, errno } => self.started(key, Err((stage, errno))),
            AgentReply::Answer { token, result } => {
                let waiting = self.state().calls.remove(&token);
                if let Some(waiting) = waiting {
                    let _ = waiting.send(result);
                }
            }
            AgentReply::Exit { key, exit, out_of_memory, stdin_read } => {
                self.exited(key, exit, out_of_memory, stdin_read);
            }
            AgentReply::Pong => {}
            AgentReply::Killed(count) => self.state().killed = count,
            AgentReply::Hello { .. } => return Err("a second greeting"),
            AgentReply::Finished => return Err("an end that was not requested"),
        }
        Ok(())
    }

    /// Returns how many processes the kernel has killed for memory, as far as the agent has reported it.
    pub(crate) fn killed(&self) -> u64 {
        self.state().killed
    }

    fn outgoing(&self, number: i64) -> Option<Arc<Outgoing>> {
        self.state().outgoing.get(&number).and_then(Weak::upgrade)
    }

    fn started(&self, key: i64, start: Start) {
        let waiting = self.state().starting.remove(&key);
        if let Some(waiting) = waiting {
            let _ = waiting.send(start);
        }
    }

    fn exited(&self, key: i64, exit: Exit, out_of_memory: bool, stdin_read: Option<u64>) {
        let process = self.state().processes.remove(&key);
        if let Some(process) = process.and_then(|process| process.upgrade()) {
            process.exited(exit, out_of_memory, stdin_read);
        }
    }

    fn handle_data(&self, number: i64, data: &[u8]) -> std::result::Result<(), &'static str> {
        let mut state = self.state();
        state.held += data.len();
        let Some(stream) = state.incoming.get(&number).map(Arc::clone) else {
            drop(state);
            self.took(data.len());
            return Ok(());
        };
        if state.held > INCOMING_WINDOW + CHUNK {
            return Err("more data than there is room for");
        }
        drop(state);
        if stream.push(data) { Ok(()) } else { Err("more data on a stream than there is room for") }
    }
}

impl State {
    fn lost_error(&self) -> AgentError {
        let detail = self.why.as_deref().unwrap_or_default().into();
        AgentError { code: LOST, detail }
    }

    fn lost(&self) -> Error {
        lost("sandbox", self.why.as_deref())
    }
}

/// Makes the error of a sandbox that cannot be reached any more: it has ended, or its connection broke.
pub(crate) fn lost(operation: &'static str, why: Option<&str>) -> Error {
    let error = match why {
        Some(why) => Error::new(ErrorKind::ConnectionLost, operation, why),
        None => Error::new(ErrorKind::Terminated, operation, "the sandbox has ended"),
    };
    error.with_effect(Effect::Unknown)
}

async fn write(connection: Arc<Connection>, mut into: AgentWriter) {
    // True while nothing is written in part, so that another message can follow.
    let mut is_whole = true;
    loop {
        let batch = {
            let mut state = connection.state();
            if state.over {
                break;
            }
            let mut batch = Vec::new();
            while batch.len() < BATCH
                && let Some(next) = state.small.pop_front().or_else(|| state.large.pop_front())
            {
                if batch.is_empty() { batch = next } else { batch.extend(next) }
            }
            batch
        };
        if batch.is_empty() {
            connection.to_send.notified().await;
            continue;
        }
        is_whole = tokio::select! {
            written = written(&mut into, &batch) => written.is_ok(),
            () = connection.closed() => false,
        };
        if !is_whole {
            break;
        }
    }
    connection.close();
    let end = async {
        // Read sooner than the end of the connection, which ends the sandbox in any case.
        if is_whole
            && !connection.is_resident
            && let Ok(last) = AgentRequest::Finish.encode()
        {
            let _ = written(&mut into, &last).await;
        }
        // A shutdown may be seen apart from the end of the connection.
        let _ = into.shutdown().await;
    };
    let _ = timeout(LAST, end).await;
}

async fn written(into: &mut AgentWriter, bytes: &[u8]) -> io::Result<()> {
    into.write_all(bytes).await?;
    into.flush().await
}

async fn read(connection: Arc<Connection>, from: AgentReader, rest: Bytes) {
    // Its end may be read more than once.
    let mut from: AgentReader = Box::pin(from.fuse());
    let mut frames = FrameReader::new();
    let why = listen(&connection, &mut frames, &mut from, rest).await;
    connection.close_because(why);
    let _ = timeout(LAST, drain_to_end(&mut frames, &mut from)).await;
    connection.gone.send_replace(true);
}

/// Reads until the agent reports that nothing runs there any more, or closes its end of the connection.
async fn drain_to_end(frames: &mut FrameReader, from: &mut AgentReader) {
    loop {
        while let Ok(Some(frame)) = frames.next_frame() {
            if matches!(AgentReply::decode(frame), Ok(AgentReply::Finished)) {
                return;
            }
        }
        let Some(Ok(bytes)) = from.next().await else { return };
        frames.push(&bytes);
    }
}

/// Handles messages until one violates the protocol or the stream ends. Returns the reason of a broken connection, where
/// its carrier reports one.
async fn listen(
    connection: &Arc<Connection>,
    frames: &mut FrameReader,
    from: &mut AgentReader,
    rest: Bytes,
) -> Option<String> {
    let mut piece = Some(Ok(rest));
    while let Some(Ok(bytes)) = piece {
        frames.push(&bytes);
        connection.state().heard = Some(Instant::now());
        loop {
            let heard = match frames.next_frame() {
                Ok(None) => break,
                Ok(Some(frame)) => AgentReply::decode(frame),
                Err(error) => Err(error),
            };
            if !heard.is_ok_and(|said| connection.handle(said).is_ok()) {
                return None;
            }
        }
        piece = tokio::select! {
            piece = from.next() => piece,
            () = connection.closed() => return None,
        };
    }
    let why = piece.and_then(std::result::Result::err).map(|error| error.to_string());
    why.or_else(|| connection.is_resident.then(|| TAKEN_OVER.to_owned()))
}

async fn ping(connection: Weak<Connection>, silence: Duration) {
    loop {
        sleep(PING_INTERVAL.min(silence / PINGS_PER_SILENCE)).await;
        let Some(connection) = connection.upgrade() else { return };
        let (held, heard, waiting) = {
            let state = connection.state();
            (state.pauses > 0, state.heard, !state.small.is_empty())
        };
        if held && waiting {
            // The agent gets that ping first when it continues.
            continue;
        }
        // The exact time of a pause is not known here, so pings are sent meanwhile.
        if !held && heard.is_some_and(|heard| heard.elapsed() > silence) {
            let why =
                format!("nothing was received from the sandbox for {} seconds", silence.as_secs());
            connection.close_because(Some(why));
            return;
        }
        if connection.send_first(&AgentRequest::Ping).is_err() {
            connection.close();
            return;
        }
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
