//! The events of one running execution.

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

/// Limits the probe of a kernel that may be restarting.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum delay of a timer that shows that this process did not run meanwhile, and so could not read what arrived: the
/// machine was suspended or overloaded.
const LATE_TIMER: Duration = Duration::from_millis(50);

/// Extra wait for messages after such a delay.
const EXTRA_WAIT: Duration = Duration::from_millis(500);

/// The events of one request to run code.
///
/// Take events with [`next`](Self::next) or as a [`Stream`] until there are none, or [collect](Self::collect) all of
/// them. Events that are not taken are buffered up to [`ClientOptions::buffered`](super::ClientOptions::buffered);
/// beyond that they are dropped and reported as [`Event::Lost`]. Dropping the stream leaves the code running.
pub struct ExecutionStream {
    client: Client,
    mailbox: Arc<Mailbox>,
    execution: Execution,
    /// Fires at the deadline of the execution.
    timer: Option<Pin<Box<Sleep>>>,
    /// The end of the extra wait.
    extra_wait: Option<Instant>,
    /// Asks the kernel for its session, and returns true if another process answers than the one that ran the code.
    probe: Option<Pin<Box<dyn Future<Output = bool> + Send + Sync>>>,
    /// Sends the barrier, whose end shows that all output has arrived.
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

    /// Returns the id of the request.
    #[must_use]
    pub fn id(&self) -> &str {
        self.execution.id()
    }

    /// Returns a handle to the progress of the execution, which advances even while no events are taken.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress(Arc::clone(&self.mailbox))
    }

    /// Waits for the next event. The last is [`Event::Finished`]; after it, returns `None`.
    ///
    /// There is no timeout: the wait lasts as long as the code runs. If a message is missing at its end, the wait is
    /// limited by [`GracePeriods`](crate::execution::GracePeriods), and is half a second longer if this process was not
    /// scheduled in that time.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing, and this method can be called again.
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
            // The timer counts only while the mailbox is empty.
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
            // A server does not report that it restarts a kernel, and may lose the reply and the first status of the
            // new process.
            match self.execution.kernel_session().filter(|_| self.execution.lacks_reply()) {
                Some(kernel) => {
                    let probe = is_another_kernel(self.client.clone(), kernel.to_owned());
                    self.probe = Some(Box::pin(probe));
                }
                None => self.on_deadline(),
            }
        }
    }

    /// Gives up on the messages that did not arrive in time.
    fn on_deadline(&mut self) {
        let deadline = self.execution.deadline();
        // Messages may have arrived during the probe.
        while let Some(item) = self.mailbox.try_next() {
            self.handle(item);
        }
        let now = Instant::now();
        self.execution.on_timeout(deadline.map_or(now, |deadline| now.max(deadline)));
    }

    /// Waits for the end of the execution, as long as the code runs. Events that were not taken are dropped.
    ///
    /// # Cancellation
    /// Dropping the future drops the stream: the code continues, and its outcome is lost. To wait for a limited time
    /// and keep the stream, take events with [`ExecutionStream::next`].
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

    /// Answers the last [`Event::InputRequest`] of the code. Code can ask for input if the request [allows
    /// it](crate::ExecuteRequest::with_stdin).
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] when no question is open, [`ClientError::Closed`].
    ///
    /// # Cancellation
    /// If the future is dropped before it completes, the answer was not sent and cannot be given again. Drop it only
    /// together with the execution.
    pub async fn reply_input(&mut self, line: impl Into<String>) -> Result<(), ClientError> {
        match self.execution.input_reply(&self.client.dispatcher().session, line) {
            Some(reply) => self.client.send(Channel::Stdin, reply).await,
            None => Err(ClientError::Unsupported("the code has asked no question".to_owned())),
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

/// Sends a request whose reply is not used.
async fn send(client: Client, request: Message) {
    // The mailbox reports a closed connection, and the grace period limits a slow one.
    let _ = client.send(Channel::Shell, request).await;
}

/// Returns true if the kernel replies with another session than `session`.
async fn is_another_kernel(client: Client, session: String) -> bool {
    let request = client.session().request(KernelInfoRequest::default());
    // Kernels answer on the control channel while code runs.
    let answer = timeout(PROBE_TIMEOUT, client.exchange(Channel::Control, request)).await;
    answer.is_ok_and(|reply| reply.is_ok_and(|reply| reply.header.session != session))
}

/// Yields the events of [`ExecutionStream::next`]. Ends after [`Event::Finished`].
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

/// The progress of an execution, as the messages that have arrived show it. Use it to enforce time limits: events may
/// be buffered for a slow reader.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mailbox>);

impl Progress {
    /// Returns the time at which the kernel was first seen to process the request.
    #[must_use]
    pub fn started(&self) -> Option<Instant> {
        self.0.started()
    }

    /// Returns the time at which the reply arrived, or at which it became clear that none will. The code no longer runs
    /// then, or its state is unknown.
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
