//! The verbs about code: contexts, runs with their limits, variables.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    ByteSize, CallContext, CodeOps, Context, ContextSpec, DisplayKind, Error, ErrorKind, Event,
    EventKind, EventStream, Failure, FailureKind, InterpreterState, OutputStream, Result,
    ResultItem, RunCode, RunOutcome, Stdin, Tool, check_context_id, check_directory, check_env,
    format_duration, new_run_id, random_hex, resolve_directory, unix_now,
};
use sandbox_engine::background_runtime::{self, background};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;
use sandbox_shell::ShellHost as _;
use serde_json::{Map, Value};
use tokio::sync::{OwnedMutexGuard, Semaphore, mpsc, watch};
use tokio::time::sleep;

use crate::error::unsupported;
use crate::interpreter::{CodeContext, CodeRequest, End, Exit, Interpreter, Piece, Pieces, Told};

/// Time that code has to end after an interrupt, before its process is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Time for the toolbox to tell that a process which was killed has ended.
const DEATH: Duration = Duration::from_secs(5);

/// Output that waits for its reader. The toolbox drops a reader that is slow, so output is read at once.
const MAX_WAITING: usize = 64 << 20;

/// Bytes of a run's standard input.
const MAX_STDIN: usize = 16 << 20;

/// Code in the interpreter of one sandbox.
#[derive(Debug)]
pub(crate) struct Code {
    interpreter: Arc<Interpreter>,
    output_limit: Option<ByteSize>,
    contexts: Mutex<BTreeMap<String, Arc<CodeContext>>>,
}

impl Code {
    pub(crate) fn new(interpreter: Interpreter, output_limit: Option<ByteSize>) -> Self {
        let default = Arc::new(CodeContext::new(DEFAULT_CONTEXT, None, BTreeMap::new()));
        let contexts = BTreeMap::from([(DEFAULT_CONTEXT.to_owned(), default)]);
        Self { interpreter: Arc::new(interpreter), output_limit, contexts: Mutex::new(contexts) }
    }

    fn contexts(&self) -> MutexGuard<'_, BTreeMap<String, Arc<CodeContext>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the context for a run. A missing one is made.
    fn for_run(&self, id: Option<&str>) -> Arc<CodeContext> {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        let mut contexts = self.contexts();
        let made = || Arc::new(CodeContext::new(id, None, BTreeMap::new()));
        Arc::clone(contexts.entry(id.to_owned()).or_insert_with(made))
    }

    fn existing(&self, operation: &'static str, id: Option<&str>) -> Result<Arc<CodeContext>> {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        let contexts = self.contexts();
        contexts.get(id).cloned().ok_or_else(|| {
            let known: Vec<_> = contexts.keys().map(String::as_str).collect();
            let message = format!("context {id:?} not found (there are {})", known.join(", "));
            Error::new(ErrorKind::NotFound, operation, message)
        })
    }

    /// Ends every interpreter, and starts them again when they are needed.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached.
    pub(crate) async fn restart_all(&self) -> Result<()> {
        let all: Vec<_> = self.contexts().values().cloned().collect();
        for context in all {
            self.restart(&context).await?;
        }
        Ok(())
    }

    /// Notes that every interpreter is gone with the processes of the sandbox.
    pub(crate) fn mark_gone(&self) {
        self.contexts().values().for_each(|context| context.mark_gone());
    }

    async fn restart(&self, context: &CodeContext) -> Result<()> {
        if context.pid().is_none() {
            // Another process may have used it: its process is found by preparing it.
            self.interpreter.prepare(&CallContext::new(), context).await?;
        }
        self.interpreter.kill(context).await?;
        context.mark_restarted();
        Ok(())
    }

    fn describe(&self, context: &CodeContext) -> Context {
        Context {
            id: context.id.clone(),
            language: "python".to_owned(),
            cwd: Some(context.cwd.clone().unwrap_or_else(|| self.interpreter.cwd.clone())),
            env: context.env.clone(),
        }
    }
}

fn check_language(operation: &'static str, language: Option<&str>) -> Result<()> {
    match language {
        None => Ok(()),
        Some(language) if language.eq_ignore_ascii_case("python") => Ok(()),
        Some(language) => Err(Error::unsupported(
            operation,
            format!("the interpreter of daytona speaks python, not {language:?}"),
        )
        .with_hint("run it as a command, with its own interpreter")),
    }
}

async fn read_stdin(stdin: &mut Stdin) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    match std::mem::take(stdin) {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => all.extend_from_slice(&bytes),
        Stdin::Stream(mut stream) => {
            while let Some(chunk) = stream.next().await.transpose()? {
                all.extend_from_slice(&chunk);
                if all.len() > MAX_STDIN {
                    break;
                }
            }
        }
    }
    if all.len() > MAX_STDIN {
        let message = format!("the standard input of code is at most {MAX_STDIN} bytes");
        return Err(Error::unsupported("run_code", message)
            .with_hint("write it to a file, or run a command, whose input has no bound"));
    }
    Ok(all)
}

