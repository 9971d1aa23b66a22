//! Files over HTTP: download and upload, with the token of the sandbox or with a signed URL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_compression::tokio::bufread::{GzipDecoder, GzipEncoder};
use axum::body::Body;
use axum::extract::{FromRequestParts, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, stream};
use sandbox_core::{ByteRange, ByteStream, CallContext, Error, ErrorKind, FileKind, WriteOptions};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use tokio_util::io::{ReaderStream, StreamReader};

use super::app::{AnySandbox, App, Target, has_token, unauthorized};
use super::error::{ApiError, message_of};
use super::record::Record;

/// Most links that are followed to a file.
const MAX_LINKS: usize = 16;

/// The beginning of the fields with metadata of a file.
const METADATA: &str = "x-metadata-";

/// Bytes from which on a piece of an upload is written.
const GATHERED: usize = 256 << 10;

/// Bytes of one piece of a body that is compressed or expanded.
const PIECE: usize = 64 << 10;

/// The query of a request about files.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct FileQuery {
    path: Option<String>,
    username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

/// The sandbox of a request about files that has its token or a valid signature.
pub(super) struct FileAccess {
    record: Arc<Record>,
    query: FileQuery,
}

impl FromRequestParts<Arc<App>> for FileAccess {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let Query(query) = Query::<FileQuery>::from_request_parts(parts, app)
            .await
            .map_err(|error| ApiError::bad_request(error.body_text()).into_response())?;
        let operation = if parts.method == axum::http::Method::POST { "write" } else { "read" };
        if parts.extensions.get::<Target>().is_none() {
            // One address for all sandboxes: a signed URL names its sandbox by its signature alone.
            let all = app.table.all();
            let signed =
                all.iter().find(|record| check_signature(record, &query, operation).is_ok());
            let record = signed.ok_or_else(|| unauthorized().into_response())?;
            let target = Target { id: record.id.clone(), port: super::app::ENVD_PORT };
            parts.extensions.insert(target);
        }
        let AnySandbox(record) = AnySandbox::from_request_parts(parts, app).await?;
        let allowed = if query.signature.is_some() {
            check_signature(&record, &query, operation)
        } else if has_token(&record, &parts.headers) {
            Ok(())
        } else {
            Err(unauthorized())
        };
        allowed.map_err(IntoResponse::into_response)?;
        let user = record.user.check(query.username.as_deref());
        user.map_err(|error| {
            let status = match error.code {
                super::error::Code::PermissionDenied => StatusCode::FORBIDDEN,
                _ => StatusCode::UNAUTHORIZED,
            };
            ApiError::new(status, error.message).into_response()
        })?;
        Ok(Self { record, query })
    }
}

/// Checks the signature of a URL, and that it has not expired.
fn check_signature(record: &Record, query: &FileQuery, operation: &str) -> Result<(), ApiError> {
    let refuse = |message: &str| Err(ApiError::new(StatusCode::UNAUTHORIZED, message));
    let (Some(token), Some(given)) = (&record.envd_token, &query.signature) else {
        return refuse("missing signature query parameter");
    };
    let path = query.path.as_deref().unwrap_or_default();
    let user = query.username.as_deref().unwrap_or_default();
    let mut text = format!("{path}:{operation}:{user}:{}", token.expose());
    if let Some(expiration) = &query.signature_expiration {
        text.push(':');
        text.push_str(expiration);
    }
    let expected = format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(text)));
    if !bool::from(expected.as_bytes().ct_eq(given.as_bytes())) {
        return refuse("invalid signature");
    }
    let Some(expiration) = &query.signature_expiration else { return Ok(()) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match expiration.parse::<u64>() {
        Ok(expiration) if expiration >= now => Ok(()),
        Ok(_) => refuse("signature is already expired"),
        Err(_) => refuse("invalid signature expiration"),
    }
}

impl FileAccess {
    fn path(&self) -> String {
        self.record.user.absolute(self.query.path.as_deref().unwrap_or_default())
    }
}

/// Returns the error of a verb about a path in the words of envd.
fn about(path: &str, error: Error) -> ApiError {
    let cause = |name: &str| error.context().iter().any(|(_, value)| value == name);
    if error.kind() == ErrorKind::NotFound {
        return ApiError::not_found(format!("path '{path}' does not exist"));
    }
    if cause("is_a_directory") {
        return ApiError::bad_request(format!("path '{path}' is a directory"));
    }
    if cause("disk_full") {
        return ApiError::new(StatusCode::INSUFFICIENT_STORAGE, message_of(&error));
    }
    error.into()
}

