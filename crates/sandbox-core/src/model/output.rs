//! Printed text and byte counts of a run.

use serde::{Deserialize, Serialize};

/// A standard stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A line of output, or the part of one that has arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutputMessage {
    /// The text, without its newline.
    pub line: String,
    /// Time of arrival, unix seconds.
    #[serde(default)]
    pub timestamp: f64,
    /// True for standard error.
    #[serde(default)]
    pub error: bool,
    /// True when a newline ended the line, false for partial output.
    #[serde(default = "yes")]
    pub terminated: bool,
}

fn yes() -> bool {
    true
}

impl OutputMessage {
    /// The stream it came from.
    pub fn stream(&self) -> OutputStream {
        if self.error { OutputStream::Stderr } else { OutputStream::Stdout }
    }
}

/// Both streams of a run, line by line.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logs {
    /// Standard output.
    pub stdout: Vec<OutputMessage>,
    /// Standard error.
    pub stderr: Vec<OutputMessage>,
}

impl Logs {
    /// Standard output as text, without its last newline. The same as [`ExecutionResult::stdout_trimmed`](crate::ExecutionResult::stdout_trimmed).
    pub fn stdout_text(&self) -> String {
        without_last_newline(join(&self.stdout))
    }

    /// Standard error as text, without its last newline.
    pub fn stderr_text(&self) -> String {
        without_last_newline(join(&self.stderr))
    }

    /// Standard output exactly as it was printed (as far as it was kept).
    pub fn stdout_exact(&self) -> String {
        join(&self.stdout)
    }

    /// Standard error exactly as it was printed (as far as it was kept).
    pub fn stderr_exact(&self) -> String {
        join(&self.stderr)
    }
}

fn join(messages: &[OutputMessage]) -> String {
    let mut text = String::with_capacity(messages.iter().map(|m| m.line.len() + 1).sum());
    for message in messages {
        text.push_str(&message.line);
        if message.terminated {
            text.push('\n');
        }
    }
    text
}

fn without_last_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Bytes that a stream had, and the part of them that a result holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamTotals {
    /// Bytes the code wrote.
    pub bytes_total: u64,
    /// Bytes the result holds.
    pub bytes_kept: u64,
}

impl StreamTotals {
    /// Returns true when something was cut.
    pub fn truncated(&self) -> bool {
        self.bytes_kept < self.bytes_total
    }
}
