//! A client of one kernel, over whichever transport.

pub(crate) mod dispatcher;
mod error;
mod execution;
mod mailbox;
mod output;
mod ready;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch as watching};
use tokio::task::JoinSet;

pub use error::{ClientError, CloseReason, Effect};
pub use execution::{ExecutionStream, Progress};
pub use output::ExecutionOutput;
pub use watch::{Observed, Watch};

use crate::channel::Channel;
use crate::content::{
    CompleteRequest, Content, ExecuteRequest, ExecutionState, MessageContent, Request,
};
use crate::execution::{Execution, GracePeriods};
use crate::limits::Limits;
use crate::message::Message;
use crate::raw::RawMessage;
use crate::session::Session;
use dispatcher::{Dispatcher, Interest, ReplyTarget};
use mailbox::Mailbox;

/// What all transports have in common.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Bounds on what is accepted.
    pub limits: Limits,
    /// The session that the messages of this client carry. Default: a new one. On a Jupyter Server, two clients of the same
    /// kernel need two.
    pub session: Arc<Session>,
    /// How long an execution waits for what is missing.
    pub grace: GracePeriods,
    /// How many bytes of output wait for [`ExecutionStream::next`] and for [`Watch::next`]. Default: 64 MiB each. One message may
    /// always wait, however long it is.
    pub buffered: usize,
    /// How long to try to connect. A kernel that is just starting needs a second or more. Default: 60 s.
    pub connect_timeout: Duration,
    /// How long to try to connect again after the connection broke. Default: 30 s. Zero: not at all.
    pub reconnect_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            session: Arc::default(),
            grace: GracePeriods::default(),
            buffered: 64 * 1024 * 1024,
            connect_timeout: Duration::from_secs(60),
            reconnect_timeout: Duration::from_secs(30),
        }
    }
}

/// Where messages go out. One for each channel; some transports use the same for all.
pub(crate) type Outbox = mpsc::Sender<(Channel, RawMessage)>;

/// A client of one kernel.
///
/// Cloning gives another handle to the same connection. The connection is closed when the last handle is
/// dropped; the kernel goes on.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    dispatcher: Arc<Dispatcher>,
    options: ClientOptions,
    outboxes: [Outbox; 4],
    /// Tells the transport to connect the stdin channel, where that is not done at once.
    want_stdin: watching::Sender<bool>,
    stdin_connected: watching::Receiver<bool>,
    heartbeat: watching::Receiver<Heartbeat>,
    _tasks: JoinSet<()>,
}

/// What a transport gives to its client.
pub(crate) struct Transport {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// In the order of [`Channel::MESSAGES`].
    pub(crate) outboxes: [Outbox; 4],
    pub(crate) want_stdin: watching::Sender<bool>,
    pub(crate) stdin_connected: watching::Receiver<bool>,
    pub(crate) heartbeat: watching::Receiver<Heartbeat>,
    /// Aborted with the client.
    pub(crate) tasks: JoinSet<()>,
}

/// What the heartbeat shows: that the process has a thread that answers, and not that the kernel works.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// When the process answered last.
    pub last: Option<Instant>,
    /// How many beats in a row were not answered.
    pub missed: u32,
}

/// How long to wait for the stdin channel before code is sent that may ask for input. Some kernels listen on it only when
/// they need it.
const STDIN_TIMEOUT: Duration = Duration::from_secs(1);

impl Client {
    pub(crate) fn new(transport: Transport, options: ClientOptions) -> Self {
        let Transport { dispatcher, outboxes, want_stdin, stdin_connected, heartbeat, mut tasks } =
            transport;
        tasks.spawn(probe_restarted_kernels(
            Arc::clone(&dispatcher),
            outboxes.each_ref().map(Outbox::downgrade),
        ));
        let _tasks = tasks;
        Self(Arc::new(Inner {
            dispatcher,
            options,
            outboxes,
            want_stdin,
            stdin_connected,
            heartbeat,
            _tasks,
        }))
    }

    /// Runs code: an [`ExecuteRequest`], or the text itself.
    ///
    /// Returns when the request is on its way; while the connection is being made again, it waits to be sent. Code that fails
    /// is no error: see [`ExecutionStream`]. Where the code may ask for input, this first waits until the stdin channel is connected,
    /// for a second at most.
    ///
    /// # Errors
    /// [`ClientError::Closed`]. The code was not sent.
    ///
    /// # Cancellation
    /// If the future is dropped before it has completed, the code was not sent and this can be called again. To stop code
    /// that was sent, interrupt the kernel.
    pub async fn execute(
        &self,
        request: impl Into<ExecuteRequest>,
    ) -> Result<ExecutionStream, ClientError> {
        self.execute_message(self.session().request(request.into())).await
    }

