//! Turns the streams and the process of a running command into events.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use sandbox_core::{
    ByteSize, CommandEvent, CommandOutcome, ErrorKind, Failure, FailureKind, OutputStream, Result,
    Usage, format_duration,
};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, sleep_until, timeout, timeout_at};

use super::leftover::{Leftovers, Moment};
use super::{Guard, STREAMS};
use crate::host::{Exit, Process, ProcessHost, Readable};
use crate::process::{EndReason, StdinCounter, kill_tree};
use crate::tree_limit::TreeLimit;

/// Maximum number of bytes that are read from a stream at once.
const CHUNK: usize = 64 << 10;

/// More than a stream can hold that does not report its size: after that many bytes, everything that the command itself
/// wrote has been read.
const MAX_DRAINED_BYTES: usize = 1 << 20;

/// Interval of looking for a process that could not be found yet.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How long a process may live without having been found. Its CPU time is not limited meanwhile.
const MAX_UNOBSERVED: Duration = Duration::from_secs(2);

const SIGKILL: i32 = 9;

/// Time limits of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) wall: Option<Duration>,
    pub(super) cpu: Option<Duration>,
}

/// The end of a command, also when its events are not read.
#[derive(Debug, Default)]
pub(super) struct CommandEnd {
    /// The limit that the command was killed for.
    exceeded_limit: OnceLock<Failure>,
    at: watch::Sender<Option<Instant>>,
}

impl CommandEnd {
    pub(super) fn is_over(&self) -> bool {
        self.at.borrow().is_some()
    }

    /// Waits until the command has ended.
    pub(super) async fn finished(&self) {
        // Fails only when the sender is gone, and the sender is in `self`.
        let _ = self.at.subscribe().wait_for(Option::is_some).await;
    }

    fn set(&self) {
        self.at.send_replace(Some(Instant::now()));
    }
}

/// A process with everything that it started, in its sandbox.
#[derive(Clone, Debug)]
pub(super) struct ProcessTree {
    pub(super) process: Arc<dyn Process>,
    pub(super) host: Arc<dyn ProcessHost>,
    /// The end reason of the sandbox.
    pub(super) ended: Arc<EndReason>,
}

impl ProcessTree {
    /// Kills the tree, and the whole sandbox when that fails or takes too long. Continues when the caller is cancelled.
    fn kill(&self) -> JoinHandle<()> {
        let Self { process, host, ended } = self.clone();
        tokio::spawn(async move {
            kill_tree(&*process, &*host, &ended).await;
        })
    }
}

/// Kills a command that exceeds a limit, and records its end.
pub(super) async fn watch(tree: ProcessTree, limits: Limits, end: Arc<CommandEnd>) {
    let mut exit = tree.process.exit();
    tokio::select! {
        biased;
        _ = &mut exit => return end.set(),
        failure = limit_exceeded(&*tree.process, limits) => {
            let _ = end.exceeded_limit.set(failure);
            let _ = tree.kill().await;
        }
    }
    let _ = exit.await;
    end.set();
}

/// Waits until a limit has passed, and returns the failure.
async fn limit_exceeded(process: &dyn Process, limits: Limits) -> Failure {
    tokio::select! {
        limit = passed(limits.wall) => {
            failure(FailureKind::Timeout, &format!("command timed out after {}", format_duration(limit)))
        }
        message = used_up(process, limits.cpu) => failure(FailureKind::CpuTime, &message),
    }
}

async fn passed(limit: Option<Duration>) -> Duration {
    let Some(limit) = limit else { return pending().await };
    sleep(limit).await;
    limit
}

/// Waits until the CPU time is used up, and returns the message.
async fn used_up(process: &dyn Process, limit: Option<Duration>) -> String {
    let Some(limit) = limit else { return pending().await };
    let Ok(mut tree) = timeout(MAX_UNOBSERVED, tree_of(process, limit)).await else {
        return format!(
            "command was ended: its CPU time of {} cannot be limited, because /proc of this host does not show it; \
             leave the limit out, or have /proc mounted without `hidepid`",
            format_duration(limit)
        );
    };
    while !tree.is_used_up() {
        sleep_until(tree.next()).await;
        tree.measure();
    }
    format!("command used up its CPU time of {}", format_duration(limit))
}

/// Makes the clock of a process tree, once the process is found. The process may also have just ended.
async fn tree_of(process: &dyn Process, limit: Duration) -> TreeLimit {
    loop {
        match TreeLimit::begin(process, limit) {
            Some(tree) => return tree,
            None => sleep(POLL_INTERVAL).await,
        }
    }
}

