//! One run, from its request to its last event.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use sandbox_core::{
    ByteSize, CodeError, DisplayKind, Error, Event, EventKind, Failure, FailureKind,
    InterpreterState, Result, ResultItem, RunOutcome, Stdin, Usage, format_duration, unix_now,
};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::context::Slot;
use super::json::count_values;
use super::outcome::{
    alive, broken, dead, died_of, gave_up, goes_on, over_memory_limit, over_output_limit,
};
use super::tools::ToolCalls;
use super::watchdog::{Cause, Ended};
use super::worker::{Worker, WorkerEvent};
use crate::host::{Exit, Process};
use crate::message::{Encoding, MimeData, Reply, Request, WireDisplayKind};
use crate::process::{EndReason, StdinCounter, feed};

/// Minimum duration of a run that reports the memory of the interpreter: reading it takes a while.
const WORTH_MEASURING: Duration = Duration::from_millis(5);

const SIGKILL: i32 = 9;

/// Maximum number of characters of the message with which an interpreter exits.
const MAX_EXIT_MESSAGE: usize = 1000;

/// A run, which holds the slot of its context until the run has ended.
#[derive(Debug)]
pub(crate) struct ActiveRun {
    slot: Option<OwnedMutexGuard<Slot>>,
    id: i64,
    run_id: String,
    seq: u64,
    ready: VecDeque<Event>,
    outcome: RunOutcome,
    started: Instant,
    /// Set when the worker has answered, and waits for the next request.
    answered: bool,
    /// The latest time at which the code can have ended.
    at_most: Option<Instant>,
    cpu_before: Option<Duration>,
    /// The number of processes that the kernel had killed for memory when the run started.
    oom_kills: u64,
    limit: String,
    ended: Arc<EndReason>,
    calls: Arc<ToolCalls>,
    stdin: Option<JoinHandle<()>>,
    taken: Option<Arc<StdinCounter>>,
    /// The message with which the interpreter exits.
    exit_message: Option<String>,
    /// The cause of the death, where its process knows it.
    died_of: Option<(FailureKind, String)>,
    /// What could not be killed.
    goes_on: Option<&'static str>,
    pub(crate) network_hint: Option<String>,
    pub(crate) hidden_paths: Vec<PathBuf>,
    output: Option<OutputBudget>,
    pub(crate) memory_limit: Option<ByteSize>,
}

/// The output that is still allowed.
#[derive(Clone, Copy, Debug)]
struct OutputBudget {
    limit: ByteSize,
    left: u64,
    exceeded: bool,
}

impl ActiveRun {
    pub(crate) fn new(
        slot: OwnedMutexGuard<Slot>,
        id: i64,
        run_id: String,
        wall: Option<Duration>,
        ended: Arc<EndReason>,
        calls: Arc<ToolCalls>,
    ) -> Self {
        let process = slot.worker.as_ref().map(|worker| &worker.io.process);
        let cpu_before = process.and_then(|process| process.cpu_time());
        let oom_kills = process.map_or(0, |process| process.oom_kills());
        Self {
            slot: Some(slot),
            id,
            run_id,
            seq: 0,
            ready: VecDeque::new(),
            outcome: RunOutcome { started_at: unix_now(), ..RunOutcome::default() },
            started: Instant::now(),
            answered: false,
            at_most: None,
            cpu_before,
            oom_kills,
            limit: wall.map_or_else(String::new, format_duration),
            ended,
            calls,
            stdin: None,
            taken: None,
            exit_message: None,
            died_of: None,
            goes_on: None,
            network_hint: None,
            hidden_paths: Vec::new(),
            output: None,
            memory_limit: None,
        }
    }

    /// Kills the run once its output exceeds the limit.
    pub(crate) fn limit_output(&mut self, limit: Option<ByteSize>) {
        self.output =
            limit.map(|limit| OutputBudget { limit, left: limit.as_u64(), exceeded: false });
    }

    /// Returns how many of the bytes are within the limit. The first byte beyond the limit kills the run.
    fn allow(&mut self, bytes: usize) -> usize {
        let Some(output) = &mut self.output else { return bytes };
        let allowed = usize::try_from(output.left).map_or(bytes, |left| left.min(bytes));
        output.left -= allowed as u64;
        if allowed < bytes && !output.exceeded {
            output.exceeded = true;
            let id = self.id;
            if let Some(worker) = self.worker() {
                worker.watchdog.stop(id, Cause::OutputLimit);
            }
        }
        allowed
    }

