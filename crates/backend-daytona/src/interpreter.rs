//! The provider's Python interpreter: its contexts, and one run in one of them.
//!
//! A run is a WebSocket of its own. The interpreter passes on text and errors; what it lacks is added by a few lines of Python
//! that each context is prepared with (`scripts/prepare.py`), and whose answers travel in its text behind a random word.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver};
use sandbox_core::{
    CallContext, CodeError, CodeMode, Error, ErrorKind, OutputStream, Result, RunCode, random_hex,
};
use sandbox_engine::background_runtime::background;
use sandbox_shell::ShellHost as _;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::programs::Programs;
use crate::remote::Handle;
use crate::wire::InterpreterMessage;

/// Prepares an interpreter.
const PREPARE: &str = include_str!("scripts/prepare.py");

/// Attempts to prepare an interpreter whose process was just ended, and the pause between them.
const MAX_STARTS: u32 = 10;
const RESTART_PAUSE: Duration = Duration::from_millis(100);

/// Time to prepare an interpreter.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(60);

/// Reasons of the toolbox for the end of a run, as numbers of WebSockets.
const NORMAL: u16 = 1000;
const PROCESS_ENDED: u16 = 1001;
const REFUSED: u16 = 1008;
const TIMED_OUT: u16 = 4008;

/// Bytes of an answer behind the word of a request.
const MAX_TOLD: usize = 64 << 20;

/// A context of the interpreter.
#[derive(Debug)]
pub(crate) struct CodeContext {
    pub(crate) id: String,
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    /// Runs take turns.
    pub(crate) turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<ContextState>,
}

#[derive(Debug, Default)]
struct ContextState {
    /// Its id in the toolbox. The default context has none there.
    native: Option<String>,
    /// Its process, once it was prepared.
    pid: Option<u32>,
    /// Its directory of interrupts.
    interrupts: String,
    /// The word of the request that runs.
    running: Option<String>,
    /// Its variables were lost, and no run has told so.
    is_lost: bool,
}

impl CodeContext {
    pub(crate) fn new(id: &str, cwd: Option<String>, env: BTreeMap<String, String>) -> Self {
        Self { id: id.to_owned(), cwd, env, turn: Arc::default(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, ContextState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state().running.is_some()
    }

    /// Notes which request runs.
    pub(crate) fn set_running(&self, word: Option<&str>) {
        self.state().running = word.map(str::to_owned);
    }

    /// Returns the word of the request that runs.
    pub(crate) fn running(&self) -> Option<String> {
        self.state().running.clone()
    }

    /// Returns the process of its interpreter, if that is known.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.state().pid
    }

    pub(crate) fn native(&self) -> Option<String> {
        self.state().native.clone()
    }

    pub(crate) fn set_native(&self, native: String) {
        self.state().native = Some(native);
    }

    /// Notes that its process is gone.
    pub(crate) fn mark_lost(&self) {
        let mut state = self.state();
        state.is_lost = true;
        state.pid = None;
    }

    /// Notes that it is gone from the toolbox too. One that was never used has lost nothing.
    pub(crate) fn mark_gone(&self) {
        let mut state = self.state();
        state.is_lost |= state.pid.is_some();
        (state.pid, state.native) = (None, None);
    }

    /// Notes that its process was ended on request, which no run has to tell.
    pub(crate) fn mark_restarted(&self) {
        let mut state = self.state();
        state.is_lost = false;
        state.pid = None;
    }

    /// Returns true if its variables were lost since the last run.
    pub(crate) fn take_lost(&self) -> bool {
        std::mem::take(&mut self.state().is_lost)
    }
}

/// A piece of a run.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Text of a stream.
    Text(OutputStream, Bytes),
    /// The end. Always last.
    End(End),
}

