//! One request to a service.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url, multipart};
use sandbox_core::{ByteStream, Error, ErrorKind, Result};
use serde_json::Value;

/// Bytes of an answer that are read into memory where the request says nothing else.
pub const DEFAULT_MAX_RESPONSE: usize = 16 << 20;

/// A request: the operation that it is for, which errors name, and what is sent.
#[derive(Debug)]
pub struct Request {
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Option<Duration>,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) max_response: usize,
    body: Body,
    is_idempotent: bool,
}

#[derive(Debug)]
enum Body {
    Empty,
    Bytes(Bytes),
    Multipart(Vec<Part>),
    Stream(Once),
}

/// A body that can be sent once.
struct Once(Mutex<Option<ByteStream>>);

/// A part of a multipart form.
#[derive(Debug)]
pub struct Part {
    name: String,
    file_name: Option<String>,
    content_type: Option<&'static str>,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Bytes(Bytes),
    Stream(Once, Option<u64>),
}

impl Request {
    /// Creates a request that asks for JSON and sends nothing.
    pub fn new(operation: &'static str, method: Method, url: Url) -> Self {
        let is_idempotent = method.is_idempotent();
        let headers =
            HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
        Self {
            operation,
            method,
            url,
            headers,
            timeout: None,
            idle_timeout: None,
            max_response: DEFAULT_MAX_RESPONSE,
            body: Body::Empty,
            is_idempotent,
        }
    }

    /// Creates a `GET`.
    pub fn get(operation: &'static str, url: Url) -> Self {
        Self::new(operation, Method::GET, url)
    }

    /// Creates a `POST`.
    pub fn post(operation: &'static str, url: Url) -> Self {
        Self::new(operation, Method::POST, url)
    }

    /// Creates a `PUT`.
    pub fn put(operation: &'static str, url: Url) -> Self {
        Self::new(operation, Method::PUT, url)
    }

    /// Creates a `DELETE`.
    pub fn delete(operation: &'static str, url: Url) -> Self {
        Self::new(operation, Method::DELETE, url)
    }

    /// Adds a parameter to the address.
    #[must_use]
    pub fn query(mut self, name: &str, value: &str) -> Self {
        self.url.query_pairs_mut().append_pair(name, value);
        self
    }

    /// Sets a header.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that no header can have.
    pub fn header(mut self, name: &'static str, value: &str) -> Result<Self> {
        set_header(&mut self.headers, name, value)?;
        Ok(self)
    }

    /// Sets the type of content to accept. Default: JSON.
    #[must_use]
    pub fn accept(mut self, content_type: &'static str) -> Self {
        self.headers.insert(ACCEPT, HeaderValue::from_static(content_type));
        self
    }

    /// Sends JSON.
    #[must_use]
    pub fn json(self, body: &Value) -> Self {
        self.bytes("application/json", body.to_string().into_bytes())
    }

    /// Sends bytes.
    #[must_use]
    pub fn bytes(mut self, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.body = Body::Bytes(body.into());
        self
    }

    /// Sends a form of several parts. With a streamed part, the request is sent at most once.
    #[must_use]
    pub fn multipart(mut self, parts: Vec<Part>) -> Self {
        // The boundary of the parts is in that header.
        self.headers.remove(CONTENT_TYPE);
        self.body = Body::Multipart(parts);
        self
    }

    /// Sends bytes as they come. Such a request is sent at most once.
    #[must_use]
    pub fn stream(mut self, content_type: &'static str, body: ByteStream) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.body = Body::Stream(Once::new(body));
        self
    }

    /// Says that the service does the same request only once, as by an idempotency key: it may be repeated.
    #[must_use]
    pub fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// Says that the request is not worth repeating where it may have arrived: the caller has another way.
    #[must_use]
    pub fn at_most_once(mut self) -> Self {
        self.is_idempotent = false;
        self
    }