    fn worker(&mut self) -> Option<&mut Worker> {
        self.slot.as_mut()?.worker.as_mut()
    }

    fn push(&mut self, kind: EventKind) {
        let event =
            Event { run_id: self.run_id.clone(), seq: self.seq, timestamp: unix_now(), kind };
        self.seq += 1;
        self.ready.push_back(event);
    }

    /// Reports the first event.
    pub(crate) fn started(&mut self, context: &str, restarted: bool) {
        self.push(EventKind::Started { context_id: context.to_owned(), restarted });
    }

    /// Sends the request and starts to feed standard input. A worker that dies meanwhile shows in the events.
    ///
    /// # Errors
    /// When the request is too large.
    pub(crate) async fn send(&mut self, request: &Request, stdin: Stdin) -> Result<()> {
        let Some(worker) = self.worker() else { return Ok(()) };
        let wants_input = !matches!(stdin, Stdin::Empty);
        match worker.send(request, wants_input).await {
            Ok(Some(input)) => {
                let taken = Arc::<StdinCounter>::default();
                self.taken = Some(Arc::clone(&taken));
                self.stdin = Some(tokio::spawn(feed(input, stdin, taken)));
            }
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let id = self.id;
                if let Some(worker) = self.worker() {
                    worker.watchdog.end(id);
                }
                self.slot = None;
                return Err(Error::invalid("code", format!("is too large: {error}")));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Returns the next event; `None` after the last.
    pub(crate) async fn next_event(&mut self) -> Option<Event> {
        while self.ready.is_empty() {
            let worker = self.slot.as_mut()?.worker.as_mut()?;
            match worker.next().await {
                WorkerEvent::Output(stream, mut data) => {
                    data.truncate(self.allow(data.len()));
                    if !data.is_empty() {
                        self.push(EventKind::Output { stream, data });
                    }
                }
                WorkerEvent::Reply(reply) => self.reply(reply).await,
                WorkerEvent::Broken(problem) => self.finish_broken(&problem).await,
                WorkerEvent::Dead => self.finish_dead().await,
            }
        }
        self.ready.pop_front()
    }

    async fn reply(&mut self, reply: Reply) {
        match reply {
            Reply::Display { id, kind, bundle, metadata, display_id } if id == self.id => {
                self.display(kind, bundle, &metadata, display_id);
            }
            Reply::ClearOutput { id, wait } if id == self.id => {
                self.push(EventKind::ClearOutput { wait });
            }
            Reply::Error { id, name, mut value, traceback } if id == self.id => {
                if let Some(hint) = self.network_hint.clone().filter(|_| is_about_network(&value)) {
                    value = format!("{value} ({hint})");
                    self.outcome.hint = Some(hint);
                } else if let Some(hint) = install_hint(&value) {
                    value = format!("{value} ({hint})");
                    self.outcome.hint = Some(hint);
                } else if let Some(place) = hidden_path_of(&self.hidden_paths, &name, &value) {
                    let place = place.display();
                    self.outcome.hint = Some(format!(
                        "it is in {place} of the host, which is not shown unless that is asked for: \
                         `.mount(Mount::new(\"{place}\", \"{place}\"))`"
                    ));
                }
                self.push(EventKind::Error(CodeError { name, value, traceback }));
            }
            Reply::Exit { id, code } if id == self.id => {
                let code =
                    i32::try_from(code).unwrap_or(if code < 0 { i32::MIN } else { i32::MAX });
                self.outcome.exit_code = Some(code);
            }
            Reply::Failed { id, message, .. } if id == self.id => {
                let kind = FailureKind::NotRun;
                self.outcome.failure = Some(Failure { kind, message, signal: None });
            }
            Reply::Refused { message, .. } => {
                self.exit_message = Some(message.chars().take(MAX_EXIT_MESSAGE).collect());
            }
            Reply::Done { id, execution_count, interrupted, background_threads }
                if id == self.id =>
            {
                self.outcome.execution_count = u64::try_from(execution_count).unwrap_or_default();
                self.outcome.interrupted = interrupted;
                self.outcome.background_threads = background_threads;
                self.finish_alive().await;
            }
            Reply::ToolCall { id, call, name, arguments } if id == self.id => {
                self.tool(|calls, permit| calls.call(call, name, arguments, permit)).await;
            }
            Reply::ListTools { id, call } if id == self.id => {
                self.tool(|calls, permit| calls.list(call, permit)).await;
            }
            Reply::CancelTool { id, call } if id == self.id => {
                self.calls.cancel(call);
            }
            other => self.finish_broken(&unexpected(&other)).await,
        }
    }

    /// Handles a request of code about the host's tools.
    async fn tool(
        &mut self,
        begin: impl FnOnce(&Arc<ToolCalls>, OwnedSemaphorePermit) -> Result<(), String>,
    ) {
        let id = self.id;
        let Some(permit) = self.calls.acquire_permit().await else { return };
        if !self.worker().is_some_and(|worker| worker.watchdog.called(id)) {
            return;
        }
        if let Err(problem) = begin(&self.calls, permit) {
            self.finish_broken(&problem).await;
        }
    }

    fn display(
        &mut self,
        kind: WireDisplayKind,
        bundle: Vec<MimeData>,
        metadata: &str,
        display_id: String,
    ) {
        let data = bundle.iter().map(|data| data.mime.len() + data.data.len());
        let size = data.sum::<usize>() + metadata.len() + display_id.len();
        if self.allow(size) < size {
            return;
        }
        let display = match kind {
            WireDisplayKind::Result => DisplayKind::Result,
            WireDisplayKind::Display => DisplayKind::Display,
            WireDisplayKind::Update => DisplayKind::Update,
        };
        let mut budget = JsonBudget(MAX_DISPLAYED_VALUES);
        let extra = match budget.parsed(metadata) {
            Some(Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let data = bundle.into_iter().map(|data| (data.mime.clone(), budget.value_of(data)));
        let item = ResultItem {
            data: data.collect(),
            is_main_result: display == DisplayKind::Result,
            extra,
        };
        let display_id = (!display_id.is_empty()).then_some(display_id);
        self.push(EventKind::Display { display, item, display_id });
    }

    async fn finish_alive(&mut self) {
        let (id, started) = (self.id, self.started);
        self.answered = true;
        let usage = self.usage();
        let process = self.worker().map(|worker| Arc::clone(&worker.io.process));
        self.note_memory(process.as_deref());
        if let Some(worker) = self.worker() {
            let ended = worker.end_run(id, started).await;
            let limit = std::mem::take(&mut self.limit);
            self.at_most = ended.at_most;
            if ended.killed {
                // The last message came too late, or the interpreter was killed after it.
                let (exit, _) = self.reap().await;
                if ended.finished {
                    alive(&mut self.outcome, ended.cause, &limit);
                    self.outcome.state = InterpreterState::Lost;
                } else {
                    dead(&mut self.outcome, exit, ended.cause, &self.ended, &limit);
                }
                return self.finish();
            }
            alive(&mut self.outcome, ended.cause, &limit);
        }
        self.outcome.usage = usage;
        self.finish();
    }

    /// Adds the hint that other processes were killed for memory. An existing hint explains this end better.
    fn note_memory(&mut self, process: Option<&dyn Process>) {
        if self.outcome.hint.is_none() {
            self.outcome.hint =
                process.and_then(|process| process.others_out_of_memory(self.oom_kills));
        }
    }

    fn usage(&mut self) -> Usage {
        let long = self.started.elapsed() >= WORTH_MEASURING;
        let before = self.cpu_before;
        let Some(worker) = self.worker() else { return Usage::default() };
        let process = &worker.io.process;
        let used = process.cpu_time().zip(before).map(|(now, before)| now.saturating_sub(before));
        Usage {
            cpu_time: used.map(|used| used.as_secs_f64()),
            peak_memory: if long { process.peak_memory() } else { None },
        }
    }

    async fn finish_dead(&mut self) {
        let (exit, cause) = self.reap().await;
        let limit = std::mem::take(&mut self.limit);
        dead(&mut self.outcome, exit, cause, &self.ended, &limit);
        goes_on(&mut self.outcome, self.goes_on.take());
        if let Some((kind, why)) = self.died_of.take() {
            died_of(&mut self.outcome, kind, why);
        }
        if let Some(words) = self.exit_message.take() {
            gave_up(&mut self.outcome, &words);
        }
        self.finish();
    }

    async fn finish_broken(&mut self, problem: &str) {
        let (exit, cause) = self.reap().await;
        match (self.ended.get(), cause, self.died_of.take()) {
            (None, None, None) => broken(&mut self.outcome, exit, problem),
            (_, cause, why) => {
                let limit = std::mem::take(&mut self.limit);
                dead(&mut self.outcome, exit, cause, &self.ended, &limit);
                goes_on(&mut self.outcome, self.goes_on.take());
                if let Some((kind, why)) = why {
                    died_of(&mut self.outcome, kind, why);
                }
            }
        }
        self.finish();
    }

    async fn reap(&mut self) -> (Option<Exit>, Option<Cause>) {
        let id = self.id;
        let Some(slot) = self.slot.as_mut() else { return (None, None) };
        slot.state_lost = true;
        let Some(worker) = slot.worker.take() else { return (None, None) };
        let Ended { cause, at_most, .. } = worker.watchdog.end(id);
        self.at_most = self.at_most.or(at_most);
        let process = Arc::clone(&worker.io.process);
        // A worker that closes its streams may be dying, and be reported as dead only a while later.
        let was_dead = process.is_dead() || worker.is_dying();
        self.died_of = process.lost_reason().map(|why| (FailureKind::ConnectionLost, why));
        self.goes_on = process.unkillable_reason();
        let exit = worker.reap().await;
        self.note_memory(Some(&*process));
        if was_dead && exit.is_some_and(|exit| exit.signal == Some(SIGKILL)) {
            let out_of_memory = process.out_of_memory(self.oom_kills);
            self.died_of =
                out_of_memory.map(|why| (FailureKind::OutOfMemory, why)).or(self.died_of.take());
        }
        if let Some(exit) = exit {
            let before = self.cpu_before.unwrap_or_default();
            let used = (exit.user + exit.system).saturating_sub(before);
            self.outcome.usage =
                Usage { cpu_time: Some(used.as_secs_f64()), peak_memory: Some(exit.max_rss) };
        }
        (exit, cause)
    }

    fn finish(&mut self) {
        self.outcome.stdin_read = self.taken.take().and_then(|taken| taken.read());
        if let Some(stdin) = self.stdin.take() {
            stdin.abort();
        }
        // A late reader sees the end late; the end of an interrupted or killed run was recorded when it happened.
        let now = Instant::now();
        let end = self.at_most.map_or(now, |at_most| now.min(at_most));
        let ran = end.saturating_duration_since(self.started);
        self.outcome.completed_at = self.outcome.started_at + ran.as_secs_f64();
        let mut outcome = std::mem::take(&mut self.outcome);
        let told = outcome.failure.as_ref().map(|failure| failure.kind);
        if told == Some(FailureKind::OutOfMemory) {
            outcome.hint = None;
        }
        if let Some(output) = self.output.filter(|output| output.exceeded) {
            over_output_limit(&mut outcome, output.limit);
        }
        if let Some(limit) = self.memory_limit {
            over_memory_limit(&mut outcome, limit);
        }
        self.push(EventKind::Finished(outcome));
        self.slot = None;
    }
}

impl Drop for ActiveRun {
    /// Cancels a run that was not read to its end, and keeps the slot until the code has stopped.
    fn drop(&mut self) {
        let Some(slot) = self.slot.take() else { return };
        if let Some(stdin) = self.stdin.take() {
            stdin.abort();
        }
        let Some(worker) = slot.worker.as_ref().filter(|_| !self.answered) else { return };
        worker.watchdog.cancel(self.id);
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(settle(slot, self.id, self.started))),
            Err(_) => abandon(slot),
        }
    }
}

/// Reads a cancelled run to its end.
async fn settle(slot: OwnedMutexGuard<Slot>, id: i64, started: Instant) {
    let mut slot = CleanupGuard(Some(slot));
    let Some(guard) = slot.0.as_mut() else { return };
    let Some(worker) = guard.worker.as_mut() else { return };
    loop {
        match worker.next().await {
            WorkerEvent::Reply(Reply::Done { id: done, .. }) if done == id => {
                if worker.end_run(id, started).await.killed {
                    break;
                }
                slot.0 = None;
                return;
            }
            WorkerEvent::Output(..) | WorkerEvent::Reply(_) => {}
            WorkerEvent::Broken(_) | WorkerEvent::Dead => break,
        }
    }
    guard.state_lost = true;
    if let Some(worker) = guard.worker.take() {
        worker.reap().await;
    }
    slot.0 = None;
}

/// A slot whose cancelled run has not stopped yet. When the runtime ends first, the interpreter is killed.
struct CleanupGuard(Option<OwnedMutexGuard<Slot>>);

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            abandon(slot);
        }
    }
}