    /// Runs code with a message of your own, for example one for a subshell: [`Session::request_in`].
    ///
    /// # Errors
    /// As [`Client::execute`], and [`ClientError::Unsupported`] when it is no `execute_request`.
    ///
    /// # Cancellation
    /// As [`Client::execute`].
    pub async fn execute_message(&self, request: Message) -> Result<ExecutionStream, ClientError> {
        match &request.content {
            Content::ExecuteRequest(request) if request.allow_stdin => self.connect_stdin().await,
            Content::ExecuteRequest(_) => {}
            other => {
                let what = format!("{} runs no code", other.msg_type());
                return Err(ClientError::Unsupported(what));
            }
        }
        let raw = request.into_raw();
        let mailbox = Arc::new(Mailbox::new(self.0.options.buffered));
        self.dispatcher().expect_execution(&raw, &mailbox)?;
        let mut execution = Execution::new(raw.header(), self.0.options.grace);
        if self.dispatcher().publishes_late() {
            let barrier = self.session().request(CompleteRequest::at_end(""));
            self.dispatcher().expect_barrier(&barrier.header.msg_id, execution.id());
            execution = execution.with_barrier(barrier);
        }
        // From here on, dropping it forgets the request.
        let running = ExecutionStream::new(self.clone(), mailbox, execution);
        self.post(Channel::Shell, raw).await?;
        Ok(running)
    }

    /// Asks the kernel something and waits for the answer, for as long as it takes: there is no timeout. A busy kernel
    /// answers on the shell channel when it is done, and one that does not know the request does not answer at all.
    ///
    /// A reply that says that it went wrong is no error: look at [`Reply::status`](crate::Reply::status).
    ///
    /// # Errors
    /// [`ClientError`], see its variants and [`ClientError::effect`].
    ///
    /// # Cancellation
    /// Dropping the future stops waiting. Nearly always the request is on its way by then, and the kernel deals with it all
    /// the same; its answer is ignored. Calling this again sends another request.
    pub async fn request<R: Request>(&self, request: R) -> Result<R::Reply, ClientError> {
        self.request_on(R::CHANNEL, request).await
    }

    /// As [`Client::request`], on a channel of your choice. `kernel_info_request` is answered on control too.
    ///
    /// # Errors
    /// As [`Client::request`], and [`ClientError::Unsupported`] for a channel that no requests are sent on.
    ///
    /// # Cancellation
    /// As [`Client::request`].
    pub async fn request_on<R: Request>(
        &self,
        channel: Channel,
        request: R,
    ) -> Result<R::Reply, ClientError> {
        let reply = self.exchange(channel, self.session().request(request)).await?;
        R::Reply::from_content(reply.content).map_err(|content| match *content {
            Content::Malformed(malformed) => ClientError::Malformed(Box::new(malformed)),
            other => ClientError::Unexpected {
                expected: R::Reply::MSG_TYPE,
                found: other.msg_type().to_owned(),
            },
        })
    }

    /// Sends any request and waits for the message that answers it on the same channel.
    ///
    /// # Errors
    /// As [`Client::request_on`].
    ///
    /// # Cancellation
    /// As [`Client::request`]. Make a new message to ask again: kernels may ignore one whose signature they have seen.
    pub async fn exchange(
        &self,
        channel: Channel,
        request: Message,
    ) -> Result<Message, ClientError> {
        let raw = request.into_raw();
        let id = raw.header().msg_id.clone();
        let (sender, receiver) = oneshot::channel();
        self.dispatcher().expect_reply(channel, &raw, ReplyTarget::Reply(sender))?;
        let _remove = RemoveOnDrop { dispatcher: self.dispatcher(), id: &id };
        self.post(channel, raw).await?;
        let closed = || {
            let reason = self.dispatcher().closed().unwrap_or(CloseReason::Closed);
            ClientError::Closed { reason, effect: Effect::Unknown }
        };
        let reply = receiver.await.map_err(|_| closed())??;
        Ok(reply.parse(&self.dispatcher().limits))
    }

    /// Sends a message that is not answered, such as one on a comm.
    ///
    /// Returns when the message is on its way, which is no proof that it arrives.
    ///
    /// # Errors
    /// [`ClientError::Closed`], and [`ClientError::Unsupported`] for a channel that nothing is sent on. The message was not
    /// sent.
    ///
    /// # Cancellation
    /// If the future is dropped before it has completed, the message was not sent and this can be called again.
    pub async fn send(&self, channel: Channel, message: Message) -> Result<(), ClientError> {
        self.post(channel, message.into_raw()).await
    }

