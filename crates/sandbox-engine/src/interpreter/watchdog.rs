//! Limits of a run, enforced whether or not anybody reads its events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::inbox::{FinalReply, Inbox, ReplyProgress};
use super::tools::ToolCalls;
use crate::host::{Control, Process, ProcessHost, WorkerIo};
use crate::message::Request;
use crate::process::{EndReason, kill_tree, would_block};
use crate::tree_limit::TreeLimit;

/// How long a worker may take, once its time is up, to get rid of an answer it is in the middle of.
const HELD_BACK: Duration = Duration::from_millis(500);

/// How soon an answer that has begun is looked for again, and an interrupt that had no room is sent again.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// How often the CPU time of a limited run is looked at, at most and at least.
const CPU_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// How often the task wakes when no run is there. A run whose time is up later than that begins without waking it, which
/// would take the processor from the run.
const IDLE: Duration = Duration::from_secs(20);

/// How long a worker may go on to be there once its box was ended because it could not be. A process can sleep in the kernel
/// where no signal reaches it, as on a file system that never answers.
const GIVEN_UP_TIMEOUT: Duration = Duration::from_secs(2);

const SIGINT: i32 = 2;

/// When a run that has not ended is nudged after a signal, each time counted from the one before: all within the grace.
const WAKE_DELAYS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(90), Duration::from_millis(200)];

/// Why a run was interrupted or killed from outside. The first cause stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The wall-clock limit passed.
    Timeout,
    /// The CPU-time limit passed.
    CpuTime,
    /// It put out more than it may.
    OutputLimit,
    /// Somebody asked for it.
    Interrupt,
    /// Nobody wants the run any more, or the interpreter.
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
    inbox: Arc<Inbox>,
    state: Mutex<State>,
    wake: Notify,
    given_up: GivenUp,
}

/// That a worker which cannot be killed is waited for no longer, and who wants to know.
#[derive(Debug, Default)]
struct GivenUp {
    is_so: AtomicBool,
    waker: AtomicWaker,
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
    /// What ends it.
    last: FinalReply,
    /// When the next step of the ladder is due.
    deadline: Option<Instant>,
    cpu_end: Option<Duration>,
    /// The same limit, for all that the interpreter has started, too.
    tree: Option<TreeLimit>,
    cause: Option<Cause>,
    /// Whether the whole request has been sent. Before that, nothing else may go out.
    sent: bool,
    /// The code has called a tool, so that it has begun, and answers may be on their way out.
    called: bool,
    calls: Option<Arc<ToolCalls>>,
    /// An interrupt waits for that.
    wanted: bool,
    /// When it is nudged next, and how long after that again.
    nudge: Option<(Instant, &'static [Duration])>,
    /// The worker was in the middle of its answer when the time was up; until then it may go on.
    held_back: Option<Instant>,
    /// The code has ended by itself, and nobody has read that yet.
    over: bool,
    /// To be killed now.
    doomed: bool,
    killed: bool,
    /// The code has ended by then.
    at_most: Option<Instant>,
}

impl Watched {
    fn is_active(&self) -> bool {
        !self.over && !self.killed
    }

    fn end_calls(&self) {
        if let Some(calls) = &self.calls {
            calls.end();
        }
    }

    fn is_to_be_told(&self) -> bool {
        self.wanted && self.sent && self.is_active()
    }

    fn schedule_nudge(&mut self, now: Instant, pauses: &'static [Duration]) {
        self.nudge = pauses.split_first().map(|(first, then)| (now + *first, then));
    }

    /// When something is to be done about an interrupt.
    fn next_tell(&self, now: Instant) -> Option<Instant> {
        let told = self.is_to_be_told().then(|| now + POLL_INTERVAL);
        earliest(told, self.nudge.map(|(due, _)| due))
    }
}

/// What was done to a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) cause: Option<Cause>,
    /// The code had ended by then, whenever that was read.
    pub(crate) at_most: Option<Instant>,
    /// Whether the code had ended by itself, though nobody had read that.
    pub(crate) over: bool,
    /// Whether the worker was killed, whatever it may have said before.
    pub(crate) killed: bool,
}

enum Step {
    Close,
    Sleep(Option<Instant>),
    Kill,
}

