//! Envelopes of the Connect protocol with JSON in them.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_cloud::http::StatusCode;
use sandbox_cloud::http::header::HeaderMap;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, Retry};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::SANDBOX_ERRORS;

/// The type of content of streams.
pub(super) const STREAM_TYPE: &str = "application/connect+json";

/// The header with the version of the protocol.
pub(super) const VERSION: (&str, &str) = ("connect-protocol-version", "1");

const COMPRESSED: u8 = 0x01;
const END: u8 = 0x02;
const HEADER: usize = 5;

/// Largest message that is read. Those of the daemon have some ten kilobytes.
const MAX_MESSAGE: usize = 16 << 20;

/// Puts a message into an envelope.
pub(super) fn envelope(message: &Value) -> Bytes {
    let message = message.to_string();
    let mut bytes = BytesMut::with_capacity(HEADER + message.len());
    bytes.put_u8(0);
    // Requests are some kilobytes, and never gigabytes.
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message.as_bytes());
    bytes.freeze()
}

/// Reads a message.
///
/// # Errors
/// `Protocol` for a message of another form.
pub(super) fn parse<T: DeserializeOwned>(operation: &'static str, message: &[u8]) -> Result<T> {
    serde_json::from_slice(message).map_err(|error| {
        protocol(operation, "a message of the sandbox is not understood").with_source(error)
    })
}

/// Reads the messages of a stream.
///
/// # Errors
/// Items are errors of the body, the error that the stream ends with, `ConnectionLost` for a body without an end, and
/// `Protocol` for what is no envelope; nothing follows an error.
pub(super) fn messages(
    operation: &'static str,
    body: ByteStream,
) -> impl Stream<Item = Result<Bytes>> + Send {
    stream::unfold(Some((body, Decoder::default())), move |state| async move {
        let (mut body, mut decoder) = state?;
        loop {
            match decoder.next(operation) {
                Ok(Some(Item::Message(message))) => {
                    return Some((Ok(message), Some((body, decoder))));
                }
                Ok(Some(Item::End)) => {
                    // A body that is read to its end leaves its connection to the next request.
                    while let Some(Ok(_)) = body.next().await {}
                    return None;
                }
                Ok(None) => {}
                Err(error) => return Some((Err(error), None)),
            }
            match body.next().await {
                Some(Ok(chunk)) => decoder.buffered.extend_from_slice(&chunk),
                Some(Err(error)) => return Some((Err(error), None)),
                None => return Some((Err(cut(operation)), None)),
            }
        }
    })
}

enum Item {
    Message(Bytes),
    End,
}

#[derive(Default)]
struct Decoder {
    buffered: BytesMut,
}

impl Decoder {
    fn next(&mut self, operation: &'static str) -> Result<Option<Item>> {
        let Some(header) = self.buffered.get(..HEADER) else { return Ok(None) };
        let (flags, mut length) = (header[0], &header[1..]);
        let length = length.get_u32() as usize;
        if flags & COMPRESSED != 0 {
            return Err(protocol(operation, "a message of the sandbox is compressed"));
        }
        if length > MAX_MESSAGE {
            return Err(protocol(operation, "a message of the sandbox is too long"));
        }
        if self.buffered.len() < HEADER + length {
            return Ok(None);
        }
        self.buffered.advance(HEADER);
        let message = self.buffered.split_to(length).freeze();
        if flags & END == 0 {
            return Ok(Some(Item::Message(message)));
        }
        let trailer: Value =
            if message.is_empty() { Value::Null } else { parse(operation, &message)? };
        match trailer.get("error") {
            Some(error) if !error.is_null() => Err(reported(operation, error)),
            _ => Ok(Some(Item::End)),
        }
    }
}

/// Returns the error that a stream ends with, as the answer of a call would have it.
fn reported(operation: &'static str, error: &Value) -> Error {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    let body = error.to_string();
    SANDBOX_ERRORS.parse_error(operation, status, &HeaderMap::new(), body.as_bytes(), &[])
}

fn protocol(operation: &'static str, message: &str) -> Error {
    Error::new(ErrorKind::Protocol, operation, message).with_effect(Effect::Unknown)
}

fn cut(operation: &'static str) -> Error {
    Error::new(ErrorKind::ConnectionLost, operation, "the connection to the sandbox broke")
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn envelope_with(flags: u8, message: &str) -> Vec<u8> {
        let mut bytes = vec![flags];
        bytes.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        bytes.extend(message.as_bytes());
        bytes
    }

    async fn read(bytes: &[u8], size: usize) -> Vec<Result<Bytes>> {
        let chunks: Vec<_> =
            bytes.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
        messages("test", Box::pin(stream::iter(chunks))).collect().await
    }

    #[tokio::test]
    async fn messages_are_found_however_they_are_cut() {
        let mut all = envelope(&json!({"event": {"start": {"pid": 7}}})).to_vec();
        all.extend(envelope_with(0, "{}"));
        all.extend(envelope_with(END, "{}"));
        for size in 1..all.len() {
            let read = read(&all, size).await;
            let texts: Vec<_> = read.iter().map(|item| item.as_ref().unwrap().as_ref()).collect();
            assert_eq!(
                texts,
                [&br#"{"event":{"start":{"pid":7}}}"#[..], b"{}"],
                "chunks of {size}"
            );
        }
    }

    #[tokio::test]
    async fn a_stream_ends_with_its_error() {
        let end = r#"{"error":{"code":"invalid_argument","message":"cwd '/nope' does not exist"}}"#;
        let read = read(&envelope_with(END, end), 4096).await;
        let error = read.last().unwrap().as_ref().unwrap_err();
        assert_eq!((read.len(), error.kind()), (1, ErrorKind::InvalidArgument));
        assert!(error.message().contains("/nope"));
    }

    #[tokio::test]
    async fn a_body_without_an_end_is_a_lost_connection() {
        for bytes in [Vec::new(), envelope_with(0, "{}"), envelope_with(0, "{}")[..6].to_vec()] {
            let last = read(&bytes, 3).await.pop().unwrap().unwrap_err();
            assert_eq!(last.kind(), ErrorKind::ConnectionLost);
        }
    }

    #[tokio::test]
    async fn what_is_no_envelope_is_refused_and_not_stored() {
        let huge = [&[0, 0xff, 0xff, 0xff, 0xff][..], &[b'x'; 64]].concat();
        for bytes in [huge, envelope_with(COMPRESSED, "{}"), envelope_with(END, "{")] {
            let last = read(&bytes, 4096).await.pop().unwrap().unwrap_err();
            assert_eq!(last.kind(), ErrorKind::Protocol, "{bytes:?}");
        }
    }
}
