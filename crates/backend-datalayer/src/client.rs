//! Requests to the services: who we are, what is tried again, and what is waited for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode, Url, redirect};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Retry, Secret, format_duration};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::access::{Access, Key};
use crate::refusal::{refusal, unsuccessful};
use crate::tls;

/// A create is not given up early: what comes of it costs credits.
const CREATE_PATIENCE: Duration = Duration::from_secs(300);
/// How long is waited for a service that asks to come back later.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How long is waited for something that the service does by and by.
const LONGEST_WORK: Duration = Duration::from_secs(600);
/// What to do about a service that says nothing.
const LONGER: &str = "look whether the service is up, and try again; DATALAYER_REQUEST_TIMEOUT, in seconds, or the provider \
    option `request_timeout` says how long it is waited for";
const MOST_ATTEMPTS: u32 = 4;
const MOST_BYTES: usize = 16 << 20;
const MOST_OF_AN_ERROR: usize = 64 << 10;

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Request<'a> {
    pub(crate) operation: &'static str,
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) body: Option<&'a Value>,
}

/// What came back.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    location: Option<String>,
    body: Vec<u8>,
}

/// Keys that stand for others that are no longer accepted. Shared by everything that a backend made.
#[derive(Debug, Default)]
pub(crate) struct Renewed {
    by_key: Mutex<HashMap<String, Secret>>,
    /// Of several that are refused at a time, one asks for a new key.
    turn: tokio::sync::Mutex<()>,
}

/// Speaks with the services as one account. Cloning is cheap.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) access: Access,
    renewed: Arc<Renewed>,
}

/// What makes connections. Cloning is cheap.
///
/// # Errors
/// `Unexpected` where encryption cannot be set up.
pub(crate) fn connections() -> Result<reqwest::Client> {
    reqwest::Client::builder()
        // A key must not follow a redirection.
        .redirect(redirect::Policy::none())
        .user_agent(concat!("code-sandboxes/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(20))
        .tls_backend_preconfigured(tls::configuration()?)
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Unexpected, "connect", "cannot set up HTTP").with_source(error)
        })
}

impl Client {
    pub(crate) fn new(http: reqwest::Client, access: Access, renewed: Arc<Renewed>) -> Self {
        Self { http, access, renewed }
    }

    /// A resource of the runtimes service.
    pub(crate) fn runtimes(&self, segments: &[&str]) -> Url {
        below(&self.access.runtimes, "runtimes", segments)
    }

    /// A resource of the accounts service.
    pub(crate) fn iam(&self, segments: &[&str]) -> Url {
        below(&self.access.iam, "iam", segments)
    }

    /// Asks, and again where that is safe and may help. All of it has the time of one request.
    ///
    /// # Errors
    /// What the service refused with, or what kept it from answering.
    pub(crate) async fn send(&self, call: &CallContext, request: &Request<'_>) -> Result<Answer> {
        let limit = match request.operation {
            "create" => CREATE_PATIENCE.max(self.access.request_timeout),
            _ => self.access.request_timeout,
        };
        let end = Instant::now() + limit;
        let deadline = call.deadline.map_or(end, |deadline| deadline.min(end));
        let call = &call.clone().with_deadline(deadline);
        let sent = self.send_until(call, request).await;
        sent.map_err(|error| match error.kind() {
            ErrorKind::Timeout if Instant::now() >= end && error.hint().is_none() => {
                error.with_context("waited", format_duration(limit)).with_hint(LONGER)
            }
            _ => error,
        })
    }

    async fn send_until(&self, call: &CallContext, request: &Request<'_>) -> Result<Answer> {
        let key = self.access.key(request.operation)?;
        let mut token = self.renewed.current(key);
        let mut may_renew = true;
        let mut attempt = 0;
        loop {
            let error = match self.once(call, request, key, &token).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.kind() == ErrorKind::Unauthenticated && may_renew {
                may_renew = false;
                match self.renew(call, key, &token).await {
                    Some(renewed) => token = renewed,
                    None => return Err(error),
                }
                continue;
            }
            attempt += 1;
            let wait = error.retry_after().unwrap_or_else(|| backoff(attempt));
            if !may_repeat(request, &error) {
                return Err(error);
            }
            if attempt >= MOST_ATTEMPTS || wait > LONGEST_WAIT || !fits(call, wait) {
                return Err(error.with_retry(Retry::Exhausted));
            }
            tracing::debug!(%error, operation = request.operation, ?wait, "trying again");
            tokio::time::sleep(wait).await;
        }
    }