/// A running command as a stream of events. Dropping it ends the command.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) tree: ProcessTree,
    pub(super) streams: [Option<Box<dyn Readable>>; 2],
    pub(super) started: Instant,
    /// Maximum number of bytes of output.
    pub(super) output_limit: Option<ByteSize>,
    /// The number of processes that the kernel had killed for memory when the command was started.
    pub(super) oom_kills: u64,
    pub(super) end: Arc<CommandEnd>,
    /// Tasks that end with the events.
    pub(super) tasks: Vec<AbortHandle>,
    pub(super) on_terminal: bool,
    /// Counts how much of its standard input was read.
    pub(super) taken: Option<Arc<StdinCounter>>,
    pub(super) leftovers: Arc<Leftovers>,
    pub(super) _guard: Guard,
    pub(super) progress: Progress,
}

/// The state of the events.
#[derive(Debug)]
pub(super) struct Progress {
    buffer: Vec<u8>,
    exit: Option<Result<Exit>>,
    /// Bytes of each stream that may still come after the end of the command.
    pending_output: [usize; 2],
    /// The moment that its helpers have after the end.
    moment: Option<Moment>,
    /// Bytes of output so far.
    output_bytes: u64,
    exceeded: bool,
    finished: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            buffer: vec![0; CHUNK],
            exit: None,
            pending_output: [MAX_DRAINED_BYTES; 2],
            moment: None,
            output_bytes: 0,
            exceeded: false,
            finished: false,
        }
    }
}

enum Next {
    Output(OutputStream, Bytes),
    Exited(Result<Exit>),
}

impl Running {
    pub(super) async fn next_event(&mut self) -> Option<CommandEvent> {
        if self.progress.finished {
            return None;
        }
        while self.progress.exit.is_none() {
            match self.output_or_exit().await {
                Next::Output(stream, data) => {
                    if let Some(event) = self.within_limit(stream, data) {
                        return Some(event);
                    }
                }
                Next::Exited(exit) => {
                    self.progress.exit = Some(exit);
                    self.progress.pending_output = self.streams.each_ref().map(|stream| {
                        stream
                            .as_ref()
                            .and_then(|stream| stream.unread())
                            .unwrap_or(MAX_DRAINED_BYTES)
                    });
                }
            }
        }
        while let Some((stream, data)) = self.rest_of_output() {
            if let Some(event) = self.within_limit(stream, data) {
                return Some(event);
            }
        }
        while let Some((stream, data)) = self.late_output().await {
            if let Some(event) = self.within_limit(stream, data) {
                return Some(event);
            }
        }
        for stream in self.streams.iter_mut().filter_map(Option::take) {
            self.leftovers.drain(stream);
        }
        self.progress.finished = true;
        Some(CommandEvent::Finished(self.outcome()))
    }

