//! A client of one kernel, over any transport.

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

/// Options that all transports share.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Limits on incoming messages.
    pub limits: Limits,
    /// The session of this client's messages. Default: a new one. Two clients of the same kernel on a Jupyter Server
    /// need two sessions.
    pub session: Arc<Session>,
    /// Limits how long an execution waits for missing messages.
    pub grace: GracePeriods,
    /// Bytes of output that are buffered for [`ExecutionStream::next`] and for [`Watch::next`]. Default: 64 MiB each. A
    /// single message is always buffered, however long it is.
    pub buffered: usize,
    /// Limits how long connecting is tried. A kernel that is just starting needs a second or more. Default: 60 s.
    pub connect_timeout: Duration,
    /// Limits how long reconnecting is tried after a connection broke. Default: 30 s. Zero disables reconnection.
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

/// The queue of outgoing messages of a channel. Some transports use one queue for all channels.
pub(crate) type Outbox = mpsc::Sender<(Channel, RawMessage)>;

/// A client of one kernel.
///
/// A clone is another handle to the same connection. The connection is closed when the last handle is dropped; the
/// kernel continues.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    dispatcher: Arc<Dispatcher>,
    options: ClientOptions,
    outboxes: [Outbox; 4],
    /// Asks the transport to connect the stdin channel, if it does so on demand.
    want_stdin: watching::Sender<bool>,
    stdin_connected: watching::Receiver<bool>,
    heartbeat: watching::Receiver<Heartbeat>,
    _tasks: JoinSet<()>,
}

/// The parts that a transport provides to its client.
pub(crate) struct Transport {
    pub(crate) dispatcher: Arc<Dispatcher>,
    /// In the order of [`Channel::MESSAGES`].
    pub(crate) outboxes: [Outbox; 4],
    pub(crate) want_stdin: watching::Sender<bool>,
    pub(crate) stdin_connected: watching::Receiver<bool>,
    pub(crate) heartbeat: watching::Receiver<Heartbeat>,
    /// Tasks that are aborted with the client.
    pub(crate) tasks: JoinSet<()>,
}

/// The state of the heartbeat. A beat shows that the process has a thread that answers; the kernel itself may be stuck.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Heartbeat {
    /// The time of the last answer.
    pub last: Option<Instant>,
    /// The number of consecutive beats without an answer.
    pub missed: u32,
}