fn abandon(mut slot: OwnedMutexGuard<Slot>) {
    slot.state_lost = true;
    slot.worker = None;
}

/// Maximum number of JSON values in one display, some 15 MB. What exceeds it stays the text that it is.
const MAX_DISPLAYED_VALUES: usize = 150_000;

/// The number of JSON values that a display may still have.
struct JsonBudget(usize);

impl JsonBudget {
    /// Parses the data. Base64 that does not decode and JSON that does not parse stay the text that they are.
    fn value_of(&mut self, data: MimeData) -> Value {
        match data.encoding {
            Encoding::Text => Value::String(data.data),
            Encoding::Base64 => {
                let decodes = base64::engine::general_purpose::STANDARD.decode(&data.data).is_ok();
                Value::String(if decodes { data.data } else { String::new() })
            }
            Encoding::Json => self.parsed(&data.data).unwrap_or(Value::String(data.data)),
        }
    }

    fn parsed(&mut self, json: &str) -> Option<Value> {
        const MAX_JSON_BYTES: usize = 1 << 20;
        let values = if json.len() > MAX_JSON_BYTES { return None } else { count_values(json) };
        self.0 = self.0.checked_sub(values)?;
        serde_json::from_str(json).ok()
    }
}

/// Describes a message that is not allowed here.
pub(crate) fn unexpected(reply: &Reply) -> String {
    let name = match reply {
        Reply::Ready { .. } => "ready",
        Reply::Refused { .. } => "refused",
        Reply::Display { .. } => "display",
        Reply::Marked { .. } => "marked",
        Reply::ClearOutput { .. } => "clear output",
        Reply::Error { .. } => "error",
        Reply::Exit { .. } => "exit",
        Reply::Done { .. } => "done",
        Reply::Value { .. } => "value",
        Reply::Failed { .. } => "failed",
        Reply::ToolCall { .. } => "tool call",
        Reply::ListTools { .. } => "list tools",
        Reply::CancelTool { .. } => "cancel tool",
        Reply::Acknowledged { .. } => "acknowledged",
    };
    format!("unexpected message `{name}`")
}