#[async_trait]
impl CodeOps for Code {
    async fn run_code(&self, call: &CallContext, mut request: RunCode) -> Result<EventStream> {
        check_language("run_code", request.language.as_deref())?;
        if request.memory.is_some() || request.cpu_time.is_some() {
            let message = "daytona has no limit of memory or CPU time for a single run";
            return Err(Error::unsupported("run_code", message));
        }
        let context = self.for_run(request.context.as_deref());
        let base = context.cwd.as_deref().unwrap_or(&self.interpreter.cwd);
        let cwd = request.cwd.as_deref().map(|path| resolve_directory(base, path));
        let stdin = read_stdin(&mut request.stdin).await?;
        let turn = Arc::clone(&context.turn).lock_owned().await;
        let asked = CodeRequest::run(&request, cwd, &stdin);
        let was_lost = context.take_lost();
        let pieces = self.interpreter.start(call, &context, &asked).await?;
        context.set_running(Some(&asked.word));
        let limit = self.output_limit.into_iter().chain(request.output_limit).min();
        let (sender, events) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(MAX_WAITING));
        let cancel = watch::Sender::new(false);
        let run = Run {
            interpreter: Arc::clone(&self.interpreter),
            context,
            _turn: turn,
            asked,
            timeout: request.timeout,
            output_limit: limit.map(ByteSize::as_u64),
            events: sender,
            room: Arc::clone(&room),
            cancelled: cancel.subscribe(),
            run_id: call.run_id.clone().unwrap_or_else(new_run_id),
            seq: AtomicU64::new(0),
            started_at: unix_now(),
            was_lost,
        };
        background_runtime::spawn(run.watch(pieces));
        let reader = Reader { events, room, cancel };
        Ok(Box::pin(stream::unfold(reader, |mut reader| async move {
            let event = reader.events.recv().await?;
            if let EventKind::Output { data, .. } = &event.kind {
                reader.room.add_permits(data.len());
            }
            Some((event, reader))
        })))
    }

    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context> {
        check_language("create_context", spec.language.as_deref())?;
        check_env(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        let id = spec.id.unwrap_or_else(|| random_hex(8));
        check_context_id(&id)?;
        let base = &self.interpreter.cwd;
        spec.cwd.as_deref().map(|path| check_directory("cwd", path)).transpose()?;
        let cwd = spec.cwd.as_deref().map(|path| resolve_directory(base, path));
        let context = Arc::new(CodeContext::new(&id, cwd, spec.env));
        {
            let mut contexts = self.contexts();
            if contexts.contains_key(&id) {
                let message = format!("there is a context {id:?} already");
                return Err(Error::new(ErrorKind::AlreadyExists, "create_context", message));
            }
            contexts.insert(id.clone(), Arc::clone(&context));
        }
        let prepared = self.interpreter.prepare(call, &context).await;
        if prepared.is_err() {
            self.contexts().remove(&id);
        }
        prepared.map(|()| self.describe(&context))
    }

    async fn list_contexts(&self, _call: &CallContext) -> Result<Vec<Context>> {
        let toolbox = self.interpreter.handle.programs.toolbox("list_contexts")?;
        let native = background(async move { toolbox.contexts().await }).await??;
        let contexts = self.contexts();
        let known: Vec<_> = contexts.values().filter_map(|context| context.native()).collect();
        let own = contexts.values().map(|context| self.describe(context));
        let mut all: Vec<_> = own.collect();
        // Those of other processes, by the ids of the toolbox.
        all.extend(native.into_iter().filter(|found| !known.contains(&found.id)).map(|found| {
            Context {
                id: found.id,
                language: "python".into(),
                cwd: found.cwd,
                ..Context::default()
            }
        }));
        all.sort_by_key(|context| (context.id != DEFAULT_CONTEXT, context.id.clone()));
        Ok(all)
    }

    async fn restart_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        let context = self.existing("restart_context", Some(id))?;
        self.restart(&context).await
    }

    async fn delete_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        if id == DEFAULT_CONTEXT {
            return Err(Error::invalid("context", "`default` cannot be deleted"));
        }
        let context = self.existing("delete_context", Some(id))?;
        self.contexts().remove(id);
        let Some(native) = context.native() else { return Ok(()) };
        let toolbox = self.interpreter.handle.programs.toolbox("delete_context")?;
        match background(async move { toolbox.delete_context(&native).await }).await? {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        let operation = "get_variable";
        let context = self.existing(operation, context)?;
        let told = self.interpreter.ask(operation, call, &context, CodeRequest::get(name)).await?;
        let json = told.value.unwrap_or_default();
        serde_json::from_str(&json).map_err(|error| {
            let message = format!("{name:?} has no JSON form that is understood");
            Error::new(ErrorKind::InvalidArgument, operation, message).with_source(error)
        })
    }

    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        let operation = "set_variables";
        let context = self.existing(operation, context)?;
        self.interpreter.ask(operation, call, &context, CodeRequest::set(values)).await.map(drop)
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        let id = context.unwrap_or(DEFAULT_CONTEXT);
        self.contexts().get(id).is_some_and(|context| context.is_running())
    }

    async fn interrupt(&self, _call: &CallContext, context: Option<&str>) -> Result<bool> {
        let context = self.existing("interrupt", context)?;
        let Some(word) = context.running() else { return Ok(false) };
        self.interpreter.interrupt(&context, &word).await?;
        Ok(true)
    }

    async fn register_tool(&self, _call: &CallContext, _tool: Tool) -> Result<()> {
        Err(unsupported("register_tool"))
    }
}

