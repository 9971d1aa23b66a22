//! The state of one execution, from the request to its end, without I/O.
//!
//! Replies and output use different channels, so they arrive in any order, and a flooded kernel drops some of them.
//! [`Execution`] takes messages and timeouts, turns them into events, and decides when the execution is over:
//!
//! - The reply and the idle status have arrived, in either order.
//! - The reply has arrived, and no output came for [`GracePeriods::idle`]. Output may be missing.
//! - The idle status has arrived, and no reply came for [`GracePeriods::reply`].
//! - The kernel died or was restarted, or the connection is lost.
//!
//! Some kernels publish output after their idle status. Their executions need a [barrier](Execution::with_barrier).

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

/// Limits the wait for missing messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct GracePeriods {
    /// The wait for the idle status and the barrier after the reply. Restarts with every message. Default: 2 s.
    pub idle: Duration,
    /// The wait for the reply after the idle status. Default: 5 s.
    pub reply: Duration,
}

impl GracePeriods {
    /// Sets [`idle`](Self::idle).
    #[must_use]
    pub const fn with_idle(mut self, idle: Duration) -> Self {
        self.idle = idle;
        self
    }

    /// Sets [`reply`](Self::reply).
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

/// The state of the reply.
#[derive(Clone, Debug, Default)]
enum ReplyState {
    #[default]
    Awaited,
    Received(Box<ExecuteReply>),
    Malformed,
    Lost,
}

/// A request whose end shows that an earlier execution has published all of its output.
#[derive(Clone, Debug)]
struct Barrier {
    id: String,
    /// The request, until it is sent.
    request: Option<Box<Message>>,
    passed: bool,
}

/// The state machine of one execution.
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
    /// The session of the process that was seen to process the request.
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
    /// Creates the execution of a request with this header.
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

    /// Adds a barrier, for a kernel that [publishes late](crate::KernelInfoReply::publishes_late): the execution is
    /// over once the kernel has also processed `request`. That must be a request on the shell channel that changes
    /// nothing and that the kernel processes where it runs code, such as a
    /// [`CompleteRequest`](crate::content::CompleteRequest). Requests that a kernel answers elsewhere, as Deno answers
    /// `kernel_info_request`, prove nothing. [`poll_send`](Self::poll_send) returns the request when it is due;
    /// [`on_message`](Self::on_message) also takes the messages published for it.
    #[must_use]
    pub fn with_barrier(mut self, request: Message) -> Self {
        let id = request.header.msg_id.clone();
        self.barrier = Some(Barrier { id, request: Some(Box::new(request)), passed: false });
        self
    }

    /// Returns a message to send on the shell channel, if one is due.
    pub fn poll_send(&mut self) -> Option<Message> {
        if self.is_finished() || matches!(self.reply, ReplyState::Awaited) {
            return None;
        }
        self.barrier.as_mut()?.request.take().map(|request| *request)
    }

    /// Returns the id of the request.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns true once the kernel was seen to process the request.
    #[must_use]
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Returns true once the execution is over. Events may still be queued.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.outcome.is_some()
    }

    /// Returns the outcome, once the execution is over.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_deref()
    }

    /// Returns the next event, or `None` until more messages arrive.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the time at which to call [`Execution::on_timeout`], unless a message arrives before.
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

    /// Returns true while the kernel has published its idle status and the reply is missing.
    ///
    /// That is normal for a moment, because the two use different channels. If it lasts, the reply is lost, for example
    /// by an unreported restart: a `kernel_info_reply` of the new process has another
    /// [session](Execution::kernel_session).
    #[must_use]
    pub fn lacks_reply(&self) -> bool {
        self.idle && matches!(self.reply, ReplyState::Awaited)
    }

    /// Returns the session of the kernel that runs the code, once a message of it has arrived. Each process of a kernel
    /// has its own.
    #[must_use]
    pub fn kernel_session(&self) -> Option<&str> {
        self.kernel.as_deref()
    }

    /// Takes a message. Messages of other requests are ignored, except those that report the kernel's death or restart.
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
            // A kernel may publish `starting` late, when it processes a request already. A new process has another
            // session.
            let is_known = self.kernel.as_ref() == Some(&message.header.session);
            if *state != ExecutionState::Starting || !is_known {
                self.on_kernel_state(state);
            }
        }
    }

    /// Takes the current time, and gives up on missing messages after the deadline.
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

    /// Records that output is missing at this point.
    pub fn on_loss(&mut self, loss: Loss) {
        if !self.is_finished() {
            self.losses.add(loss);
            self.events.push_back(Event::Lost(loss));
        }
    }

    /// Records that the reply is lost: the kernel has replied to a later request of the same queue.
    pub fn on_reply_lost(&mut self, now: Instant) {
        if !self.is_finished() && matches!(self.reply, ReplyState::Awaited) {
            self.reply = ReplyState::Lost;
            self.last_message = Some(now);
            self.finish_if_complete();
        }
    }

    /// Ends the execution, because the kernel or the connection is lost.
    pub fn on_end(&mut self, end: End) {
        self.finish(end);
    }

    /// Returns true if the code waits for input.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.input_request.is_some()
    }

    /// Creates the answer to the open question of the code, to send on the stdin channel. Returns `None` if no question
    /// is open.
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

    /// Handles a status of this request.
    fn on_own_state(&mut self, state: &ExecutionState) {
        match state {
            ExecutionState::Idle if !self.idle => {
                self.idle = true;
                self.events.push_back(Event::Idle);
            }
            state => self.on_kernel_state(state),
        }
    }

    /// Handles a status that concerns the kernel as a whole.
    fn on_kernel_state(&mut self, state: &ExecutionState) {
        match state {
            ExecutionState::Restarting | ExecutionState::Autorestarting => {
                self.finish(End::KernelRestarted);
            }
            // A new process publishes `starting` before it takes its first request.
            ExecutionState::Starting if self.started => self.finish(End::KernelRestarted),
            ExecutionState::Dead => self.finish(End::KernelDied),
            _ => {}
        }
    }

    /// Finishes once no message is missing.
    fn finish_if_complete(&mut self) {
        let passed = self.barrier.as_ref().is_none_or(|barrier| barrier.passed);
        if self.idle && passed && !matches!(self.reply, ReplyState::Awaited) {
            self.finish_answered();
        }
    }

    /// Returns the exception that ended the code. A published exception that the code handled does not count.
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
