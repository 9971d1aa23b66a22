//! An audit: one line for each beginning and each end of an operation that changes or runs something.

mod log;
mod tools;
mod totals;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use async_trait::async_trait;
use futures_channel::oneshot;
use sandbox_core::{
    Backend, CommandEvent, Cost, Error, ErrorKind, EventKind, Hooks, InstallPackages, Layer,
    Observer, Operation, OperationEvent, OperationRequest, Result, Retry, SandboxInfo, Usage,
    intercept_backend, unix_now, wrap_backend,
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use self::log::{LogDirectory, hex};
use self::tools::ToolAudit;
use self::totals::AllTotals;

pub use self::log::AuditReport;

/// The operation of code that calls a function of the host.
const TOOL_CALL: &str = "call_tool";

/// Operations that only look. They are not in the log.
const UNNOTED: [&str; 14] = [
    "list",
    "environments",
    "health",
    "list_snapshots",
    "list_contexts",
    "list_commands",
    "connect_command",
    "list_files",
    "stat_file",
    "find_files",
    "metrics",
    "logs",
    "watch_files",
    "get_variable",
];

/// How content gets into the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditContent {
    /// Its length and its SHA-256 digest.
    #[default]
    Digest,
    /// Beside that its first bytes as text, at most that many. It may have secrets.
    Text(usize),
}

/// What happens to an operation that cannot be written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuditFailure {
    /// It is refused.
    #[default]
    Refuse,
    /// It runs without a line.
    Continue,
}

/// Settings of an [`AuditLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditPolicy {
    /// Code, commands and output in the log. Default: digests.
    pub content: AuditContent,
    /// Operations that cannot be written down. Default: refused.
    pub on_failure: AuditFailure,
    /// Bytes of a file after which a new one begins. Default 16 MiB.
    pub max_file: u64,
    /// Waits until each line is on the disk. Default false: a crash of the whole machine may lose the last lines.
    pub sync: bool,
}

impl Default for AuditPolicy {
    fn default() -> Self {
        let (content, on_failure) = (AuditContent::default(), AuditFailure::default());
        Self { content, on_failure, max_file: 16 << 20, sync: false }
    }
}

/// A log in a directory of its own, shared by all clones and by all processes that open the same directory.
#[derive(Clone)]
pub struct AuditLog {
    path: PathBuf,
    policy: AuditPolicy,
    directory: Arc<Mutex<LogDirectory>>,
    /// Lines that the writing thread has still to write.
    queued: Arc<AtomicUsize>,
    lines: Sender<Line>,
}

/// A record for the writing thread, which answers when it is written. Without a record it only answers.
type Line = (Option<Map<String, Value>>, Option<oneshot::Sender<Written>>);

/// Nothing, or why a line could not be written.
type Written = std::result::Result<(), String>;

impl fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditLog").field("path", &self.path).finish_non_exhaustive()
    }
}

impl AuditLog {
    /// Opens the log in a directory, which is made with mode 0700 when it is missing.
    ///
    /// # Errors
    /// `PermissionDenied` when the directory is not private to this user; `Unavailable` when it cannot be used.
    pub fn open(path: impl Into<PathBuf>, policy: AuditPolicy) -> Result<Self> {
        let path = path.into();
        let directory = Arc::new(Mutex::new(opened(&path, policy)?));
        let (lines, received) = channel::<Line>();
        let queued = Arc::new(AtomicUsize::new(0));
        let (written_to, left) = (Arc::clone(&directory), Arc::clone(&queued));
        let writer = move || {
            while let Ok((record, answer)) = received.recv() {
                let written = match record {
                    Some(mut record) => {
                        let written = locked(&written_to).append(&mut record);
                        left.fetch_sub(1, Ordering::AcqRel);
                        told(written)
                    }
                    None => Ok(()),
                };
                if let Some(answer) = answer {
                    // The caller may have given up.
                    let _ = answer.send(written);
                }
            }
        };
        let thread = thread::Builder::new().name("audit-log".to_owned()).spawn(writer);
        thread.map_err(|error| unusable(&path, &error))?;
        Ok(Self { path, policy, directory, queued, lines })
    }

    /// Checks every line of the log in a directory.
    ///
    /// # Errors
    /// `NotFound` without such a directory; otherwise as [`AuditLog::open`].
    pub fn verify(path: impl AsRef<Path>) -> Result<AuditReport> {
        let path = path.as_ref();
        check_there(path)?;
        let directory = opened(path, AuditPolicy::default())?;
        directory.verify().map_err(|error| unusable(path, &error))
    }