    /// Sets the time for all attempts, and for the end of a streamed answer's head. Default: that of the
    /// [`Service`](super::Service).
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how long a streamed answer may pause before it counts as lost. Default: as long as it likes.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets how many bytes of an answer are read into memory. An answer with more is an error.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Returns true when sending the request twice has the effect of sending it once.
    pub(crate) fn is_idempotent(&self) -> bool {
        self.is_idempotent
    }

    /// Returns true when the body can be sent more than once.
    pub(crate) fn is_repeatable(&self) -> bool {
        match &self.body {
            Body::Empty | Body::Bytes(_) => true,
            Body::Stream(_) => false,
            Body::Multipart(parts) => {
                parts.iter().all(|part| matches!(part.content, Content::Bytes(_)))
            }
        }
    }

    /// Adds the body to a request of the library.
    pub(crate) fn add_body(
        &self,
        builder: reqwest::RequestBuilder,
    ) -> Result<reqwest::RequestBuilder> {
        Ok(match &self.body {
            Body::Empty => builder,
            Body::Bytes(bytes) => builder.body(bytes.clone()),
            Body::Stream(stream) => builder.body(stream.take(self.operation)?),
            Body::Multipart(parts) => {
                let mut form = multipart::Form::new();
                for part in parts {
                    form = form.part(part.name.clone(), part.build(self.operation)?);
                }
                builder.multipart(form)
            }
        })
    }
}

impl Part {
    /// Creates a field.
    pub fn text(name: impl Into<String>, value: impl Into<String>) -> Self {
        let content = Content::Bytes(Bytes::from(value.into()));
        Self { name: name.into(), file_name: None, content_type: None, content }
    }

    /// Creates a file of these bytes.
    pub fn file(
        name: impl Into<String>,
        file_name: impl Into<String>,
        content: impl Into<Bytes>,
    ) -> Self {
        Self::with_file(name.into(), file_name.into(), Content::Bytes(content.into()))
    }

    /// Creates a file whose bytes are sent as they come, of that length if it is known.
    pub fn streamed_file(
        name: impl Into<String>,
        file_name: impl Into<String>,
        content: ByteStream,
        length: Option<u64>,
    ) -> Self {
        let content = Content::Stream(Once::new(content), length);
        Self::with_file(name.into(), file_name.into(), content)
    }

    fn with_file(name: String, file_name: String, content: Content) -> Self {
        let content_type = Some("application/octet-stream");
        Self { name, file_name: Some(file_name), content_type, content }
    }

    fn build(&self, operation: &'static str) -> Result<multipart::Part> {
        let mut part = match &self.content {
            Content::Bytes(bytes) => {
                let length = bytes.len() as u64;
                multipart::Part::stream_with_length(bytes.clone(), length)
            }
            Content::Stream(stream, None) => multipart::Part::stream(stream.take(operation)?),
            Content::Stream(stream, Some(length)) => {
                multipart::Part::stream_with_length(stream.take(operation)?, *length)
            }
        };
        if let Some(name) = &self.file_name {
            part = part.file_name(name.clone());
        }
        match self.content_type {
            Some(content_type) => part.mime_str(content_type).map_err(|error| {
                Error::new(ErrorKind::Unexpected, operation, "a part has no valid type of content")
                    .with_source(error)
            }),
            None => Ok(part),
        }
    }
}

impl Once {
    fn new(stream: ByteStream) -> Self {
        Self(Mutex::new(Some(stream)))
    }

    fn take(&self, operation: &'static str) -> Result<reqwest::Body> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        stream.map(reqwest::Body::wrap_stream).ok_or_else(|| {
            Error::new(ErrorKind::Unexpected, operation, "the body of the request was sent already")
        })
    }
}

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Once")
    }
}

/// Sets a header.
///
/// # Errors
/// `InvalidArgument` for a value that no header can have.
pub(crate) fn set_header(headers: &mut HeaderMap, name: &'static str, value: &str) -> Result<()> {
    let value = HeaderValue::try_from(value)
        .map_err(|_| Error::invalid("header", format!("{name} cannot have that value")))?;
    headers.insert(HeaderName::from_static(name), value);
    Ok(())
}
