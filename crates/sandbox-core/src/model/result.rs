//! Results of runs and commands.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::denial::NetworkDenial;
use super::finding::Finding;
use super::mime::MimeType;
use super::output::{Logs, StreamTotals};
use crate::error::{Effect, Error, ErrorKind};
use crate::time::{duration_seconds, unix_seconds};

/// One displayed object in every representation it has, by MIME type.
///
/// Binary types (PNG, JPEG, PDF ..) are base64 strings, JSON types are JSON values, all others strings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResultItem {
    /// Representations by MIME type.
    pub data: BTreeMap<String, Value>,
    /// True for the value of the last expression, false for an object that was displayed before.
    #[serde(default)]
    pub is_main_result: bool,
    /// Metadata by MIME type, such as image sizes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl ResultItem {
    /// A main result with plain text alone.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self {
            data: BTreeMap::from([("text/plain".into(), Value::String(text.into()))]),
            is_main_result: true,
            extra: Map::new(),
        }
    }

    /// A representation that is a string.
    pub fn get(&self, mime: MimeType) -> Option<&str> {
        self.data.get(mime.as_str()).and_then(Value::as_str)
    }

    /// `text/plain`
    pub fn text(&self) -> Option<&str> {
        self.get(MimeType::TextPlain)
    }

    /// `text/html`
    pub fn html(&self) -> Option<&str> {
        self.get(MimeType::TextHtml)
    }

    /// `text/markdown`
    pub fn markdown(&self) -> Option<&str> {
        self.get(MimeType::TextMarkdown)
    }

    /// `text/latex`
    pub fn latex(&self) -> Option<&str> {
        self.get(MimeType::TextLatex)
    }

    /// `application/json`
    pub fn json(&self) -> Option<&Value> {
        self.data.get(MimeType::ApplicationJson.as_str())
    }

    /// `image/png`, base64
    pub fn png(&self) -> Option<&str> {
        self.get(MimeType::ImagePng)
    }

    /// `image/jpeg`, base64
    pub fn jpeg(&self) -> Option<&str> {
        self.get(MimeType::ImageJpeg)
    }

    /// `image/gif`, base64
    pub fn gif(&self) -> Option<&str> {
        self.get(MimeType::ImageGif)
    }

    /// `image/svg+xml`
    pub fn svg(&self) -> Option<&str> {
        self.get(MimeType::ImageSvg)
    }

    /// Decodes a representation in bytes, such as an image: of a type that is text, these are its UTF-8 bytes.
    ///
    /// # Errors
    /// `NotFound` when the item has no such representation, `Protocol` when the interpreter sent one that is not base64.
    pub fn bytes(&self, mime: MimeType) -> Result<Vec<u8>, Error> {
        let missing = || {
            let message = format!("the result has no {}", mime.as_str());
            Error::new(ErrorKind::NotFound, "result", message)
        };
        let text = self.get(mime).ok_or_else(missing)?;
        if !mime.is_binary() {
            return Ok(text.as_bytes().to_vec());
        }
        // Some kernels break it into lines.
        let text: String = text.split_ascii_whitespace().collect();
        STANDARD.decode(text).map_err(|error| {
            let message = format!("the {} of the result is not base64", mime.as_str());
            Error::new(ErrorKind::Protocol, "result", message).with_source(error)
        })
    }

    /// Decodes the PNG image, as a file has it. `None` without one.
    pub fn png_bytes(&self) -> Option<Vec<u8>> {
        self.bytes(MimeType::ImagePng).ok()
    }

    /// Decodes the JPEG image, as a file has it. `None` without one.
    pub fn jpeg_bytes(&self) -> Option<Vec<u8>> {
        self.bytes(MimeType::ImageJpeg).ok()
    }

    /// `application/pdf`, base64
    pub fn pdf(&self) -> Option<&str> {
        self.get(MimeType::ApplicationPdf)
    }
}

impl fmt::Display for ResultItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => f.write_str(text),
            None => {
                let types: Vec<_> = self.data.keys().map(String::as_str).collect();
                write!(f, "<{}>", types.join(", "))
            }
        }
    }
}

/// An exception that the code did not catch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeError {
    /// Class name, such as `ZeroDivisionError`.
    pub name: String,
    /// Its message.
    pub value: String,
    /// The traceback as text; only the code's own frames.
    #[serde(default)]
    pub traceback: String,
}