    /// Asks, and gives the answer as JSON.
    ///
    /// # Errors
    /// As [`Client::send`]; `Protocol` when the answer is nonsense.
    pub(crate) async fn json<T: DeserializeOwned>(
        &self,
        call: &CallContext,
        request: &Request<'_>,
    ) -> Result<T> {
        let answer = self.send(call, request).await?;
        let answer = self.finished(call, request.operation, answer).await?;
        self.parse(request.operation, &answer)
    }

    /// Asks for something whose answer does not matter, and waits until it is done.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub(crate) async fn done(&self, call: &CallContext, request: &Request<'_>) -> Result<()> {
        let answer = self.send(call, request).await?;
        let answer = self.finished(call, request.operation, answer).await?;
        match serde_json::from_slice::<Value>(&answer.body) {
            Ok(said) if said.get("success") == Some(&json!(false)) => {
                Err(unsuccessful(request.operation, &said, &self.secrets()))
            }
            _ => Ok(()),
        }
    }

    /// What is accepted and not done yet has a place where its end can be seen.
    async fn finished(
        &self,
        call: &CallContext,
        operation: &'static str,
        mut answer: Answer,
    ) -> Result<Answer> {
        let begun = Instant::now();
        let mut pause = Duration::from_secs(1);
        while answer.status == StatusCode::ACCEPTED {
            let Some(place) = answer.location.take() else { return Ok(answer) };
            let url = self.own_place(operation, &place)?;
            if begun.elapsed() > LONGEST_WORK || !fits(call, pause) {
                let message = "the service has not finished in time";
                return Err(
                    Error::new(ErrorKind::Timeout, operation, message).with_effect(Effect::Unknown)
                );
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(30));
            let request = Request { operation, method: Method::GET, url, body: None };
            let next = self
                .send(call, &request)
                .await
                .map_err(|error| error.with_effect(Effect::Unknown))?;
            answer = Answer { location: next.location.or(Some(place)), ..next };
        }
        Ok(answer)
    }

    /// A place that an answer names. The key is sent there, so it must be the service's own.
    fn own_place(&self, operation: &'static str, place: &str) -> Result<Url> {
        let own = [&self.access.runtimes, &self.access.iam];
        let url = self.access.runtimes.join(place).ok();
        url.filter(|url| own.iter().any(|base| base.origin() == url.origin())).ok_or_else(|| {
            let message = "the service points to a place that is not its own";
            Error::new(ErrorKind::Protocol, operation, message).with_effect(Effect::Unknown)
        })
    }

    fn parse<T: DeserializeOwned>(&self, operation: &'static str, answer: &Answer) -> Result<T> {
        let nonsense = |why: serde_json::Error| {
            Error::new(
                ErrorKind::Protocol,
                operation,
                "the answer of the service is not understood",
            )
            .with_effect(Effect::Unknown)
            .with_source(why)
        };
        let said: Value = serde_json::from_slice(&answer.body).map_err(nonsense)?;
        if said.get("success") == Some(&json!(false)) {
            return Err(unsuccessful(operation, &said, &self.secrets()));
        }
        T::deserialize(said).map_err(nonsense)
    }

    async fn once(
        &self,
        call: &CallContext,
        request: &Request<'_>,
        key: &Key,
        token: &Secret,
    ) -> Result<Answer> {
        let operation = request.operation;
        let left = call.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut builder = self
            .http
            .request(request.method.clone(), request.url.clone())
            .timeout(left.unwrap_or(self.access.request_timeout))
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .header(AUTHORIZATION, header(operation, &format!("Bearer {}", token.expose()))?);
        if key.external {
            builder = builder.header("X-External-Token", header(operation, key.secret.expose())?);
        }
        if let Some(trace) = &call.trace {
            builder = builder.header("traceparent", header(operation, trace)?);
        }
        if let Some(body) = request.body {
            builder = builder.body(body.to_string());
        }
        let safe = request.method.is_safe();
        let response =
            builder.send().await.map_err(|error| unreachable(operation, &error, safe))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            let body = read(operation, response, MOST_OF_AN_ERROR, false).await.unwrap_or_default();
            let secrets = [key.secret.clone(), token.clone()];
            let error = refusal(operation, status, &headers, &body, &secrets);
            return Err(error.with_context("key_from", key.source));
        }
        let location =
            headers.get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Ok(Answer { status, location, body: read(operation, response, MOST_BYTES, true).await? })
    }

    /// A key for one that is refused: the one that somebody else got meanwhile, or a new one.
    async fn renew(&self, call: &CallContext, key: &Key, refused: &Secret) -> Option<Secret> {
        let _turn = self.renewed.turn.lock().await;
        let current = self.renewed.current(key);
        if current != *refused {
            return Some(current);
        }
        let body = json!({"token": key.secret.expose()});
        let url = self.iam(&["login"]);
        let request = Request { operation: "login", method: Method::POST, url, body: Some(&body) };
        let answer = self.once(call, &request, key, &key.secret).await.ok()?;
        let said: Value = serde_json::from_slice(&answer.body).ok()?;
        let token = said.get("token").and_then(Value::as_str).filter(|token| !token.is_empty())?;
        let token = Secret::new(token);
        if token == *refused {
            return None;
        }
        self.renewed.replace(key, token.clone());
        Some(token)
    }

    /// What no error may repeat.
    fn secrets(&self) -> Vec<Secret> {
        let known = self.access.key.iter();
        known.flat_map(|key| [key.secret.clone(), self.renewed.current(key)]).collect()
    }
}