/// The reader of a run. Dropping it cancels the run.
struct Reader {
    events: mpsc::UnboundedReceiver<Event>,
    room: Arc<Semaphore>,
    cancel: watch::Sender<bool>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.cancel.send_replace(true);
    }
}

/// Waits until the reader of a run is gone.
async fn is_cancelled(cancelled: &mut watch::Receiver<bool>) {
    let _ = cancelled.wait_for(|cancelled| *cancelled).await;
}

/// A run in progress.
struct Run {
    interpreter: Arc<Interpreter>,
    context: Arc<CodeContext>,
    _turn: OwnedMutexGuard<()>,
    asked: CodeRequest,
    timeout: Option<Duration>,
    output_limit: Option<u64>,
    events: mpsc::UnboundedSender<Event>,
    room: Arc<Semaphore>,
    cancelled: watch::Receiver<bool>,
    run_id: String,
    seq: AtomicU64,
    started_at: f64,
    was_lost: bool,
}

impl Run {
    fn send(&self, kind: EventKind) {
        let seq = self.seq.fetch_add(1, Ordering::Relaxed);
        let run_id = self.run_id.clone();
        let _ = self.events.send(Event { run_id, seq, timestamp: unix_now(), kind });
    }

    /// Watches the run to its end, and its limits.
    async fn watch(self, mut pieces: Pieces) {
        self.send(EventKind::Started {
            context_id: self.context.id.clone(),
            restarted: self.was_lost,
        });
        let mut outcome = self.outcome(&mut pieces).await;
        self.interpreter.handle.map_outcome(&mut outcome).await;
        self.context.set_running(None);
        self.send(EventKind::Finished(outcome));
    }

    async fn outcome(&self, pieces: &mut Pieces) -> RunOutcome {
        let mut why = None;
        let mut printed = 0;
        let over = Arc::clone(&self.interpreter.handle.programs);
        let mut over = pin!(over.closed());
        let mut limit = pin!(sleep(self.timeout.unwrap_or(Duration::from_secs(u32::MAX.into()))));
        let mut grace = pin!(sleep(Duration::from_secs(u32::MAX.into())));
        let mut cancelled = self.cancelled.clone();
        let mut was_killed = false;
        let mut retried = false;
        let end = loop {
            let is_ending = why.is_some();
            tokio::select! {
                biased;
                () = &mut over => return self.sandbox_ended(),
                () = &mut limit, if !is_ending && self.timeout.is_some() => {
                    why = Some(FailureKind::Timeout);
                    self.interrupt(grace.as_mut()).await;
                }
                () = is_cancelled(&mut cancelled), if !is_ending => {
                    why = Some(FailureKind::Cancelled);
                    self.interrupt(grace.as_mut()).await;
                }
                () = &mut grace, if is_ending => {
                    if was_killed {
                        break End::Died(None);
                    }
                    was_killed = true;
                    let _ = self.interpreter.kill(&self.context).await;
                    grace.as_mut().reset(tokio::time::Instant::now() + DEATH);
                }
                piece = pieces.next() => match piece {
                    Piece::Text(stream, data) => {
                        if !self.pass_on(stream, data, &mut printed).await && why.is_none() {
                            why = Some(FailureKind::OutputLimit);
                            self.interrupt(grace.as_mut()).await;
                        }
                    }
                    // Its process has begun again since it was prepared, and nothing ran.
                    Piece::End(End::NotPrepared) if !retried => {
                        retried = true;
                        self.interpreter.forget(&self.context);
                        self.context.take_lost();
                        match self.interpreter.start(&CallContext::new(), &self.context, &self.asked).await {
                            Ok(again) => *pieces = again,
                            Err(error) => break End::Lost(error.to_string()),
                        }
                    }
                    Piece::End(end) => break end,
                },
            }
        };
        self.finish(end, why, was_killed)
    }