/// The end of a run, as the toolbox has told it.
#[derive(Debug)]
pub(crate) enum End {
    /// The request was carried out.
    Told(Box<Told>),
    /// The context is not prepared, or not there. Nothing ran.
    NotPrepared,
    /// The process of the interpreter has ended, in this way where that is known.
    Died(Option<Exit>),
    /// The toolbox ended the process: its own limit has passed.
    TimedOut,
    /// The connection broke, or the toolbox gave the reader up.
    Lost(String),
}

/// The way in which the process of an interpreter has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// The status as a shell has it: 128 and the number of a signal.
    pub(crate) code: i32,
    pub(crate) signal: Option<i32>,
}

impl Exit {
    /// By SIGKILL.
    pub(crate) const KILLED: Self = Self { code: 137, signal: Some(9) };

    /// Reads a status as `waitpid` reports it.
    fn of_wait_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self { code: (status >> 8) & 0xff, signal: None },
            signal => Self { code: 128 + signal, signal: Some(signal) },
        }
    }
}

/// What came of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Told {
    pid: Option<u32>,
    /// Directory of interrupts.
    interrupts: String,
    /// The value of the last expression.
    pub(crate) text: Option<String>,
    /// Status of `sys.exit`.
    pub(crate) exit: Option<i64>,
    pub(crate) interrupted: bool,
    /// Name, value and traceback.
    error: Option<[String; 3]>,
    /// Kind and message of a request that was not carried out.
    failed: Option<[String; 2]>,
    /// A variable as JSON.
    pub(crate) value: Option<String>,
    pub(crate) count: u64,
    pub(crate) threads: u32,
}

impl Told {
    /// Returns the exception of code.
    pub(crate) fn error(&self) -> Option<CodeError> {
        let [name, value, traceback] = self.error.clone()?;
        Some(CodeError { name, value, traceback })
    }

    /// Returns why a request was not carried out.
    pub(crate) fn failure(&self, operation: &'static str) -> Option<Error> {
        let [kind, message] = self.failed.as_ref()?;
        let kind = match kind.as_str() {
            "not_found" | "directory" => ErrorKind::NotFound,
            _ => ErrorKind::InvalidArgument,
        };
        Some(Error::new(kind, operation, message.clone()))
    }
}

/// A request for a context that is prepared.
#[derive(Clone, Debug)]
pub(crate) struct CodeRequest {
    pub(crate) word: String,
    body: Value,
    /// A bound of the toolbox, in case this process ends. `None`: no bound.
    limit: Option<Duration>,
}

impl CodeRequest {
    /// Makes the request for a run. `cwd` is absolute.
    pub(crate) fn run(request: &RunCode, cwd: Option<String>, stdin: &[u8]) -> Self {
        let mut body =
            json!({"code": request.code, "kind": "cell", "stdin": STANDARD.encode(stdin)});
        if let CodeMode::Script { filename, argv } = &request.mode {
            body["kind"] = json!("script");
            body["name"] = json!(filename);
            body["argv"] = json!(argv);
        }
        body["env"] = json!(request.env);
        body["cwd"] = json!(cwd);
        Self::new(body, request.timeout)
    }

    pub(crate) fn get(name: &str) -> Self {
        Self::new(json!({"kind": "get", "variable": name}), Some(PREPARE_TIMEOUT))
    }

    pub(crate) fn set(values: Map<String, Value>) -> Self {
        Self::new(json!({"kind": "set", "values": values}), Some(PREPARE_TIMEOUT))
    }

    fn new(mut body: Value, limit: Option<Duration>) -> Self {
        let word = random_hex(16);
        body["word"] = json!(word);
        Self { word, body, limit }
    }

    /// Returns the code that the toolbox runs.
    fn code(&self) -> String {
        // A JSON string is a string of Python too, where it has no escaped surrogates.
        format!("__sandbox_run__(globals(), {})", Value::String(self.body.to_string()))
    }
}

/// The interpreter of one sandbox.
#[derive(Debug)]
pub(crate) struct Interpreter {
    pub(crate) handle: Arc<Handle>,
    /// Directory of the default context; others begin there too.
    pub(crate) cwd: String,
    /// Directory of packages that were installed.
    pub(crate) packages: String,
}

