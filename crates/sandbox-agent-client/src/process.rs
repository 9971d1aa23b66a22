//! Processes of a sandbox, which its agent starts, signals and reaps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{ByteSize, Error, PtySize, Result};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Call;
use crate::connection::Connection;
use crate::message::{AgentRequest, exit_in};
use sandbox_engine::host::{Exit, Process, Terminal, WAKE_SIGNAL};

/// The state of a process, and its end.
#[derive(Debug, Default)]
pub(crate) struct ProcessState {
    /// `Some(None)`: the connection is lost, and the end of the process is unknown.
    ended: watch::Sender<Option<Option<Exit>>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Set when it is dead, and all of its output has arrived.
    dead: bool,
    out_of_memory: bool,
    stdin_read: Option<u64>,
    waker: Option<Waker>,
}

impl ProcessState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the end. Output may still be on its way.
    fn ended(&self, exit: Option<Exit>) {
        self.ended.send_if_modified(|ended| {
            let is_news = ended.is_none();
            ended.get_or_insert(exit);
            is_news
        });
    }

    pub(crate) fn exited(&self, exit: Exit, out_of_memory: bool, stdin_read: Option<u64>) {
        let mut state = self.lock();
        state.out_of_memory |= out_of_memory;
        state.stdin_read = stdin_read;
        drop(state);
        self.ended(Some(exit));
        self.die();
    }

    pub(crate) fn lost(&self) {
        self.ended(None);
        self.die();
    }

    fn die(&self) {
        let mut state = self.lock();
        state.dead = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A process of an agent.
#[derive(Debug)]
pub(crate) struct AgentProcess {
    pub(crate) connection: Arc<Connection>,
    pub(crate) key: i64,
    pub(crate) pid: u32,
    pub(crate) state: Arc<ProcessState>,
    /// An interpreter is killed when this is dropped.
    pub(crate) is_worker: bool,
    /// The memory limit of the sandbox.
    pub(crate) memory: Option<ByteSize>,
}

/// The clock of a sandbox, in microseconds: `shown` was read at some moment between two of this side.
struct Clock {
    before: Instant,
    after: Instant,
    shown: i64,
}

/// How long code in a cloud may take to end after an interrupt: the interrupt and the answer are on their way for a part of
/// that time, and a kill loses the variables.
const REMOTE_GRACE: Duration = Duration::from_secs(2);

/// The exactness to reach, and the maximum number of requests for it.
const EXACT: Duration = Duration::from_millis(2);
const QUESTIONS: usize = 5;

impl Clock {
    /// Reads the clock. The delay of a message is not known, so the quickest of several answers counts.
    async fn from_agent(connection: &Arc<Connection>) -> Option<Self> {
        let mut best: Option<Self> = None;
        for _ in 0..QUESTIONS {
            let before = Instant::now();
            let answer = Call::begin(connection, "clock", &[]).ok()?.answer().await.ok()?;
            let shown = i64::from_le_bytes(answer.first()?.as_slice().try_into().ok()?);
            let clock = Self { before, after: Instant::now(), shown };
            if best.as_ref().is_none_or(|best| clock.blur() < best.blur()) {
                best = Some(clock);
            }
            if best.as_ref().is_some_and(|best| best.blur() < EXACT) {
                break;
            }
        }
        best
    }

    fn blur(&self) -> Duration {
        self.after - self.before
    }

    /// Returns the time of the clock at that moment, or an earlier one.
    fn earliest(&self, then: Instant) -> i64 {
        self.shown.saturating_sub(micros(self.after.saturating_duration_since(then)))
    }

    /// Returns the time of the clock at that moment, or a later one.
    fn latest(&self, then: Instant) -> i64 {
        self.shown.saturating_sub(micros(self.before.saturating_duration_since(then)))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn number(value: i64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

#[async_trait]
impl Process for AgentProcess {
    fn pid(&self) -> u32 {
        self.pid
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.state.lock().dead
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        if state.dead {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    async fn exit(&self) -> Result<Exit> {
        let mut ended = self.state.ended.subscribe();
        let exit = ended.wait_for(Option::is_some).await.map_err(|_| self.connection.lost())?;
        exit.flatten().ok_or_else(|| self.connection.lost())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if self.is_dead() {
            return Ok(());
        }
        self.connection.send_first(&AgentRequest::Signal { key: self.key, signal, tree: false })
    }

    fn wake_blocked_call(&self) {
        let _ = self.signal(WAKE_SIGNAL);
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.connection.send_first(&AgentRequest::Signal { key: self.key, signal, tree: true })
    }

    fn interrupt_grace(&self) -> Duration {
        match self.connection.is_resident() {
            true => REMOTE_GRACE,
            false => Duration::from_millis(500),
        }
    }

    async fn kill_tree(&self) -> Result<()> {
        let asked = match Call::begin(&self.connection, "kill_tree", &[number(self.key)]) {
            Ok(call) => call.answer().await.map_err(|_| self.connection.lost()),
            Err(error) => Err(error),
        };
        let answer = match asked {
            // A resident agent ends what belongs to a client when the connection ends, and the sandbox continues.
            Err(_) if self.connection.is_resident() && self.connection.is_closed() => return Ok(()),
            asked => asked?,
        };
        let Some((exit, out_of_memory)) = exit_in(&answer) else {
            // A process that the agent does not know any more has ended before, and that was reported.
            return if self.is_dead() { Ok(()) } else { Err(self.connection.lost()) };
        };
        self.state.lock().out_of_memory |= out_of_memory;
        self.state.ended(Some(exit));
        Ok(())
    }

    fn stdin_read(&self) -> Option<u64> {
        self.state.lock().stdin_read
    }

    fn lost_reason(&self) -> Option<String> {
        self.connection.is_resident().then(|| self.connection.lost_reason()).flatten()
    }

    fn oom_kills(&self) -> u64 {
        self.connection.killed()
    }

    /// Explains kills of other processes. The agent reports their number before all output that was written later.
    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        let limit = self.memory?;
        let processes = match self.connection.killed().checked_sub(before)? {
            0 => return None,
            1 => "a process".to_owned(),
            count => format!("{count} processes"),
        };
        Some(format!(
            "the memory limit of {limit} was reached; the kernel ended {processes} of the sandbox meanwhile"
        ))
    }

    /// Explains a kill for memory, which the agent reports of each process.
    fn out_of_memory(&self, _before: u64) -> Option<String> {
        let limit = self.memory?;
        let words = format!("the memory limit of {limit} was reached; the kernel ended it");
        std::mem::take(&mut self.state.lock().out_of_memory).then_some(words)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        let Some(clock) = Clock::from_agent(&self.connection).await else { return };
        let former = former.map_or(-1, |former| clock.latest(former));
        let arguments = [self.key, clock.earliest(since), former].map(number);
        if let Ok(call) = Call::begin(&self.connection, "end_started", &arguments) {
            let _ = call.answer().await;
        }
    }

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.connection.remove_life(self.key);
        let end = self.is_worker;
        let _ = self.connection.send_first(&AgentRequest::Forget { key: self.key, end });
    }
}

/// The terminal of a process.
#[derive(Debug)]
pub(crate) struct AgentTerminal {
    pub(crate) connection: Arc<Connection>,
    pub(crate) key: i64,
}

#[async_trait]
impl Terminal for AgentTerminal {
    async fn resize(&self, size: PtySize) -> Result<()> {
        let arguments = [self.key, size.rows.into(), size.columns.into()].map(number);
        let answer = Call::begin(&self.connection, "resize", &arguments)?.answer().await;
        answer.map(drop).map_err(|_| Error::invalid("size", "the terminal does not take that size"))
    }
}