    /// Reads the lines of the log in a directory, the oldest first, until `each` returns false.
    ///
    /// # Errors
    /// `NotFound` without such a directory; otherwise as [`AuditLog::open`].
    pub fn read(path: impl AsRef<Path>, each: impl FnMut(&str) -> bool) -> Result<()> {
        let path = path.as_ref();
        check_there(path)?;
        let directory = opened(path, AuditPolicy::default())?;
        directory.read(each).map_err(|error| unusable(path, &error))
    }

    /// Waits until everything is written that was noted before.
    pub async fn flush(&self) {
        let (answer, written) = oneshot::channel();
        if self.lines.send((None, Some(answer))).is_ok() {
            let _ = written.await;
        }
    }

    /// Writes a line here, unless that could wait: for the disk, for another process, for lines that came before. Handing a
    /// line to the writing thread and waiting for the answer takes longer than writing it.
    fn write_now(&self, record: &mut Map<String, Value>) -> Option<Written> {
        if self.policy.sync || self.queued.load(Ordering::Acquire) > 0 {
            return None;
        }
        let mut directory = self.directory.try_lock().ok()?;
        match directory.try_append(record) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            written => Some(told(written)),
        }
    }

    fn queue(&self, record: Map<String, Value>, answer: Option<oneshot::Sender<Written>>) {
        self.queued.fetch_add(1, Ordering::AcqRel);
        // The thread lives as long as this sender.
        let _ = self.lines.send((Some(record), answer));
    }

    /// Writes the line with which an operation begins.
    async fn begin(&self, mut record: Map<String, Value>, operation: &'static str) -> Result<()> {
        let written = match self.write_now(&mut record) {
            Some(written) => written,
            None => {
                let (answer, written) = oneshot::channel();
                self.queue(record, Some(answer));
                let gone = |_| Err("the writing thread has ended".to_owned());
                written.await.unwrap_or_else(gone)
            }
        };
        let Err(problem) = written else { return Ok(()) };
        if self.policy.on_failure == AuditFailure::Continue {
            return Ok(());
        }
        let message = format!("the operation cannot be written to the audit log: {problem}");
        Err(Error::new(ErrorKind::Unavailable, operation, message)
            .with_retry(Retry::Never)
            .with_context("audit", self.path.display().to_string())
            .with_hint("make room on its disk, or choose `AuditFailure::Continue`"))
    }

    fn end(&self, mut record: Map<String, Value>) {
        if self.write_now(&mut record).is_none() {
            self.queue(record, None);
        }
    }
}

fn locked(directory: &Mutex<LogDirectory>) -> MutexGuard<'_, LogDirectory> {
    directory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn told(written: io::Result<()>) -> Written {
    written.map_err(|error| {
        tracing::error!(%error, "an audit line could not be written");
        error.to_string()
    })
}

/// A log that is only read is not made.
fn check_there(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let message = format!("there is no audit log in {}", path.display());
    Err(Error::new(ErrorKind::NotFound, "audit", message))
}

fn opened(path: &Path, policy: AuditPolicy) -> Result<LogDirectory> {
    LogDirectory::open(path, policy.max_file.max(1), policy.sync)
        .map_err(|error| unusable(path, &error))
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    let message = format!("the audit log in {} cannot be used: {error}", path.display());
    Error::new(kind, "audit", message)
}

/// Writes operations of a backend and its sandboxes to a log.
///
/// Each operation that runs or changes something has a line when it begins and one when it ends, with the same `op`, and so
/// has each call of a function of the host by code. An end that is missing means that the process died. The end of a
/// sandbox has the totals of what ran in it through this layer. Values of environment variables and variables are never in
/// the log.
#[derive(Clone, Debug)]
pub struct AuditLayer {
    log: AuditLog,
    totals: Arc<AllTotals>,
}

impl AuditLayer {
    /// Writes to a log.
    pub fn new(log: AuditLog) -> Self {
        Self { log, totals: Arc::default() }
    }

    /// Writes the line with which an operation begins. What is returned writes the one with which it ends.
    async fn begin(
        &self,
        operation: &'static str,
        sandbox: Option<String>,
        run: Option<&str>,
        request: Map<String, Value>,
        has_events: bool,
    ) -> Result<Noting> {
        let op = sandbox_core::random_hex(8);
        let mut about = Map::new();
        about.insert("op".to_owned(), op.into());
        about.insert("operation".to_owned(), operation.into());
        if let Some(sandbox) = &sandbox {
            about.insert("sandbox".to_owned(), sandbox.as_str().into());
        }
        if let Some(run) = run {
            about.insert("run".to_owned(), run.into());
        }
        let mut record = line("begin", &about);
        record.insert("pid".to_owned(), std::process::id().into());
        if !request.is_empty() {
            record.insert("request".to_owned(), request.into());
        }
        self.log.begin(record, operation).await?;
        let (output, content) = ([Content::default(), Content::default()], Content::default());
        Ok(Noting {
            layer: self.clone(),
            operation,
            sandbox,
            about,
            began: Instant::now(),
            output,
            content,
            usage: Usage::default(),
            cost: None,
            result: None,
            has_events,
            is_written: false,
        })
    }
}