    async fn output_or_exit(&mut self) -> Next {
        let process = Arc::clone(&self.tree.process);
        let mut exit = pin!(process.exit());
        poll_fn(|cx| {
            // Checked before the output: helpers may print more than the caller ever reads.
            if let Poll::Ready(exit) = exit.as_mut().poll(cx) {
                return Poll::Ready(Next::Exited(exit));
            }
            let output = self.poll_output(cx);
            output.map(|(stream, data)| Next::Output(stream, data))
        })
        .await
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<(OutputStream, Bytes)> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            while self.streams[index]
                .as_ref()
                .is_some_and(|source| source.poll_readable(cx).is_ready())
            {
                match self.read(index) {
                    Ok(Some(data)) => return Poll::Ready((stream, data)),
                    Ok(None) => self.streams[index] = None,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => self.streams[index] = None,
                }
            }
        }
        Poll::Pending
    }

    /// Returns the part of output that is within the limit. The first byte beyond the limit kills the command; later
    /// output is read and dropped until the command is dead.
    fn within_limit(&mut self, stream: OutputStream, mut data: Bytes) -> Option<CommandEvent> {
        if let Some(limit) = self.output_limit {
            let left = limit.as_u64() - self.progress.output_bytes;
            let allowed = usize::try_from(left).map_or(data.len(), |left| left.min(data.len()));
            self.progress.output_bytes += allowed as u64;
            if allowed < data.len() && !self.progress.exceeded {
                self.progress.exceeded = true;
                drop(self.tree.kill());
            }
            data.truncate(allowed);
        }
        (!data.is_empty()).then_some(CommandEvent::Output { stream, data })
    }

    /// Returns what the command itself had written when it ended.
    fn rest_of_output(&mut self) -> Option<(OutputStream, Bytes)> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            if self.streams[index].is_some() && self.progress.pending_output[index] > 0 {
                match self.read(index) {
                    Ok(Some(data)) => {
                        let pending_output = &mut self.progress.pending_output[index];
                        *pending_output = pending_output.saturating_sub(data.len());
                        return Some((stream, data));
                    }
                    Ok(None) => self.streams[index] = None,
                    Err(_) => {}
                }
                self.progress.pending_output[index] = 0;
            }
        }
        None
    }

    /// Returns what helpers of the command print in the moment after its end: a line that was passed to them is part of
    /// its output. A command that was killed for a limit has no such moment, and neither has a command on a terminal.
    async fn late_output(&mut self) -> Option<(OutputStream, Bytes)> {
        let ended_by_itself = matches!(self.progress.exit, Some(Ok(_)));
        if !ended_by_itself
            || self.on_terminal
            || self.end.exceeded_limit.get().is_some()
            || self.tree.ended.get().is_some()
        {
            return None;
        }
        let moment = self.progress.moment.get_or_insert_with(Moment::new);
        // A stream that is always ready would be read after the deadline, too.
        if moment.is_over() {
            return None;
        }
        let deadline = moment.deadline();
        let output = poll_fn(|cx| match self.poll_output(cx) {
            Poll::Pending if self.streams.iter().all(Option::is_none) => Poll::Ready(None),
            output => output.map(Some),
        });
        let output = timeout_at(deadline, output).await.ok().flatten()?;
        if let Some(moment) = &mut self.progress.moment {
            moment.count(output.1.len());
        }
        Some(output)
    }

    fn read(&mut self, index: usize) -> io::Result<Option<Bytes>> {
        let Some(source) = &self.streams[index] else { return Ok(None) };
        let buffer = &mut self.progress.buffer;
        let count = source.try_read(buffer)?;
        Ok((count > 0).then(|| Bytes::copy_from_slice(&buffer[..count])))
    }

    fn outcome(&mut self) -> CommandOutcome {
        let process = &self.tree.process;
        let taken = self.taken.take();
        let stdin_read = taken.and_then(|taken| taken.read().or_else(|| process.stdin_read()));
        self.stop_tasks();
        let end = self.end.at.borrow().unwrap_or_else(Instant::now);
        self.end.set();
        let mut outcome = CommandOutcome {
            duration: end.saturating_duration_since(self.started).as_secs_f64(),
            stdin_read,
            ..CommandOutcome::default()
        };
        match self.progress.exit.take() {
            Some(Ok(exit)) => {
                outcome.exit_code = exit.status();
                outcome.signal = exit.signal;
                let killed = exit.signal == Some(SIGKILL);
                if let Some(why) =
                    killed.then(|| self.tree.process.out_of_memory(self.oom_kills)).flatten()
                {
                    outcome.failure = Some(failure(FailureKind::OutOfMemory, &why));
                } else if killed && self.tree.ended.get().is_some() {
                    // It was seen to end before its connection did.
                    outcome.failure = Some(sandbox_ended(&self.tree.ended));
                }
                if self.tree.process.is_counted() {
                    outcome.usage = Usage {
                        cpu_time: Some((exit.user + exit.system).as_secs_f64()),
                        peak_memory: Some(exit.max_rss),
                    };
                }
            }
            lost => {
                outcome.exit_code = 128 + SIGKILL;
                let broken = lost.and_then(Result::err);
                let broken = broken.filter(|error| error.kind() == ErrorKind::ConnectionLost);
                outcome.failure = Some(match (self.tree.ended.get(), broken) {
                    (None, Some(error)) => failure(FailureKind::ConnectionLost, error.message()),
                    _ => sandbox_ended(&self.tree.ended),
                });
            }
        }
        let told = outcome.failure.as_ref().map(|failure| failure.kind);
        if told != Some(FailureKind::OutOfMemory) {
            outcome.hint = self.tree.process.others_out_of_memory(self.oom_kills);
        }
        if let Some(limit) = self.output_limit.filter(|_| self.progress.exceeded)
            && outcome.failure.is_none()
        {
            let message = format!("command was ended: it put out more than {limit}");
            outcome.failure = Some(failure(FailureKind::OutputLimit, &message));
        }
        if let Some(failure) = self.end.exceeded_limit.get() {
            outcome.failure = Some(failure.clone());
        }
        outcome
    }

    fn stop_tasks(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

fn sandbox_ended(reason: &EndReason) -> Failure {
    match reason.get() {
        Some(FailureKind::Expired) => failure(
            FailureKind::Expired,
            "the sandbox reached the end of its lifetime or idle time",
        ),
        kind => failure(
            kind.unwrap_or(FailureKind::Terminated),
            &reason.explain("the sandbox was ended"),
        ),
    }
}

fn failure(kind: FailureKind, message: &str) -> Failure {
    Failure { kind, message: message.to_owned(), signal: None }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_tasks();
        if self.progress.finished {
            return;
        }
        self.end.set();
        match tokio::runtime::Handle::try_current() {
            Ok(_) => drop(self.tree.kill()),
            Err(_) => drop(self.tree.process.signal(SIGKILL)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use async_trait::async_trait;
    use sandbox_core::{Error, Result};

    use super::*;
    use crate::host::{Spawn, Spawned, WorkerIo, WorkerSpec};

    /// A process that cannot be observed, and the sandbox that it is in.
    #[derive(Debug, Default)]
    struct Unseen {
        killed: watch::Sender<bool>,
        /// Set when only the end of its sandbox ends the process.
        is_stubborn: bool,
        box_was_killed: AtomicBool,
    }

    #[async_trait]
    impl ProcessHost for Unseen {
        async fn spawn(&self, _spec: Spawn) -> Result<Spawned> {
            Err(Error::unsupported("start_command", "there is one already"))
        }

        async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
            Err(Error::unsupported("start_interpreter", "there are none"))
        }

        fn kill(&self) {
            self.box_was_killed.store(true, Ordering::Relaxed);
            self.killed.send_replace(true);
        }

        async fn closed(&self) {}
    }

    #[async_trait]
    impl Process for Unseen {
        fn pid(&self) -> u32 {
            7
        }

        async fn register(&self, _pid: u32) -> Result<()> {
            Ok(())
        }

        fn is_dead(&self) -> bool {
            *self.killed.borrow()
        }

        fn poll_exited(&self, _cx: &mut Context<'_>) -> Poll<()> {
            unreachable!("its end is awaited")
        }

        async fn exit(&self) -> Result<Exit> {
            let _ = self.killed.subscribe().wait_for(|killed| *killed).await;
            Ok(Exit {
                code: None,
                signal: Some(SIGKILL),
                user: Duration::ZERO,
                system: Duration::ZERO,
                max_rss: 0,
            })
        }

        fn signal(&self, _signal: i32) -> Result<()> {
            Ok(())
        }

        async fn signal_tree(&self, _signal: i32) -> Result<()> {
            Ok(())
        }

        async fn kill_tree(&self) -> Result<()> {
            if self.is_stubborn {
                return pending().await;
            }
            self.killed.send_replace(true);
            Ok(())
        }

        async fn end_started(
            &self,
            _since: tokio::time::Instant,
            _former: Option<tokio::time::Instant>,
        ) {
        }

        fn cpu_time(&self) -> Option<Duration> {
            None
        }

        fn peak_memory(&self) -> Option<u64> {
            None
        }
    }

    async fn ended(unseen: Arc<Unseen>, limits: Limits) -> Option<Failure> {
        let end = Arc::new(CommandEnd::default());
        let process = Arc::<Unseen>::clone(&unseen);
        let tree = ProcessTree { process, host: unseen, ended: Arc::default() };
        let watched = watch(tree, limits, Arc::clone(&end));
        timeout(Duration::from_secs(60), watched).await.ok()?;
        end.exceeded_limit.get().cloned()
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_can_count_does_not_run_without_its_limit() {
        let cpu = Some(Duration::from_secs(1));
        let unseen = Arc::new(Unseen::default());
        let limits = Limits { wall: None, cpu };
        let failure = ended(Arc::clone(&unseen), limits).await.expect("it was ended");
        assert_eq!(failure.kind, FailureKind::CpuTime);
        assert!(failure.message.contains("cannot be limited"), "{failure:?}");
        // The control of this test: without that limit it continues.
        assert!(ended(Arc::default(), Limits { wall: None, cpu: None }).await.is_none());
        assert!(!unseen.box_was_killed.load(Ordering::Relaxed), "the sandbox goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_ended_takes_its_sandbox_along() {
        let unseen = Arc::new(Unseen { is_stubborn: true, ..Unseen::default() });
        let limits = Limits { wall: Some(Duration::from_secs(1)), cpu: None };
        let failure = ended(Arc::clone(&unseen), limits).await.expect("it was ended");
        assert_eq!(failure.kind, FailureKind::Timeout);
        assert!(unseen.box_was_killed.load(Ordering::Relaxed));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_ended_is_not_forgotten_with_its_command() {
        let unseen = Arc::new(Unseen { is_stubborn: true, ..Unseen::default() });
        let process = Arc::<Unseen>::clone(&unseen);
        let host = Arc::<Unseen>::clone(&unseen);
        let tree = ProcessTree { process, host, ended: Arc::default() };
        let limits = Limits { wall: Some(Duration::from_secs(1)), cpu: None };
        let watched = tokio::spawn(watch(tree, limits, Arc::default()));
        sleep(Duration::from_secs(2)).await;
        // As where the program itself has ended, and what it started has not.
        watched.abort();
        sleep(Duration::from_secs(20)).await;
        assert!(unseen.box_was_killed.load(Ordering::Relaxed));
    }
}