impl Watchdog {
    /// Starts watching a worker of `host`.
    pub(crate) fn start(
        io: &WorkerIo,
        inbox: Arc<Inbox>,
        host: Arc<dyn ProcessHost>,
        ended: Arc<EndReason>,
    ) -> Arc<Self> {
        let (process, control) = (Arc::clone(&io.process), Arc::clone(&io.control));
        let (state, wake) = (Mutex::default(), Notify::new());
        let given_up = GivenUp::default();
        let watchdog = Arc::new(Self { process, control, inbox, state, wake, given_up });
        tokio::spawn(Arc::clone(&watchdog).watch(host, ended));
        watchdog
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins, which `last` ends. The clock starts now.
    pub(crate) fn begin(
        &self,
        id: i64,
        last: FinalReply,
        limits: Limits,
        calls: Option<Arc<ToolCalls>>,
    ) {
        let deadline = limits.wall.map(|wall| Instant::now() + wall);
        let cpu_end = limits.cpu.map(|limit| self.process.cpu_time().unwrap_or_default() + limit);
        let tree = limits.cpu.and_then(|limit| TreeLimit::begin(&*self.process, limit));
        let mut state = self.state();
        state.run = Some(Watched {
            id,
            last,
            deadline,
            cpu_end,
            tree,
            cause: None,
            sent: false,
            called: false,
            calls,
            wanted: false,
            nudge: None,
            held_back: None,
            over: false,
            doomed: false,
            killed: false,
            at_most: None,
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
        self.tell_later(&mut state);
    }

    /// The run has called a tool. Says whether it may: not once it is to end.
    pub(crate) fn called(&self, id: i64) -> bool {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return false };
        run.called = true;
        run.is_active()
    }

    /// The run is over. Says what was done to it.
    pub(crate) fn end(&self, id: i64) -> Ended {
        let mut state = self.state();
        let run = if state.run.as_ref().is_some_and(|run| run.id == id) {
            state.run.take()
        } else {
            None
        };
        run.iter().for_each(Watched::end_calls);
        let (cause, at_most) = run.as_ref().map_or((None, None), |run| (run.cause, run.at_most));
        let (over, killed) = run.map_or((false, false), |run| (run.over, run.killed));
        Ended { cause, at_most, over, killed }
    }

    /// Interrupts. The worker learns first which request is meant, so that no other is hit. A run that has called a tool
    /// has begun, and needs no such message, which might get into the middle of an answer.
    fn tell(&self, run: &mut Watched) {
        // One that has not even read its request yet has no room for more.
        run.wanted = !run.sent || !(run.called || self.announce(run.id));
        if !run.wanted {
            let _ = self.process.signal(SIGINT);
            // One that comes right before a call begins to block would be seen when that is over.
            run.schedule_nudge(Instant::now(), &WAKE_DELAYS);
        }
    }

    /// Says to the worker which request the interrupt that comes is for. `false` when there is no room for that yet.
    fn announce(&self, id: i64) -> bool {
        let mut frame = Vec::new();
        Request::Interrupt { id }.encode(&mut frame).is_err()
            || !self.control.try_write(&frame).is_err_and(|error| would_block(&error))
    }

    /// Nudges when it is time. A run that is over gets none: they would wake calls of the next one.
    fn nudge(&self, run: &mut Watched, now: Instant) {
        let Some((_, then)) = run.nudge.filter(|(due, _)| *due <= now) else { return };
        run.nudge = None;
        if run.is_active() {
            self.process.wake_blocked_call();
            run.schedule_nudge(now, then);
        }
    }

    /// Sees to it that an interrupt that could not go out yet does so soon, and that nudges follow one that could.
    fn tell_later(&self, state: &mut State) {
        let due = state.run.as_ref().and_then(|run| run.next_tell(Instant::now()));
        self.reschedule(state, due);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state().run.as_ref().is_some_and(Watched::is_active)
    }

    /// Interrupts the run that is active, with no kill to follow. `false` when none is.
    pub(crate) fn interrupt(&self) -> bool {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.is_active()) else { return false };
        run.cause.get_or_insert(Cause::Interrupt);
        self.tell(run);
        if let Some(calls) = &run.calls {
            calls.interrupt();
        }
        self.tell_later(&mut state);
        true
    }

    /// Nobody wants the run any more: interrupts it, and kills it when that does not help.
    pub(crate) fn cancel(&self, id: i64) {
        self.stop(id, Cause::Cancelled);
    }

    /// Ends the run from outside, for that cause.
    pub(crate) fn stop(&self, id: i64, cause: Cause) {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return };
        self.check_for_end(run, Instant::now());
        if run.cause.is_none() && run.is_active() {
            self.interrupt_with_grace(run, cause);
        }
        let due = earliest(run.deadline, run.next_tell(Instant::now()));
        self.reschedule(&mut state, due);
    }

    /// Kills the active run without an interrupt before it.
    pub(crate) fn kill(&self) {
        let mut state = self.state();
        let Some(run) = &mut state.run else { return };
        run.doomed = true;
        let due = Some(Instant::now());
        run.deadline = due;
        self.reschedule(&mut state, due);
    }

    /// The same, and waits until the worker is dead.
    pub(crate) async fn kill_and_wait(&self) {
        self.kill();
        // One that cannot be killed takes the whole box along.
        let _ = timeout(2 * self.process.kill_timeout(), self.process.exit()).await;
    }

    fn interrupt_with_grace(&self, run: &mut Watched, cause: Cause) {
        run.cause = Some(cause);
        (run.cpu_end, run.tree) = (None, None);
        let end = Instant::now() + self.process.interrupt_grace();
        (run.deadline, run.at_most, run.held_back) = (Some(end), Some(end), None);
        self.tell(run);
        run.end_calls();
    }

    fn reschedule(&self, state: &mut State, due: Option<Instant>) {
        if due.is_some_and(|due| state.scheduled.is_none_or(|scheduled| due < scheduled)) {
            self.wake.notify_one();
        }
    }