impl Interpreter {
    fn programs(&self) -> &Arc<Programs> {
        &self.handle.programs
    }

    /// Starts a request in a context, which is prepared if it is not.
    ///
    /// # Errors
    /// What kept the request from being sent: nothing ran.
    pub(crate) async fn start(
        &self,
        call: &CallContext,
        context: &CodeContext,
        request: &CodeRequest,
    ) -> Result<Pieces> {
        if context.pid().is_none() {
            self.prepare(call, context).await?;
        }
        self.send(call, context, &request.word, request.code(), request.limit).await
    }

    async fn send(
        &self,
        call: &CallContext,
        context: &CodeContext,
        word: &str,
        code: String,
        limit: Option<Duration>,
    ) -> Result<Pieces> {
        // Seconds; 0 is no limit. Limits are kept here, this one is for the case that nothing is here any more.
        let bound = limit.map_or(0, |limit| limit.as_secs() + 30);
        let mut body = json!({"code": code, "timeout": bound});
        if let Some(native) = context.native() {
            body["contextId"] = json!(native);
        }
        let toolbox = self.programs().toolbox("run_code")?;
        let (call, text) = (call.clone(), body.to_string());
        let receiver = background(async move {
            let (mut sender, receiver) = toolbox.interpreter(&call).await?.split();
            sender.text(text).await?;
            Ok::<_, Error>((sender, receiver))
        });
        let (sender, receiver) = receiver.await??;
        Ok(Pieces {
            receiver,
            _open: sender,
            word: format!("\0{word}"),
            told: String::new(),
            pending: VecDeque::new(),
            is_told: false,
            died: None,
            error: None,
        })
    }

    /// Prepares a context: makes it in the toolbox, and runs the lines that it lacks.
    ///
    /// # Errors
    /// `Unsupported` without Python in the image; what else keeps the context from being used.
    pub(crate) async fn prepare(&self, call: &CallContext, context: &CodeContext) -> Result<()> {
        let is_default = context.id == sandbox_engine::interpreter::DEFAULT_CONTEXT;
        let cwd = context.cwd.as_deref().unwrap_or(&self.cwd).to_owned();
        if !is_default && context.native().is_none() {
            self.make(context, &cwd).await?;
        }
        let word = random_hex(16);
        let settings =
            json!({"word": word, "cwd": cwd, "env": context.env, "packages": self.packages});
        let settings = Value::String(settings.to_string());
        let code = format!(
            "{PREPARE}\n__sandbox_prepare__(globals(), {settings})\ndel __sandbox_prepare__\n__doc__ = None\n"
        );
        let failed = |why: String| {
            let message = format!("the interpreter cannot be used: {why}");
            Error::new(ErrorKind::Unavailable, "start_interpreter", message)
        };
        let mut attempt = 0;
        let end = loop {
            attempt += 1;
            let mut pieces =
                self.send(call, context, &word, code.clone(), Some(PREPARE_TIMEOUT)).await?;
            let end = tokio::time::timeout(PREPARE_TIMEOUT, async {
                loop {
                    if let Piece::End(end) = pieces.next().await {
                        return end;
                    }
                }
            });
            let end = end.await.map_err(|_| failed("it was not ready in time".to_owned()))?;
            // The toolbox takes a moment to see that the process before has ended.
            if !matches!(end, End::Died(_)) || attempt == MAX_STARTS {
                break end;
            }
            tokio::time::sleep(RESTART_PAUSE).await;
        };
        match end {
            End::Told(told) if told.pid.is_some() => {
                let Told { pid, interrupts, .. } = *told;
                let mut state = context.state();
                (state.pid, state.interrupts) = (pid, interrupts);
                Ok(())
            }
            End::Lost(why) if why.contains("python") => {
                let message = format!("the image has no Python to run code: {why}");
                Err(Error::unsupported("run_code", message)
                    .with_hint("use an image with Python 3.9 or later, or commands alone"))
            }
            other => Err(failed(format!("{other:?}"))),
        }
    }

