//! Seeing what a kernel publishes, whoever caused it.

use std::sync::Arc;

use super::error::CloseReason;
use super::mailbox::{Item, Mailbox};
use crate::channel::Channel;
use crate::execution::Loss;
use crate::raw::RawMessage;

/// Something that a [`Watch`] saw.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Seen {
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

/// Sees messages from the moment it was made. Ends when it is dropped.
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
    pub async fn next(&mut self) -> Option<Seen> {
        while self.closed.is_none() {
            match self.mailbox.next().await {
                Item::Message(channel, message) => return Some(Seen::Message { channel, message }),
                Item::Lost(loss) => return Some(Seen::Lost(loss)),
                Item::Connected(channel) => return Some(Seen::Connected(channel)),
                Item::Closed(reason) => self.closed = Some(reason),
                Item::KernelDied => return Some(Seen::KernelDied),
                Item::ReplyLost | Item::KernelRestarted => {}
            }
        }
        None
    }

    /// Why there is nothing more to see.
    #[must_use]
    pub fn close_reason(&self) -> Option<&CloseReason> {
        self.closed.as_ref()
    }
}
