//! Messages of the Connect protocol with its JSON codec: bodies of unary calls, and envelopes of streams.

use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::BodyExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::body_timeout::{is_too_late, is_too_long};
use super::error::{Code, ConnectError};

/// Most bytes of one message.
pub(super) const MAX_MESSAGE: usize = 16 << 20;

/// Bytes before the payload of an envelope: flags, and the length in big-endian order.
const HEAD: usize = 5;

/// Flag of the last envelope of a stream.
const END: u8 = 2;

const UNARY: &str = "application/json";
const STREAM: &str = "application/connect+json";

/// The message of a unary call.
pub(super) struct Unary<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Unary<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        check_codec(request.headers(), UNARY).map_err(IntoResponse::into_response)?;
        if request.body().size_hint().lower() > MAX_MESSAGE as u64 {
            return Err(too_large().into_response());
        }
        let limited = http_body_util::Limited::new(request.into_body(), MAX_MESSAGE);
        let body = limited.collect().await.map_err(|error| broken(&*error).into_response())?;
        let body = body.to_bytes();
        decode(&body).map(Self).map_err(IntoResponse::into_response)
    }
}

/// The messages of a call that streams, from the client.
pub(super) struct Messages {
    body: Body,
    buffer: BytesMut,
}

impl<S: Send + Sync> FromRequest<S> for Messages {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        check_codec(request.headers(), STREAM).map_err(IntoResponse::into_response)?;
        Ok(Self { body: request.into_body(), buffer: BytesMut::new() })
    }
}

impl Messages {
    /// Returns the next message; `None` at the end of the stream.
    ///
    /// # Errors
    /// `invalid_argument` for what is no envelope or no such message, `resource_exhausted` for one that is too large.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ConnectError> {
        let wrong = |message: &str| ConnectError::new(Code::InvalidArgument, message);
        loop {
            if let Some((head, _)) = self.buffer.split_at_checked(HEAD) {
                let flags = head[0];
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if length > MAX_MESSAGE {
                    return Err(too_large());
                }
                if flags & END != 0 {
                    return Ok(None);
                }
                if flags != 0 {
                    let message = "protocol error: compressed messages are not supported";
                    return Err(ConnectError::new(Code::Unimplemented, message));
                }
                if self.buffer.len() >= HEAD + length {
                    self.buffer.advance(HEAD);
                    return decode(&self.buffer.split_to(length)).map(Some);
                }
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(&error)),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(wrong("protocol error: incomplete envelope")),
            }
        }
    }

    /// Returns the only message of a call whose answer alone is a stream.
    ///
    /// # Errors
    /// As [`Messages::next`], and `invalid_argument` when there is none.
    pub(super) async fn only<T: DeserializeOwned>(mut self) -> Result<T, ConnectError> {
        let message = self.next().await?;
        if !self.body.is_end_stream() {
            // Its end may come later than the message. Were it left unread, the connection would break off with the answer.
            let mut rest = self.body;
            tokio::spawn(async move { while let Some(Ok(_)) = rest.frame().await {} });
        }
        message.ok_or_else(|| {
            ConnectError::new(Code::InvalidArgument, "protocol error: the request has no message")
        })
    }
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ConnectError> {
    let payload = if payload.is_empty() { b"{}" } else { payload };
    serde_json::from_slice(payload).map_err(|error| {
        ConnectError::new(Code::InvalidArgument, format!("unmarshal message: {error}"))
    })
}

/// Returns the error of a body that has not come as a whole.
fn broken(error: &(dyn std::error::Error + Send + Sync + 'static)) -> ConnectError {
    if is_too_long(error) {
        return too_large();
    }
    let code = if is_too_late(error) { Code::DeadlineExceeded } else { Code::InvalidArgument };
    ConnectError::new(code, format!("protocol error: {error}"))
}

fn too_large() -> ConnectError {
    let message = format!("message is larger than {MAX_MESSAGE} bytes");
    ConnectError::new(Code::ResourceExhausted, message)
}

/// The answer to another codec than JSON, as the protocol has it: status 415 without a body.
struct WrongCodec {
    wanted: &'static str,
}

impl IntoResponse for WrongCodec {
    fn into_response(self) -> Response {
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, [("accept-post", self.wanted)]).into_response()
    }
}

