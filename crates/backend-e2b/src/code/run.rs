//! One run of code, from its turn to its outcome.

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_core::{
    CallContext, CodeError, DisplayKind, Effect, Error, ErrorKind, Event, EventKind, EventStream,
    Failure, FailureKind, InterpreterState, OutputStream, Result, RunCode, RunOutcome,
    format_duration, new_run_id, random_hex, unix_now,
};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::context::{CodeContext, Running, Stop};
use super::interpreter::Lines;
use super::variables::literal;
use super::wire::Line;

/// Events that wait for their reader; then the code is held back.
const QUEUE_CAPACITY: usize = 64;

/// Time after which code counts as started that has not told so: another client may be before it.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The exception that `sys.exit` raises.
const EXIT: &str = "SystemExit";

/// A run that is described.
#[derive(Debug)]
pub(super) struct RunSpec {
    id: String,
    code: String,
    env: BTreeMap<String, String>,
    timeout: Option<Duration>,
    /// An absolute directory for this run alone.
    cwd: Option<String>,
}

impl RunSpec {
    pub(super) fn new(call: &CallContext, request: RunCode, cwd: Option<String>) -> Self {
        Self {
            id: call.run_id.clone().unwrap_or_else(new_run_id),
            code: request.code,
            env: request.env,
            timeout: request.timeout,
            cwd,
        }
    }
}

/// Starts a run, which is done whether or not its events are read, and ended when they are dropped.
///
/// # Errors
/// What kept a run from starting whose turn it is. Later failures are in the outcome.
pub(super) async fn start(context: Arc<CodeContext>, spec: RunSpec) -> Result<EventStream> {
    let (sender, mut receiver) = mpsc::channel(QUEUE_CAPACITY);
    let (begun, begins) = oneshot::channel();
    let mut turn = Box::pin(Arc::clone(&context.turn).lock_owned());
    // Takes its place in the queue before the next run can.
    let taken = turn.as_mut().now_or_never();
    let is_next = taken.is_some();
    tokio::spawn(async move {
        let turn = match taken {
            Some(turn) => turn,
            None => tokio::select! {
                turn = turn => turn,
                () = sender.closed() => return,
            },
        };
        let running = context.begin(turn);
        let begun = is_next.then_some(begun);
        Active { running, sender, run_id: spec.id.clone(), seq: 0, events: VecDeque::new(), begun }
            .run(spec)
            .await;
    });
    if is_next && let Ok(Err(error)) = begins.await {
        return Err(error);
    }
    Ok(Box::pin(futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx))))
}

/// The reason of an end that the interpreter did not report.
enum End {
    Reported,
    /// The interpreter reported that the code did not end by itself.
    Failed(Failure),
    Lost(String),
    NotRun(String),
    Timeout(Duration),
    Stopped(Stop),
    Dropped,
}

struct Active {
    running: Running,
    sender: mpsc::Sender<Event>,
    run_id: String,
    seq: u64,
    /// Events that wait for room.
    events: VecDeque<EventKind>,
    /// Tells the caller that the run has begun, or why not.
    begun: Option<oneshot::Sender<Result<()>>>,
}

impl Active {
    async fn run(mut self, spec: RunSpec) {
        let context = Arc::clone(&self.running.context);
        let mut outcome = RunOutcome { started_at: unix_now(), ..RunOutcome::default() };
        if !context.is_marked()
            && let Err(error) = context.mark().await
        {
            return self.not_begun(&context, outcome, error).await;
        }
        let former = match self.enter(&context, spec.cwd.as_deref()).await {
            Ok(former) => former,
            Err(end) => return self.finish(&context, outcome, end).await,
        };
        let mut request = context.request(spec.code);
        request.env.extend(spec.env);
        let restarted = context.is_new.swap(false, Ordering::Relaxed);
        let context_id = context.described.id.clone();
        self.events.push_back(EventKind::Started { context_id, restarted });
        outcome.started_at = unix_now();
        let opening = context.interpreter.execute(&request);
        let opened = tokio::select! {
            opened = opening => opened,
            stop = self.running.stopped() => {
                return self.finish(&context, outcome, End::Stopped(stop)).await;
            }
            () = self.sender.closed() => return self.finish(&context, outcome, End::Dropped).await,
        };
        let end = match opened {
            Ok(lines) => {
                self.begin(Ok(()));
                self.read(lines, spec.timeout, &mut outcome).await
            }
            Err(error) => return self.not_begun(&context, outcome, error).await,
        };
        if let Some(former) = former {
            leave(&context, &former).await;
        }
        self.finish(&context, outcome, end).await;
    }

