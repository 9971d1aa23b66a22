//! Code that runs.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use futures_core::Stream;
use tokio::time::{Sleep, sleep_until, timeout};

use super::Client;
use super::error::ClientError;
use super::mailbox::{Item, Mailbox};
use crate::channel::Channel;
use crate::content::KernelInfoRequest;
use crate::execution::{End, Event, Execution, Outcome};
use crate::message::Message;

/// How long a kernel may take to say that it is there. A new one has to start first.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// A timer that fires so late shows that nobody was run meanwhile, who would have read what came: the machine was suspended,
/// or had too much else to do.
const LATE_TIMER: Duration = Duration::from_millis(50);

/// How long is waited once more then, until something comes.
const EXTRA_WAIT: Duration = Duration::from_millis(500);

/// A request to run code, and everything that comes of it.
///
/// Take events until there are none, by [`next`](Self::next) or as a [`Stream`], or [collect](Self::collect) all of them.
/// What is not taken waits, within the memory set aside for it; beyond that it is dropped and told as [`Event::Lost`].
/// Dropping this leaves the code running.
pub struct ExecutionStream {
    client: Client,
    mailbox: Arc<Mailbox>,
    execution: Execution,
    /// Until the time at which the execution waits no longer.
    timer: Option<Pin<Box<Sleep>>>,
    /// Until when it waits once more.
    extra_wait: Option<Instant>,
    /// Finds out whether the kernel that answers now is another than the one that ran the code.
    probe: Option<Pin<Box<dyn Future<Output = bool> + Send + Sync>>>,
    /// Sends what tells that all output is there.
    barrier: Option<Pin<Box<dyn Future<Output = ()> + Send + Sync>>>,
}

impl ExecutionStream {
    pub(super) fn new(client: Client, mailbox: Arc<Mailbox>, execution: Execution) -> Self {
        Self {
            client,
            mailbox,
            execution,
            timer: None,
            extra_wait: None,
            probe: None,
            barrier: None,
        }
    }

    /// The id of the request.
    #[must_use]
    pub fn id(&self) -> &str {
        self.execution.id()
    }

