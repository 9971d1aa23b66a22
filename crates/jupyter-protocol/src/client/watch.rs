//! Observes what a kernel publishes, for all clients.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use super::error::CloseReason;
use super::mailbox::{Item, Mailbox};
use crate::channel::Channel;
use crate::execution::Loss;
use crate::raw::RawMessage;

/// An entry of a [`Watch`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observed {
    /// A message.
    Message {
        /// The channel of the message.
        channel: Channel,
        /// The message.
        message: Box<RawMessage>,
    },
    /// Messages are missing at this point.
    Lost(Loss),
    /// A channel was connected, for the first time or again.
    Connected(Channel),
    /// [`Client::kernel_died`](super::Client::kernel_died) was called. What a kernel or a server reports itself arrives
    /// as messages of type `status`.
    KernelDied,
}

/// Receives messages from its creation on, with [`next`](Self::next) or as a [`Stream`]. Ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    mailbox: Arc<Mailbox>,
    closed: Option<CloseReason>,
}

impl Watch {
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, closed: None }
    }

    /// Waits for the next entry. Returns `None` when the connection is closed: see [`Watch::close_reason`].
    ///
    /// # Cancellation
    /// Dropping the future loses nothing, and this method can be called again.
    pub async fn next(&mut self) -> Option<Observed> {
        poll_fn(|context| self.poll_seen(context)).await
    }

    fn poll_seen(&mut self, context: &Context<'_>) -> Poll<Option<Observed>> {
        while self.closed.is_none() {
            let seen = match ready!(self.mailbox.poll_next(context)) {
                Item::Message(channel, message) => Observed::Message { channel, message },
                Item::Lost(loss) => Observed::Lost(loss),
                Item::Connected(channel) => Observed::Connected(channel),
                Item::KernelDied => Observed::KernelDied,
                Item::Closed(reason) => {
                    self.closed = Some(reason);
                    break;
                }
                Item::ReplyLost | Item::KernelRestarted => continue,
            };
            return Poll::Ready(Some(seen));
        }
        Poll::Ready(None)
    }

    /// Returns the reason for which the watch has ended.
    #[must_use]
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }
}

/// Yields the entries of [`Watch::next`].
impl Stream for Watch {
    type Item = Observed;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Observed>> {
        self.poll_seen(context)
    }
}
