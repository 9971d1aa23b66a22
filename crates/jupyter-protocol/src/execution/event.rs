//! What happens during an execution, and how it ended.

use bytes::Bytes;

use crate::channel::Channel;
use crate::content::{
    DisplayData, ErrorContent, ExecuteInput, ExecuteReply, ExecuteResult, InputRequest, Reply as _,
    ReplyStatus, Stream, UpdateDisplayData,
};
use crate::message::Message;

/// Something that happened during an execution.
///
/// [`Event::Started`] comes before all that the code does, unless the code never began, and [`Event::Finished`] is the
/// last. In between they come as the kernel's messages do: output may follow the reply, because both travel on channels of their own.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The kernel has begun. Until then the code waited behind other requests. A request that is aborted may begin too.
    Started,
    /// The code that runs, and its number.
    Input(Box<ExecuteInput>),
    /// Text that was written.
    Stream(Box<Stream>),
    /// Something to show.
    Display {
        /// The thing.
        display: Box<DisplayData>,
        /// Raw buffers that belong to it.
        buffers: Vec<Bytes>,
    },
    /// Something new to show wherever the same display id is shown.
    UpdateDisplay {
        /// The thing.
        update: Box<UpdateDisplayData>,
        /// Raw buffers that belong to it.
        buffers: Vec<Bytes>,
    },
    /// What was shown is to be removed.
    ClearOutput {
        /// Only when there is something new to show instead.
        wait: bool,
    },
    /// The value of the last expression.
    Result {
        /// The value.
        result: Box<ExecuteResult>,
        /// Raw buffers that belong to it.
        buffers: Vec<Bytes>,
    },
    /// An exception that the code did not catch.
    Error(Box<ErrorContent>),
    /// The code asks for a line, and waits. `ExecutionStream::reply_input` of a client answers, or
    /// [`Execution::input_reply`](super::Execution::input_reply).
    InputRequest(Box<InputRequest>),
    /// The answer on the shell channel: status, number, values of expressions.
    Reply(Box<ExecuteReply>),
    /// Nothing more will be published for this execution, in the kernel's own words. Some
    /// [are wrong](super::Execution::with_barrier).
    Idle,
    /// Output is missing at this point.
    Lost(Loss),
    /// Any other message that belongs to the execution: comms, events of the debugger, what is unknown or malformed.
    Message {
        /// Where it came from.
        channel: Channel,
        /// The message.
        message: Box<Message>,
    },
    /// It is over. Nothing follows.
    Finished(Box<Outcome>),
}

/// Why output is missing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// It came faster than it was taken, and the memory set aside for it was full.
    Overflow {
        /// Messages that were dropped.
        messages: u64,
        /// Their bytes.
        bytes: u64,
    },
    /// The server between us and the kernel dropped messages, because they came too fast.
    RateLimited,
    /// The connection broke. What was sent before it was made again is gone.
    Disconnected,
    /// The kernel answered and then was silent, without the message that nothing more follows. The kernel's own queue
    /// was full, or it does not keep to the protocol.
    NoIdle,
}

/// What is missing from the output of an execution.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Losses {
    /// Messages that were dropped here.
    pub messages: u64,
    /// Bytes of messages that were dropped here.
    pub bytes: u64,
    /// The server dropped messages.
    pub rate_limited: bool,
    /// The connection broke meanwhile.
    pub disconnected: bool,
    /// The end of the output was not announced.
    pub no_idle: bool,
}

impl Losses {
    /// Whether all output is there.
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

/// What ended an execution.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum End {
    /// The kernel answered. See [`Outcome::reply`].
    Replied,
    /// The kernel said that it is done, but its answer did not come. Whether the code succeeded is not known.
    ReplyLost,
    /// The kernel was started again. Its state is gone.
    KernelRestarted,
    /// The kernel is dead.
    KernelDied,
    /// The connection is lost for good. The code may still run.
    ConnectionLost,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// What ended it.
    pub end: End,
    /// The answer of the kernel, unless it is missing or malformed.
    pub reply: Option<ExecuteReply>,
    /// The exception, from the answer or as it was published.
    pub error: Option<ErrorContent>,
    /// The number of the execution.
    pub execution_count: Option<i64>,
    /// Whether the code was seen to run. If not, it did not, as far as is known.
    pub started: bool,
    /// What is missing from the output.
    pub losses: Losses,
}

impl Outcome {
    /// Whether the code ran and succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.end == End::Replied && self.status().is_some_and(ReplyStatus::is_ok)
    }

    /// Whether the code was not run, because an earlier request failed.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.status().is_some_and(ReplyStatus::is_aborted)
    }

    /// What the kernel answered.
    #[must_use]
    pub fn status(&self) -> Option<&ReplyStatus> {
        self.reply.as_ref().map(|reply| reply.status())
    }
}
