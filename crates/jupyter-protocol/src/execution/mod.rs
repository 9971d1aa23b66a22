//! One execution, from the request to its end, without I/O.
//!
//! Replies and output travel on different channels, so they arrive in any order, and on a flooded
//! kernel some do not arrive at all. [`Execution`] is fed with messages and with the time, tells what they
//! mean, and decides when it is over:
//!
//! - Reply and idle are both there, in whichever order.
//! - The reply is there, and nothing was published for [`GracePeriods::idle`]. Output may be missing.
//! - Idle is there, and no reply came for [`GracePeriods::reply`].
//! - The kernel died or was started again, or the connection is lost.
//!
//! Some kernels publish after their idle what came before it. There an execution has a [barrier](Execution::with_barrier).

mod event;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use event::{End, Event, Loss, Losses, Outcome};

use crate::channel::Channel;
use crate::content::{
    Content, ErrorContent, ExecuteReply, ExecutionState, InputReply, MessageContent as _,
    Reply as _,
};
use crate::header::{Header, Parent};
use crate::message::Message;
use crate::session::Session;

/// How long an execution waits for what is missing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct GracePeriods {
    /// After the reply, for the message that nothing more is published, and for the barrier. Begins anew with every message.
    /// Default: 2 s.
    pub idle: Duration,
    /// After that message, for the reply. Default: 5 s.
    pub reply: Duration,
}

impl GracePeriods {
    /// The same with another [`idle`](Self::idle).
    #[must_use]
    pub const fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// The same with another [`reply`](Self::reply).
    #[must_use]
    pub const fn with_reply(mut self, reply: Duration) -> Self {
        self.reply = reply;
        self
    }
}

impl Default for GracePeriods {
    fn default() -> Self {
        Self { idle: Duration::from_secs(2), reply: Duration::from_secs(5) }
    }
}

/// What is known of the answer on the shell channel.
#[derive(Clone, Debug, Default)]
enum ReplyState {
    #[default]
    Awaited,
    Received(Box<ExecuteReply>),
    Malformed,
    Lost,
}

/// A request whose end tells that an execution before it has published everything.
#[derive(Clone, Debug)]
struct Barrier {
    id: String,
    /// Until it is to be sent.
    request: Option<Box<Message>>,
    passed: bool,
}

/// One execution.
///
/// ```
/// use std::time::Instant;
/// use jupyter_protocol::content::Status;
/// use jupyter_protocol::execution::{Event, Execution, GracePeriods};
/// use jupyter_protocol::{Channel, ExecuteReply, ExecuteRequest, Session};
///
/// let (client, kernel) = (Session::new("me"), Session::new("kernel"));
/// let request = client.request(ExecuteRequest::new("pass"));
/// let mut execution = Execution::new(&request.header, GracePeriods::default());
///
/// let mut idle = Status::default();
/// idle.execution_state = "idle".into();
/// let now = Instant::now();
/// execution.on_message(Channel::Shell, kernel.reply(&request, ExecuteReply::default()), now);
/// execution.on_message(Channel::IoPub, kernel.reply(&request, idle), now);
///
/// let events: Vec<Event> = std::iter::from_fn(|| execution.poll_event()).collect();
/// assert!(matches!(events.last(), Some(Event::Finished(outcome)) if outcome.is_ok()));
/// ```
#[derive(Clone, Debug)]
pub struct Execution {
    id: String,
    grace: GracePeriods,
    started: bool,
    /// The session of the process that was seen to work on it.
    kernel: Option<String>,
    reply: ReplyState,
    idle: bool,
    error: Option<ErrorContent>,
    execution_count: Option<i64>,
    losses: Losses,
    input_request: Option<Header>,
    barrier: Option<Barrier>,
    last_message: Option<Instant>,
    outcome: Option<Box<Outcome>>,
    events: VecDeque<Event>,
}

impl Execution {
    /// The execution of a request that has this header.
    #[must_use]
    pub fn new(request: &Header, grace: GracePeriods) -> Self {
        Self {
            id: request.msg_id.clone(),
            grace,
            started: false,
            kernel: None,
            reply: ReplyState::Awaited,
            idle: false,
            error: None,
            execution_count: None,
            losses: Losses::default(),
            input_request: None,
            barrier: None,
            last_message: None,
            outcome: None,
            events: VecDeque::new(),
        }
    }

