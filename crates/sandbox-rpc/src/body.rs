//! Bytes that come along with a request, on both sides.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use futures_util::StreamExt as _;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result};

use crate::frame::Violation;
use crate::link::{Incoming, Inlet, Outlet};
use crate::message::Message;
use crate::wire::error::WireError;

/// Sends a body, until it ends or nobody reads it any more.
pub(crate) async fn pump(outlet: Outlet, mut body: ByteStream) {
    let send = async {
        while let Some(chunk) = body.next().await {
            let (message, last) = match chunk {
                Ok(chunk) => (Message::bytes(chunk), false),
                Err(error) => (Message::of(&WireError::from(&error)), true),
            };
            if outlet.item(&message).await.is_err() {
                return;
            }
            if last {
                break;
            }
        }
        outlet.end();
    };
    tokio::select! {
        () = send => {}
        () = outlet.unheard() => {}
    }
}

/// The body that arrives. One that is cut off ends with an error, never as if it were whole.
pub(crate) fn body(inlet: Inlet) -> ByteStream {
    Box::pin(Body { inlet: Some(inlet) })
}

struct Body {
    inlet: Option<Inlet>,
}

impl Stream for Body {
    type Item = Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(inlet) = &mut self.inlet else { return Poll::Ready(None) };
        let item = match ready!(inlet.poll_next(cx)) {
            Some(Incoming::Item(message, _)) => chunk(message),
            Some(Incoming::End) => {
                self.inlet = None;
                return Poll::Ready(None);
            }
            Some(Incoming::Reply(_)) => Err(broken(&Violation("a reply among the bytes"))),
            None => Err(lost("read")),
        };
        if item.is_err() {
            self.inlet = None;
        }
        Poll::Ready(Some(item))
    }
}

fn chunk(message: Message) -> Result<Bytes> {
    if message.head.is_empty() {
        return Ok(message.tail);
    }
    let error: WireError = message.read().map_err(|violation| broken(&violation))?;
    Err(error.into())
}

/// The other side said what it must not.
pub(crate) fn broken(violation: &Violation) -> Error {
    Error::new(ErrorKind::Protocol, "read", violation.to_string()).with_effect(Effect::Unknown)
}

/// The connection is gone, and nobody knows how far the other side got.
pub(crate) fn lost(operation: &'static str) -> Error {
    Error::new(ErrorKind::ConnectionLost, operation, "the connection to the sandbox server broke")
        .with_effect(Effect::Unknown)
}
