//! Answers: whole, or as they come.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, Retry, Secret};
use serde::de::DeserializeOwned;

use super::error::ErrorRules;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub(crate) operation: &'static str,
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Secrets of the request, which no error about the answer may repeat.
    pub(crate) secrets: Vec<Secret>,
    /// Hint for an answer that is not the service's.
    pub(crate) address_hint: &'static str,
}

impl Response {
    /// Returns the status, which is a success.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns a header, where there is one of that name and it is text.
    pub fn header(&self, name: impl AsRef<str>) -> Option<&str> {
        text_header(&self.headers, name.as_ref())
    }

    /// Returns the body.
    pub fn bytes(&self) -> &Bytes {
        &self.body
    }

    /// Reads the body as JSON.
    ///
    /// # Errors
    /// `Protocol`, with an unknown effect, for a body of another form.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.body).map_err(|error| {
            let malformed = malformed(self.operation, error);
            match self.body.trim_ascii_start().first() {
                // A page of something that answers in place of the service.
                Some(b'<') => malformed.with_hint(self.address_hint),
                _ => malformed,
            }
        })
    }
}

/// An answer whose body is read as it comes. Dropping it ends the connection.
pub struct StreamingResponse {
    operation: &'static str,
    status: StatusCode,
    headers: HeaderMap,
    body: ByteStream,
}

impl std::fmt::Debug for StreamingResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("StreamingResponse");
        shown.field("operation", &self.operation).field("status", &self.status);
        shown.finish_non_exhaustive()
    }
}

impl StreamingResponse {
    pub(crate) fn new(
        operation: &'static str,
        response: reqwest::Response,
        rules: &'static ErrorRules,
        idle_timeout: Option<Duration>,
    ) -> Self {
        let (status, headers) = (response.status(), response.headers().clone());
        // A body that broke off belongs to a request that had an effect, or none.
        let body = response
            .bytes_stream()
            .map(move |chunk| chunk.map_err(|error| rules.unanswered(operation, &error, false)));
        let body: ByteStream = match idle_timeout {
            Some(limit) => Box::pin(bounded_pauses(operation, body, limit)),
            None => Box::pin(body),
        };
        Self { operation, status, headers, body }
    }

    /// Returns the status, which is a success.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// Returns a header, where there is one of that name and it is text.
    pub fn header(&self, name: impl AsRef<str>) -> Option<&str> {
        text_header(&self.headers, name.as_ref())
    }

    /// Returns the operation, which errors of the body name.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Returns the body.
    pub fn into_bytes(self) -> ByteStream {
        self.body
    }
}

fn bounded_pauses(
    operation: &'static str,
    body: impl futures_util::Stream<Item = Result<Bytes>> + Send + 'static,
    limit: Duration,
) -> impl futures_util::Stream<Item = Result<Bytes>> + Send + 'static {
    futures_util::stream::unfold(Some(Box::pin(body)), move |body| async move {
        let mut body = body?;
        match tokio::time::timeout(limit, body.next()).await {
            Ok(Some(chunk)) => Some((chunk, Some(body))),
            Ok(None) => None,
            Err(_) => {
                let message = "the service stopped in the middle of its answer";
                let error = Error::new(ErrorKind::ConnectionLost, operation, message);
                let error = error.with_retry(Retry::Temporary).with_effect(Effect::Unknown);
                Some((Err(error), None))
            }
        }
    })
}

fn text_header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let name: HeaderName = name.parse().ok()?;
    headers.get(name).map(HeaderValue::to_str)?.ok()
}

/// The error for an answer of another form than expected.
pub(crate) fn malformed(operation: &'static str, error: serde_json::Error) -> Error {
    Error::new(ErrorKind::Protocol, operation, "the answer of the service is not understood")
        .with_effect(Effect::Unknown)
        .with_source(error)
}

/// Reads a body into memory. One with more than `max` bytes is an error, or (without `is_whole`) cut.
pub(crate) async fn read(
    rules: &ErrorRules,
    operation: &'static str,
    mut response: reqwest::Response,
    max: usize,
    is_whole: bool,
) -> Result<Bytes> {
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| rules.unanswered(operation, &error, false))?
    {
        if body.len() + chunk.len() > max {
            if is_whole {
                let message = format!("the service answered with more than {max} bytes");
                return Err(Error::new(ErrorKind::Protocol, operation, message)
                    .with_effect(Effect::Unknown));
            }
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}
