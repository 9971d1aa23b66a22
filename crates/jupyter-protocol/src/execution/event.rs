//! The events and the outcome of an execution.

use bytes::Bytes;

use crate::channel::Channel;
use crate::content::{
    DisplayData, ErrorContent, ExecuteInput, ExecuteReply, ExecuteResult, InputRequest, Reply as _,
    ReplyStatus, Stream, UpdateDisplayData,
};
use crate::message::Message;

/// An event of an execution.
///
/// [`Event::Started`] comes first, unless the code never starts, and [`Event::Finished`] last. The others keep the
/// order of the kernel's messages. Output may follow the reply, because the two use different channels.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The kernel has started to process the request, which was queued until then. An aborted request may start too.
    Started,
    /// The code that runs, with its number.
    Input(Box<ExecuteInput>),
    /// Text written by the code.
    Stream(Box<Stream>),
    /// A display.
    Display {
        /// The display.
        display: Box<DisplayData>,
        /// Raw buffers of the message.
        buffers: Vec<Bytes>,
    },
    /// New content for all displays with an id.
    UpdateDisplay {
        /// The new content.
        update: Box<UpdateDisplayData>,
        /// Raw buffers of the message.
        buffers: Vec<Bytes>,
    },
    /// The output of the execution is cleared.
    ClearOutput {
        /// True to wait for the next output before clearing.
        wait: bool,
    },
    /// The value of the last expression.
    Result {
        /// The value.
        result: Box<ExecuteResult>,
        /// Raw buffers of the message.
        buffers: Vec<Bytes>,
    },
    /// An exception that the code did not catch.
    Error(Box<ErrorContent>),
    /// The code asks for a line of input, and waits. Answer with `ExecutionStream::reply_input` of a client, or with
    /// [`Execution::input_reply`](super::Execution::input_reply).
    InputRequest(Box<InputRequest>),
    /// The reply on the shell channel: status, number, values of expressions.
    Reply(Box<ExecuteReply>),
    /// The kernel announces the end of the output. Some kernels announce it [too
    /// early](super::Execution::with_barrier).
    Idle,
    /// Output is missing at this point.
    Lost(Loss),
    /// Any other message of the execution: comms, events of the debugger, unknown and malformed messages.
    Message {
        /// The channel of the message.
        channel: Channel,
        /// The message.
        message: Box<Message>,
    },
    /// The execution is over. No event follows.
    Finished(Box<Outcome>),
}

/// The cause of missing output.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// The buffer was full, because output arrived faster than it was read.
    Overflow {
        /// The number of dropped messages.
        messages: u64,
        /// The size of the dropped messages, in bytes.
        bytes: u64,
    },
    /// The server between the client and the kernel dropped messages, because they came too fast.
    RateLimited,
    /// The connection broke. Output published before the reconnection is lost.
    Disconnected,
    /// The kernel replied, and then did not announce the end of the output: its own queue was full, or it violates the
    /// protocol.
    NoIdle,
}

/// The losses in the output of an execution.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Losses {
    /// The number of messages dropped by the client.
    pub messages: u64,
    /// The size of the messages dropped by the client, in bytes.
    pub bytes: u64,
    /// True if the server dropped messages.
    pub rate_limited: bool,
    /// True if the connection broke.
    pub disconnected: bool,
    /// True if the end of the output was not announced.
    pub no_idle: bool,
}

impl Losses {
    /// Returns true if no output is missing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn add(&mut self, loss: Loss) {
        match loss {
            Loss::Overflow { messages, bytes } => {
                self.messages = self.messages.saturating_add(messages);
                self.bytes = self.bytes.saturating_add(bytes);
            }
            Loss::RateLimited => self.rate_limited = true,
            Loss::Disconnected => self.disconnected = true,
            Loss::NoIdle => self.no_idle = true,
        }
    }
}

/// The cause of an execution's end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum End {
    /// The kernel replied. See [`Outcome::reply`].
    Replied,
    /// The kernel has processed the request, but its reply did not arrive. The status of the code is unknown.
    ReplyLost,
    /// The kernel was restarted. Its state is lost.
    KernelRestarted,
    /// The kernel is dead.
    KernelDied,
    /// The connection is lost for good. The code may still run.
    ConnectionLost,
}

/// The outcome of an execution.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// The cause of the end.
    pub end: End,
    /// The reply of the kernel, unless it is missing or malformed.
    pub reply: Option<ExecuteReply>,
    /// The exception, from the reply or as published.
    pub error: Option<ErrorContent>,
    /// The number of the execution.
    pub execution_count: Option<i64>,
    /// True if the code was seen to run. Otherwise it did not run, unless that is unknown because of the other fields.
    pub started: bool,
    /// The losses in the output.
    pub losses: Losses,
}

impl Outcome {
    /// Returns true if the code ran and succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.end == End::Replied && self.status().is_some_and(ReplyStatus::is_ok)
    }

    /// Returns true if the code did not run, because an earlier request failed.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.status().is_some_and(ReplyStatus::is_aborted)
    }

    /// Returns the status of the reply.
    #[must_use]
    pub fn status(&self) -> Option<&ReplyStatus> {
        self.reply.as_ref().map(|reply| reply.status())
    }
}
