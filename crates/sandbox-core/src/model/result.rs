//! Results of runs and commands.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::denial::NetworkDenial;
use super::mime::MimeType;
use super::output::{Logs, StreamTotals};

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
    /// Time at which the code started, unix seconds.
    pub started_at: Option<f64>,
    /// Time at which the run ended, unix seconds.
    pub completed_at: Option<f64>,
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

    /// Standard output without its last newline.
    pub fn stdout(&self) -> String {
        self.logs.stdout_text()
    }

    /// Standard error without its last newline.
    pub fn stderr(&self) -> String {
        self.logs.stderr_text()
    }

    /// The exception the code raised, under the name older clients use.
    pub fn error(&self) -> Option<&CodeError> {
        self.code_error.as_ref()
    }

    /// Time from start to end.
    pub fn duration(&self) -> Option<Duration> {
        let seconds = self.completed_at? - self.started_at?;
        Duration::try_from_secs_f64(seconds.max(0.0)).ok()
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
    /// Seconds it ran.
    pub duration: f64,
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
    /// What happened meanwhile that its end does not show, such as processes that the memory limit ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl CommandResult {
    /// Returns true when the command ended by itself with status 0.
    pub fn success(&self) -> bool {
        self.exit_code == 0 && self.failure.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let result = ExecutionResult { started_at: Some(1000.0), ..ok() };
        assert_eq!(result.duration(), None);
        let result = ExecutionResult { completed_at: Some(1001.5), ..result };
        assert_eq!(result.duration(), Some(Duration::from_millis(1500)));
    }
}
