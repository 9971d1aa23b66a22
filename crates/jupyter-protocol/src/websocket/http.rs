//! HTTP requests to a server, with bounded responses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use chrono::DateTime;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use rustls::ClientConfig;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::ServerOptions;
use super::error::ServerError;
use super::{Token, tls};
use crate::client::Effect;

/// An HTTP client of one server.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    tls: Arc<ClientConfig>,
    max_body: usize,
    /// Values that the server may echo. Errors do not show them.
    secrets: Arc<[Token]>,
}

/// Maximum number of bytes that are read of an error page.
const MAX_ERROR_BODY: usize = 4096;

impl Http {
    pub(super) fn new(token: &Token, options: &ServerOptions) -> Result<Self, ServerError> {
        Self::with_tls(token, options, tls::configuration(&options.extra_roots)?)
    }

    /// Creates a client with separate connections.
    pub(super) fn with_own_connections(
        &self,
        token: &Token,
        options: &ServerOptions,
    ) -> Result<Self, ServerError> {
        Self::with_tls(token, options, Arc::clone(&self.tls))
    }

    fn with_tls(
        token: &Token,
        options: &ServerOptions,
        tls: Arc<ClientConfig>,
    ) -> Result<Self, ServerError> {
        let headers = headers(token, options)?;
        let client = reqwest::Client::builder()
            .default_headers(headers)
            // A redirection must not receive the token.
            .redirect(redirect::Policy::none())
            // Nor must a proxy. The WebSocket ignores proxies, too.
            .no_proxy()
            .timeout(options.timeout)
            .tls_backend_preconfigured((*tls).clone())
            .build()
            .map_err(|error| ServerError::Tls { why: describe(&error) })?;
        let added = options.headers.iter().map(|(_, value)| value);
        let secrets = added.chain([token]).filter(|secret| !secret.is_empty()).cloned().collect();
        Ok(Self { client, tls, max_body: options.max_body, secrets })
    }