    /// Tells the caller that the run has begun, or why not. Returns false when the caller no longer waits for that.
    fn begin(&mut self, begun: Result<()>) -> bool {
        self.begun.take().is_some_and(|sender| sender.send(begun).is_ok())
    }

    /// Reports a run that did not begin: to its caller, or as its outcome.
    async fn not_begun(mut self, context: &CodeContext, outcome: RunOutcome, error: Error) {
        let end = refused(&error);
        // A sandbox that its own handle ends meanwhile ends the run as well.
        let is_known =
            error.effect() == Effect::NotSent && !context.interpreter.handle().is_ending();
        if !is_known || !self.begin(Err(error)) {
            self.finish(context, outcome, end).await;
        }
    }

    /// Changes to the directory of the run. Returns the one before.
    async fn enter(
        &mut self,
        context: &CodeContext,
        cwd: Option<&str>,
    ) -> std::result::Result<Option<String>, End> {
        let Some(cwd) = cwd else { return Ok(None) };
        let word = random_hex(16);
        let code = format!(
            "(lambda o, w: o.write(w + __import__('os').getcwd() + chr(10)))(__import__('sys').stdout, '{word}'); \
             __import__('os').chdir({})",
            literal(cwd)
        );
        match context.ask_now("run_code", code).await {
            Ok(printed) => {
                let former = printed.lines().find_map(|line| line.strip_prefix(&*word));
                Ok(former.map(str::to_owned))
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                Err(End::NotRun(format!("working directory {cwd}: {}", error.message())))
            }
            Err(error) => Err(End::Lost(error.to_string())),
        }
    }

    /// Reads the lines of the run until its end.
    async fn read(
        &mut self,
        mut lines: Lines,
        limit: Option<Duration>,
        outcome: &mut RunOutcome,
    ) -> End {
        let mut deadline = limit.map(|limit| Instant::now() + limit + MAX_WAIT);
        let sender = self.sender.clone();
        let (mut has_started, mut reported) = (false, false);
        loop {
            if reported && self.events.is_empty() {
                return End::Reported;
            }
            let is_blocked = !self.events.is_empty();
            tokio::select! {
                biased;
                () = sender.closed() => return End::Dropped,
                stop = self.running.stopped(), if !reported => return End::Stopped(stop),
                () = until(deadline), if !reported => {
                    return End::Timeout(limit.unwrap_or_default());
                }
                permit = sender.reserve(), if is_blocked => {
                    if let (Ok(permit), Some(kind)) = (permit, self.events.pop_front()) {
                        permit.send(event(&self.run_id, &mut self.seq, kind));
                    }
                }
                line = lines.next(), if !is_blocked && !reported => {
                    let line = match line {
                        Some(Ok(line)) => line,
                        Some(Err(error)) => return End::Lost(error.message().to_owned()),
                        None => {
                            let why = "the connection to the code interpreter broke";
                            return End::Lost(why.to_owned());
                        }
                    };
                    if !has_started && line != Line::Other {
                        has_started = true;
                        // What is less is the way to the sandbox and back.
                        let now = unix_now();
                        if now - outcome.started_at > MAX_WAIT.as_secs_f64() {
                            outcome.started_at = now;
                        }
                        deadline = limit.map(|limit| Instant::now() + limit);
                    }
                    match line {
                        Line::Failed(kind, message) => {
                            return End::Failed(Failure { kind, message, signal: None });
                        }
                        Line::End => reported = true,
                        line => self.take(line, outcome),
                    }
                }
            }
        }
    }

    fn take(&mut self, line: Line, outcome: &mut RunOutcome) {
        let kind = match line {
            Line::Count(count) => {
                outcome.execution_count = self.running.context.count(count);
                return;
            }
            Line::Output(stream, text) => {
                let stream = if stream == 0 { OutputStream::Stdout } else { OutputStream::Stderr };
                EventKind::Output { stream, data: Bytes::from(text) }
            }
            Line::Result(item) => {
                let display =
                    if item.is_main_result { DisplayKind::Result } else { DisplayKind::Display };
                EventKind::Display { display, item, display_id: None }
            }
            Line::Error(error) if error.name == EXIT => {
                let (status, said) = exit_status(&error);
                outcome.exit_code = Some(status);
                let Some(said) = said else { return };
                EventKind::Output { stream: OutputStream::Stderr, data: Bytes::from(said + "\n") }
            }
            Line::Error(error) => EventKind::Error(error),
            Line::End | Line::Failed(..) | Line::Other => return,
        };
        self.events.push_back(kind);
    }

