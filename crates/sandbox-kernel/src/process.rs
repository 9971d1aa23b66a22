//! The process of a kernel, as far as somebody can see it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::Client;
use jupyter_protocol::content::InterruptRequest;
use sandbox_core::Result;
use sandbox_engine::host::{Exit, Process, TreeClock};
use tokio::sync::Notify;
use tokio::time::Instant;

const SIGINT: i32 = 2;

/// The end of a process of which nobody can tell how it ended.
pub(crate) const UNKNOWN_EXIT: Exit =
    Exit { code: None, signal: None, user: Duration::ZERO, system: Duration::ZERO, max_rss: 0 };

/// How the code of a kernel is interrupted.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Interrupt {
    /// By a signal to its process.
    #[default]
    Signal,
    /// By a message to the kernel.
    Message(Client),
    /// By the program of ours in it, which is told what run is meant.
    Program,
}

/// A process that others look after, which knows at once when it is dead.
///
/// Its end may be told by its process, or by whoever hears of it first: see [`KernelProcess::mark_ended`].
pub struct KernelProcess {
    inner: Arc<dyn Process>,
    interrupt: Interrupt,
    /// It is somebody else's: once it is dead to us, nothing more is done to it.
    borrowed: bool,
    state: Mutex<State>,
    changed: Notify,
    interrupted: Notify,
}

#[derive(Default)]
struct State {
    exit: Option<Exit>,
    /// Whether its end was told by what watches it, and not only by its being of no use any more.
    has_ended: bool,
    /// Whether it could not be ended, and so is not asked to end its code any more.
    given_up: bool,
    /// Why nobody can tell what it does.
    lost: Option<String>,
    waker: Option<Waker>,
    /// Interrupts so far.
    interrupts: u64,
    /// Whether code of ours runs in it.
    running: bool,
}

impl fmt::Debug for KernelProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelProcess").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl KernelProcess {
    /// Watches a process.
    pub fn new(inner: Arc<dyn Process>, interrupt: Interrupt) -> Arc<Self> {
        Self::watching(inner, interrupt, false)
    }

    /// Watches a process that is somebody else's. Once it is dead to us, nothing more is done to it.
    pub fn borrowed(inner: Arc<dyn Process>, interrupt: Interrupt) -> Arc<Self> {
        Self::watching(inner, interrupt, true)
    }

    fn watching(inner: Arc<dyn Process>, interrupt: Interrupt, borrowed: bool) -> Arc<Self> {
        let process = Arc::new(Self {
            inner,
            interrupt,
            borrowed,
            state: Mutex::default(),
            changed: Notify::new(),
            interrupted: Notify::new(),
        });
        let (watched, weak) = (Arc::clone(&process.inner), Arc::downgrade(&process));
        tokio::spawn(async move {
            // Who could tell how it ended is gone with it when its box has ended. Whoever waits must not wait for ever.
            let exit = watched.exit().await.unwrap_or(UNKNOWN_EXIT);
            if let Some(process) = weak.upgrade() {
                process.state().has_ended = true;
                process.mark_ended(exit);
            }
        });
        process
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It is dead. The first word counts.
    pub fn mark_ended(&self, exit: Exit) {
        let mut state = self.state();
        state.exit.get_or_insert(exit);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.changed.notify_waiters();
    }

    /// It is dead, or of no use, and nobody can tell how it ended.
    pub fn mark_dead(&self) {
        self.mark_ended(UNKNOWN_EXIT);
    }

    /// The way to it is lost. Ours is of no use then and is ended by whoever looks after it; another's is let go.
    pub(crate) fn mark_lost(&self, why: String) {
        let mut state = self.state();
        if state.exit.is_none() {
            state.lost.get_or_insert(why);
        }
        drop(state);
        if self.borrowed {
            self.mark_dead();
        }
    }

    /// Whether code of ours runs in it that an interrupt may still end. One that is only dead to us may run on; one that has
    /// ended hears nothing, and neither does one that did not hear before.
    pub fn is_interruptible(&self) -> bool {
        let state = self.state();
        state.running && !state.has_ended && !state.given_up
    }

    /// Whether it is somebody else's.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.borrowed
    }

    pub(crate) fn set_running(&self, running: bool) {
        self.state().running = running;
    }

    /// Waits for more interrupts than `seen`.
    pub(crate) async fn more_interrupts(&self, seen: u64) {
        loop {
            let interrupted = self.interrupted.notified();
            if self.interrupts() > seen {
                return;
            }
            interrupted.await;
        }
    }

    /// How often it was interrupted.
    pub(crate) fn interrupts(&self) -> u64 {
        self.state().interrupts
    }
}

#[async_trait]
impl Process for KernelProcess {
    fn pid(&self) -> u32 {
        self.inner.pid()
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.state().exit.is_some()
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state();
        if state.exit.is_some() {
            return Poll::Ready(());
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn lost_reason(&self) -> Option<String> {
        self.state().lost.clone()
    }

    async fn exit(&self) -> Result<Exit> {
        loop {
            let changed = self.changed.notified();
            if let Some(exit) = self.state().exit {
                return Ok(exit);
            }
            changed.await;
        }
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if signal == SIGINT {
            self.state().interrupts += 1;
            self.interrupted.notify_one();
            match &self.interrupt {
                Interrupt::Signal => {}
                Interrupt::Message(client) => {
                    let client = client.clone();
                    tokio::spawn(async move { client.request(InterruptRequest::default()).await });
                    return Ok(());
                }
                Interrupt::Program => return Ok(()),
            }
        }
        self.inner.signal(signal)
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.inner.signal_tree(signal).await
    }

    async fn kill_tree(&self) -> Result<()> {
        if self.borrowed && self.is_dead() {
            return Ok(());
        }
        let ended = self.inner.kill_tree().await;
        self.state().given_up |= ended.is_err();
        ended
    }

    fn unkillable_reason(&self) -> Option<&'static str> {
        self.inner.unkillable_reason()
    }

    /// A kernel hears of it by several steps, and shows a traceback before it is done.
    fn interrupt_grace(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn kill_timeout(&self) -> Duration {
        self.inner.kill_timeout()
    }

    fn oom_kills(&self) -> u64 {
        self.inner.oom_kills()
    }

    fn out_of_memory(&self, before: u64) -> Option<String> {
        self.inner.out_of_memory(before)
    }

    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        self.inner.others_out_of_memory(before)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        self.inner.end_started(since, former).await;
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.inner.cpu_time()
    }

    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        self.inner.tree_clock()
    }

    fn peak_memory(&self) -> Option<u64> {
        self.inner.peak_memory()
    }
}