    /// Sends a request, and parses the response as JSON.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<T, ServerError> {
        let body = self.send(method, url, body).await?;
        serde_json::from_slice(&body)
            .map_err(|error| ServerError::Malformed { why: self.redact(&error.to_string()) })
    }

    /// Sends a request, and ignores the response.
    pub(super) async fn no_content(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<(), ServerError> {
        self.send(method, url, body).await.map(drop)
    }

    async fn send(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<Vec<u8>, ServerError> {
        let safe = method.is_safe();
        let mut request = self.client.request(method, url);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().await.map_err(|error| ServerError::Unreachable {
            effect: if safe || error.is_connect() { Effect::None } else { Effect::Unknown },
            why: describe(&error),
        })?;
        let status = response.status();
        if status.is_success() {
            return read(response, self.max_body, true).await;
        }
        let wait = retry_after(response.headers(), SystemTime::now());
        let text = read(response, MAX_ERROR_BODY, false).await.unwrap_or_default();
        Err(match self.status_error(status, &text) {
            ServerError::Status { status, message, .. } => {
                ServerError::Status { status, message, retry_after: wait }
            }
            other => other,
        })
    }

    /// Converts an error status.
    pub(super) fn status_error(&self, status: StatusCode, body: &[u8]) -> ServerError {
        let text = serde_json::from_slice::<Value>(body).ok();
        let text = text.as_ref().and_then(|value| value.get("message")).and_then(Value::as_str);
        let default = status.canonical_reason().unwrap_or("no reason given");
        let message = self.redact(text.filter(|text| !text.is_empty()).unwrap_or(default));
        match status.as_u16() {
            status @ (401 | 403) => ServerError::Unauthorized { status, message },
            404 => ServerError::NotFound { message },
            status => ServerError::Status { status, message, retry_after: None },
        }
    }

    fn redact(&self, text: &str) -> String {
        let hide = |text: String, secret: &Token| text.replace(secret.expose(), "***");
        self.secrets.iter().fold(text.to_owned(), hide)
    }
}

/// Maximum delay that is accepted from a server.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Returns the delay that a server requests: a number of seconds, or a date. Other values are ignored.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        text.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs)
    } else {
        let date = SystemTime::from(DateTime::parse_from_rfc2822(text).ok()?);
        // A date in the past means no delay.
        date.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Headers that are part of the protocol.
const RESERVED_HEADERS: [&str; 6] =
    ["connection", "content-length", "content-type", "host", "transfer-encoding", "upgrade"];

/// Returns the headers of every request: the token, and those of the options.
pub(super) fn headers(token: &Token, options: &ServerOptions) -> Result<HeaderMap, ServerError> {
    let mut headers = HeaderMap::new();
    if !token.is_empty() {
        let value = format!("token {}", token.expose());
        headers.insert(AUTHORIZATION, secret(AUTHORIZATION.as_str(), &value)?);
    }
    for (name, value) in &options.headers {
        let lowercase = name.to_ascii_lowercase();
        if RESERVED_HEADERS.contains(&&*lowercase) || lowercase.starts_with("sec-websocket") {
            return Err(header_error(name, "is reserved for the protocol"));
        }
        let key = HeaderName::try_from(name.as_str())
            .map_err(|_| header_error(name, "has an invalid name"))?;
        headers.insert(key, secret(name, value.expose())?);
    }
    Ok(headers)
}

fn secret(name: &str, value: &str) -> Result<HeaderValue, ServerError> {
    let mut value = HeaderValue::try_from(value)
        .map_err(|_| header_error(name, "has a value with invalid characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn header_error(name: &str, why: &'static str) -> ServerError {
    ServerError::Header { name: name.to_owned(), why }
}

/// Reads a body up to a limit. With `whole`, a longer body is an error; otherwise it is cut.
async fn read(mut response: Response, limit: usize, whole: bool) -> Result<Vec<u8>, ServerError> {
    let mut body = Vec::new();
    loop {
        let chunk = response.chunk().await.map_err(|error| ServerError::Unreachable {
            why: describe(&error),
            effect: Effect::Unknown,
        })?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > limit {
            if whole {
                return Err(ServerError::TooLong { limit });
            }
            body.extend_from_slice(&chunk[..limit - body.len()]);
            return Ok(body);
        }
        body.extend_from_slice(&chunk);
    }
}

/// Describes an error and its causes, without the URL.
fn describe(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut source: Option<&dyn std::error::Error> = std::error::Error::source(error);
    while let Some(error) = source {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        source = error.source();
    }
    if error.is_timeout() {
        return "the request timed out".to_owned();
    }
    if text.is_empty() { "the request failed".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, value: &str) -> ServerOptions {
        let headers = vec![(name.to_owned(), Token::new(value))];
        ServerOptions { headers, ..ServerOptions::default() }
    }

    #[test]
    fn retry_after_is_parsed_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480);
        let wait = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::try_from(text).unwrap());
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        for (text, expected) in [
            ("7", Some(7)),
            (" 0 ", Some(0)),
            ("1000000000", Some(86_400)),
            ("99999999999999999999999999", Some(86_400)),
            ("Wed, 21 Oct 2015 07:28:30 GMT", Some(30)),
            ("Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(86_400)),
            ("-7", None),
            ("7.5", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(wait(text), expected, "{text:?}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn headers_are_added_and_win_over_the_token() {
        let token = Token::new("abc");
        let sent = headers(&token, &with("X-Forwarded-User", "me")).unwrap();
        assert_eq!(sent["authorization"], "token abc");
        assert_eq!(sent["x-forwarded-user"], "me");
        let sent = headers(&token, &with("Authorization", "Bearer x")).unwrap();
        assert_eq!(sent["authorization"], "Bearer x");
        assert!(sent["authorization"].is_sensitive());
    }

    #[test]
    fn messages_of_the_server_are_redacted() {
        let http = Http::new(&Token::new("hunter2"), &with("X-Key", "swordfish")).unwrap();
        let body = br#"{"message": "neither hunter2 nor swordfish is known"}"#;
        for status in [StatusCode::UNAUTHORIZED, StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST] {
            let text = http.status_error(status, body).to_string();
            assert!(text.contains("neither *** nor *** is known"), "{text}");
        }
    }

    #[test]
    fn headers_that_cannot_be_sent_are_refused_and_not_shown() {
        for name in ["Host", "Sec-WebSocket-Key", "a b", ""] {
            headers(&Token::default(), &with(name, "x")).unwrap_err();
        }
        let error = headers(&Token::default(), &with("X-Key", "hunter2\n")).unwrap_err();
        assert!(!error.to_string().contains("hunter2"), "{error}");
        assert!(!format!("{:?}", with("X-Key", "hunter2")).contains("hunter2"));
    }
}
