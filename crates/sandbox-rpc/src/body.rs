//! Streams of bytes: bodies of requests, and answers in chunks.

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result};

use crate::elements::{Decode, Elements, Interruption};
use crate::frame::Violation;
use crate::link::{RecvStream, SendStream};
use crate::message::Message;
use crate::wire::error::WireError;

/// Sends a body until it ends or the other side stops reading.
pub(crate) async fn pump(send: SendStream, mut body: ByteStream) {
    let sending = async {
        while let Some(chunk) = body.next().await {
            let is_last = chunk.is_err();
            if send.item(&encode(chunk)).await.is_err() {
                return;
            }
            if is_last {
                break;
            }
        }
        send.end();
    };
    tokio::select! {
        () = sending => {}
        () = send.stopped() => {}
    }
}

/// Encodes a chunk: bytes as the tail of a message without a head, an error as its head.
pub(crate) fn encode(chunk: Result<Bytes>) -> Message {
    match chunk {
        Ok(chunk) => Message::bytes(chunk),
        Err(error) => Message::from_head(&WireError::from(&error)),
    }
}

/// Returns the bytes that arrive on a stream. A stream that is cut off ends with an error.
pub(crate) fn receive(recv: RecvStream) -> ByteStream {
    Box::pin(Elements::new(recv, Chunks))
}

struct Chunks;

impl Decode for Chunks {
    type Item = Result<Bytes>;

    fn decode(&mut self, message: Message) -> Result<Result<Bytes>, Violation> {
        if message.head.is_empty() {
            return Ok(Ok(message.tail));
        }
        message.read::<WireError>().map(|error| Err(error.into()))
    }

    fn interrupted(&mut self, cause: Interruption) -> Result<Bytes> {
        Err(interrupted("read", cause))
    }

    fn is_last(chunk: &Result<Bytes>) -> bool {
        chunk.is_err()
    }
}

/// Returns the error of an answer that was interrupted. The request has been sent, so its effect is unknown.
pub(crate) fn interrupted(operation: &'static str, cause: Interruption) -> Error {
    match cause {
        Interruption::ConnectionLost => {
            let message = "the connection to the sandbox server broke";
            Error::new(ErrorKind::ConnectionLost, operation, message)
        }
        Interruption::Violation(violation) => {
            Error::new(ErrorKind::Protocol, operation, violation.to_string())
        }
    }
    .with_effect(Effect::Unknown)
}