    /// Reports the outcome. What was interrupted is waited for first, so that the next run finds a free interpreter.
    async fn finish(self, context: &CodeContext, mut outcome: RunOutcome, end: End) {
        let failure = |kind, message: String| Failure { kind, message, signal: None };
        match end {
            End::Reported => {}
            End::Failed(reported) => {
                if matches!(reported.kind, FailureKind::KernelDied | FailureKind::OutOfMemory) {
                    context.unmark();
                    context.is_new.store(true, Ordering::Relaxed);
                    outcome.state = InterpreterState::Lost;
                }
                let handle = context.interpreter.handle();
                outcome.failure = Some(reported);
                handle.map_outcome(&mut outcome).await;
                // The reason for which this handle has ended the sandbox is better known here.
                if let (Some(failure), Some(kind)) =
                    (&mut outcome.failure, handle.end_reason().get())
                    && failure.kind == FailureKind::Terminated
                {
                    failure.kind = kind;
                }
            }
            End::NotRun(why) => outcome.failure = Some(failure(FailureKind::NotRun, why)),
            End::Lost(why) => {
                outcome.failure = Some(failure(FailureKind::ConnectionLost, why));
                context.interpreter.handle().map_outcome(&mut outcome).await;
                if !context.interpreter.handle().has_ended() {
                    outcome.state = settled(context).await;
                }
            }
            End::Timeout(limit) => {
                let message = format!("execution timed out after {}", format_duration(limit));
                outcome.completed_at = unix_now();
                outcome.failure = Some(failure(FailureKind::Timeout, message));
                outcome.state = settled(context).await;
            }
            End::Stopped(Stop::Interrupted) => {
                outcome.interrupted = true;
                outcome.state = settled(context).await;
            }
            End::Stopped(stop) => {
                let what = if stop == Stop::Deleted { "deleted" } else { "started again" };
                let message = format!("the context was {what} during the run");
                outcome.failure = Some(failure(FailureKind::KernelDied, message));
                outcome.state = InterpreterState::Lost;
            }
            End::Dropped => {
                settled(context).await;
                return;
            }
        }
        if outcome.completed_at == 0.0 {
            outcome.completed_at = unix_now();
        }
        if self.running.has_lost_its_interpreter() {
            outcome.state = InterpreterState::Lost;
        }
        // Another run may begin, and this one is no longer interrupted.
        let Self { sender, run_id, mut seq, events, running, begun } = self;
        drop(begun);
        drop(running);
        for kind in events.into_iter().chain([EventKind::Finished(outcome)]) {
            if sender.send(event(&run_id, &mut seq, kind)).await.is_err() {
                return;
            }
        }
    }
}

fn event(run_id: &str, seq: &mut u64, kind: EventKind) -> Event {
    let event = Event { run_id: run_id.to_owned(), seq: *seq, timestamp: unix_now(), kind };
    *seq += 1;
    event
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// Waits for an interrupted interpreter.
async fn settled(context: &CodeContext) -> InterpreterState {
    let state = context.settle().await;
    if state == InterpreterState::Lost {
        context.is_new.store(true, Ordering::Relaxed);
    }
    state
}

/// Goes back to the directory before a run.
async fn leave(context: &CodeContext, former: &str) {
    let code = format!("__import__('os').chdir({})", literal(former));
    if let Err(error) = context.ask_now("run_code", code).await {
        tracing::debug!(%error, "the directory of the context is not restored");
    }
}

/// Returns the end of code that was not started.
fn refused(error: &Error) -> End {
    match error.kind() {
        ErrorKind::ConnectionLost | ErrorKind::Unavailable | ErrorKind::Timeout => {
            End::Lost(error.message().to_owned())
        }
        _ => End::NotRun(error.to_string()),
    }
}

/// Returns the status of `sys.exit`, and the text that Python prints for one that is no number.
fn exit_status(error: &CodeError) -> (i32, Option<String>) {
    match error.value.trim() {
        "" | "None" | "False" => (0, None),
        "True" => (1, None),
        text => match text.parse::<i64>() {
            // As the status of a process.
            Ok(number) => ((number & 0xff) as i32, None),
            Err(_) => (1, Some(json!(text).as_str().unwrap_or_default().to_owned())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_have_the_status_of_a_process() {
        let status = |value: &str| {
            exit_status(&CodeError { name: EXIT.into(), value: value.into(), traceback: "".into() })
        };
        assert_eq!(status(""), (0, None));
        assert_eq!(status("3"), (3, None));
        assert_eq!(status("-1"), (255, None));
        assert_eq!(status("bye"), (1, Some("bye".into())));
    }
}