    /// Sees what the kernel publishes from now on, whoever caused it.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.mailbox(Interest::IoPub))
    }

    /// Sees every message of every channel from now on.
    #[must_use]
    pub fn watch_everything(&self) -> Watch {
        Watch::new(self.mailbox(Interest::Everything))
    }

    /// What the kernel said last about what it does. `None` until it said something.
    #[must_use]
    pub fn kernel_state(&self) -> Option<ExecutionState> {
        self.dispatcher().kernel_state().borrow().clone()
    }

    /// How often the kernel has lost its state, as far as is known: its process was started again or has died. The kernel
    /// or its server says so, it replies as another process, or this client was [told](Client::kernel_died). A death and the
    /// start after it may count as two; so compare with an earlier number, and nothing else.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        *self.dispatcher().restarts().borrow()
    }

    /// Waits until [`Client::restarts`] is another number than `before`: until what the kernel knew then is gone.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this can be called again.
    pub async fn restarted(&self, before: u64) {
        // The sender lives as long as this client.
        let _ = self.dispatcher().restarts().wait_for(|restarts| *restarts != before).await;
    }

    /// Whether everything is connected that is needed to run code.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.dispatcher().is_connected()
    }

    /// What the heartbeat shows, where the transport has one and it was asked for.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        *self.0.heartbeat.borrow()
    }

    /// Why the connection is closed for good, if it is.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.dispatcher().closed()
    }

    /// Waits until the connection is closed for good, and says why. That a kernel is dead does not close it at once: see
    /// [`ClientOptions::reconnect_timeout`].
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this can be called again.
    pub async fn closed(&self) -> CloseReason {
        self.dispatcher().wait_closed().await;
        self.close_reason().unwrap_or(CloseReason::Closed)
    }

    /// How many messages were refused, because they were not signed well or were no messages.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.dispatcher().rejected()
    }

    /// The session that the messages of this client carry.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.dispatcher().session
    }

    /// The kernel is known to be dead, for example because its process has ended. Ends everything that waits for it:
    /// executions, requests and [`Client::ready`]. Watches are told, and it counts as one of the [restarts](Client::restarts).
    ///
    /// What the kernel said last may still be on its way; wait a moment before this. The connection stays, and a kernel that
    /// is started again behind the same addresses can be used when it is [ready](Client::ready).
    pub fn kernel_died(&self) {
        self.dispatcher().kernel_died();
    }

    /// Closes the connection. Whoever waits is told so; the kernel goes on.
    pub fn close(&self) {
        self.dispatcher().close(&CloseReason::Closed);
    }

    fn mailbox(&self, interest: Interest) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::new(self.0.options.buffered));
        self.dispatcher().watch(interest, &mailbox);
        mailbox
    }

    pub(crate) fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.0.dispatcher
    }

    async fn post(&self, channel: Channel, message: RawMessage) -> Result<(), ClientError> {
        let unsupported = || ClientError::Unsupported(format!("messages on the {channel} channel"));
        let at =
            Channel::MESSAGES.iter().position(|own| *own == channel).ok_or_else(unsupported)?;
        if channel == Channel::IoPub {
            return Err(unsupported());
        }
        if let Some(reason) = self.dispatcher().closed() {
            return Err(ClientError::not_sent(reason));
        }
        if channel == Channel::Stdin {
            self.0.want_stdin.send_replace(true);
        }
        self.0.outboxes[at].send((channel, message)).await.map_err(|_| {
            ClientError::not_sent(self.dispatcher().closed().unwrap_or(CloseReason::Closed))
        })
    }

    async fn connect_stdin(&self) {
        self.0.want_stdin.send_replace(true);
        let mut connected = self.0.stdin_connected.clone();
        let wait = connected.wait_for(|connected| *connected);
        // If it takes longer, the question of the code may be lost, and the code waits.
        let _ = tokio::time::timeout(STDIN_TIMEOUT, wait).await;
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Client");
        shown.field("session", &self.session().id()).field("connected", &self.is_connected());
        shown.field("closed", &self.close_reason()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.dispatcher.close(&CloseReason::Closed);
    }
}

/// Asks each new process of the kernel what it answers: requests that the one before had got are lost with it, and nothing
/// else tells which they are.
async fn probe_restarted_kernels(
    dispatcher: Arc<Dispatcher>,
    outboxes: [mpsc::WeakSender<(Channel, RawMessage)>; 4],
) {
    let mut restarts = dispatcher.restarts();
    // The sender is in the dispatcher, so this does not fail.
    while restarts.changed().await.is_ok() {
        for (channel, outbox) in Channel::MESSAGES.into_iter().zip(&outboxes) {
            for fence in dispatcher.fences(channel) {
                let Some(outbox) = outbox.upgrade() else { return };
                // If it is closed, those who wait are told so.
                let _ = outbox.send((channel, fence)).await;
            }
        }
    }
}

/// Forgets a request when nobody waits for it any more.
struct RemoveOnDrop<'a> {
    dispatcher: &'a Dispatcher,
    id: &'a str,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.dispatcher.remove(self.id);
    }
}
