//! Seeing what a kernel publishes, whoever caused it.

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

/// Something that a [`Watch`] saw.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Observed {
    /// A message.
    Message {
        /// The channel it came on.
        channel: Channel,
        /// The message.
        message: Box<RawMessage>,
    },
    /// Messages are missing at this point.
    Lost(Loss),
    /// A channel is connected, again or for the first time.
    Connected(Channel),
    /// The kernel is dead, as this client was told by [`Client::kernel_died`](super::Client::kernel_died). What a kernel
    /// or a server says itself of an end or a start comes as messages with a `status`.
    KernelDied,
}

/// Sees messages from the moment it was made, by [`next`](Self::next) or as a [`Stream`]. Ends when it is dropped.
#[derive(Debug)]
pub struct Watch {
    mailbox: Arc<Mailbox>,
    closed: Option<CloseReason>,
}

impl Watch {
    pub(super) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, closed: None }
    }

    /// The next thing there is to see. `None` when the connection is closed: see [`Watch::close_reason`].
    ///
    /// # Cancellation
    /// Dropping the future loses nothing, and this can be called again.
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

    /// Why there is nothing more to see.
    #[must_use]
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }
}

/// What [`Watch::next`] gives.
impl Stream for Watch {
    type Item = Observed;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Observed>> {
        self.poll_seen(context)
    }
}