impl Renewed {
    fn current(&self, key: &Key) -> Secret {
        let known = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key.secret.expose()).unwrap_or(&key.secret).clone()
    }

    fn replace(&self, key: &Key, token: Secret) {
        let mut known = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(key.secret.expose().to_owned(), token);
    }
}

/// Whether doing it again cannot do it twice.
fn may_repeat(request: &Request<'_>, error: &Error) -> bool {
    let harmless = request.method.is_idempotent() || error.effect() == Effect::NotSent;
    error.retry() == Retry::Temporary && harmless
}

/// How long to wait before the next attempt, different for each who waits.
fn backoff(attempt: u32) -> Duration {
    let spread = u64::from_str_radix(&sandbox_core::random_hex(1), 16).unwrap_or_default();
    Duration::from_millis(250 << attempt.min(5)) + Duration::from_millis(spread)
}

fn fits(call: &CallContext, wait: Duration) -> bool {
    call.deadline.is_none_or(|deadline| Instant::now() + wait < deadline)
}

fn below(base: &Url, service: &str, segments: &[&str]) -> Url {
    let mut url = base.clone();
    // An address that was accepted can have a path.
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["api", service, "v1"]).extend(segments);
    }
    url
}

fn header(operation: &'static str, text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::try_from(text).map_err(|_| {
        Error::new(
            ErrorKind::Unauthenticated,
            operation,
            "the API key has characters that no key has",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn unreachable(operation: &'static str, error: &reqwest::Error, safe: bool) -> Error {
    let effect = if safe || error.is_connect() { Effect::NotSent } else { Effect::Unknown };
    let place = error.url().map(|url| format!(" at {}", url.origin().ascii_serialization()));
    let service = format!("the service{}", place.unwrap_or_default());
    let (kind, mut message) = if error.is_connect() {
        (ErrorKind::Unavailable, format!("{service} cannot be reached"))
    } else if error.is_timeout() {
        (ErrorKind::Timeout, format!("{service} did not answer in time"))
    } else {
        (ErrorKind::ConnectionLost, format!("the connection to {service} broke"))
    };
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        message = format!("{message}: {inner}");
        source = inner.source();
    }
    let error =
        Error::new(kind, operation, message).with_retry(Retry::Temporary).with_effect(effect);
    match kind {
        ErrorKind::Unavailable => error.with_hint(
            "look whether this computer has a network, and which address DATALAYER_RUN_URL and ~/.datalayer/config.json name",
        ),
        _ => error,
    }
}

async fn read(
    operation: &'static str,
    mut response: Response,
    most: usize,
    whole: bool,
) -> Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| unreachable(operation, &error, false))?
    {
        if body.len() + chunk.len() > most {
            if whole {
                let message = format!("the service answered with more than {most} bytes");
                return Err(Error::new(ErrorKind::Protocol, operation, message)
                    .with_effect(Effect::Unknown));
            }
            return Ok(body);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}