impl fmt::Display for CodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name.as_str(), self.value.as_str()) {
            (name, "") => f.write_str(name),
            // Kernels of some languages name none.
            ("", value) => f.write_str(value),
            (name, value) => write!(f, "{name}: {value}"),
        }
    }
}

impl StdError for CodeError {}

/// Why a run did not end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The wall-clock limit of the run passed.
    Timeout,
    /// The CPU-time limit of the run, or of the command, passed.
    CpuTime,
    /// The interpreter process died: a signal, a crash, `os._exit`.
    KernelDied,
    /// Memory ran out and the kernel or a watchdog killed the code.
    OutOfMemory,
    /// The output limit of the run passed.
    OutputLimit,
    /// The connection to the sandbox broke; the code may still run.
    ConnectionLost,
    /// The interpreter answered nonsense and was ended.
    Protocol,
    /// The code did not run: what it needs is not there, such as its working directory.
    NotRun,
    /// The caller dropped the run.
    Cancelled,
    /// The sandbox was ended during the run.
    Terminated,
    /// The lifetime or idle time of the sandbox passed.
    Expired,
}

impl FailureKind {
    /// The wire name, such as `kernel_died`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::CpuTime => "cpu_time",
            Self::KernelDied => "kernel_died",
            Self::OutOfMemory => "out_of_memory",
            Self::OutputLimit => "output_limit",
            Self::ConnectionLost => "connection_lost",
            Self::Protocol => "protocol",
            Self::NotRun => "not_run",
            Self::Cancelled => "cancelled",
            Self::Terminated => "terminated",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failure during a run, as opposed to an exception of the code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind.
    pub kind: FailureKind,
    /// The failure in words.
    pub message: String,
    /// The signal that ended the interpreter, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
}

impl Failure {
    /// Returns true when a time limit ended the run: of the clock, or of CPU time.
    pub fn timed_out(&self) -> bool {
        matches!(self.kind, FailureKind::Timeout | FailureKind::CpuTime)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Failure {}

impl From<FailureKind> for ErrorKind {
    fn from(kind: FailureKind) -> Self {
        match kind {
            FailureKind::Timeout | FailureKind::CpuTime => Self::Timeout,
            FailureKind::OutOfMemory | FailureKind::OutputLimit => Self::ResourceExhausted,
            FailureKind::ConnectionLost => Self::ConnectionLost,
            FailureKind::Protocol => Self::Protocol,
            FailureKind::Cancelled => Self::Cancelled,
            FailureKind::Terminated | FailureKind::Expired => Self::Terminated,
            _ => Self::RunFailed,
        }
    }
}

/// A run, or a command, that did not succeed: what [`ExecutionResult::ok`] and [`CommandResult::ok`] give.
///
/// It is the source of the [`Error`](crate::Error) there: [`Error::run_error`](crate::Error::run_error) gives it back.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RunError {
    /// The code raised an exception.
    Code(CodeError),
    /// The run did not end by itself: a time limit, a crash, no memory.
    Failure(Failure),
    /// The code, or the command, exited with that status, which is not 0.
    Exit {
        /// The status.
        exit_code: i32,
        /// Standard error, as it came.
        stderr: String,
    },
    /// The run was interrupted on request.
    Interrupted,
}

impl RunError {
    /// Returns true when a time limit ended the run.
    pub fn timed_out(&self) -> bool {
        matches!(self, Self::Failure(failure) if failure.timed_out())
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(error) => write!(f, "the code raised {error}"),
            Self::Failure(failure) => failure.fmt(f),
            Self::Exit { exit_code, stderr } => {
                write!(f, "exited with status {exit_code}")?;
                match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
                    Some(last) => write!(f, ": {}", last.trim()),
                    None => Ok(()),
                }
            }
            Self::Interrupted => f.write_str("the run was interrupted"),
        }
    }
}

impl StdError for RunError {}

impl RunError {
    /// Makes the error that the caller gets, with this one as its source.
    fn into_error(self) -> Error {
        let kind = match &self {
            Self::Interrupted => ErrorKind::Cancelled,
            Self::Failure(failure) => failure.kind.into(),
            Self::Code(_) | Self::Exit { .. } => ErrorKind::RunFailed,
        };
        Error::new(kind, "run", "the run failed").with_effect(Effect::Applied).with_source(self)
    }
}

/// Tells whether variables and imports survived a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterpreterState {
    /// They are still there.
    #[default]
    Kept,
    /// They are gone; files are kept.
    Lost,
}