/// Returns the directory that has the missing module. The name of the module is a claim of the code.
fn hidden_path_of<'a>(hidden_paths: &'a [PathBuf], name: &str, value: &str) -> Option<&'a Path> {
    if name != "ModuleNotFoundError" || hidden_paths.is_empty() {
        return None;
    }
    let module = value.strip_prefix("No module named '")?.split(['.', '\'']).next()?;
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    if module.is_empty() || module.len() > 200 || !module.chars().all(is_name) {
        return None;
    }
    let has_it = |place: &&PathBuf| {
        place.join(module).is_dir() || place.join(format!("{module}.py")).is_file()
    };
    hidden_paths.iter().find(has_it).map(PathBuf::as_path)
}

/// Returns the advice for a `%pip` that has no network.
fn install_hint(value: &str) -> Option<String> {
    let words = value.strip_prefix("%pip has no network here; install from outside: ")?;
    let packages: Vec<_> = words.split(' ').map(|word| format!("{word:?}")).collect();
    Some(format!("`.install_packages([{}])`", packages.join(", ")))
}

fn is_about_network(value: &str) -> bool {
    const SIGNS: [&str; 6] = [
        "Network is unreachable",
        "Errno 101",
        "Temporary failure in name resolution",
        "Name or service not known",
        "No address associated with hostname",
        "NameResolutionError",
    ];
    SIGNS.iter().any(|sign| value.contains(sign))
}