fn check_codec(headers: &HeaderMap, wanted: &'static str) -> Result<(), WrongCodec> {
    let given = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let given = given.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    if given.eq_ignore_ascii_case(wanted) { Ok(()) } else { Err(WrongCodec { wanted }) }
}

/// Puts a payload into an envelope.
fn envelope(flags: u8, payload: &[u8]) -> Bytes {
    let mut framed = Vec::with_capacity(HEAD + payload.len());
    framed.push(flags);
    // Messages of this server are far smaller than 4 GiB.
    framed.extend_from_slice(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_be_bytes());
    framed.extend_from_slice(payload);
    framed.into()
}

/// Makes the answer of a call that streams. An error is the last message, with status 200, as the protocol has it.
pub(super) fn streamed<T: Serialize + Send + 'static>(
    messages: impl Stream<Item = Result<T, ConnectError>> + Send + 'static,
) -> Response {
    let framed = stream::unfold(Some(Box::pin(messages)), |messages| async move {
        let mut messages = messages?;
        let (frame, rest) = match messages.next().await {
            Some(Ok(message)) => match serde_json::to_vec(&message) {
                Ok(payload) => (envelope(0, &payload), Some(messages)),
                Err(error) => {
                    (end(Some(ConnectError::new(Code::Internal, error.to_string()))), None)
                }
            },
            Some(Err(error)) => (end(Some(error)), None),
            None => (end(None), None),
        };
        Some((Ok::<_, std::convert::Infallible>(frame), rest))
    });
    ([(header::CONTENT_TYPE, STREAM)], Body::from_stream(framed)).into_response()
}

/// Makes the answer of a call that streams and has failed before its first message.
pub(super) fn failed(error: ConnectError) -> Response {
    streamed(stream::iter([Err::<serde_json::Value, _>(error)]))
}

fn end(error: Option<ConnectError>) -> Bytes {
    let trailer = match error {
        Some(error) => json!({ "error": error.json() }),
        None => json!({}),
    };
    envelope(END, trailer.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn messages(bytes: Vec<u8>) -> Messages {
        // One byte at a time, so that no envelope comes as a whole.
        let pieces = bytes.into_iter().map(|byte| Ok::<_, std::io::Error>(vec![byte]));
        let body = Body::from_stream(stream::iter(pieces.collect::<Vec<_>>()));
        Messages { body, buffer: BytesMut::new() }
    }

    #[tokio::test]
    async fn envelopes_are_read_across_pieces() {
        let mut bytes = envelope(0, b"{\"a\":1}").to_vec();
        bytes.extend_from_slice(&envelope(0, b""));
        bytes.extend_from_slice(&envelope(END, b"{}"));
        let mut messages = messages(bytes);
        assert_eq!(messages.next().await.unwrap(), Some(json!({ "a": 1 })));
        assert_eq!(messages.next().await.unwrap(), Some(json!({})));
        assert_eq!(messages.next::<Value>().await.unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_no_envelope_is_refused() {
        for (bytes, code) in [
            (vec![0, 0, 0, 0, 9, b'{'], Code::InvalidArgument),
            (vec![0, 0], Code::InvalidArgument),
            (envelope(0, b"nonsense").to_vec(), Code::InvalidArgument),
            (envelope(1, b"{}").to_vec(), Code::Unimplemented),
            (vec![0, 0xff, 0xff, 0xff, 0xff], Code::ResourceExhausted),
            (vec![], Code::InvalidArgument),
        ] {
            let error = messages(bytes.clone()).only::<Value>().await.unwrap_err();
            assert_eq!(error.code, code, "{bytes:?}");
        }
    }
}
