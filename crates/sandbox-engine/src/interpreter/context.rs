//! An execution context: one interpreter, started when it is needed, replaced when it dies.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::unfold;
use sandbox_core::{
    ByteSize, CallContext, CodeMode, Error, ErrorKind, EventStream, Result, RunCode, Stdin,
    new_run_id, resolve_directory,
};
use serde_json::{Map, Value};
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard};
use tokio::time::timeout;

use super::inbox::FinalReply;
use super::json::count_values;
use super::run::{ActiveRun, unexpected};
use super::suspend::SuspendedContext;
use super::tools::{ToolCalls, ToolSet};
use super::watchdog::{Cause, Limits, Watchdog};
use super::worker::{Worker, WorkerEvent};
use crate::host::{ProcessHost, WorkerSpec};
use crate::message::{Reply, Request, Run, RunMode, WireFailureKind};
use crate::process::EndReason;

/// Time limit of reading or setting a variable.
pub(super) const VARIABLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of JSON values in one variable, some 400 MB.
const MAX_VARIABLE_VALUES: usize = 4_000_000;

/// How long a run that has ended may still keep the slot.
const SLOT_RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// One interpreter with its queue. Cheap to clone.
#[derive(Clone, Debug)]
pub struct InterpreterContext {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    id: String,
    pub(super) host: Arc<dyn ProcessHost>,
    pub(super) spec: WorkerSpec,
    pub(super) ended: Arc<EndReason>,
    tools: ToolSet,
    /// The queue of the slot, first in, first out. A restart makes a new queue.
    slot: Mutex<Arc<AsyncMutex<Slot>>>,
    /// Notifies the callers in a queue that a restart has replaced it.
    restarted: Notify,
    /// The watchdog of the live interpreter, reachable while a run holds the slot.
    watchdog: Mutex<Option<Arc<Watchdog>>>,
}

/// The interpreter that the queue guards.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) worker: Option<Worker>,
    /// Set when an interpreter has died, until the next run has reported that its state is new.
    pub(crate) state_lost: bool,
}

/// Code to run in a context.
#[derive(Debug)]
pub struct RunRequest {
    /// Id of the run. `None`: a random one.
    pub run_id: Option<String>,
    /// The mode: cell or script.
    pub mode: RunMode,
    /// The source text.
    pub code: String,
    /// File name of a script; empty: `<cell-N>` or `<stdin>`.
    pub filename: String,
    /// Arguments of a script.
    pub argv: Vec<String>,
    /// Environment variables for this run only.
    pub env: BTreeMap<String, String>,
    /// Working directory for this run only.
    pub cwd: Option<String>,
    /// Wall-clock limit.
    pub timeout: Option<Duration>,
    /// CPU-time limit.
    pub cpu_time: Option<Duration>,
    /// Maximum growth of the memory.
    pub memory: Option<ByteSize>,
    /// Maximum number of bytes of output.
    pub output_limit: Option<ByteSize>,
    /// Standard input.
    pub stdin: Stdin,
    /// Added to exceptions that a missing network explains.
    pub network_hint: Option<String>,
    /// Directories of the host with modules that the sandbox does not show: named for a module that is missing.
    pub hidden_paths: Vec<PathBuf>,
}

impl RunRequest {
    /// Makes the request of a run. Its directory is relative to `base`.
    pub fn new(call: &CallContext, request: RunCode, base: &str) -> Self {
        let (mode, filename, argv) = match request.mode {
            CodeMode::Cell => (RunMode::Cell, String::new(), Vec::new()),
            CodeMode::Script { filename, argv } => {
                // As `sys.argv` has it: the program's own name first, `-` when it has none.
                let own = if filename.is_empty() { "-" } else { &filename };
                let argv = std::iter::once(own.to_owned()).chain(argv).collect();
                (RunMode::Script, filename, argv)
            }
        };
        Self {
            run_id: call.run_id.clone(),
            mode,
            code: request.code,
            filename,
            argv,
            env: request.env,
            cwd: request.cwd.map(|path| resolve_directory(base, &path)),
            timeout: request.timeout,
            cpu_time: request.cpu_time,
            memory: request.memory,
            output_limit: request.output_limit,
            stdin: request.stdin,
            network_hint: None,
            hidden_paths: Vec::new(),
        }
    }
}