impl Layer for AuditLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let inner = wrap_backend(Arc::new(ToolAudit::new(inner, self.clone())));
        intercept_backend(inner, Arc::new(self.clone()))
    }
}

#[async_trait]
impl Hooks for AuditLayer {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        if UNNOTED.contains(&operation.name) {
            return Ok(Box::new(Silent));
        }
        let info = operation.sandbox.map(|sandbox| sandbox.info());
        let cost = info.as_ref().and_then(SandboxInfo::cost);
        let sandbox = info.map(|info| info.id);
        let request = described(&operation.request, self.log.policy.content);
        let has_events = has_events(&operation.request);
        let run = operation.call.run_id.as_deref();
        let mut noting = self.begin(operation.name, sandbox, run, request, has_events).await?;
        noting.cost = cost;
        Ok(Box::new(noting))
    }
}

/// Returns true for an operation whose end comes in a stream, after its call.
fn has_events(request: &OperationRequest<'_>) -> bool {
    match request {
        OperationRequest::RunCode { .. } => true,
        OperationRequest::StartCommand { background, .. } => !background,
        _ => false,
    }
}

fn line(event: &str, about: &Map<String, Value>) -> Map<String, Value> {
    let mut record = Map::new();
    record.insert("time".to_owned(), unix_now().into());
    record.insert("event".to_owned(), event.into());
    record.extend(about.clone());
    record
}

/// What a request says, without secrets.
fn described(request: &OperationRequest<'_>, content: AuditContent) -> Map<String, Value> {
    let value = match request {
        OperationRequest::Create(spec) => json!({
            "name": spec.name, "tags": spec.tags, "isolation": spec.isolation,
            "network": spec.network, "image": spec.image, "environment": spec.environment,
            "mounts": spec.mounts, "env": spec.env.keys().collect::<Vec<_>>(),
        }),
        OperationRequest::RunCode { code, language, context, .. } => json!({
            "code": noted(code.as_bytes(), content), "language": language, "context": context,
        }),
        OperationRequest::StartCommand { command, cwd, env, background, as_root } => json!({
            "command": noted(command.to_string().as_bytes(), content), "cwd": cwd,
            "env": env.keys().collect::<Vec<_>>(), "background": background, "as_root": as_root,
        }),
        OperationRequest::Path(path) => json!({"path": path}),
        OperationRequest::Paths { from, to } => json!({"from": from, "to": to}),
        OperationRequest::InstallPackages(packages) => {
            let (InstallPackages::Python(names)
            | InstallPackages::Upgrade(names)
            | InstallPackages::System(names)) = packages;
            json!({"packages": names})
        }
        OperationRequest::Tool(tool) => json!({"tool": tool.name}),
        OperationRequest::Variables(values) => {
            json!({"variables": values.keys().collect::<Vec<_>>()})
        }
        OperationRequest::Tags(tags) => json!({"tags": tags}),
        OperationRequest::Lifetime(lifetime) => json!({"lifetime": lifetime.as_secs_f64()}),
        OperationRequest::Port(port) => json!({"port": port}),
        OperationRequest::Name(name) => json!({"name": name}),
        _ => Value::Null,
    };
    match value {
        Value::Object(mut map) => {
            map.retain(|_, value| !value.is_null());
            map
        }
        _ => Map::new(),
    }
}

fn noted(bytes: &[u8], content: AuditContent) -> Value {
    let mut all = Content::default();
    all.take(bytes, content);
    all.finish()
}

/// Content as it gets into the log.
#[derive(Clone, Default)]
struct Content {
    digest: Sha256,
    bytes: u64,
    text: Vec<u8>,
}