    async fn make(&self, context: &CodeContext, cwd: &str) -> Result<()> {
        let toolbox = self.programs().toolbox("create_context")?;
        // A context of another process, by the id of the toolbox.
        let known = toolbox.clone();
        let known = background(async move { known.contexts().await }).await??;
        if known.iter().any(|known| known.id == context.id) {
            context.set_native(context.id.clone());
            return Ok(());
        }
        let made = self.programs().run("mkdir -p -- \"$1\"", &[cwd]).await?;
        if made.status != 0 {
            let message =
                format!("cannot be made in the sandbox, got {cwd:?}: {}", made.last_error());
            return Err(Error::invalid("cwd", message));
        }
        let cwd = cwd.to_owned();
        let created = background(async move { toolbox.create_context(&cwd).await }).await??;
        context.set_native(created.id);
        Ok(())
    }

    /// Carries a short request out, such as one about variables.
    ///
    /// # Errors
    /// The reason why it was not carried out.
    pub(crate) async fn ask(
        &self,
        operation: &'static str,
        call: &CallContext,
        context: &CodeContext,
        request: CodeRequest,
    ) -> Result<Told> {
        let _turn = context.turn.lock().await;
        for _ in 0..2 {
            let mut pieces = self.start(call, context, &request).await?;
            let end = loop {
                if let Piece::End(end) = pieces.next().await {
                    break end;
                }
            };
            match end {
                End::Told(told) => match told.failure(operation) {
                    Some(error) => return Err(error),
                    None => return Ok(*told),
                },
                End::NotPrepared => self.forget(context),
                other => {
                    context.mark_lost();
                    let message = format!("the interpreter did not answer: {other:?}");
                    return Err(Error::new(ErrorKind::Unavailable, operation, message));
                }
            }
        }
        let message = "the interpreter is not there";
        Err(Error::new(ErrorKind::Unavailable, operation, message))
    }

    /// Notes that a context is no longer what it was: its process has begun again, or it was deleted.
    pub(crate) fn forget(&self, context: &CodeContext) {
        context.mark_lost();
        context.state().native = None;
    }

    /// Kills the process of a context.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached.
    pub(crate) async fn kill(&self, context: &CodeContext) -> Result<()> {
        let Some(pid) = context.pid() else { return Ok(()) };
        self.programs().run("kill -KILL \"$1\"", &[&pid.to_string()]).await.map(drop)
    }

    /// Interrupts a request, and no other one: the file tells which one the signal is for.
    ///
    /// # Errors
    /// As [`Self::kill`].
    pub(crate) async fn interrupt(&self, context: &CodeContext, word: &str) -> Result<()> {
        let Some(pid) = context.pid() else { return Ok(()) };
        let file = format!("{}/{word}", context.state().interrupts);
        let script = ": >\"$2\" && kill -INT \"$1\"";
        self.programs().run(script, &[&pid.to_string(), &file]).await.map(drop)
    }
}

/// The pieces of one run.
pub(crate) struct Pieces {
    receiver: SocketReceiver,
    /// Dropping it would close the connection.
    _open: sandbox_cloud::http::websocket::SocketSender,
    /// What the answer begins with.
    word: String,
    told: String,
    pending: VecDeque<Piece>,
    is_told: bool,
    died: Option<Exit>,
    error: Option<InterpreterMessage>,
}

