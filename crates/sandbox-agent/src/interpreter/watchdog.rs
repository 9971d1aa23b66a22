//! Limits of a run, enforced whether or not anybody reads its events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::box_io::{BoxIo, Control, Process};
use crate::message::Request;

/// Time between an interrupt and the kill that follows when it did not help.
const GRACE: Duration = Duration::from_millis(500);

/// How long a kill may take before the whole box goes.
const KILL_BOUND: Duration = Duration::from_secs(1);

/// How often the CPU time of a limited run is looked at, at most and at least.
const CPU_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

const SIGINT: i32 = 2;

/// Why a run was interrupted or killed from outside. The first cause stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Timeout,
    CpuTime,
    Interrupt,
    Cancelled,
}

/// Limits of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) wall: Option<Duration>,
    pub(crate) cpu: Option<Duration>,
}

/// Watches one worker. Its task sleeps until the next deadline, so that starting a run costs no timer.
#[derive(Debug)]
pub(crate) struct Watchdog {
    process: Arc<dyn Process>,
    control: Arc<dyn Control>,
    state: Mutex<State>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct State {
    run: Option<Watched>,
    /// When the task looks again by itself.
    scheduled: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Watched {
    id: i64,
    /// When the next step of the ladder is due.
    deadline: Option<Instant>,
    cpu_end: Option<Duration>,
    cause: Option<Cause>,
    /// Whether the whole request has been sent. Before that, nothing else may go out.
    sent: bool,
    /// An interrupt waits for that.
    wanted: bool,
    /// When it was last interrupted or killed.
    acted: Option<Instant>,
    killed: bool,
}

/// What was done to a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) cause: Option<Cause>,
    /// When that was done last. What was interrupted has ended within the grace time after it.
    pub(crate) at_most: Option<Instant>,
    /// Whether the worker was killed, whatever it may have said before.
    pub(crate) killed: bool,
}

enum Step {
    Close,
    Sleep(Option<Instant>),
    Kill,
}

impl Watchdog {
    /// Starts watching a worker of `box_io`.
    pub(crate) fn start(
        process: Arc<dyn Process>,
        control: Arc<dyn Control>,
        box_io: Arc<dyn BoxIo>,
    ) -> Arc<Self> {
        let (state, wake) = (Mutex::default(), Notify::new());
        let watchdog = Arc::new(Self { process, control, state, wake });
        tokio::spawn(Arc::clone(&watchdog).watch(box_io));
        watchdog
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A run begins. The clock starts now.
    pub(crate) fn begin(&self, id: i64, limits: Limits) {
        let deadline = limits.wall.map(|wall| Instant::now() + wall);
        let cpu_end = limits.cpu.map(|limit| self.process.cpu_time().unwrap_or_default() + limit);
        let mut state = self.state();
        state.run = Some(Watched {
            id,
            deadline,
            cpu_end,
            cause: None,
            sent: false,
            wanted: false,
            acted: None,
            killed: false,
        });
        let due = if cpu_end.is_some() { Some(Instant::now()) } else { deadline };
        self.reschedule(&mut state, due);
    }

    /// The request of the run has gone out whole.
    pub(crate) fn sent(&self, id: i64) {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return };
        run.sent = true;
        if run.wanted {
            self.tell(run);
        }
    }

    /// The run is over. Says what was done to it.
    pub(crate) fn end(&self, id: i64) -> Ended {
        let mut state = self.state();
        let run = if state.run.as_ref().is_some_and(|run| run.id == id) {
            state.run.take()
        } else {
            None
        };
        match run {
            Some(Watched { cause: Some(Cause::Interrupt), .. }) => {
                Ended { cause: Some(Cause::Interrupt), at_most: None, killed: false }
            }
            Some(run) => Ended {
                cause: run.cause,
                at_most: run.acted.map(|acted| acted + GRACE),
                killed: run.killed,
            },
            None => Ended { cause: None, at_most: None, killed: false },
        }
    }

    /// Interrupts. The worker learns first which request is meant, so that no other is hit.
    fn tell(&self, run: &mut Watched) {
        run.acted = Some(Instant::now());
        run.wanted = !run.sent;
        if run.sent {
            let mut frame = Vec::new();
            let request = Request::Interrupt { id: run.id };
            if request.encode(&mut frame).is_ok() {
                let _ = self.control.try_write(&frame);
            }
            let _ = self.process.signal(SIGINT);
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state().run.is_some()
    }

    /// Interrupts the run that is active, with no kill to follow. `false` when none is.
    pub(crate) fn interrupt(&self) -> bool {
        let mut state = self.state();
        let Some(run) = &mut state.run else { return false };
        run.cause.get_or_insert(Cause::Interrupt);
        self.tell(run);
        true
    }

    /// Nobody wants the run any more: interrupts it, and kills it when that does not help.
    pub(crate) fn cancel(&self, id: i64) {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return };
        if run.cause.is_none() {
            self.interrupt_with_grace(run, Cause::Cancelled);
        }
        let due = run.deadline;
        self.reschedule(&mut state, due);
    }

    /// Kills the active run without an interrupt before it.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        let Some(run) = &mut state.run else { return };
        run.cause.get_or_insert(Cause::Cancelled);
        if run.cause == Some(Cause::Interrupt) {
            run.cause = Some(Cause::Cancelled);
        }
        let due = Some(Instant::now());
        run.deadline = due;
        self.reschedule(&mut state, due);
    }

    fn interrupt_with_grace(&self, run: &mut Watched, cause: Cause) {
        run.cause = Some(cause);
        run.cpu_end = None;
        run.deadline = Some(Instant::now() + GRACE);
        self.tell(run);
    }

    fn reschedule(&self, state: &mut State, due: Option<Instant>) {
        if due.is_some_and(|due| state.scheduled.is_none_or(|scheduled| due < scheduled)) {
            self.wake.notify_one();
        }
    }

    /// Stops watching.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.wake.notify_one();
    }

    async fn watch(self: Arc<Self>, box_io: Arc<dyn BoxIo>) {
        loop {
            match self.next_step() {
                Step::Close => return,
                Step::Kill => {
                    if timeout(KILL_BOUND, self.process.kill_tree()).await.is_err() {
                        box_io.kill();
                    }
                }
                Step::Sleep(Some(due)) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.wake.notified() => {}
                },
                Step::Sleep(None) => self.wake.notified().await,
            }
        }
    }

    fn next_step(&self) -> Step {
        let now = Instant::now();
        let mut state = self.state();
        state.scheduled = None;
        if state.closed {
            return Step::Close;
        }
        let Some(run) = &mut state.run else { return Step::Sleep(None) };
        if run.deadline.is_some_and(|deadline| deadline <= now) {
            match run.cause {
                None | Some(Cause::Interrupt) => self.interrupt_with_grace(run, Cause::Timeout),
                Some(_) => {
                    run.deadline = None;
                    run.acted = Some(now);
                    run.killed = true;
                    return Step::Kill;
                }
            }
        }
        let mut due = run.deadline;
        if let Some(cpu_end) = run.cpu_end {
            let used = self.process.cpu_time().unwrap_or_default();
            if used >= cpu_end {
                self.interrupt_with_grace(run, Cause::CpuTime);
                due = run.deadline;
            } else {
                let pause = (cpu_end - used).clamp(CPU_POLL.0, CPU_POLL.1);
                due = Some(due.map_or(now + pause, |due| due.min(now + pause)));
            }
        }
        state.scheduled = due;
        Step::Sleep(due)
    }
}