impl Content {
    fn take(&mut self, bytes: &[u8], content: AuditContent) {
        self.digest.update(bytes);
        self.bytes += bytes.len() as u64;
        if let AuditContent::Text(limit) = content {
            let room = limit.saturating_sub(self.text.len());
            self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    fn finish(&self) -> Value {
        let digest = hex(&self.digest.clone().finalize());
        let mut noted = json!({"bytes": self.bytes, "sha256": digest});
        if !self.text.is_empty() {
            noted["text"] = String::from_utf8_lossy(&self.text).into();
        }
        noted
    }
}

/// Notes nothing.
struct Silent;

#[async_trait]
impl Observer for Silent {
    async fn failed(&mut self, error: Error) -> Error {
        error
    }

    fn event(&mut self, _: OperationEvent<'_>) -> Result<()> {
        Ok(())
    }
}

/// Notes the end of one operation.
struct Noting {
    layer: AuditLayer,
    operation: &'static str,
    sandbox: Option<String>,
    about: Map<String, Value>,
    began: Instant,
    output: [Content; 2],
    content: Content,
    usage: Usage,
    /// What the sandbox costs, where its provider tells.
    cost: Option<Cost>,
    result: Option<Map<String, Value>>,
    has_events: bool,
    is_written: bool,
}

impl Noting {
    fn set(&mut self, value: Value) {
        if let Value::Object(map) = value {
            self.result = Some(map);
        }
    }
}

#[async_trait]
impl Observer for Noting {
    async fn failed(&mut self, error: Error) -> Error {
        self.set(json!({"error": {"kind": error.kind(), "message": error.to_string()}}));
        error
    }

    fn event(&mut self, event: OperationEvent<'_>) -> Result<()> {
        let content = self.layer.log.policy.content;
        match event {
            OperationEvent::Made(info) => {
                let name = if self.sandbox.is_none() { "sandbox" } else { "copy" };
                self.about.insert(name.to_owned(), info.id.as_str().into());
            }
            OperationEvent::Succeeded if !self.has_events => self.set(json!({"ok": true})),
            OperationEvent::Content(chunk) => self.content.take(chunk, content),
            OperationEvent::Run(event) => match &event.kind {
                EventKind::Output { stream, data } => {
                    let index = usize::from(*stream == sandbox_core::OutputStream::Stderr);
                    self.output[index].take(data, content);
                }
                EventKind::Finished(outcome) => {
                    self.usage = outcome.usage;
                    self.set(json!({
                        "exit_code": outcome.exit_code, "failure": outcome.failure,
                        "interrupted": outcome.interrupted, "state": outcome.state,
                        "usage": outcome.usage, "network_denied": outcome.network_denied,
                        "findings": outcome.findings,
                    }));
                    self.write();
                }
                EventKind::Error(error) => {
                    self.about.insert("exception".to_owned(), error.name.as_str().into());
                }
                _ => {}
            },
            OperationEvent::Command(event) => match event {
                CommandEvent::Output { stream, data } => {
                    let index = usize::from(*stream == sandbox_core::OutputStream::Stderr);
                    self.output[index].take(data, content);
                }
                CommandEvent::Finished(outcome) => {
                    self.usage = outcome.usage;
                    self.set(json!({
                        "exit_code": outcome.exit_code, "failure": outcome.failure,
                        "usage": outcome.usage, "network_denied": outcome.network_denied,
                        "findings": outcome.findings,
                    }));
                    self.write();
                }
                _ => {}
            },
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.write();
    }
}

impl Noting {
    /// Writes the line with which the operation ends, once: with its last event, because a stream may be kept after that.
    fn write(&mut self) {
        if std::mem::replace(&mut self.is_written, true) {
            return;
        }
        let mut record = line("end", &self.about);
        record.insert("duration".to_owned(), self.began.elapsed().as_secs_f64().into());
        for (name, output) in ["stdout", "stderr"].iter().zip(&self.output) {
            if output.bytes > 0 {
                record.insert((*name).to_owned(), output.finish());
            }
        }
        if self.content.bytes > 0 {
            record.insert("content".to_owned(), self.content.finish());
        }
        // Without a result its caller gave up, or read no further.
        let result = self.result.take();
        let result = result.map_or_else(|| json!({"abandoned": true}), Value::Object);
        record.insert("result".to_owned(), result);
        if let Some(sandbox) = &self.sandbox {
            let seconds = self.began.elapsed().as_secs_f64();
            let is_run = matches!(self.operation, "run_code" | "start_command");
            let credits = self.cost.filter(|_| is_run).map(|cost| cost.per_second * seconds);
            if let Some(credits) = credits {
                record.insert("credits".to_owned(), credits.into());
            }
            let bytes = self.output.iter().map(|output| output.bytes).sum();
            let totals = &self.layer.totals;
            match self.operation {
                "run_code" | "start_command" | TOOL_CALL => {
                    totals.add(sandbox, self.operation, &self.usage, bytes, credits);
                }
                "terminate" | "kill" => {
                    if let Some(cost) = self.cost {
                        record.insert("credits".to_owned(), cost.credits.into());
                    }
                    let all = totals.take(sandbox);
                    all.into_iter().for_each(|all| drop(record.insert("totals".to_owned(), all)));
                }
                _ => {}
            }
        }
        self.layer.log.end(record);
    }
}