    /// The same for a kernel that [publishes late](crate::KernelInfoReply::publishes_late): it is not over with reply and
    /// idle, but when the kernel is done with `request` too: one for the shell channel that changes nothing, and that it
    /// answers where it runs code, such as a [`CompleteRequest`](crate::content::CompleteRequest). What it answers beside that,
    /// as Deno's does with its information, tells nothing. [`poll_send`](Self::poll_send) says when to send it;
    /// [`on_message`](Self::on_message) takes what is published for it, too.
    #[must_use]
    pub fn with_barrier(mut self, request: Message) -> Self {
        let id = request.header.msg_id.clone();
        self.barrier = Some(Barrier { id, request: Some(Box::new(request)), passed: false });
        self
    }

    /// What is to be sent on the shell channel now.
    pub fn poll_send(&mut self) -> Option<Message> {
        if self.is_finished() || matches!(self.reply, ReplyState::Awaited) {
            return None;
        }
        self.barrier.as_mut()?.request.take().map(|request| *request)
    }

    /// The id of the request.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether the kernel was seen to begin.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Whether it is over. There may still be events to take.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.outcome.is_some()
    }

    /// How it ended, when it is over.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_deref()
    }

    /// The next event, or `None` until there is more to learn from.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Execution::on_timeout`] is to be called, if nothing else happens before.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_finished() {
            return None;
        }
        let wait = match (&self.reply, self.idle) {
            (ReplyState::Awaited, false) => return None,
            (ReplyState::Awaited, true) => self.grace.reply,
            (_, _) => self.grace.idle,
        };
        self.last_message?.checked_add(wait)
    }

    /// Whether the kernel has said that it is idle again, and its reply is still to come.
    ///
    /// The two come on channels of their own, so this is usual for a moment. When it lasts, the reply is lost, such as
    /// by a restart that nobody spoke of: a `kernel_info_reply` of the new kernel has another
    /// [session](Execution::kernel_session).
    #[must_use]
    pub fn lacks_reply(&self) -> bool {
        self.idle && matches!(self.reply, ReplyState::Awaited)
    }

    /// The session of the kernel that runs it, once it has said something of it. Each start of a kernel has its own.
    #[must_use]
    pub fn kernel_session(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// Takes a message. Those that belong to other requests are ignored, except that the kernel died or began anew.
    pub fn on_message(&mut self, channel: Channel, message: Message, now: Instant) {
        if self.is_finished() {
            return;
        }
        if message.parent_id() == Some(&self.id) {
            self.last_message = Some(now);
            self.kernel.get_or_insert_with(|| message.header.session.clone());
            self.handle(channel, message);
            self.finish_if_complete();
        } else if self.belongs_to_barrier(&message) {
            self.last_message = Some(now);
            self.handle_barrier(&message.content);
            self.finish_if_complete();
        } else if let Content::Status(status) = &message.content {
            let state = &status.execution_state;
            // A kernel may say late that it has started, when it works on a request already. Another one has a session
            // of its own.
            let is_known = self.kernel.as_ref() == Some(&message.header.session);
            if *state != ExecutionState::Starting || !is_known {
                self.on_kernel_state(state);
            }
        }
    }

    /// Takes the time: gives up on what did not come.
    pub fn on_timeout(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if self.lacks_reply() {
            self.finish(End::ReplyLost);
        } else {
            self.on_loss(Loss::NoIdle);
            self.finish_answered();
        }
    }

    /// Output is missing at this point.
    pub fn on_loss(&mut self, loss: Loss) {
        if !self.is_finished() {
            self.losses.add(loss);
            self.events.push_back(Event::Lost(loss));
        }
    }

    /// The kernel has answered a later request of the same queue: the reply will not come any more.
    pub fn on_reply_lost(&mut self, now: Instant) {
        if !self.is_finished() && matches!(self.reply, ReplyState::Awaited) {
            self.reply = ReplyState::Lost;
            self.last_message = Some(now);
            self.finish_if_complete();
        }
    }

    /// The kernel or the connection is gone.
    pub fn on_end(&mut self, end: End) {
        self.finish(end);
    }

    /// Whether the code has input_request for input and was not answered yet.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.input_request.is_some()
    }

    /// The answer to the last question of the code, to send on the stdin channel. `None` if it input_request nothing, or was
    /// answered.
    pub fn input_reply(&mut self, session: &Session, line: impl Into<String>) -> Option<Message> {
        let input_request = self.input_request.take()?;
        let reply = InputReply { value: line.into(), ..InputReply::default() };
        Some(session.message(Parent::from_header(&input_request), reply))
    }

    fn belongs_to_barrier(&self, message: &Message) -> bool {
        self.barrier.as_ref().is_some_and(|barrier| message.parent_id() == Some(&barrier.id))
    }

    fn handle_barrier(&mut self, content: &Content) {
        let Content::Status(status) = content else { return };
        match (&status.execution_state, &mut self.barrier) {
            (ExecutionState::Idle, Some(barrier)) => barrier.passed = true,
            (state, _) => self.on_kernel_state(state),
        }
    }

    fn handle(&mut self, channel: Channel, message: Message) {
        if !matches!(&message.content, Content::ExecuteReply(_) | Content::Malformed(_)) {
            self.start();
        }
        let Message { identities, header, parent, metadata, content, buffers } = message;
        let event = match content {
            Content::Status(status) => return self.on_own_state(&status.execution_state),
            Content::ExecuteReply(reply) => return self.on_reply(reply),
            Content::ExecuteInput(input) => {
                self.execution_count = input.execution_count.or(self.execution_count);
                Event::Input(input)
            }
            Content::Error(error) => {
                self.error = Some((*error).clone());
                Event::Error(error)
            }
            Content::InputRequest(request) => {
                self.input_request = Some(header);
                Event::InputRequest(request)
            }
            Content::Stream(stream) => Event::Stream(stream),
            Content::DisplayData(display) => Event::Display { display, buffers },
            Content::UpdateDisplayData(update) => Event::UpdateDisplay { update, buffers },
            Content::ClearOutput(clear) => Event::ClearOutput { wait: clear.wait },
            Content::ExecuteResult(result) => Event::Result { result, buffers },
            content => {
                if content.is_malformed() && header.msg_type == ExecuteReply::MSG_TYPE {
                    self.reply = ReplyState::Malformed;
                }
                let message = Message { identities, header, parent, metadata, content, buffers };
                Event::Message { channel, message: Box::new(message) }
            }
        };
        self.events.push_back(event);
    }

    fn start(&mut self) {
        if !self.started {
            self.started = true;
            self.events.push_back(Event::Started);
        }
    }

    fn on_reply(&mut self, reply: Box<ExecuteReply>) {
        if !reply.status.is_aborted() {
            self.start();
        }
        self.execution_count = reply.execution_count.or(self.execution_count);
        self.events.push_back(Event::Reply(reply.clone()));
        self.reply = ReplyState::Received(reply);
    }

    /// What the kernel says of this request.
    fn on_own_state(&mut self, state: &ExecutionState) {
        match state {
            ExecutionState::Idle if !self.idle => {
                self.idle = true;
                self.events.push_back(Event::Idle);
            }
            state => self.on_kernel_state(state),
        }
    }

    /// What is said of the kernel as a whole.
    fn on_kernel_state(&mut self, state: &ExecutionState) {
        match state {
            ExecutionState::Restarting | ExecutionState::Autorestarting => {
                self.finish(End::KernelRestarted);
            }
            // A kernel that starts says so before it takes its first request.
            ExecutionState::Starting if self.started => self.finish(End::KernelRestarted),
            ExecutionState::Dead => self.finish(End::KernelDied),
            _ => {}
        }
    }

    /// Finishes when there is nothing left to wait for.
    fn finish_if_complete(&mut self) {
        let passed = self.barrier.as_ref().is_none_or(|barrier| barrier.passed);
        if self.idle && passed && !matches!(self.reply, ReplyState::Awaited) {
            self.finish_answered();
        }
    }

    /// The exception that ended the code. One that was merely published and then dealt with does not count.
    fn uncaught(&mut self, reply: Option<&ExecuteReply>) -> Option<ErrorContent> {
        let published = self.error.take();
        let Some(reply) = reply else { return published };
        let answered = reply.error()?;
        if answered.ename.is_empty() { published.or(Some(answered)) } else { Some(answered) }
    }

    fn finish_answered(&mut self) {
        self.finish(if matches!(self.reply, ReplyState::Lost) {
            End::ReplyLost
        } else {
            End::Replied
        });
    }

    fn finish(&mut self, end: End) {
        if self.is_finished() {
            return;
        }
        let reply = match std::mem::take(&mut self.reply) {
            ReplyState::Received(reply) => Some(*reply),
            _ => None,
        };
        let error = self.uncaught(reply.as_ref());
        let aborted = reply.as_ref().is_some_and(|reply| reply.status.is_aborted());
        let outcome = Outcome {
            end,
            reply,
            error,
            execution_count: self.execution_count,
            started: self.started && !aborted,
            losses: self.losses,
        };
        self.outcome = Some(Box::new(outcome.clone()));
        self.events.push_back(Event::Finished(Box::new(outcome)));
    }
}

#[cfg(test)]
mod tests;
