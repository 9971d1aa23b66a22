//! Started commands, their events and their controls.

use std::fmt;
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt as _;
use std::pin::Pin;
#[cfg(unix)]
use std::process::ExitStatus;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};

use crate::callbacks::Callbacks;
use crate::commands::collect_events;
use crate::error::{Error, Result};
use crate::events::Lines;
use crate::model::{
    CommandResult, Failure, Finding, NetworkDenial, OutputStream, StreamTotals, Usage,
};
use crate::request::PtySize;

/// The events of a command.
pub type CommandEvents = Pin<Box<dyn Stream<Item = CommandEvent> + Send>>;

/// A started command.
///
/// ```no_run
/// # async fn example(sandbox: sandbox_core::Sandbox) -> sandbox_core::Result<()> {
/// let command = sandbox.commands().run("make").start().await?;
/// let mut lines = command.lines();
/// while let Some(message) = lines.next_line().await {
///     println!("{}", message.line);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Command {
    /// Its id in the sandbox.
    pub id: String,
    /// Its process id inside, where that is known.
    pub pid: Option<u32>,
    /// Its output, and last its end. Dropping the stream kills a command that is not in the background.
    ///
    /// Output that is not read holds a command back, a background one only for a short time: a reader that begins late or
    /// pauses gets [`CommandEvent::Skipped`].
    pub events: CommandEvents,
    /// Its controls.
    pub control: Arc<dyn CommandControl>,
}

impl Command {
    /// Makes a command that only has an output and an end: its controls answer `Unsupported`.
    pub fn without_control(
        id: impl Into<String>,
        events: impl Stream<Item = CommandEvent> + Send + 'static,
    ) -> Self {
        Self { id: id.into(), pid: None, events: Box::pin(events), control: Arc::new(NoControl) }
    }

    /// Waits for the next event. `None` after its end.
    pub async fn next_event(&mut self) -> Option<CommandEvent> {
        self.events.next().await
    }

    /// Gives the output of both streams line by line, as it comes. The lines end with the command.
    pub fn lines(self) -> Lines {
        Lines::of_command(self.events)
    }

    /// Reads the output to its end, and gives the result: as awaiting the command instead of starting it.
    pub async fn wait(self) -> CommandResult {
        collect_events(self.events, &mut Callbacks::default()).await
    }
}

/// The controls of a command that has none.
#[derive(Debug)]
struct NoControl;

impl NoControl {
    fn refuse(operation: &'static str) -> Result<()> {
        Err(Error::unsupported(operation, "this command takes no input and no signals"))
    }
}

#[async_trait]
impl CommandControl for NoControl {
    async fn write_stdin(&self, _: Bytes) -> Result<()> {
        Self::refuse("write_stdin")
    }

    async fn close_stdin(&self) -> Result<()> {
        Self::refuse("close_stdin")
    }

    async fn resize(&self, _: PtySize) -> Result<()> {
        Self::refuse("resize")
    }

    async fn signal(&self, _: i32, _: bool) -> Result<()> {
        Self::refuse("signal")
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("id", &self.id)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// An event of a command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CommandEvent {
    /// Bytes on a stream, as they came.
    Output {
        /// The stream.
        stream: OutputStream,
        /// The bytes.
        #[serde(skip)]
        data: Bytes,
    },
    /// Bytes of a stream that were not kept: they came between what was told before of that stream and what follows.
    Skipped {
        /// The stream.
        stream: OutputStream,
        /// Number of bytes.
        bytes: u64,
    },
    /// What to do about something that happens while it runs, and that its end may come too late to tell, such as a
    /// network that is closed. The outcome has the same hint.
    Hint {
        /// For people.
        text: String,
    },
    /// The command has ended. Always last, exactly once.
    Finished(CommandOutcome),
}

/// The end of a command.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CommandOutcome {
    /// Exit status; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it did not end by itself.
    pub failure: Option<Failure>,
    /// Seconds it ran.
    pub duration: f64,
    /// Resources that were used, including by children that it waited for.
    pub usage: Usage,
    /// What the network policy refused meanwhile, at most 64 different ones. Of everything that ran in the sandbox at the
    /// time: connections do not say whose they are.
    pub network_denied: Vec<NetworkDenial>,
    /// Findings of a scan that looked at the command before it ran. Empty where nothing was found, or nothing was scanned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Advice about something that the end does not show, such as processes that the memory limit ended.
    pub hint: Option<String>,
    /// Bytes of its standard input that were read, as far as that is known. The rest is still there for other
    /// readers of the same file or pipe.
    #[serde(skip)]
    pub stdin_read: Option<u64>,
}

#[cfg(unix)]
impl From<ExitStatus> for CommandOutcome {
    fn from(status: ExitStatus) -> Self {
        let signal = status.signal();
        let exit_code = status.code().unwrap_or_else(|| 128 + signal.unwrap_or_default());
        Self { exit_code, signal, ..Self::default() }
    }
}

/// Controls of a running command.
///
/// # Errors
/// `Unsupported` for what its request did not ask for, such as the size of a terminal that it does not have, or to write
/// where the request gave all of the input. `InvalidArgument` for a signal that does not exist. Otherwise whatever keeps
/// the sandbox from doing it.
#[async_trait]
pub trait CommandControl: fmt::Debug + Send + Sync + 'static {
    /// Writes all of it to its standard input; waits while it does not read. Writers take turns.
    ///
    /// # Errors
    /// `ConnectionLost` when the command has ended or closed its input; `NotFound` after
    /// `close_stdin`.
    ///
    /// # Cancellation
    /// A dropped future may have written a part.
    async fn write_stdin(&self, data: Bytes) -> Result<()>;

    /// Ends its standard input. Repeating it, or doing it after the end of the command, does nothing.
    ///
    /// A terminal stays open: it gets the end-of-file character (Ctrl-D), which ends the input of a program that reads
    /// lines and is a byte to one that reads keys.
    async fn close_stdin(&self) -> Result<()>;

    /// Tells it the size of its terminal.
    async fn resize(&self, size: PtySize) -> Result<()>;

    /// Sends a signal to it alone, or to it and everything it started.
    async fn signal(&self, signal: i32, tree: bool) -> Result<()>;
}

/// A command, as listings show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandInfo {
    /// Its id.
    pub id: String,
    /// Its process id inside.
    pub pid: Option<u32>,
    /// The command line.
    pub command: String,
    /// Unix seconds.
    pub started_at: f64,
    /// Its exit status, once it has ended.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Why it did not end by itself.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Time at which it ended, unix seconds.
    #[serde(default)]
    pub ended_at: Option<f64>,
    /// True when the command outlives its caller and can be connected to.
    #[serde(default)]
    pub background: bool,
    /// Bytes that a background command has printed so far, and the part that is kept. On a terminal, both streams.
    #[serde(default)]
    pub stdout: StreamTotals,
    /// As `stdout`, for standard error.
    #[serde(default)]
    pub stderr: StreamTotals,
}