    /// Stops watching.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.run.iter().for_each(Watched::end_calls);
        drop(state);
        self.wake.notify_one();
    }

    async fn watch(self: Arc<Self>, host: Arc<dyn ProcessHost>, ended: Arc<EndReason>) {
        loop {
            self.look_at_tree();
            match self.next_step() {
                Step::Close => return,
                Step::Kill => {
                    let killed = kill_tree(&*self.process, &*host, &ended).await;
                    // Without a cell, what was killed may be in the kernel still.
                    let bound = if killed { self.process.kill_timeout() } else { GIVEN_UP_TIMEOUT };
                    self.give_up_after(bound).await;
                }
                Step::Sleep(Some(due)) => tokio::select! {
                    () = sleep_until(due) => {}
                    () = self.wake.notified() => {}
                },
                Step::Sleep(None) => self.wake.notified().await,
            }
        }
    }

    /// Waits that long for a worker that was killed, and then no longer.
    async fn give_up_after(&self, bound: Duration) {
        if timeout(bound, self.process.exit()).await.is_err() {
            self.given_up.is_so.store(true, Ordering::Release);
            self.given_up.waker.wake();
        }
    }

    /// Returns `true` once the worker is waited for no longer, although it may be there still. Only the last caller is woken.
    pub(crate) fn poll_given_up(&self, cx: &Context<'_>) -> bool {
        self.given_up.waker.register(cx.waker());
        self.given_up.is_so.load(Ordering::Acquire)
    }

    /// Looks at what a limited run has started, when it is time. That takes long enough for others not to wait for it.
    fn look_at_tree(&self) {
        let is_due = |tree: &mut TreeLimit| tree.is_due();
        let taken = {
            let mut state = self.state();
            let run = state.run.as_mut();
            run.and_then(|run| Some((run.id, run.tree.take_if(is_due)?)))
        };
        let Some((id, mut tree)) = taken else { return };
        tree.look();
        let mut state = self.state();
        let run = state.run.as_mut().filter(|run| run.id == id && run.cpu_end.is_some());
        if let Some(run) = run {
            run.tree = Some(tree);
        }
    }

    fn next_step(&self) -> Step {
        let now = Instant::now();
        let mut state = self.state();
        state.scheduled = None;
        if state.closed {
            return Step::Close;
        }
        let Some(run) = &mut state.run else {
            state.scheduled = Some(now + IDLE);
            return Step::Sleep(state.scheduled);
        };
        if run.is_to_be_told() {
            self.tell(run);
        }
        self.nudge(run, now);
        let cpu = run.cpu_end.map(|end| (end, self.process.cpu_time().unwrap_or_default()));
        let out_of_time = run.deadline.is_some_and(|deadline| deadline <= now);
        let out_of_cpu = cpu.is_some_and(|(end, used)| used >= end)
            || run.tree.as_ref().is_some_and(TreeLimit::is_used_up);
        let mut due = run.deadline;
        if out_of_time || out_of_cpu {
            due = match self.act(run, now, out_of_time) {
                Step::Sleep(due) => due,
                step => return step,
            }
        } else if let Some((end, used)) = cpu {
            let pause = (end - used).clamp(CPU_POLL.0, CPU_POLL.1);
            due = earliest(due, Some(now + pause));
            due = earliest(due, run.tree.as_ref().map(TreeLimit::next));
        }
        due = earliest(due, run.next_tell(now));
        state.scheduled = due;
        Step::Sleep(due)
    }

    /// Looks whether the code has ended by itself, which nobody may have read yet.
    fn check_for_end(&self, run: &mut Watched, now: Instant) -> ReplyProgress {
        let answer = self.inbox.find_final_reply(run.id, run.last);
        if (answer == ReplyProgress::Complete || self.process.is_dead()) && !run.over {
            run.over = true;
            run.at_most = Some(run.at_most.map_or(now, |at_most| at_most.min(now)));
        }
        answer
    }

    /// The next step of the ladder, unless the code has ended by itself.
    fn act(&self, run: &mut Watched, now: Instant, out_of_time: bool) -> Step {
        let answer = self.check_for_end(run, now);
        if run.over && !run.doomed {
            (run.deadline, run.cpu_end, run.tree) = (None, None, None);
            return Step::Sleep(None);
        }
        let held_back = *run.held_back.get_or_insert(now + HELD_BACK);
        if answer == ReplyProgress::Begun && !run.doomed && now < held_back {
            return Step::Sleep(Some(now + POLL_INTERVAL));
        }
        match run.cause {
            None | Some(Cause::Interrupt) if !run.doomed => {
                let cause = if out_of_time { Cause::Timeout } else { Cause::CpuTime };
                self.interrupt_with_grace(run, cause);
                Step::Sleep(run.deadline)
            }
            cause => {
                if !run.over && matches!(cause, None | Some(Cause::Interrupt)) {
                    run.cause = Some(Cause::Cancelled);
                }
                run.deadline = None;
                run.killed = true;
                run.end_calls();
                run.at_most = run.at_most.or(Some(now + self.process.interrupt_grace()));
                Step::Kill
            }
        }
    }
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}