/// Sends a file, or a part of it.
pub(super) async fn download(access: FileAccess, headers: HeaderMap) -> Result<Response, ApiError> {
    let path = access.path();
    let files = access.record.instance.files()?;
    let call = CallContext::new();
    let mut real = path.clone();
    let mut info = files.stat_file(&call, &real).await.map_err(|error| about(&path, error))?;
    for _ in 0..MAX_LINKS {
        let (FileKind::Symlink, Some(target)) = (info.kind, &info.target) else { break };
        let parent = real.rsplit_once('/').map_or("", |(parent, _)| parent);
        real = if target.starts_with('/') { target.clone() } else { format!("{parent}/{target}") };
        info = files.stat_file(&call, &real).await.map_err(|error| about(&path, error))?;
    }
    if info.is_directory() {
        return Err(ApiError::bad_request(format!("path '{path}' is a directory")));
    }
    let range = match headers.get(header::RANGE).map(|range| part(range, info.size)) {
        None | Some(Part::All) => None,
        Some(Part::Bytes(first, last)) => Some((first, last)),
        Some(Part::Unsatisfiable) => {
            let of = format!("bytes */{}", info.size);
            let status = StatusCode::RANGE_NOT_SATISFIABLE;
            return Ok((status, [(header::CONTENT_RANGE, of)]).into_response());
        }
    };
    let wanted = range.map_or(ByteRange::default(), |(first, last)| ByteRange {
        offset: first,
        length: Some(last - first + 1),
    });
    let content =
        files.read_file(&call, &real, wanted).await.map_err(|error| about(&path, error))?;
    let mut response = Response::new(Body::empty());
    let fields = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    fields.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if range.is_none() && wants_gzip(&headers) {
        fields.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        let packed = GzipEncoder::new(StreamReader::new(content.map_err(std::io::Error::other)));
        *response.body_mut() = Body::from_stream(ReaderStream::with_capacity(packed, PIECE));
        return Ok(response);
    }
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let length = range.map_or(info.size, |(first, last)| last - first + 1);
    // What shows the kernel has no size and still has content.
    if length > 0 || range.is_some() {
        fields.insert(header::CONTENT_LENGTH, length.into());
    }
    if let Some((first, last)) = range {
        let of = format!("bytes {first}-{last}/{}", info.size);
        if let Ok(of) = of.parse() {
            fields.insert(header::CONTENT_RANGE, of);
        }
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    *response.body_mut() = Body::from_stream(content);
    Ok(response)
}

/// Returns true when the client wants nothing but gzip. Clients that only accept it are not made to expand.
fn wants_gzip(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value.as_bytes() == b"gzip")
}

#[derive(Debug, PartialEq)]
enum Part {
    All,
    Bytes(u64, u64),
    Unsatisfiable,
}

/// Reads a range of one part. Others are ignored, as HTTP allows.
fn part(value: &HeaderValue, size: u64) -> Part {
    let parse = || {
        let (first, last) = value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
        match (first.trim().parse::<u64>(), last.trim().parse::<u64>()) {
            (Ok(first), Ok(last)) => Some((first, last.min(size.checked_sub(1)?))),
            (Ok(first), Err(_)) if last.is_empty() => Some((first, size.checked_sub(1)?)),
            (Err(_), Ok(count)) if first.is_empty() && count > 0 => {
                Some((size.saturating_sub(count), size.checked_sub(1)?))
            }
            _ => None,
        }
    };
    let is_one = value.to_str().is_ok_and(|text| text.starts_with("bytes=") && !text.contains(','));
    match parse() {
        _ if !is_one => Part::All,
        Some((first, last)) if first <= last => Part::Bytes(first, last),
        Some(_) => Part::Unsatisfiable,
        None if size == 0 => Part::Unsatisfiable,
        None => Part::All,
    }
}

/// Writes files: the body as it is, or each part of a form.
pub(super) async fn upload(
    State(_): State<Arc<App>>,
    access: FileAccess,
    request: Request,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    let metadata = metadata_of(headers)?;
    if !metadata.is_empty() && !access.record.instance.capabilities().file_attributes {
        return Err(ApiError::not_here("metadata of files"));
    }
    let given = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let kind = given(header::CONTENT_TYPE).unwrap_or_default().to_owned();
    let is_packed = match given(header::CONTENT_ENCODING) {
        None | Some("identity") => false,
        Some("gzip") => true,
        Some(other) => {
            return Err(ApiError::bad_request(format!("unsupported Content-Encoding: {other}")));
        }
    };
    let body = request.into_body().into_data_stream().map_err(std::io::Error::other);
    let body: ByteStream = if is_packed {
        let expanded = GzipDecoder::new(StreamReader::new(body));
        content_of(ReaderStream::with_capacity(expanded, PIECE))
    } else {
        content_of(body)
    };
    let written = if kind.starts_with("multipart/form-data") {
        write_form(&access, &kind, body, &metadata).await?
    } else if kind.starts_with("application/octet-stream") {
        vec![write(&access.record, &access.path(), body, &metadata).await?]
    } else {
        let message = format!(
            "unsupported Content-Type {kind:?}: use multipart/form-data or application/octet-stream"
        );
        return Err(ApiError::bad_request(message));
    };
    // Clients read the JSON whatever its type is, and envd says this one.
    let text = serde_json::to_string(&written).unwrap_or_default();
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}

