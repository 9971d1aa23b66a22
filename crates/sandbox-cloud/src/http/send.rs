//! The attempts of one request.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use reqwest::header::HeaderValue;
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Retry, format_duration};

use super::client::{Client, Service};
use super::request::Request;
use super::response::{Response, StreamingResponse, read};
use super::retry::retry_by_effect;
use crate::auth::{Auth, Credentials};

/// Bytes of an error's body that are read.
const MAX_ERROR_BODY: usize = 64 << 10;

/// An answer with a success as its status.
pub(crate) trait Answer: Sized + Send {
    /// The time of the request ends with the head of the answer.
    const IS_STREAMED: bool;

    fn read(
        response: reqwest::Response,
        service: &Service,
        request: &Request,
        credentials: &Credentials,
    ) -> impl Future<Output = Result<Self>> + Send;
}

impl Answer for Response {
    const IS_STREAMED: bool = false;

    async fn read(
        response: reqwest::Response,
        service: &Service,
        request: &Request,
        credentials: &Credentials,
    ) -> Result<Self> {
        let (status, headers) = (response.status(), response.headers().clone());
        let (operation, max) = (request.operation, request.max_response);
        let body = read(service.errors, operation, response, max, true).await?;
        let (secrets, rules) = (credentials.secrets().to_vec(), service.errors);
        let address_hint = rules.unreachable_hint;
        Ok(Self { operation, status, headers, body, secrets, address_hint })
    }
}

impl Answer for StreamingResponse {
    const IS_STREAMED: bool = true;

    async fn read(
        response: reqwest::Response,
        service: &Service,
        request: &Request,
        _credentials: &Credentials,
    ) -> Result<Self> {
        Ok(Self::new(request.operation, response, service.errors, request.idle_timeout))
    }
}

impl<A: Auth> Client<A> {
    /// Sends a request, and again where that is safe and may help. All attempts share the time of one request.
    pub(crate) async fn send_as<T: Answer>(
        &self,
        call: &CallContext,
        request: &Request,
    ) -> Result<T> {
        let limit = request.timeout.unwrap_or(self.service.request_timeout);
        let end = Instant::now() + limit;
        let deadline = call.deadline.map_or(end, |deadline| deadline.min(end));
        let call = &call.clone().with_deadline(deadline);
        self.attempts(call, request).await.map_err(|error| match error.kind() {
            ErrorKind::Timeout if Instant::now() >= end && error.hint().is_none() => error
                .with_context("waited", format_duration(limit))
                .with_hint(self.service.errors.timeout_hint),
            _ => error,
        })
    }

    async fn attempts<T: Answer>(&self, call: &CallContext, request: &Request) -> Result<T> {
        let credentials = self.auth.credentials(request.operation).await?;
        if !request.is_repeatable() {
            return self.send_once_as(call, request, &credentials).await;
        }
        let may_renew = AtomicBool::new(true);
        let credentials = Mutex::new(credentials);
        let current = || credentials.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let attempt = || async {
            let used = current();
            let error = match self.send_once_as(call, request, &used).await {
                Err(error) if error.kind() == ErrorKind::Unauthenticated => error,
                done => return done,
            };
            if !may_renew.swap(false, Ordering::Relaxed) {
                return Err(error);
            }
            let Some(renewed) = self.auth.renew(self, call, &used).await else {
                return Err(error);
            };
            *credentials.lock().unwrap_or_else(PoisonError::into_inner) = renewed.clone();
            self.send_once_as(call, request, &renewed).await
        };
        retry_by_effect(call, request.operation, request.is_idempotent(), attempt).await
    }

    /// Sends a request a single time, with these credentials.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send_once(
        &self,
        call: &CallContext,
        request: &Request,
        credentials: &Credentials,
    ) -> Result<Response> {
        self.send_once_as(call, request, credentials).await
    }

    async fn send_once_as<T: Answer>(
        &self,
        call: &CallContext,
        request: &Request,
        credentials: &Credentials,
    ) -> Result<T> {
        let (operation, rules) = (request.operation, self.service.errors);
        if !self.service.owns(&request.url) {
            let origin = request.url.origin().ascii_serialization();
            let message = format!("{origin} is not an address of {}", self.service.name);
            return Err(Error::new(ErrorKind::Protocol, operation, message));
        }
        let left = call.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.or(request.timeout).unwrap_or(self.service.request_timeout);
        let mut builder = self
            .http
            .request(request.method.clone(), request.url.clone())
            .headers(self.service.headers.clone())
            .headers(request.headers.clone())
            .headers(credentials.headers().clone());
        if let Some(trace) = &call.trace {
            builder = builder.header("traceparent", trace_header(operation, trace)?);
        }
        if !T::IS_STREAMED {
            builder = builder.timeout(left);
        }
        let sending = request.add_body(builder)?.send();
        let is_safe = request.method.is_safe();
        let response = match tokio::time::timeout(left, sending).await {
            Ok(sent) => sent.map_err(|error| rules.unanswered(operation, &error, is_safe))?,
            Err(_) => return Err(no_answer(operation, request, is_safe)),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        self.clock.note(&headers);
        if !status.is_success() {
            let body = read(rules, operation, response, MAX_ERROR_BODY, false);
            let body = tokio::time::timeout(left, body).await.ok().and_then(Result::ok);
            let body = body.unwrap_or_default();
            let error =
                rules.parse_error(operation, status, &headers, &body, credentials.secrets());
            return Err(match credentials.source() {
                Some(source) => error.with_context("key_from", source),
                None => error,
            });
        }
        T::read(response, &self.service, request, credentials).await
    }
}

fn no_answer(operation: &'static str, request: &Request, is_safe: bool) -> Error {
    let effect = if is_safe { Effect::NotSent } else { Effect::Unknown };
    let origin = request.url.origin().ascii_serialization();
    let message = format!("the service at {origin} did not answer in time");
    Error::new(ErrorKind::Timeout, operation, message)
        .with_retry(Retry::Temporary)
        .with_effect(effect)
}

fn trace_header(operation: &'static str, trace: &str) -> Result<HeaderValue> {
    HeaderValue::try_from(trace).map_err(|_| {
        let message = "the trace of the call is not a `traceparent`";
        Error::new(ErrorKind::InvalidArgument, operation, message)
    })
}