/// Limits the wait for the stdin channel before code that may ask for input is sent. Some kernels open that channel on
/// demand.
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

    /// Runs code: an [`ExecuteRequest`], or just its text.
    ///
    /// Returns once the request is queued for sending; during a reconnection, it is sent afterwards. Code that fails is
    /// not an error: see [`ExecutionStream`]. If the code may ask for input, this method first waits for the stdin
    /// channel, for at most one second.
    ///
    /// # Errors
    /// [`ClientError::Closed`]. The code was not sent.
    ///
    /// # Cancellation
    /// If the future is dropped before it completes, the code was not sent and this method can be called again. To stop
    /// code that was sent, interrupt the kernel.
    pub async fn execute(
        &self,
        request: impl Into<ExecuteRequest>,
    ) -> Result<ExecutionStream, ClientError> {
        self.execute_message(self.session().request(request.into())).await
    }

    /// Runs code with a message of your own, for example one for a subshell: see [`Session::request_in`].
    ///
    /// # Errors
    /// As [`Client::execute`], and [`ClientError::Unsupported`] if the message is not an `execute_request`.
    ///
    /// # Cancellation
    /// As [`Client::execute`].
    pub async fn execute_message(&self, request: Message) -> Result<ExecutionStream, ClientError> {
        match &request.content {
            Content::ExecuteRequest(request) if request.allow_stdin => self.connect_stdin().await,
            Content::ExecuteRequest(_) => {}
            other => {
                let what = format!("{} does not run code", other.msg_type());
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
        // From here on, dropping the stream removes the request.
        let running = ExecutionStream::new(self.clone(), mailbox, execution);
        self.post(Channel::Shell, raw).await?;
        Ok(running)
    }

    /// Sends a request and waits for its reply. There is no timeout: a busy kernel answers on the shell channel once it
    /// is idle, and a kernel that does not know the request never answers.
    ///
    /// A reply with an error status is returned as a reply: check [`Reply::status`](crate::Reply::status).
    ///
    /// # Errors
    /// [`ClientError`], see its variants and [`ClientError::effect`].
    ///
    /// # Cancellation
    /// Dropping the future stops the wait. The request is usually sent by then; the kernel processes it, and its reply
    /// is discarded. Calling this method again sends another request.
    pub async fn request<R: Request>(&self, request: R) -> Result<R::Reply, ClientError> {
        self.request_on(R::CHANNEL, request).await
    }

    /// As [`Client::request`], on a channel of your choice. Kernels answer `kernel_info_request` on control too.
    ///
    /// # Errors
    /// As [`Client::request`], and [`ClientError::Unsupported`] for a channel that does not carry requests.
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

    /// Sends any request and waits for the reply on the same channel.
    ///
    /// # Errors
    /// As [`Client::request_on`].
    ///
    /// # Cancellation
    /// As [`Client::request`]. Create a new message to ask again: kernels may ignore a signature that they have seen.
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

    /// Sends a message without a reply, such as one on a comm.
    ///
    /// Returns once the message is queued for sending, which does not prove its arrival.
    ///
    /// # Errors
    /// [`ClientError::Closed`], and [`ClientError::Unsupported`] for a channel that carries no outgoing messages. The
    /// message was not sent.
    ///
    /// # Cancellation
    /// If the future is dropped before it completes, the message was not sent and this method can be called again.
    pub async fn send(&self, channel: Channel, message: Message) -> Result<(), ClientError> {
        self.post(channel, message.into_raw()).await
    }

    /// Watches what the kernel publishes from now on, for all clients.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(self.mailbox(Interest::IoPub))
    }

    /// Watches every message of every channel from now on.
    #[must_use]
    pub fn watch_everything(&self) -> Watch {
        Watch::new(self.mailbox(Interest::Everything))
    }

    /// Returns the last execution state that the kernel published, or `None` before the first.
    #[must_use]
    pub fn kernel_state(&self) -> Option<ExecutionState> {
        self.dispatcher().kernel_state().borrow().clone()
    }

    /// Returns the number of times that the kernel is known to have lost its state: its process was restarted or has
    /// died. The sources are the kernel, its server, a reply from another process, and [`Client::kernel_died`]. A death
    /// and the restart after it may count as two, so only compare the number with an earlier one.
    #[must_use]
    pub fn restarts(&self) -> u64 {
        *self.dispatcher().restarts().borrow()
    }

    /// Waits until [`Client::restarts`] differs from `before`, that is until the kernel has lost the state of that
    /// time.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn restarted(&self, before: u64) {
        // The sender lives as long as this client.
        let _ = self.dispatcher().restarts().wait_for(|restarts| *restarts != before).await;
    }

    /// Returns true if all channels that are needed to run code are connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.dispatcher().is_connected()
    }

    /// Returns the state of the heartbeat, if the transport has one and it is enabled.
    #[must_use]
    pub fn heartbeat(&self) -> Heartbeat {
        *self.0.heartbeat.borrow()
    }

    /// Returns the reason for which the connection is closed for good, or `None` while it is not.
    #[must_use]
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.dispatcher().closed()
    }

    /// Waits until the connection is closed for good, and returns the reason. The death of a kernel does not close the
    /// connection at once: see [`ClientOptions::reconnect_timeout`].
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn closed(&self) -> CloseReason {
        self.dispatcher().wait_closed().await;
        self.close_reason().unwrap_or(CloseReason::Closed)
    }

    /// Returns the number of rejected messages: those that are not valid or have no valid signature.
    #[must_use]
    pub fn rejected(&self) -> u64 {
        self.dispatcher().rejected()
    }

    /// Returns the session of this client's messages.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.dispatcher().session
    }

    /// Reports to the client that the kernel is dead, for example because its process has ended. All executions,
    /// requests and calls of [`Client::ready`] end; watches receive the report, and it counts as one of the
    /// [restarts](Client::restarts).
    ///
    /// The last messages of the kernel may still be in transit, so wait a moment before this call. The connection stays
    /// open: a kernel that is restarted at the same addresses can be used once it is [ready](Client::ready).
    pub fn kernel_died(&self) {
        self.dispatcher().kernel_died();
    }

    /// Closes the connection, and reports that to all pending requests and executions. The kernel continues.
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
        // After the timeout, a question of the code may be lost, and the code waits.
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

/// Sends fences to each new process of the kernel: requests that the earlier process received are lost with it, and
/// only the fences reveal which they are.
async fn probe_restarted_kernels(
    dispatcher: Arc<Dispatcher>,
    outboxes: [mpsc::WeakSender<(Channel, RawMessage)>; 4],
) {
    let mut restarts = dispatcher.restarts();
    // The sender is in the dispatcher, so the wait does not fail.
    while restarts.changed().await.is_ok() {
        for (channel, outbox) in Channel::MESSAGES.into_iter().zip(&outboxes) {
            for fence in dispatcher.fences(channel) {
                let Some(outbox) = outbox.upgrade() else { return };
                // A closed channel is reported to all receivers separately.
                let _ = outbox.send((channel, fence)).await;
            }
        }
    }
}

/// Removes a request when its caller is dropped.
struct RemoveOnDrop<'a> {
    dispatcher: &'a Dispatcher,
    id: &'a str,
}

impl Drop for RemoveOnDrop<'_> {
    fn drop(&mut self) {
        self.dispatcher.remove(self.id);
    }
}