/// Returns the metadata that a file gets: the fields that begin with `X-Metadata-`.
fn metadata_of(headers: &HeaderMap) -> Result<BTreeMap<String, String>, ApiError> {
    let mut found = BTreeMap::new();
    for (name, value) in headers {
        let Some(key) = name.as_str().strip_prefix(METADATA).filter(|key| !key.is_empty()) else {
            continue;
        };
        let value = value.to_str().map_err(|_| {
            ApiError::bad_request(format!("the metadata {key:?} has a value that is not ASCII"))
        })?;
        found.insert(key.to_owned(), value.to_owned());
    }
    Ok(found)
}

fn content_of(body: impl Stream<Item = std::io::Result<Bytes>> + Send + 'static) -> ByteStream {
    let failed = |error: std::io::Error| {
        Error::new(ErrorKind::ConnectionLost, "upload", format!("the upload ended early: {error}"))
    };
    body.map_err(failed).boxed()
}

/// Puts small pieces together: each one that is written costs a visit to a thread or a message.
fn gathered(content: ByteStream) -> ByteStream {
    let pieces = stream::unfold(Some(content), |content| async move {
        let mut content = content?;
        let first = match content.next().await? {
            Ok(first) if first.len() >= GATHERED => return Some((Ok(first), Some(content))),
            Ok(first) => first,
            Err(error) => return Some((Err(error), None)),
        };
        let mut all = BytesMut::with_capacity(GATHERED);
        all.extend_from_slice(&first);
        while all.len() < GATHERED {
            match content.next().await {
                Some(Ok(piece)) => all.extend_from_slice(&piece),
                Some(Err(error)) => return Some((Err(error), None)),
                None => return Some((Ok(all.freeze()), None)),
            }
        }
        Some((Ok(all.freeze()), Some(content)))
    });
    Box::pin(pieces)
}

async fn write_form(
    access: &FileAccess,
    kind: &str,
    body: ByteStream,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<Value>, ApiError> {
    let wrong = |error: multer::Error| {
        ApiError::bad_request(format!("error parsing multipart form: {error}"))
    };
    let boundary = multer::parse_boundary(kind).map_err(wrong)?;
    let mut form = multer::Multipart::new(body, boundary);
    let mut written = Vec::new();
    while let Some(field) = form.next_field().await.map_err(wrong)? {
        if field.name() != Some("file") {
            continue;
        }
        let path = match (&access.query.path, field.file_name()) {
            (Some(_), _) if !written.is_empty() => {
                return Err(ApiError::bad_request("you can upload only one file with a path"));
            }
            (Some(_), _) => access.path(),
            (None, Some(name)) => access.record.user.absolute(name),
            (None, None) => return Err(ApiError::bad_request("a part has no file name")),
        };
        let content = field.map_err(std::io::Error::other);
        written.push(write(&access.record, &path, content_of(content), metadata).await?);
    }
    if written.is_empty() {
        return Err(ApiError::bad_request("the form has no part named `file`"));
    }
    Ok(written)
}

/// Writes one file. What was there is replaced when all of the content has come.
async fn write(
    record: &Record,
    path: &str,
    content: ByteStream,
    metadata: &BTreeMap<String, String>,
) -> Result<Value, ApiError> {
    let files = record.instance.files()?;
    let options = WriteOptions { attributes: metadata.clone(), ..WriteOptions::default() };
    let written = files.write_file(&CallContext::new(), path, gathered(content), options).await;
    written.map_err(|error| about(path, error))?;
    let name = path.rsplit('/').next().unwrap_or_default();
    let mut shown = json!({ "name": name, "path": path, "type": "file" });
    if !metadata.is_empty() {
        shown["metadata"] = json!(metadata);
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_one_part() {
        let of = |text: &'static str, size| part(&HeaderValue::from_static(text), size);
        assert_eq!(of("bytes=0-4", 10), Part::Bytes(0, 4));
        assert_eq!(of("bytes=5-", 10), Part::Bytes(5, 9));
        assert_eq!(of("bytes=-3", 10), Part::Bytes(7, 9));
        assert_eq!(of("bytes=2-99", 10), Part::Bytes(2, 9));
        assert_eq!(of("bytes=10-", 10), Part::Unsatisfiable);
        assert_eq!(of("bytes=0-", 0), Part::Unsatisfiable);
        for ignored in ["bytes=0-1,3-4", "lines=1-2", "bytes=a-b", "bytes=-0"] {
            assert_eq!(of(ignored, 10), Part::All, "{ignored}");
        }
    }
}
