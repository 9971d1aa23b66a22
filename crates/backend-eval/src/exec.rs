//! Commands that run beside the interpreters.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::unfold;
use sandbox_agent::box_io::{Exit, Process, Readable, Spawned};
use sandbox_agent::interpreter::{EndReason, feed};
use sandbox_core::{
    Command, CommandControl, CommandEvent, CommandOutcome, Error, Failure, FailureKind,
    OutputStream, PtySize, Result, Stdin, Usage, random_hex,
};
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::expiry::InUse;

/// Most bytes taken from a stream at once.
const CHUNK: usize = 64 << 10;

/// More than a pipe holds back: after that much, everything the command itself wrote has been read.
const DRAIN_BOUND: usize = 1 << 20;

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// Makes a command of a started program.
///
/// `started` is when it was asked for: when this is called it may be over.
pub(crate) fn command(
    spawned: Spawned,
    started: Instant,
    stdin: Stdin,
    timeout: Option<Duration>,
    in_use: InUse,
    ended: Arc<EndReason>,
) -> Command {
    let Spawned { process, stdin: input, stdout, stderr } = spawned;
    let end = Arc::new(End::default());
    let watch = watch(Arc::clone(&process), timeout, Arc::clone(&end));
    let mut tasks = vec![tokio::spawn(watch).abort_handle()];
    if let Some(input) = input {
        tasks.push(tokio::spawn(feed(input, stdin)).abort_handle());
    }
    let pid = process.pid();
    let control = Arc::new(Control { process: Arc::clone(&process) });
    let running = Running {
        process,
        streams: [Some(stdout), Some(stderr)],
        buffer: vec![0; CHUNK],
        exit: None,
        owed: [DRAIN_BOUND; 2],
        started,
        limit: timeout,
        end,
        finished: false,
        tasks,
        ended,
        _in_use: in_use,
    };
    let events = unfold(running, |mut running| async move {
        let event = running.next_event().await?;
        Some((event, running))
    });
    Command { id: random_hex(4), pid: Some(pid), events: Box::pin(events), control }
}

/// How a command ended, whether or not anybody reads its events by then.
#[derive(Debug, Default)]
struct End {
    timed_out: AtomicBool,
    at: OnceLock<Instant>,
}

/// Kills a command that is not over in time, and notes when it was over.
async fn watch(process: Arc<dyn Process>, limit: Option<Duration>, end: Arc<End>) {
    let mut exit = process.exit();
    if let Some(limit) = limit {
        tokio::select! {
            biased;
            _ = &mut exit => drop(end.at.set(Instant::now())),
            () = sleep(limit) => {
                end.timed_out.store(true, Ordering::Release);
                let _ = process.kill_tree().await;
            }
        }
    }
    if end.at.get().is_none() {
        let _ = exit.await;
        let _ = end.at.set(Instant::now());
    }
}

/// A running command as a stream of events. Dropping it ends the command.
#[derive(Debug)]
struct Running {
    process: Arc<dyn Process>,
    streams: [Option<Box<dyn Readable>>; 2],
    buffer: Vec<u8>,
    exit: Option<Result<Exit>>,
    /// Bytes of each stream to look for once the command has ended.
    owed: [usize; 2],
    started: Instant,
    limit: Option<Duration>,
    end: Arc<End>,
    finished: bool,
    tasks: Vec<AbortHandle>,
    /// Why the sandbox ended, when it has.
    ended: Arc<EndReason>,
    _in_use: InUse,
}

enum Next {
    Output(OutputStream, Bytes),
    Exited(Result<Exit>),
}

impl Running {
    async fn next_event(&mut self) -> Option<CommandEvent> {
        if self.finished {
            return None;
        }
        if self.exit.is_none() {
            match self.output_or_exit().await {
                Next::Output(stream, data) => return Some(CommandEvent::Output { stream, data }),
                Next::Exited(exit) => self.exit = Some(exit),
            }
        }
        if let Some(event) = self.rest_of_output() {
            return Some(event);
        }
        self.finished = true;
        Some(CommandEvent::Finished(self.outcome()))
    }

