//! Events of a run.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::denial::NetworkDenial;
use super::finding::Finding;
use super::output::OutputStream;
use super::result::{CodeError, Failure, InterpreterState, ResultItem, Usage};

/// One event of a run. Order is exact within a stream; across streams it is the order of arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The run it belongs to.
    pub run_id: String,
    /// Position in the run, from 0, without gaps.
    pub seq: u64,
    /// Time of arrival, unix seconds.
    pub timestamp: f64,
    /// The kind, with its data.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The relation of a displayed object to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DisplayKind {
    /// The value of the last expression.
    Result,
    /// Displayed on the way.
    Display,
    /// Replaces what was displayed under the same id.
    Update,
}

/// The kinds of events of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EventKind {
    /// The code starts. Always first.
    Started {
        /// The context it runs in.
        context_id: String,
        /// True when the interpreter is new because the one before had died.
        restarted: bool,
    },
    /// Bytes on a standard stream, as they came: any length, not cut at lines or characters.
    Output {
        /// The stream.
        stream: OutputStream,
        /// The bytes. In JSON: `text`, with bytes that are not UTF-8 replaced.
        #[serde(rename = "text", serialize_with = "lossy", deserialize_with = "from_text")]
        data: Bytes,
    },
    /// An object was displayed.
    Display {
        /// Its relation to earlier objects.
        display: DisplayKind,
        /// The object.
        item: ResultItem,
        /// The id under which it can be replaced.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        display_id: Option<String>,
    },
    /// Asks to clear everything that was displayed so far.
    ClearOutput {
        /// Only when the next object comes.
        wait: bool,
    },
    /// The code raised an exception it did not catch.
    Error(CodeError),
    /// Advice about something that happens while the code runs. The outcome has the same hint.
    Hint {
        /// For people.
        text: String,
    },
    /// The run is over. Always last, exactly once, unless the stream is dropped.
    Finished(RunOutcome),
}

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOutcome {
    /// Time at which the code started, unix seconds.
    pub started_at: f64,
    /// Time at which the run ended, unix seconds.
    pub completed_at: f64,
    /// Number of runs in this context, this one included.
    pub execution_count: u64,
    /// True when the run was interrupted on request.
    pub interrupted: bool,
    /// Status of `sys.exit`, or of the interpreter when it died.
    pub exit_code: Option<i32>,
    /// Why the run did not end by itself.
    pub failure: Option<Failure>,
    /// Tells whether variables and imports survived.
    pub state: InterpreterState,
    /// Resources that the run used.
    pub usage: Usage,
    /// Threads the code left running.
    pub background_threads: u32,
    /// Advice about a failure that has a known remedy.
    pub hint: Option<String>,
    /// What the network policy refused meanwhile, at most 64 different ones. Of everything that ran in the sandbox at the
    /// time: connections do not say whose they are.
    pub network_denied: Vec<NetworkDenial>,
    /// Findings of a scan that looked at the code before it ran. Empty where nothing was found, or nothing was scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Bytes of its standard input that were read, as far as that is known. The rest is still there for other
    /// readers of the same file or pipe.
    #[serde(skip)]
    pub stdin_read: Option<u64>,
}

fn lossy<S: Serializer>(data: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(data))
}

fn from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
    String::deserialize(deserializer).map(Bytes::from)
}