/// Resources that a run used, as the host measured them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// CPU time of the interpreter process during this run, in seconds, threads included.
    pub cpu_time: Option<f64>,
    /// Highest resident memory the interpreter process has had so far, in bytes.
    pub peak_memory: Option<u64>,
}

/// The result of a run. Code that fails is a result too; see [`ExecutionResult::success`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutionResult {
    /// The value of the last expression and everything displayed, in order.
    pub results: Vec<ResultItem>,
    /// Displayed objects beyond 10,000, or beyond 128 MiB together, which are not in `results`.
    pub results_dropped: u64,
    /// Both output streams.
    pub logs: Logs,
    /// True when the code ended by itself: with a value, an exception or an exit.
    pub execution_ok: bool,
    /// Why not, for people; [`ExecutionResult::failure`] is for programs.
    pub execution_error: Option<String>,
    /// The exception the code raised.
    pub code_error: Option<CodeError>,
    /// Number of runs in this context, this one included.
    pub execution_count: u64,
    /// The context it ran in.
    pub context_id: Option<String>,
    /// Time at which the code started. In JSON, unix seconds.
    #[serde(with = "unix_seconds")]
    pub started_at: Option<SystemTime>,
    /// Time at which the run ended. In JSON, unix seconds.
    #[serde(with = "unix_seconds")]
    pub completed_at: Option<SystemTime>,
    /// True when the run was interrupted on request.
    pub interrupted: bool,
    /// Status of `sys.exit`, or of the interpreter when it died. `None`: no explicit exit.
    pub exit_code: Option<i32>,
    /// Why the run did not end by itself.
    pub failure: Option<Failure>,
    /// Tells whether variables and imports survived.
    pub state: InterpreterState,
    /// True when this run got a new interpreter because the one before had died.
    pub restarted: bool,
    /// Bytes written and kept of standard output.
    pub stdout_totals: StreamTotals,
    /// Bytes written and kept of standard error.
    pub stderr_totals: StreamTotals,
    /// Resources that were used.
    pub usage: Usage,
    /// Threads the code left running.
    pub background_threads: u32,
    /// What to do about a failure that has a known remedy, or what happened meanwhile that the end does not show, such as
    /// processes that the memory limit ended.
    pub hint: Option<String>,
    /// What the network policy refused meanwhile, at most 64 different ones. Of everything that ran in the sandbox at the
    /// time: connections do not say whose they are.
    pub network_denied: Vec<NetworkDenial>,
    /// Findings of a scan that looked at the code before it ran. Empty where nothing was found, or nothing was scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Unique id of the run.
    pub run_id: String,
}

impl ExecutionResult {
    /// Returns true when the code ran, raised nothing, was not interrupted, and did not exit with a status other than 0.
    pub fn success(&self) -> bool {
        self.execution_ok
            && self.code_error.is_none()
            && !self.interrupted
            && matches!(self.exit_code, None | Some(0))
    }

    /// Text of the main result; without one, the first text that was displayed.
    pub fn text(&self) -> Option<&str> {
        let main = self.results.iter().filter(|item| item.is_main_result);
        main.chain(&self.results).find_map(|item| item.text().filter(|text| !text.is_empty()))
    }

    /// Standard output as it came, the last newline included.
    pub fn stdout(&self) -> String {
        self.logs.stdout_exact()
    }

    /// Standard error as it came, the last newline included.
    pub fn stderr(&self) -> String {
        self.logs.stderr_exact()
    }

    /// Standard output without its last newline.
    pub fn stdout_trimmed(&self) -> String {
        self.logs.stdout_text()
    }

    /// Standard error without its last newline.
    pub fn stderr_trimmed(&self) -> String {
        self.logs.stderr_text()
    }

    /// Turns a run that did not succeed into an error: `sandbox.run_code("..").await?.ok()?`.
    ///
    /// # Errors
    /// The exception, the failure or the exit status as a [`RunError`]: see [`Error::run_error`](crate::Error::run_error). The
    /// kind is `RunFailed` for exceptions and exit statuses, and `Timeout`, `ResourceExhausted`, `Terminated` .. for
    /// failures. The result with its partial output is gone then; look at
    /// [`success`](Self::success) first where it is needed.
    pub fn ok(self) -> Result<Self, Error> {
        match self.to_error() {
            Some(error) => Err(error.into_error()),
            None => Ok(self),
        }
    }

