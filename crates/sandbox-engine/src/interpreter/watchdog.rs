//! Enforces the limits of a run, also when its events are not read.

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
use crate::tree_limit::{MemoryLimit, TreeLimit};

/// How long a worker whose time is up may take to finish an answer that it has begun to send.
const HELD_BACK: Duration = Duration::from_millis(500);

/// How long such an answer may take on a slow way, as long as bytes of it arrive.
const HELD_BACK_REMOTE: Duration = Duration::from_secs(5);

/// Interval of looking for the rest of an answer, and of sending an interrupt for which there was no room.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Minimum and maximum interval of reading the CPU time of a limited run.
const CPU_POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));

/// Interval of waking up without a run. A run with a later deadline starts without waking the task, which would take the
/// processor from the run.
const IDLE: Duration = Duration::from_secs(20);

/// How long to wait for a worker after its sandbox was killed because the worker could not be. A process can sleep in the
/// kernel where no signal reaches it, as on a file system that never answers.
const GIVEN_UP_TIMEOUT: Duration = Duration::from_secs(2);

const SIGINT: i32 = 2;

/// Delays after which a run that was interrupted and has not ended is woken, each after the one before: all within the
/// grace time.
const WAKE_DELAYS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(90), Duration::from_millis(200)];

/// The cause of an interrupt or kill from outside. The first cause stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The wall-clock limit passed.
    Timeout,
    /// The CPU-time limit passed.
    CpuTime,
    /// The memory exceeded its limit.
    Memory,
    /// The output exceeded its limit.
    OutputLimit,
    /// A caller interrupted the run.
    Interrupt,
    /// The run or the interpreter was dropped.
    Cancelled,
}

/// Limits of one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) wall: Option<Duration>,
    pub(crate) cpu: Option<Duration>,
    /// Bytes by which the memory may grow.
    pub(crate) memory: Option<u64>,
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
    /// Set when messages of the worker take time to arrive.
    is_remote: bool,
}

/// Set when a worker that cannot be killed is awaited no longer, with the task to wake.
#[derive(Debug, Default)]
struct GivenUp {
    is_so: AtomicBool,
    waker: AtomicWaker,
}

#[derive(Debug, Default)]
struct State {
    run: Option<Watched>,
    /// The time at which the task wakes by itself.
    scheduled: Option<Instant>,
    closed: bool,
}

#[derive(Debug)]
struct Watched {
    id: i64,
    /// The kind of message that ends the request.
    last: FinalReply,
    /// The time of the next step: interrupt, then kill.
    deadline: Option<Instant>,
    cpu_end: Option<Duration>,
    /// The CPU-time limit of everything that the interpreter has started.
    tree: Option<TreeLimit>,
    /// The memory limit of the interpreter and everything that it has started.
    memory: Option<MemoryLimit>,
    cause: Option<Cause>,
    /// Set when the whole request has been sent. Before that, nothing else may be sent.
    sent: bool,
    /// Set when the code has called a tool, so that it has started, and answers may be on their way.
    called: bool,
    calls: Option<Arc<ToolCalls>>,
    /// Set while an interrupt waits until it can be sent.
    wanted: bool,
    /// The time of the next wake-up, and the delays after that.
    next_wake: Option<(Instant, &'static [Duration])>,
    /// The end of the extra time for a worker that was sending its answer when the time was up.
    held_back: Option<HeldBack>,
    /// Set when the code has ended by itself, and that was not read yet.
    finished: bool,
    /// Set when the run is to be killed now.
    doomed: bool,
    killed: bool,
    /// The latest time at which the code can have ended.
    at_most: Option<Instant>,
}

/// The extra time for a worker that was sending its answer when the time was up.
#[derive(Debug)]
struct HeldBack {
    until: Instant,
    /// The end of the extra time, however much arrives.
    at_most: Instant,
    /// Bytes that had arrived when `until` was set.
    read: u64,
    /// Set when a part of a message had arrived.
    has_begun: bool,
}

impl HeldBack {
    fn begin(now: Instant, read: u64) -> Self {
        let (until, at_most) = (now + HELD_BACK, now + HELD_BACK_REMOTE);
        Self { until, at_most, read, has_begun: false }
    }