impl Pieces {
    /// Waits for the next piece. The end comes once.
    ///
    /// # Cancellation
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&mut self) -> Piece {
        loop {
            if let Some(piece) = self.pending.pop_front() {
                return piece;
            }
            match self.receiver.next().await {
                Some(SocketMessage::Text(text)) => self.take(&text),
                Some(SocketMessage::Binary(data)) => self.take(&String::from_utf8_lossy(&data)),
                Some(SocketMessage::Closed { code, reason }) => {
                    return Piece::End(self.end(code, reason));
                }
                None => return Piece::End(End::Lost("the connection is closed".to_owned())),
            }
        }
    }

    fn take(&mut self, text: &str) {
        let message: InterpreterMessage = serde_json::from_str(text).unwrap_or_default();
        let stream = match message.kind.as_str() {
            "stdout" => OutputStream::Stdout,
            "stderr" => OutputStream::Stderr,
            "error" => {
                self.error = Some(message);
                return;
            }
            _ => return,
        };
        let mut text = message.text.as_str();
        while stream == OutputStream::Stdout
            && let Some(at) = text.find(&self.word)
        {
            self.push(stream, &text[..at]);
            let rest = &text[at + self.word.len()..];
            let (line, after) = rest.split_once('\n').unwrap_or((rest, ""));
            self.take_line(line);
            text = after;
        }
        self.push(stream, text);
    }

    /// Takes a line of the lines that the interpreter was prepared with; the first character tells its kind.
    fn take_line(&mut self, line: &str) {
        if line == "." {
            self.is_told = true;
        } else if let Some(piece) = line.strip_prefix('+') {
            if self.told.len() + piece.len() <= MAX_TOLD {
                self.told.push_str(piece);
            }
        } else if let Some(status) = line.strip_prefix('!') {
            self.died = status.parse().ok().map(Exit::of_wait_status);
        } else {
            let bytes = [("*1", OutputStream::Stdout), ("*2", OutputStream::Stderr)];
            for (mark, stream) in bytes {
                if let Some(Ok(data)) = line.strip_prefix(mark).map(|data| STANDARD.decode(data)) {
                    self.pending.push_back(Piece::Text(stream, data.into()));
                }
            }
        }
    }

    fn push(&mut self, stream: OutputStream, text: &str) {
        if !text.is_empty() {
            let data = Bytes::copy_from_slice(text.as_bytes());
            self.pending.push_back(Piece::Text(stream, data));
        }
    }

    fn end(&mut self, code: Option<u16>, reason: String) -> End {
        if self.is_told
            && let Ok(told) = serde_json::from_str(&self.told)
        {
            return End::Told(Box::new(told));
        }
        let is_unprepared = |error: &InterpreterMessage| {
            error.name == "NameError" && error.value.contains("__sandbox_run__")
        };
        if self.died.is_some() {
            return End::Died(self.died);
        }
        match code {
            Some(NORMAL) if self.error.as_ref().is_some_and(is_unprepared) => End::NotPrepared,
            Some(NORMAL) => End::Lost(match self.error.take() {
                Some(error) => format!("{}: {} {}", error.name, error.value, error.traceback),
                None => "the interpreter ended the run without an answer".to_owned(),
            }),
            Some(PROCESS_ENDED) => End::Died(None),
            Some(TIMED_OUT) => End::TimedOut,
            Some(REFUSED) if reason.contains("context") => End::NotPrepared,
            _ if reason.is_empty() => End::Lost("the connection broke".to_owned()),
            _ => End::Lost(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_strings_of_python_whatever_the_code_has() {
        let request = RunCode::new("print('it\\'s \"ü\" 😀\0')\n");
        let code = CodeRequest::run(&request, None, b"").code();
        assert!(code.starts_with("__sandbox_run__(globals(), \"{"), "{code}");
        assert!(code.contains('😀') && !code.contains('\0') && !code.contains('\n'), "{code}");
    }

    #[test]
    fn failures_have_their_kinds() {
        let told: Told =
            serde_json::from_str(r#"{"failed": ["not_found", "variable 'x' not found"]}"#).unwrap();
        assert_eq!(told.failure("get_variable").unwrap().kind(), ErrorKind::NotFound);
        let told: Told =
            serde_json::from_str(r#"{"error": ["A", "b", "c\n"], "count": 3}"#).unwrap();
        assert_eq!((told.error().unwrap().name.as_str(), told.count), ("A", 3));
        assert!(told.failure("run_code").is_none());
    }
}
