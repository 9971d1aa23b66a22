//! Elements that arrive on a stream, decoded into the items of the core's streams.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::frame::Violation;
use crate::link::{Incoming, RecvStream};
use crate::message::Message;

/// Why a stream ended before its last item.
pub(crate) enum Interruption {
    ConnectionLost,
    Violation(Violation),
}

/// Makes items of elements.
pub(crate) trait Decode: Unpin {
    type Item;

    fn decode(&mut self, message: Message) -> Result<Self::Item, Violation>;

    /// Makes the last item of a stream that was interrupted.
    fn interrupted(&mut self, cause: Interruption) -> Self::Item;

    /// Returns true for an item that ends the stream.
    fn is_last(item: &Self::Item) -> bool;
}

/// A stream of decoded elements.
pub(crate) struct Elements<D> {
    recv: Option<RecvStream>,
    decoder: D,
    /// True when the other side holds the elements back until the first poll.
    held_back: bool,
}

impl<D> Elements<D> {
    pub(crate) fn new(recv: RecvStream, decoder: D) -> Self {
        Self { recv: Some(recv), decoder, held_back: false }
    }

    pub(crate) fn held_back(self, held_back: bool) -> Self {
        Self { held_back, ..self }
    }
}

impl<D: Decode> Stream for Elements<D> {
    type Item = D::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<D::Item>> {
        let this = &mut *self;
        let Some(recv) = &mut this.recv else { return Poll::Ready(None) };
        if std::mem::take(&mut this.held_back) {
            recv.start();
        }
        let decoded = match ready!(recv.poll_next(cx)) {
            Some(Incoming::Item(message, _)) => {
                this.decoder.decode(message).map_err(Interruption::Violation)
            }
            Some(Incoming::End) => {
                this.recv = None;
                return Poll::Ready(None);
            }
            Some(Incoming::Reply(_)) => Err(Interruption::Violation(Violation("a second reply"))),
            None => Err(Interruption::ConnectionLost),
        };
        let item = match decoded {
            Ok(item) => {
                if D::is_last(&item)
                    && let Some(mut recv) = this.recv.take()
                {
                    // Nothing that could follow matters, so there is nothing to cancel.
                    recv.finish();
                }
                item
            }
            Err(cause) => {
                this.recv = None;
                this.decoder.interrupted(cause)
            }
        };
        Poll::Ready(Some(item))
    }
}
