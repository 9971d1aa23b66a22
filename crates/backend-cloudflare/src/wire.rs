//! The objects of the bridge, as far as they are used.

use serde::Deserialize;

/// An id that was minted.
#[derive(Debug, Deserialize)]
pub(crate) struct Minted {
    pub(crate) id: String,
}

/// A process.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteProcess {
    pub(crate) id: String,
    pub(crate) command: Vec<String>,
    pub(crate) state: String,
}

/// An event of the log of a process: `stdout` and `stderr` with data, `terminal` at its end, `truncated` where the bridge has
/// dropped output.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LogEvent {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) cursor: Option<String>,
    pub(crate) data: String,
    pub(crate) state: String,
    pub(crate) error: Option<ProcessFailure>,
}

/// The failure of a process that the bridge lost.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessFailure {
    pub(crate) message: String,
}

/// A terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RemoteTerminal {
    pub(crate) id: String,
}

/// A message about a terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TerminalMessage {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) cursor: Option<String>,
}

/// A tunnel to a port.
#[derive(Debug, Deserialize)]
pub(crate) struct Tunnel {
    pub(crate) url: String,
}
