//! A client of one service, as one account.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, LOCATION};
use reqwest::{StatusCode, Url};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::clock::ServiceClock;
use super::error::ErrorRules;
use super::request::{Request, set_header};
use super::response::{Response, StreamingResponse, malformed};
use crate::Backoff;
use crate::auth::Auth;

/// Time for one request with all its attempts, where nothing else is configured.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum time to poll an asynchronous operation.
const MAX_OPERATION_TIME: Duration = Duration::from_secs(600);

/// A service of a provider.
#[derive(Clone, Debug)]
pub struct Service {
    pub(crate) name: &'static str,
    pub(crate) origins: Vec<Url>,
    pub(crate) errors: &'static ErrorRules,
    pub(crate) request_timeout: Duration,
    pub(crate) headers: HeaderMap,
}

impl Service {
    /// Creates a service whose credentials may be sent to the origins of these addresses, and nowhere else.
    pub fn new(
        name: &'static str,
        addresses: impl IntoIterator<Item = Url>,
        errors: &'static ErrorRules,
    ) -> Self {
        let (origins, request_timeout) = (addresses.into_iter().collect(), DEFAULT_REQUEST_TIMEOUT);
        Self { name, origins, errors, request_timeout, headers: HeaderMap::new() }
    }

    /// Sets the time for one request, with all attempts and pauses between them. Default: 60 seconds.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Adds a header to all requests, such as the version of a provider's interface.
    ///
    /// # Errors
    /// `InvalidArgument` for a value that no header can have.
    pub fn header(mut self, name: &'static str, value: &str) -> Result<Self> {
        set_header(&mut self.headers, name, value)?;
        Ok(self)
    }

    /// Returns true for an address that credentials may be sent to.
    pub(crate) fn owns(&self, url: &Url) -> bool {
        self.origins.iter().any(|own| own.origin() == url.origin())
    }
}

/// Sends requests to a service. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Client<A> {
    pub(crate) http: reqwest::Client,
    pub(crate) service: Arc<Service>,
    pub(crate) auth: A,
    pub(crate) clock: Arc<ServiceClock>,
}

impl<A> Client<A> {
    pub(crate) fn new(http: reqwest::Client, service: Service, auth: A) -> Self {
        Self { http, service: Arc::new(service), auth, clock: Arc::default() }
    }

    /// Returns the clock of the service, as its last answer to this client told it.
    pub fn clock(&self) -> &ServiceClock {
        &self.clock
    }

    /// Returns what adds the credentials.
    pub fn auth(&self) -> &A {
        &self.auth
    }

    /// Returns a client of another service over the same connections, such as that of a single sandbox.
    pub fn of_service<B>(&self, service: Service, auth: B) -> Client<B> {
        Client::new(self.http.clone(), service, auth)
    }
}

impl<A: Auth> Client<A> {
    /// Sends a request and reads the whole answer, which has a success as its status.
    ///
    /// # Errors
    /// The refusal of the service by the service's [`ErrorRules`], or what kept the service from answering.
    pub async fn send(&self, call: &CallContext, request: &Request) -> Result<Response> {
        self.send_as(call, request).await
    }

    /// Sends a request and gives the body of its answer as it comes. The time of the request ends with the head of the
    /// answer.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn open(&self, call: &CallContext, request: &Request) -> Result<StreamingResponse> {
        self.send_as(call, request).await
    }

    /// Sends a request, waits until what it started has finished, and reads the answer as JSON.
    ///
    /// # Errors
    /// As [`Client::send_and_wait`]; `Protocol`, with an unknown effect, for an answer of another form.
    pub async fn json<T: DeserializeOwned>(
        &self,
        call: &CallContext,
        request: &Request,
    ) -> Result<T> {
        let response = self.send(call, request).await?;
        let response = self.finished(call, request, response).await?;
        let body: Value = response.json()?;
        self.check_failure(&response, &body)?;
        T::deserialize(body).map_err(|error| malformed(request.operation, error))
    }

    /// Sends a request and waits until what it started has finished: an answer 202 names a place where the end can be
    /// seen.
    ///
    /// # Errors
    /// As [`Client::send`]; a failure that the body of a success reports; `Timeout` for what does not finish in ten
    /// minutes; `Protocol` for a place that is not the service's own.
    pub async fn send_and_wait(&self, call: &CallContext, request: &Request) -> Result<Response> {
        let response = self.send(call, request).await?;
        let response = self.finished(call, request, response).await?;
        if let Ok(body) = response.json::<Value>() {
            self.check_failure(&response, &body)?;
        }
        Ok(response)
    }

    fn check_failure(&self, response: &Response, body: &Value) -> Result<()> {
        let rules = self.service.errors;
        match (rules.reports_failure)(body) {
            true => Err(rules.parse_failure(response.operation, body, &response.secrets)),
            false => Ok(()),
        }
    }

    async fn finished(
        &self,
        call: &CallContext,
        request: &Request,
        mut response: Response,
    ) -> Result<Response> {
        let operation = request.operation;
        let mut backoff = Backoff::new(MAX_OPERATION_TIME);
        let mut place: Option<Url> = None;
        while response.status == StatusCode::ACCEPTED {
            if let Some(location) = response.header(LOCATION) {
                let base = place.as_ref().unwrap_or(&request.url);
                place = Some(self.own_place(operation, base, location)?);
            }
            let Some(url) = place.clone() else { return Ok(response) };
            if !backoff.wait(call).await {
                let message = "the service has not finished in time";
                return Err(
                    Error::new(ErrorKind::Timeout, operation, message).with_effect(Effect::Unknown)
                );
            }
            response = self
                .send(call, &Request::get(operation, url))
                .await
                .map_err(|error| error.with_effect(Effect::Unknown))?;
        }
        Ok(response)
    }

    /// Resolves a place that an answer names. Credentials are sent there, so it must be the service's own.
    fn own_place(&self, operation: &'static str, base: &Url, location: &str) -> Result<Url> {
        let url = base.join(location).ok().filter(|url| self.service.owns(url));
        url.ok_or_else(|| {
            let message = "the service points to a place that is not its own";
            Error::new(ErrorKind::Protocol, operation, message).with_effect(Effect::Unknown)
        })
    }
}