    /// Returns true while the worker is given more time to send what it `is_sending`. On the way of a remote one, the time
    /// starts again with bytes that arrive, and the next message may come after the one that was begun: the code may have
    /// ended long ago.
    fn is_on(&mut self, now: Instant, read: u64, is_sending: bool, is_remote: bool) -> bool {
        self.has_begun |= is_sending;
        if is_remote && read > self.read {
            (self.until, self.read) = ((now + HELD_BACK).min(self.at_most), read);
        }
        (is_sending || is_remote && self.has_begun) && now < self.until
    }
}

impl Watched {
    fn is_active(&self) -> bool {
        !self.finished && !self.killed
    }

    fn end_calls(&self) {
        if let Some(calls) = &self.calls {
            calls.end();
        }
    }

    fn is_to_be_told(&self) -> bool {
        self.wanted && self.sent && self.is_active()
    }

    fn schedule_wake(&mut self, now: Instant, pauses: &'static [Duration]) {
        self.next_wake = pauses.split_first().map(|(first, then)| (now + *first, then));
    }

    /// Returns the time of the next interrupt or wake-up.
    fn next_interrupt(&self, now: Instant) -> Option<Instant> {
        let told = self.is_to_be_told().then(|| now + POLL_INTERVAL);
        earliest(told, self.next_wake.map(|(due, _)| due))
    }
}

/// What was done to a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) cause: Option<Cause>,
    /// The latest time at which the code can have ended, whenever that was read.
    pub(crate) at_most: Option<Instant>,
    /// Set when the code had ended by itself, though that was not read.
    pub(crate) finished: bool,
    /// Set when the worker was killed, whatever it had sent before.
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
        let (given_up, is_remote) = (GivenUp::default(), io.stdout.is_remote());
        let watchdog = Arc::new(Self { process, control, inbox, state, wake, given_up, is_remote });
        tokio::spawn(Arc::clone(&watchdog).watch(host, ended));
        watchdog
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a request, which a message of kind `last` ends. The clock starts now.
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
        let memory = limits.memory.and_then(|limit| MemoryLimit::begin(&*self.process, limit));
        let is_measured = cpu_end.is_some() || memory.is_some();
        let mut state = self.state();
        state.run = Some(Watched {
            id,
            last,
            deadline,
            cpu_end,
            tree,
            memory,
            cause: None,
            sent: false,
            called: false,
            calls,
            wanted: false,
            next_wake: None,
            held_back: None,
            finished: false,
            doomed: false,
            killed: false,
            at_most: None,
        });
        let due = if is_measured { Some(Instant::now()) } else { deadline };
        self.reschedule(&mut state, due);
    }

    /// Records that the whole request was sent.
    pub(crate) fn sent(&self, id: i64) {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return };
        run.sent = true;
        if run.wanted {
            self.send_interrupt(run);
        }
        self.schedule_interrupt(&mut state);
    }

    /// Records that the run has called a tool. Returns false for a run that is about to be killed.
    pub(crate) fn called(&self, id: i64) -> bool {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.id == id) else { return false };
        run.called = true;
        run.is_active()
    }

    /// Records the end of the run. Returns what was done to it.
    pub(crate) fn end(&self, id: i64) -> Ended {
        let mut state = self.state();
        let run = if state.run.as_ref().is_some_and(|run| run.id == id) {
            state.run.take()
        } else {
            None
        };
        run.iter().for_each(Watched::end_calls);
        let (cause, at_most) = run.as_ref().map_or((None, None), |run| (run.cause, run.at_most));
        let (finished, killed) = run.map_or((false, false), |run| (run.finished, run.killed));
        Ended { cause, at_most, finished, killed }
    }

    /// Interrupts the run. A message names the request first, so that no other request is interrupted. A run that has
    /// called a tool has started, and needs no such message, which might come in the middle of an answer.
    fn send_interrupt(&self, run: &mut Watched) {
        // A worker that has not read its request yet has no room for more.
        run.wanted = !run.sent || !(run.called || self.announce(run.id));
        if !run.wanted {
            let _ = self.process.signal(SIGINT);
            // A signal that arrives right before a call blocks would be handled when the call returns.
            run.schedule_wake(Instant::now(), &WAKE_DELAYS);
        }
    }

    /// Sends the id of the request that the next interrupt is for. Returns false when there is no room yet.
    fn announce(&self, id: i64) -> bool {
        let mut frame = Vec::new();
        Request::Interrupt { id }.encode(&mut frame).is_err()
            || !self.control.try_write(&frame).is_err_and(|error| would_block(&error))
    }

    /// Wakes the run when it is time. A run that has ended is not woken: that would wake calls of the next one.
    fn wake_run(&self, run: &mut Watched, now: Instant) {
        let Some((_, then)) = run.next_wake.filter(|(due, _)| *due <= now) else { return };
        run.next_wake = None;
        if run.is_active() {
            self.process.wake_blocked_call();
            run.schedule_wake(now, then);
        }
    }

    /// Wakes the task soon enough for an interrupt that could not be sent yet, and for wake-ups after one that was.
    fn schedule_interrupt(&self, state: &mut State) {
        let due = state.run.as_ref().and_then(|run| run.next_interrupt(Instant::now()));
        self.reschedule(state, due);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.state().run.as_ref().is_some_and(Watched::is_active)
    }

    /// Interrupts the active run, without a kill after it. Returns false when no run is active.
    pub(crate) fn interrupt(&self) -> bool {
        let mut state = self.state();
        let Some(run) = state.run.as_mut().filter(|run| run.is_active()) else { return false };
        run.cause.get_or_insert(Cause::Interrupt);
        self.send_interrupt(run);
        if let Some(calls) = &run.calls {
            calls.interrupt();
        }
        self.schedule_interrupt(&mut state);
        true
    }

    /// Interrupts a run that was dropped, and kills it when the interrupt does not help.
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
        let due = earliest(run.deadline, run.next_interrupt(Instant::now()));
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

    /// Kills the active run, and waits until the worker is dead.
    pub(crate) async fn kill_and_wait(&self) {
        self.kill();
        // A worker that cannot be killed takes the whole sandbox with it.
        let _ = timeout(2 * self.process.kill_timeout(), self.process.exit()).await;
    }

    fn interrupt_with_grace(&self, run: &mut Watched, cause: Cause) {
        run.cause = Some(cause);
        (run.cpu_end, run.tree) = (None, None);
        let end = Instant::now() + self.process.interrupt_grace();
        (run.deadline, run.at_most, run.held_back) = (Some(end), Some(end), None);
        self.send_interrupt(run);
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
            self.measure_tree();
            self.measure_memory();
            match self.next_step() {
                Step::Close => return,
                Step::Kill => {
                    let killed = kill_tree(&*self.process, &*host, &ended).await;
                    // Without a cell, a killed process may still be in the kernel.
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

    /// Returns `true` once the worker is awaited no longer, although it may still be there. Only the last caller is
    /// woken.
    pub(crate) fn poll_given_up(&self, cx: &Context<'_>) -> bool {
        self.given_up.waker.register(cx.waker());
        self.given_up.is_so.load(Ordering::Acquire)
    }

    /// Measures what a limited run has started, when it is time. That takes long enough for others not to wait for it.
    fn measure_tree(&self) {
        let is_due = |tree: &mut TreeLimit| tree.is_due();
        let taken = {
            let mut state = self.state();
            let run = state.run.as_mut();
            run.and_then(|run| Some((run.id, run.tree.take_if(is_due)?)))
        };
        let Some((id, mut tree)) = taken else { return };
        tree.measure();
        let mut state = self.state();
        let run = state.run.as_mut().filter(|run| run.id == id && run.cpu_end.is_some());
        if let Some(run) = run {
            run.tree = Some(tree);
        }
    }

    /// Measures the memory of a limited run, when it is time.
    fn measure_memory(&self) {
        let taken = {
            let mut state = self.state();
            let run = state.run.as_mut();
            run.and_then(|run| Some((run.id, run.memory.take_if(|memory| memory.is_due())?)))
        };
        let Some((id, mut memory)) = taken else { return };
        memory.measure();
        let mut state = self.state();
        if let Some(run) = state.run.as_mut().filter(|run| run.id == id) {
            run.memory = Some(memory);
        }
    }

    /// Lets a run whose memory has exceeded its limit be killed now, unless the code has ended by itself.
    fn check_memory(&self, run: &mut Watched, now: Instant) {
        if run.memory.as_ref().is_some_and(MemoryLimit::is_exceeded) {
            run.memory = None;
            self.check_for_end(run, now);
            if run.is_active() {
                run.cause = Some(Cause::Memory);
                run.doomed = true;
                run.deadline = Some(now);
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
        let Some(run) = &mut state.run else {
            state.scheduled = Some(now + IDLE);
            return Step::Sleep(state.scheduled);
        };
        if run.is_to_be_told() {
            self.send_interrupt(run);
        }
        self.wake_run(run, now);
        self.check_memory(run, now);
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
        due = earliest(due, run.next_interrupt(now));
        due = earliest(due, run.memory.as_ref().map(MemoryLimit::next));
        state.scheduled = due;
        Step::Sleep(due)
    }

    /// Checks whether the code has ended by itself, which may not have been read yet.
    fn check_for_end(&self, run: &mut Watched, now: Instant) -> ReplyProgress {
        let answer = self.inbox.find_final_reply(run.id, run.last);
        if (answer == ReplyProgress::Complete || self.process.is_dead()) && !run.finished {
            run.finished = true;
            run.at_most = Some(run.at_most.map_or(now, |at_most| at_most.min(now)));
        }
        answer
    }

    /// Takes the next step, interrupt or kill, unless the code has ended by itself.
    fn act(&self, run: &mut Watched, now: Instant, out_of_time: bool) -> Step {
        let answer = self.check_for_end(run, now);
        if run.finished && !run.doomed {
            (run.deadline, run.cpu_end, run.tree, run.memory) = (None, None, None, None);
            return Step::Sleep(None);
        }
        let read = self.inbox.bytes_read();
        let held_back = run.held_back.get_or_insert_with(|| HeldBack::begin(now, read));
        let is_sending = answer == ReplyProgress::Begun;
        if held_back.is_on(now, read, is_sending, self.is_remote) && !run.doomed {
            return Step::Sleep(Some(now + POLL_INTERVAL));
        }
        match run.cause {
            None | Some(Cause::Interrupt) if !run.doomed => {
                let cause = if out_of_time { Cause::Timeout } else { Cause::CpuTime };
                self.interrupt_with_grace(run, cause);
                Step::Sleep(run.deadline)
            }
            cause => {
                if !run.finished && matches!(cause, None | Some(Cause::Interrupt)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_on_a_slow_way_has_time_while_it_arrives() {
        let begin = Instant::now();
        let after = |milliseconds| begin + Duration::from_millis(milliseconds);
        let mut local = HeldBack::begin(begin, 100);
        assert!(local.is_on(after(400), 200, true, false));
        assert!(!local.is_on(after(410), 200, false, false), "the message is complete");
        assert!(!local.is_on(after(600), 300, true, false), "a pipe of this host is fast");
        let mut remote = HeldBack::begin(begin, 100);
        assert!(!remote.is_on(after(0), 100, false, true), "no message was begun");
        assert!(remote.is_on(after(400), 200, true, true));
        assert!(remote.is_on(after(800), 200, false, true), "the next message may come");
        assert!(!remote.is_on(after(1000), 200, false, true), "nothing has arrived");
        let mut remote = HeldBack::begin(begin, 0);
        assert!((1..10).all(|step| remote.is_on(after(400 * step), step, true, true)));
        assert!(!remote.is_on(after(5001), 1_000_000, true, true), "there is an end to it");
    }
}