    /// Passes output on. Returns false when the run has put out more than it may.
    async fn pass_on(&self, stream: OutputStream, mut data: Bytes, printed: &mut u64) -> bool {
        let size = data.len() as u64;
        let allowed =
            self.output_limit.map_or(size, |limit| size.min(limit.saturating_sub(*printed)));
        *printed += size;
        data.truncate(usize::try_from(allowed).unwrap_or(usize::MAX));
        if !data.is_empty() {
            let cost = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let mut cancelled = self.cancelled.clone();
            tokio::select! {
                permit = self.room.acquire_many(cost) => {
                    if let Ok(permit) = permit {
                        permit.forget();
                    }
                }
                () = is_cancelled(&mut cancelled) => return true,
            }
            self.send(EventKind::Output { stream, data });
        }
        allowed == size
    }

    async fn interrupt(&self, grace: std::pin::Pin<&mut tokio::time::Sleep>) {
        if let Err(error) = self.interpreter.interrupt(&self.context, &self.asked.word).await {
            tracing::debug!(%error, "code could not be interrupted");
        }
        grace.reset(tokio::time::Instant::now() + GRACE);
    }

    fn finish(&self, end: End, why: Option<FailureKind>, was_killed: bool) -> RunOutcome {
        let mut outcome = self.base();
        let told = match end {
            End::Told(told) => *told,
            End::Died(_) | End::TimedOut => {
                self.context.mark_lost();
                outcome.state = InterpreterState::Lost;
                let exit = match end {
                    End::Died(Some(exit)) => Some(exit),
                    _ => was_killed.then_some(Exit::KILLED),
                };
                outcome.exit_code = exit.map(|exit| exit.code);
                let kind = why.unwrap_or(match end {
                    End::TimedOut => FailureKind::Timeout,
                    _ => FailureKind::KernelDied,
                });
                let mut failure = self.failure(kind);
                failure.signal = exit.and_then(|exit| exit.signal);
                outcome.failure = Some(failure);
                return outcome;
            }
            End::NotPrepared | End::Lost(_) => {
                self.context.mark_lost();
                outcome.state = InterpreterState::Lost;
                let message = match end {
                    End::Lost(message) => message,
                    _ => "the context is gone".to_owned(),
                };
                let message = format!("the outcome of the code is not known: {message}");
                let kind = why.unwrap_or(FailureKind::ConnectionLost);
                outcome.failure = Some(Failure { kind, message, signal: None });
                return outcome;
            }
        };
        self.told(told, why, outcome)
    }

    fn told(&self, told: Told, why: Option<FailureKind>, mut outcome: RunOutcome) -> RunOutcome {
        if let Some(text) = &told.text {
            self.send(EventKind::Display {
                display: DisplayKind::Result,
                item: ResultItem::from_text(text.clone()),
                display_id: None,
            });
        }
        outcome.execution_count = told.count;
        outcome.background_threads = told.threads;
        outcome.exit_code = told.exit.map(|code| (code & 0xff) as i32);
        outcome.interrupted = told.interrupted && why.is_none();
        if let Some(error) = told.failure("run_code") {
            let message = error.message().to_owned();
            outcome.failure = Some(Failure { kind: FailureKind::NotRun, message, signal: None });
        } else if let Some(kind) = why {
            outcome.failure = Some(self.failure(kind));
        }
        if let Some(error) = told.error().filter(|_| why.is_none()) {
            self.send(EventKind::Error(error));
        }
        outcome
    }

    fn base(&self) -> RunOutcome {
        RunOutcome {
            started_at: self.started_at,
            completed_at: unix_now(),
            ..RunOutcome::default()
        }
    }

    fn sandbox_ended(&self) -> RunOutcome {
        let reason = self.interpreter.handle.end_reason();
        let kind = reason.get().unwrap_or(FailureKind::Terminated);
        let message = reason.explain("the sandbox was ended during the run");
        let failure = Some(Failure { kind, message, signal: None });
        RunOutcome { failure, state: InterpreterState::Lost, ..self.base() }
    }

    fn failure(&self, kind: FailureKind) -> Failure {
        let message = match kind {
            FailureKind::Timeout => {
                let limit = self.timeout.map(format_duration).unwrap_or_default();
                format!("the code ran longer than {limit}")
            }
            FailureKind::OutputLimit => {
                let limit = ByteSize::bytes(self.output_limit.unwrap_or_default());
                format!("the code was ended: it put out more than {limit}")
            }
            FailureKind::Cancelled => "the run was cancelled".to_owned(),
            _ => "the process of the interpreter has ended".to_owned(),
        };
        Failure { kind, message, signal: None }
    }
}
