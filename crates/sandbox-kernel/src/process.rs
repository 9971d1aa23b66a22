//! The process of a kernel, as seen from outside.

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

/// The exit of a process whose status is unknown.
pub(crate) const UNKNOWN_EXIT: Exit =
    Exit { code: None, signal: None, user: Duration::ZERO, system: Duration::ZERO, max_rss: 0 };

/// The way to interrupt the code of a kernel.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Interrupt {
    /// By a signal to its process.
    #[default]
    Signal,
    /// By a message to the kernel.
    Message(Client),
    /// By a message to the kernel program, which names the run.
    Program,
}

/// A kernel's process, whose death is known at once.
///
/// The end may be reported by the process, or by the first observer: see [`KernelProcess::mark_ended`].
pub struct KernelProcess {
    inner: Arc<dyn Process>,
    interrupt: Interrupt,
    /// True if another owner manages the process. Nothing is done to it after it counts as dead here.
    borrowed: bool,
    state: Mutex<State>,
    changed: Notify,
    interrupted: Notify,
}

#[derive(Default)]
struct State {
    exit: Option<Exit>,
    /// True if the process itself has ended, and does not only count as dead.
    has_ended: bool,
    /// True if the process could not be ended. Its code is not interrupted any more.
    given_up: bool,
    /// The reason why the state of the process is unknown.
    lost: Option<String>,
    waker: Option<Waker>,
    /// The number of interrupts so far.
    interrupts: u64,
    /// True while it runs code of this sandbox.
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

    /// Watches a process of another owner. Nothing is done to it after it counts as dead here.
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
            // The status is lost if the host has ended. The exit is reported in any case, so that no caller waits for
            // ever.
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

    /// Marks the process as ended. The first exit counts.
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

    /// Marks the process as dead or of no use, with an unknown status.
    pub fn mark_dead(&self) {
        self.mark_ended(UNKNOWN_EXIT);
    }

    /// Marks the connection as lost. An owned process is of no use then and is ended by its owner; a borrowed one is
    /// released.
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

    /// Returns true if an interrupt may still end running code. A process that only counts as dead may still run; one
    /// that has ended, or that could not be ended before, is not interrupted.
    pub fn is_interruptible(&self) -> bool {
        let state = self.state();
        state.running && !state.has_ended && !state.given_up
    }

    /// Returns true if the process has another owner.
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

    /// Returns the number of interrupts.
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

    /// A kernel handles an interrupt in several steps, and shows a traceback before it is done.
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
