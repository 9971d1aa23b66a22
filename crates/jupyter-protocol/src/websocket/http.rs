//! Requests to a server, with bounded answers.

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::error::ServerError;
use super::server::ServerOptions;
use super::{Token, tls};
use crate::client::Effect;

/// Speaks HTTP with one server.
#[derive(Clone, Debug)]
pub(super) struct Http {
    client: reqwest::Client,
    max_body: usize,
}

/// How much of an error page is read, in bytes.
const MAX_MESSAGE: usize = 4096;

impl Http {
    pub(super) fn new(token: &Token, options: &ServerOptions) -> Result<Self, ServerError> {
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization(token)? {
            headers.insert(AUTHORIZATION, value);
        }
        let tls = tls::configuration(&options.extra_roots)?;
        let client = reqwest::Client::builder()
            .default_headers(headers)
            // A token must not follow a redirection.
            .redirect(redirect::Policy::none())
            .timeout(options.timeout)
            .tls_backend_preconfigured((*tls).clone())
            .build()
            .map_err(|error| ServerError::Tls { why: describe(&error) })?;
        Ok(Self { client, max_body: options.max_body })
    }

    /// Sends a request. The answer as JSON.
    pub(super) async fn json<T: DeserializeOwned>(
        &self,
        method: Method,
        url: Url,
        body: Option<&Value>,
    ) -> Result<T, ServerError> {
        let body = self.send(method, url, body).await?;
        serde_json::from_slice(&body)
            .map_err(|error| ServerError::Malformed { why: error.to_string() })
    }

    /// Sends a request. The answer does not matter.
    pub(super) async fn done(
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
            effect: if safe || error.is_connect() { Effect::NotSent } else { Effect::Unknown },
            why: describe(&error),
        })?;
        let status = response.status();
        if status.is_success() {
            return read(response, self.max_body, true).await;
        }
        let text = read(response, MAX_MESSAGE, false).await.unwrap_or_default();
        Err(refusal(status, &text))
    }
}

/// The header that carries the token.
pub(super) fn authorization(token: &Token) -> Result<Option<HeaderValue>, ServerError> {
    if token.is_empty() {
        return Ok(None);
    }
    let value = HeaderValue::try_from(format!("token {}", token.expose()));
    let mut value = value.map_err(|_| ServerError::Address {
        why: "the token cannot be sent in a header".to_owned(),
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Reads a body. One that is too long is an error, or cut.
async fn read(mut response: Response, most: usize, whole: bool) -> Result<Vec<u8>, ServerError> {
    let mut body = Vec::new();
    loop {
        let chunk = response.chunk().await.map_err(|error| ServerError::Unreachable {
            why: describe(&error),
            effect: Effect::Unknown,
        })?;
        let Some(chunk) = chunk else { return Ok(body) };
        if body.len() + chunk.len() > most {
            if whole {
                return Err(ServerError::TooLong { limit: most });
            }
            body.extend_from_slice(&chunk[..most - body.len()]);
            return Ok(body);
        }
        body.extend_from_slice(&chunk);
    }
}

/// What a status other than success means.
pub(super) fn refusal(status: StatusCode, body: &[u8]) -> ServerError {
    let said = serde_json::from_slice::<Value>(body).ok();
    let said = said.as_ref().and_then(|value| value.get("message")).and_then(Value::as_str);
    let usual = status.canonical_reason().unwrap_or("no reason given");
    let message = said.filter(|text| !text.is_empty()).unwrap_or(usual).to_owned();
    match status.as_u16() {
        status @ (401 | 403) => ServerError::Unauthorized { status, message },
        404 => ServerError::NotFound { message },
        status => ServerError::Status { status, message },
    }
}

/// An error and what caused it, without the URL.
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
        return "it took too long".to_owned();
    }
    if text.is_empty() { "the request failed".to_owned() } else { text }
}