    async fn output_or_exit(&mut self) -> Next {
        let process = Arc::clone(&self.process);
        let mut exit = pin!(process.exit());
        poll_fn(|cx| {
            for (index, stream) in STREAMS.into_iter().enumerate() {
                while self.streams[index]
                    .as_ref()
                    .is_some_and(|source| source.poll_readable(cx).is_ready())
                {
                    match self.read(index) {
                        Ok(Some(data)) => return Poll::Ready(Next::Output(stream, data)),
                        Ok(None) => self.streams[index] = None,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(_) => self.streams[index] = None,
                    }
                }
            }
            exit.as_mut().poll(cx).map(Next::Exited)
        })
        .await
    }

    /// What the command itself had written when it ended. Background children may write on; that is not waited for.
    fn rest_of_output(&mut self) -> Option<CommandEvent> {
        for (index, stream) in STREAMS.into_iter().enumerate() {
            if self.streams[index].is_some() && self.owed[index] > 0 {
                if let Ok(Some(data)) = self.read(index) {
                    self.owed[index] = self.owed[index].saturating_sub(data.len());
                    return Some(CommandEvent::Output { stream, data });
                }
                self.owed[index] = 0;
            }
        }
        None
    }

    fn read(&mut self, index: usize) -> io::Result<Option<Bytes>> {
        let Some(source) = &self.streams[index] else { return Ok(None) };
        let count = source.try_read(&mut self.buffer)?;
        Ok((count > 0).then(|| Bytes::copy_from_slice(&self.buffer[..count])))
    }

    fn outcome(&mut self) -> CommandOutcome {
        self.stop_tasks();
        let end = self.end.at.get().copied().unwrap_or_else(Instant::now);
        let mut outcome = CommandOutcome {
            duration: end.saturating_duration_since(self.started).as_secs_f64(),
            ..CommandOutcome::default()
        };
        match self.exit.take() {
            Some(Ok(exit)) => {
                outcome.exit_code = exit.status();
                outcome.signal = exit.signal;
                outcome.usage = Usage {
                    cpu_time: Some((exit.user + exit.system).as_secs_f64()),
                    peak_memory: Some(exit.max_rss),
                };
            }
            _ => {
                outcome.exit_code = 137;
                outcome.failure = Some(sandbox_ended(self.ended.get()));
            }
        }
        if self.end.timed_out.load(Ordering::Acquire) {
            let limit = self.limit.unwrap_or_default().as_secs_f64();
            let message = format!("command timed out after {limit} seconds");
            outcome.failure = Some(failure(FailureKind::Timeout, &message));
        }
        outcome
    }

    fn stop_tasks(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}

fn sandbox_ended(reason: Option<FailureKind>) -> Failure {
    match reason {
        Some(FailureKind::Expired) => failure(
            FailureKind::Expired,
            "the sandbox reached the end of its lifetime or idle time",
        ),
        _ => failure(FailureKind::Terminated, "the sandbox was ended"),
    }
}

fn failure(kind: FailureKind, message: &str) -> Failure {
    Failure { kind, message: message.to_owned(), signal: None }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop_tasks();
        if self.finished {
            return;
        }
        let process = Arc::clone(&self.process);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move { process.kill_tree().await })),
            Err(_) => {
                const SIGKILL: i32 = 9;
                let _ = process.signal(SIGKILL);
            }
        }
    }
}

#[derive(Debug)]
struct Control {
    process: Arc<dyn Process>,
}

#[async_trait]
impl CommandControl for Control {
    async fn write_stdin(&self, _data: Bytes) -> Result<()> {
        Err(no_open_stdin("write_stdin"))
    }

    async fn close_stdin(&self) -> Result<()> {
        Err(no_open_stdin("close_stdin"))
    }

    async fn resize(&self, _size: PtySize) -> Result<()> {
        Err(Error::unsupported("resize", "the command has no terminal"))
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        const SIGKILL: i32 = 9;
        match (tree, signal) {
            (true, SIGKILL) => self.process.kill_tree().await,
            (true, _) => self.process.signal_tree(signal).await,
            (false, _) => self.process.signal(signal),
        }
    }
}

fn no_open_stdin(operation: &'static str) -> Error {
    Error::unsupported(operation, "the standard input of this command was given with its request")
        .with_hint("give the command a stream as its standard input")
}