impl InterpreterContext {
    /// Makes a context without an interpreter, whose code may call these tools.
    pub fn new(
        id: String,
        host: Arc<dyn ProcessHost>,
        spec: WorkerSpec,
        ended: Arc<EndReason>,
        tools: ToolSet,
    ) -> Self {
        let (slot, watchdog, restarted) = (Mutex::default(), Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { id, host, spec, ended, tools, slot, restarted, watchdog }) }
    }

    /// Returns the id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Returns how its interpreters are started.
    pub fn spec(&self) -> &WorkerSpec {
        &self.inner.spec
    }

    /// Starts the interpreter now, so that the first run does not wait for it.
    pub async fn warm_up(&self) -> Result<()> {
        self.acquire_slot().await.map(drop)
    }

    /// Waits for the slot, and makes sure that there is an interpreter in it.
    async fn acquire_slot(&self) -> Result<OwnedMutexGuard<Slot>> {
        loop {
            let mut restarted = pin!(self.inner.restarted.notified());
            restarted.as_mut().enable();
            let queue = Arc::clone(&*self.queue());
            let mut slot = tokio::select! {
                biased;
                () = restarted => continue,
                slot = queue.lock_owned() => slot,
            };
            self.worker(&mut slot).await?;
            if self.is_current(&slot) {
                return Ok(slot);
            }
            if let Some(worker) = slot.worker.take() {
                worker.reap().await;
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Arc<AsyncMutex<Slot>>> {
        self.inner.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true when the context was not restarted since.
    pub(super) fn is_current(&self, slot: &OwnedMutexGuard<Slot>) -> bool {
        Arc::ptr_eq(OwnedMutexGuard::mutex(slot), &self.queue())
    }

    /// Puts an interpreter into the slot. Interrupts and restarts reach it from now on, unless the context was restarted
    /// since.
    pub(super) fn put(&self, slot: &mut OwnedMutexGuard<Slot>, worker: Worker) {
        let queue = self.queue();
        if Arc::ptr_eq(OwnedMutexGuard::mutex(slot), &queue) {
            *self.watchdog_slot() = Some(Arc::clone(&worker.watchdog));
        }
        slot.worker = Some(worker);
    }

    /// Makes sure that there is an interpreter that waits for a request.
    pub(super) async fn worker(&self, slot: &mut OwnedMutexGuard<Slot>) -> Result<()> {
        if let Some(worker) = slot.worker.take_if(|worker| !worker.is_fit()) {
            // It died, or code that a run left behind has sent messages. What comes next is no answer to the next
            // request.
            slot.state_lost = true;
            worker.reap().await;
        }
        if slot.worker.is_none() {
            let Inner { host, ended, spec, .. } = &*self.inner;
            let worker = Worker::start(host, ended, spec.clone()).await?;
            self.put(slot, worker);
        }
        Ok(())
    }

    pub(super) fn watchdog_slot(&self) -> MutexGuard<'_, Option<Arc<Watchdog>>> {
        self.inner.watchdog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watchdog(&self) -> Option<Arc<Watchdog>> {
        self.watchdog_slot().clone()
    }

    /// Starts a run once those before it have ended.
    ///
    /// # Errors
    /// Failures to start an interpreter.
    ///
    /// # Cancellation
    /// Dropping the stream interrupts the code, and kills it after a grace time. The next run starts after that.
    pub async fn run(&self, request: RunRequest) -> Result<EventStream> {
        let run = self.begin(request).await?;
        Ok(Box::pin(unfold(run, |mut run| async move {
            let event = run.next_event().await?;
            Some((event, run))
        })))
    }

    async fn begin(&self, request: RunRequest) -> Result<ActiveRun> {
        let mut slot = self.acquire_slot().await?;
        let restarted = std::mem::take(&mut slot.state_lost);
        let Some(worker) = slot.worker.as_mut() else { return Err(no_worker()) };
        let id = worker.next_id();
        let has_stdin = !matches!(request.stdin, Stdin::Empty);
        let memory = request.memory.map(ByteSize::as_u64);
        let limits = Limits { wall: request.timeout, cpu: request.cpu_time, memory };
        let message = Request::Run(Run {
            id,
            mode: request.mode,
            code: request.code,
            filename: request.filename,
            cwd: request.cwd.unwrap_or_default(),
            env: request.env.into_iter().collect(),
            argv: request.argv,
            has_stdin,
        });
        let calls = ToolCalls::new(id, self.inner.tools.clone(), Arc::clone(&worker.outbox));
        worker.watchdog.begin(id, FinalReply::Done, limits, Some(Arc::clone(&calls)));
        let mut run = ActiveRun::new(
            slot,
            id,
            request.run_id.unwrap_or_else(new_run_id),
            limits.wall,
            Arc::clone(&self.inner.ended),
            calls,
        );
        run.started(&self.inner.id, restarted);
        run.network_hint = request.network_hint;
        run.hidden_paths = request.hidden_paths;
        run.memory_limit = request.memory;
        run.limit_output(request.output_limit);
        run.send(&message, request.stdin).await?;
        Ok(run)
    }

    /// Suspends the context: the queue waits. `None` while code runs.
    pub async fn pause(&self) -> Option<SuspendedContext> {
        let queue = Arc::clone(&*self.queue());
        let slot = match Arc::clone(&queue).try_lock_owned() {
            Ok(slot) => slot,
            // A run that has ended needs a moment to release the slot.
            Err(_) if !self.is_executing() => {
                timeout(SLOT_RELEASE_TIMEOUT, queue.lock_owned()).await.ok()?
            }
            Err(_) => return None,
        };
        Some(SuspendedContext::new(self.clone(), slot))
    }

    /// Returns true while a run is active.
    pub fn is_executing(&self) -> bool {
        self.watchdog().is_some_and(|watchdog| watchdog.is_active())
    }

    /// Interrupts the active run; its state is kept. Returns false when no run is active.
    pub fn interrupt(&self) -> bool {
        self.watchdog().is_some_and(|watchdog| watchdog.interrupt())
    }

    /// Returns a variable as JSON.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a name that is no identifier or a value that is not JSON, or too much of it.
    pub async fn get_variable(&self, name: &str) -> Result<Value> {
        let name = name.to_owned();
        let json = self.exchange("get_variable", |id| Request::GetVariable { id, name }).await?;
        let values = count_values(&json);
        if values > MAX_VARIABLE_VALUES {
            let why = format!("holds {values} values, over the limit of {MAX_VARIABLE_VALUES}");
            return Err(Error::invalid("value", why));
        }
        serde_json::from_str(&json).map_err(|error| protocol("get_variable", &error.to_string()))
    }

    /// Sets variables from JSON.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier.
    pub async fn set_variables(&self, values: Map<String, Value>) -> Result<()> {
        let json = Value::Object(values).to_string();
        self.exchange("set_variables", |id| Request::SetVariables { id, json }).await.map(drop)
    }

    /// Sends a request and waits for its answer. Continues when the caller is cancelled, so that the next request finds
    /// order.
    async fn exchange(
        &self,
        operation: &'static str,
        request: impl FnOnce(i64) -> Request,
    ) -> Result<String> {
        let mut slot = self.acquire_slot().await?;
        let Some(worker) = slot.worker.as_mut() else { return Err(no_worker()) };
        let id = worker.next_id();
        let request = request(id);
        worker.watchdog.begin(
            id,
            FinalReply::Value,
            Limits { wall: Some(VARIABLE_TIMEOUT), cpu: None, memory: None },
            None,
        );
        let task = tokio::spawn(answer(slot, id, request, operation));
        task.await.unwrap_or_else(|_| Err(no_worker()))
    }

    /// Kills the interpreter and everything that it started. The next run starts a new one.
    ///
    /// An active run ends with it, and is not awaited: a run that is not read would never end. With `flag` the next run
    /// reports that its state is new.
    pub async fn restart(&self, flag: bool) {
        let (former, watchdog) = {
            let mut queue = self.queue();
            let watchdog = self.watchdog_slot().take();
            let fresh = Slot { worker: None, state_lost: flag && watchdog.is_some() };
            (std::mem::replace(&mut *queue, Arc::new(AsyncMutex::new(fresh))), watchdog)
        };
        self.inner.restarted.notify_waiters();
        if let Ok(mut slot) = former.try_lock() {
            if let Some(worker) = slot.worker.take() {
                worker.reap().await;
            }
        } else if let Some(watchdog) = watchdog {
            watchdog.kill_and_wait().await;
        }
    }
}

async fn answer(
    mut slot: OwnedMutexGuard<Slot>,
    id: i64,
    request: Request,
    operation: &'static str,
) -> Result<String> {
    let Some(worker) = slot.worker.as_mut() else { return Err(no_worker()) };
    let sent = worker.send(&request, false).await;
    if let Err(error) = &sent
        && error.kind() == io::ErrorKind::InvalidInput
    {
        worker.watchdog.end(id);
        return Err(Error::invalid("value", format!("is too large: {error}")));
    }
    let problem = loop {
        match worker.next().await {
            WorkerEvent::Output(..) => {}
            WorkerEvent::Reply(Reply::Value { id: answered, json }) if answered == id => {
                worker.answered(id);
                return Ok(json);
            }
            WorkerEvent::Reply(Reply::Failed { id: answered, kind, message }) if answered == id => {
                worker.answered(id);
                return Err(failed(operation, kind, message));
            }
            WorkerEvent::Reply(other) => break unexpected(&other),
            WorkerEvent::Broken(problem) => break problem,
            WorkerEvent::Dead => break "the interpreter died".to_owned(),
        }
    };
    let cause = worker.watchdog.end(id).cause;
    slot.state_lost = true;
    if let Some(worker) = slot.worker.take() {
        worker.reap().await;
    }
    Err(match cause {
        Some(Cause::Timeout) => {
            Error::new(ErrorKind::Timeout, operation, "the interpreter did not answer in time")
        }
        _ => protocol(operation, &problem),
    })
}

fn failed(operation: &'static str, kind: WireFailureKind, message: String) -> Error {
    let kind = match kind {
        WireFailureKind::NotFound => ErrorKind::NotFound,
        WireFailureKind::TooLarge => ErrorKind::ResourceExhausted,
        _ => ErrorKind::InvalidArgument,
    };
    Error::new(kind, operation, message)
}

fn protocol(operation: &'static str, problem: &str) -> Error {
    Error::new(ErrorKind::Protocol, operation, problem.to_owned())
}

fn no_worker() -> Error {
    Error::new(ErrorKind::Unavailable, "run_code", "the interpreter is gone")
}