    /// How far the kernel has come, also while nobody takes events.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.mailbox))
    }

    /// The next event. The last is [`Event::Finished`]; after it, `None`.
    ///
    /// Waits as long as the code runs: there is no timeout. When something is missing at its end, it waits no longer than
    /// [`GracePeriods`](crate::execution::GracePeriods) says, and half a second more where this process was not run in that time.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing, and this can be called again.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_event(context)).await
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        loop {
            if let Some(event) = self.execution.poll_event() {
                return Poll::Ready(Some(event));
            }
            if self.execution.is_finished() {
                return Poll::Ready(None);
            }
            if let Some(request) = self.execution.poll_send() {
                self.barrier = Some(Box::pin(send(self.client.clone(), request)));
            }
            if let Some(barrier) = &mut self.barrier
                && barrier.as_mut().poll(context).is_ready()
            {
                self.barrier = None;
            }
            if let Some(probe) = &mut self.probe {
                let is_another = ready!(probe.as_mut().poll(context));
                self.probe = None;
                if is_another {
                    self.execution.on_end(End::KernelRestarted);
                } else {
                    self.on_deadline();
                }
                continue;
            }
            // Time passes only when nothing waits to be seen.
            if let Poll::Ready(item) = self.mailbox.poll_next(context) {
                self.handle(item);
                continue;
            }
            let Some(deadline) = self.execution.deadline() else { return Poll::Pending };
            let extra_wait = self.extra_wait.filter(|until| *until > deadline);
            let until = extra_wait.unwrap_or(deadline).into();
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if timer.deadline() != until {
                timer.as_mut().reset(until);
            }
            ready!(timer.as_mut().poll(context));
            let now = Instant::now();
            if extra_wait.is_none() && now > deadline + LATE_TIMER {
                self.extra_wait = Some(now + EXTRA_WAIT);
                continue;
            }
            // A server that starts a kernel again says nothing of it, and loses the reply and the first word of the new one
            // when they come at the wrong moment.
            match self.execution.kernel_session().filter(|_| self.execution.lacks_reply()) {
                Some(kernel) => {
                    let probe = is_another_kernel(self.client.clone(), kernel.to_owned());
                    self.probe = Some(Box::pin(probe));
                }
                None => self.on_deadline(),
            }
        }
    }

    /// Nothing came in time.
    fn on_deadline(&mut self) {
        let deadline = self.execution.deadline();
        // Something may have come while it was asked.
        while let Some(item) = self.mailbox.try_next() {
            self.handle(item);
        }
        let now = Instant::now();
        self.execution.on_timeout(deadline.map_or(now, |deadline| now.max(deadline)));
    }

    /// Waits for the end, as long as the code runs. Output that was not taken is dropped.
    ///
    /// # Cancellation
    /// Dropping the future drops the execution with it: the code goes on, and nobody is told how it ends. To wait for a
    /// time and keep it, take events with [`ExecutionStream::next`].
    pub async fn outcome(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.known_outcome() {
                return outcome.clone();
            }
            self.next().await;
        }
    }

    pub(super) fn known_outcome(&self) -> Option<&Outcome> {
        self.execution.outcome()
    }

    /// Answers the last question of the code, an [`Event::InputRequest`]. Code can ask where the request
    /// [allows it](crate::ExecuteRequest::with_stdin).
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] when there is no question that was not answered, [`ClientError::Closed`].
    ///
    /// # Cancellation
    /// If the future is dropped before it has completed, the answer was not sent and cannot be given again: do so only
    /// when the execution is given up too.
    pub async fn reply_input(&mut self, line: impl Into<String>) -> Result<(), ClientError> {
        match self.execution.input_reply(&self.client.dispatcher().session, line) {
            Some(reply) => self.client.send(Channel::Stdin, reply).await,
            None => Err(ClientError::Unsupported("the code asks for nothing".to_owned())),
        }
    }

    fn handle(&mut self, item: Item) {
        let now = Instant::now();
        match item {
            Item::Message(channel, message) => {
                let message = message.parse(&self.client.dispatcher().limits);
                self.execution.on_message(channel, message, now);
            }
            Item::Lost(loss) => self.execution.on_loss(loss),
            Item::ReplyLost => self.execution.on_reply_lost(now),
            Item::KernelRestarted => self.execution.on_end(End::KernelRestarted),
            Item::KernelDied => self.execution.on_end(End::KernelDied),
            Item::Closed(_) => self.execution.on_end(End::ConnectionLost),
            Item::Connected(_) => {}
        }
    }
}

/// Sends a request whose reply nobody needs.
async fn send(client: Client, request: Message) {
    // A connection that is closed is told to the execution itself, and one that is slow takes no longer than its grace.
    let _ = client.send(Channel::Shell, request).await;
}

/// Whether the kernel that answers now is not the one of that session.
async fn is_another_kernel(client: Client, session: String) -> bool {
    let request = client.session().request(KernelInfoRequest::default());
    // That channel is answered while other code runs.
    let answer = timeout(PROBE_TIMEOUT, client.exchange(Channel::Control, request)).await;
    answer.is_ok_and(|reply| reply.is_ok_and(|reply| reply.header.session != session))
}

/// The events of [`ExecutionStream::next`]. It ends after [`Event::Finished`].
impl Stream for ExecutionStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll_event(context)
    }
}

impl fmt::Debug for ExecutionStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ExecutionStream");
        shown.field("client", &self.client).field("execution", &self.execution);
        shown.finish_non_exhaustive()
    }
}

/// How far an execution has come, as what has arrived shows. Whoever keeps limits looks here: events may wait for a
/// reader who comes late.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mailbox>);

impl Progress {
    /// When the kernel was first seen to work on it.
    #[must_use]
    pub fn started(&self) -> Option<Instant> {
        self.0.started()
    }

    /// When the reply came, or it became clear that none will. The code does not run any more, or nobody can tell.
    #[must_use]
    pub fn finished(&self) -> Option<Instant> {
        self.0.finished()
    }
}

impl Drop for ExecutionStream {
    fn drop(&mut self) {
        self.client.dispatcher().remove(self.execution.id());
    }
}
