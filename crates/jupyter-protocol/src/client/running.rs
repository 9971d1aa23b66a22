//! Code that runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Client;
use super::error::ClientError;
use super::mailbox::{Item, Mailbox};
use crate::channel::Channel;
use crate::content::KernelInfoRequest;
use crate::execution::{End, Event, Execution, Outcome};

/// How long a kernel may take to say that it is there. A new one has to start first.
const PROBE: Duration = Duration::from_secs(5);

/// A request to run code, and everything that comes of it.
///
/// Take events until there are none. What is not taken waits, within the memory set aside for it; beyond
/// that it is dropped and told as [`Event::Lost`]. Dropping this leaves the code running.
#[derive(Debug)]
pub struct Running {
    client: Client,
    mailbox: Arc<Mailbox>,
    execution: Execution,
}

impl Running {
    pub(super) fn new(client: Client, mailbox: Arc<Mailbox>, execution: Execution) -> Self {
        Self { client, mailbox, execution }
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
    /// [`Grace`](crate::execution::Grace) says.
    ///
    /// # Cancellation
    /// Dropping the future loses nothing, and this can be called again.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.execution.poll_event() {
                return Some(event);
            }
            if self.execution.is_finished() {
                return None;
            }
            // Time passes only when nothing waits to be seen.
            if let Some(item) = self.mailbox.try_next() {
                self.take(item);
                continue;
            }
            let Some(deadline) = self.execution.deadline() else {
                let item = self.mailbox.next().await;
                self.take(item);
                continue;
            };
            match tokio::time::timeout_at(deadline.into(), self.mailbox.next()).await {
                Ok(item) => self.take(item),
                // A server that starts a kernel again says nothing of it, and loses the reply and the first word of the new
                // one when they come at the wrong moment.
                Err(_) if self.execution.lacks_reply() && self.is_of_another_kernel().await => {
                    self.execution.on_end(End::KernelRestarted);
                }
                Err(_) => {
                    // Something may have come while it was asked.
                    while let Some(item) = self.mailbox.try_next() {
                        self.take(item);
                    }
                    self.execution.on_time(Instant::now().max(deadline));
                }
            }
        }
    }

    /// Whether the kernel that answers now is not the one that ran the code.
    async fn is_of_another_kernel(&self) -> bool {
        let Some(kernel) = self.execution.kernel_session() else { return false };
        let request = self.client.session().request(KernelInfoRequest::default());
        // That channel is answered while other code runs.
        let asked = self.client.exchange(Channel::Control, request);
        let answer = tokio::time::timeout(PROBE, asked).await;
        answer.is_ok_and(|reply| reply.is_ok_and(|reply| reply.header.session != kernel))
    }

    /// Waits for the end, as long as the code runs. Output that was not taken is dropped.
    ///
    /// # Cancellation
    /// Dropping the future drops the execution with it: the code goes on, and nobody is told how it ends. To wait for a
    /// time and keep it, take events with [`Running::next`].
    pub async fn outcome(mut self) -> Outcome {
        loop {
            if let Some(outcome) = self.execution.outcome() {
                return outcome.clone();
            }
            self.next().await;
        }
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
        match self.execution.input_reply(&self.client.hub().session, line) {
            Some(reply) => self.client.send(Channel::Stdin, reply).await,
            None => Err(ClientError::Unsupported("the code asks for nothing".to_owned())),
        }
    }

    fn take(&mut self, item: Item) {
        let now = Instant::now();
        match item {
            Item::Message(channel, message) => {
                let message = message.parse(&self.client.hub().limits);
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

/// How far an execution has come, as what has arrived shows. Whoever keeps limits looks here: events may wait for a
/// reader who comes late.
#[derive(Clone, Debug)]
pub struct Progress(Arc<Mailbox>);

impl Progress {
    /// When the kernel was first seen to work on it.
    #[must_use]
    pub fn begun(&self) -> Option<Instant> {
        self.0.begun()
    }

    /// When the reply came, or it became clear that none will. The code does not run any more, or nobody can tell.
    #[must_use]
    pub fn over(&self) -> Option<Instant> {
        self.0.over()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.client.hub().forget(self.execution.id());
    }
}