    fn to_error(&self) -> Option<RunError> {
        if let Some(failure) = &self.failure {
            return Some(RunError::Failure(failure.clone()));
        }
        if self.interrupted {
            return Some(RunError::Interrupted);
        }
        if let Some(error) = &self.code_error {
            return Some(RunError::Code(error.clone()));
        }
        if let Some(exit_code) = self.exit_code.filter(|status| *status != 0) {
            return Some(RunError::Exit { exit_code, stderr: self.stderr() });
        }
        let unexplained = || Failure {
            kind: FailureKind::Protocol,
            message: self.execution_error.clone().unwrap_or_else(|| "the run failed".to_owned()),
            signal: None,
        };
        (!self.execution_ok).then(|| RunError::Failure(unexplained()))
    }

    /// Returns true when a time limit ended the run: of the clock, or of CPU time.
    pub fn timed_out(&self) -> bool {
        self.failure.as_ref().is_some_and(Failure::timed_out)
    }

    /// The exception the code raised, under the name older clients use.
    pub fn error(&self) -> Option<&CodeError> {
        self.code_error.as_ref()
    }

    /// Time from start to end.
    pub fn duration(&self) -> Option<Duration> {
        let (start, end) = (self.started_at?, self.completed_at?);
        Some(end.duration_since(start).unwrap_or_default())
    }
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandResult {
    /// Its exit status; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// Standard output as text; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    /// Standard error as text; bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// Time it ran. In JSON, seconds.
    #[serde(with = "duration_seconds")]
    pub duration: Duration,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it did not end by itself.
    pub failure: Option<Failure>,
    /// Bytes written and kept of standard output.
    pub stdout_totals: StreamTotals,
    /// Bytes written and kept of standard error.
    pub stderr_totals: StreamTotals,
    /// What the network policy refused meanwhile, at most 64 different ones. Of everything that ran in the sandbox at the
    /// time: connections do not say whose they are.
    pub network_denied: Vec<NetworkDenial>,
    /// Findings of a scan that looked at the command before it ran. Empty where nothing was found, or nothing was scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Resources that were used.
    pub usage: Usage,
    /// What happened meanwhile that its end does not show, such as processes that the memory limit ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl CommandResult {
    /// Returns true when the command ended by itself with status 0.
    pub fn success(&self) -> bool {
        self.exit_code == 0 && self.failure.is_none()
    }

    /// Standard output as it came, the last newline included: the field `stdout`.
    pub fn stdout(&self) -> &str {
        &self.stdout
    }

    /// Standard error as it came, the last newline included: the field `stderr`.
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    /// Standard output without its last newline.
    pub fn stdout_trimmed(&self) -> &str {
        self.stdout.strip_suffix('\n').unwrap_or(&self.stdout)
    }

    /// Standard error without its last newline.
    pub fn stderr_trimmed(&self) -> &str {
        self.stderr.strip_suffix('\n').unwrap_or(&self.stderr)
    }

    /// Time it ran: the field `duration`, under the name that results of code have.
    pub fn duration(&self) -> Option<Duration> {
        Some(self.duration)
    }

    /// Returns true when a time limit ended the command: of the clock, or of CPU time.
    pub fn timed_out(&self) -> bool {
        self.failure.as_ref().is_some_and(Failure::timed_out)
    }

    /// Turns a command that did not succeed into an error: `sandbox.commands().run("..").await?.ok()?`.
    ///
    /// # Errors
    /// As [`ExecutionResult::ok`]: the failure, or the exit status with standard error.
    pub fn ok(self) -> Result<Self, Error> {
        if let Some(failure) = self.failure {
            return Err(RunError::Failure(failure).into_error());
        }
        match self.exit_code {
            0 => Ok(self),
            exit_code => Err(RunError::Exit { exit_code, stderr: self.stderr }.into_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::system_time;

    fn ok() -> ExecutionResult {
        ExecutionResult { execution_ok: true, ..Default::default() }
    }

    #[test]
    fn success_needs_all_of_it() {
        assert!(ok().success());
        assert!(ExecutionResult { exit_code: Some(0), ..ok() }.success());
        assert!(!ExecutionResult { exit_code: Some(2), ..ok() }.success());
        assert!(!ExecutionResult { interrupted: true, ..ok() }.success());
        assert!(!ExecutionResult { code_error: Some(CodeError::default()), ..ok() }.success());
        assert!(!ExecutionResult::default().success());
    }

    #[test]
    fn errors_are_told_by_what_there_is() {
        let told = |name: &str, value: &str| {
            let (name, value) = (name.to_owned(), value.to_owned());
            CodeError { name, value, ..CodeError::default() }.to_string()
        };
        assert_eq!(told("ValueError", "bad"), "ValueError: bad");
        assert_eq!(told("KeyboardInterrupt", ""), "KeyboardInterrupt");
        assert_eq!(told("", "1"), "1", "kernels of some languages name none");
    }

    #[test]
    fn the_main_result_is_the_text() {
        let shown = ResultItem { is_main_result: false, ..ResultItem::from_text("<HTML object>") };
        let result = ExecutionResult { results: vec![shown, ResultItem::from_text("5")], ..ok() };
        assert_eq!(result.text(), Some("5"));
    }

    #[test]
    fn duration_needs_both_ends() {
        let result = ExecutionResult { started_at: Some(system_time(1000.0)), ..ok() };
        assert_eq!(result.duration(), None);
        let result = ExecutionResult { completed_at: Some(system_time(1001.5)), ..result };
        assert_eq!(result.duration(), Some(Duration::from_millis(1500)));
        let json = serde_json::to_value(&result).unwrap();
        assert_eq!((&json["started_at"], &json["completed_at"]), (&1000.0.into(), &1001.5.into()));
        assert_eq!(serde_json::from_value::<ExecutionResult>(json).unwrap(), result);
    }

    #[test]
    fn ok_gives_what_went_wrong() {
        assert_eq!(ok().ok().unwrap(), ok());
        let error =
            CodeError { name: "ValueError".into(), value: "bad".into(), ..CodeError::default() };
        let raised = ExecutionResult { code_error: Some(error.clone()), ..ok() }.ok().unwrap_err();
        assert_eq!(raised.run_error(), Some(&RunError::Code(error)));
        assert_eq!(raised.to_string(), "the run failed: the code raised ValueError: bad");
        assert_eq!(raised.kind(), ErrorKind::RunFailed);
        let failure =
            Failure { kind: FailureKind::Timeout, message: "too long".into(), signal: None };
        let late = ExecutionResult { failure: Some(failure), ..ExecutionResult::default() };
        assert!(late.timed_out());
        let late = late.ok().unwrap_err();
        assert!(late.run_error().unwrap().timed_out());
        assert_eq!(late.kind(), ErrorKind::Timeout);
        let interrupted = ExecutionResult { interrupted: true, ..ok() }.ok().unwrap_err();
        assert_eq!(interrupted.run_error(), Some(&RunError::Interrupted));
        let left = ExecutionResult { exit_code: Some(3), ..ok() }.ok().unwrap_err();
        assert_eq!(left.to_string(), "the run failed: exited with status 3");
        ExecutionResult::default().ok().expect_err("it did not run");
        assert_eq!(Error::invalid("x", "is wrong").run_error(), None);
    }

    #[test]
    fn commands_have_the_names_of_runs() {
        let done = CommandResult { stdout: "a\nb\n".into(), ..CommandResult::default() };
        assert_eq!(
            (done.stdout(), done.stdout_trimmed(), done.stderr_trimmed()),
            ("a\nb\n", "a\nb", "")
        );
        assert_eq!(done.duration(), Some(Duration::ZERO));
        let done = done.ok().unwrap();
        let failed = CommandResult { exit_code: 2, stderr: "ls: gone\n\n".into(), ..done };
        assert_eq!(
            failed.ok().unwrap_err().to_string(),
            "the run failed: exited with status 2: ls: gone"
        );
        let json = serde_json::to_value(CommandResult {
            duration: Duration::from_millis(1500),
            ..CommandResult::default()
        });
        assert_eq!(json.unwrap()["duration"], 1.5);
    }

    #[test]
    fn images_come_as_bytes() {
        let data = BTreeMap::from([
            ("image/png".to_owned(), Value::from("iVBORw0K\nGgo=\n")),
            ("image/jpeg".to_owned(), Value::from("???")),
            ("text/html".to_owned(), Value::from("<b>")),
        ]);
        let item = ResultItem { data, ..ResultItem::default() };
        assert_eq!(item.png_bytes().unwrap(), b"\x89PNG\r\n\x1a\n");
        assert_eq!(item.bytes(MimeType::TextHtml).unwrap(), b"<b>");
        assert_eq!(item.bytes(MimeType::ImageJpeg).unwrap_err().kind(), ErrorKind::Protocol);
        assert_eq!(item.bytes(MimeType::ImageGif).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
