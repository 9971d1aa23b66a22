//! What all handlers of a server share, and which sandbox and which part of the protocol a request is for.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, Utc};
use sandbox_core::Backend;

use super::CodeInterpreter;
use super::create::Creates;
use super::error::{ApiError, port_closed, sandbox_gone};
use super::faults::Faults;
use super::proxy;
use super::record::Record;
use crate::{AccessKey, Ceiling, SandboxTable};

/// The port of envd in every sandbox.
pub(super) const ENVD_PORT: u16 = 49_983;

/// The port of the code interpreter in every sandbox.
pub(super) const CODE_PORT: u16 = 49_999;

/// The version of envd whose behaviour this server has; clients decide by it what they ask for.
pub(super) const ENVD_VERSION: &str = "0.6.13";

/// What the requests of one server share.
#[derive(Debug)]
pub(super) struct App {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) ceiling: Ceiling,
    pub(super) key: AccessKey,
    /// `localhost:PORT`, below which each port of a sandbox has a host name.
    pub(super) domain: String,
    /// Sandboxes outlive the server.
    pub(super) keep: bool,
    pub(super) table: SandboxTable<Record>,
    /// Sandboxes of the template `code-interpreter-v1`, where they are others.
    pub(super) code_interpreter: Option<CodeInterpreter>,
    /// The longest time that a client may take for a request.
    pub(super) client_timeout: Duration,
    pub(super) creates: Creates,
    pub(super) faults: Option<Faults>,
    pub(super) started_at: DateTime<Utc>,
}

impl App {
    /// Returns every backend of the server: that of most templates first.
    pub(super) fn backends(&self) -> impl Iterator<Item = &Arc<dyn Backend>> {
        let interpreter = self.code_interpreter.iter().map(|interpreter| &interpreter.backend);
        std::iter::once(&self.backend).chain(interpreter)
    }

    /// Returns a sandbox that has not ended. One that has ended by itself is forgotten.
    pub(super) fn find(&self, id: &str) -> Option<Arc<Record>> {
        let record = self.table.get(id)?;
        if record.instance.status().is_over() {
            self.forget(&record);
            return None;
        }
        Some(record)
    }

    /// Forgets the sandboxes that have ended by themselves.
    pub(super) fn forget_ended(&self) {
        let all = self.table.all();
        all.iter()
            .filter(|record| record.instance.status().is_over())
            .for_each(|record| self.forget(record));
    }

    fn forget(&self, record: &Record) {
        self.table.remove(&record.id);
        record.clock.finish();
    }
}

/// The sandbox and the port that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) id: String,
    pub(super) port: u16,
}

impl Target {
    /// Finds the target in the host name, `{port}-{id}.{domain}`, or in the headers that clients send to one address for
    /// all sandboxes.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let by_host = text(header::HOST.as_str()).and_then(Self::of_host);
        by_host.or_else(|| {
            let id = text("e2b-sandbox-id")?.to_owned();
            let port = text("e2b-sandbox-port");
            // Nothing listens on what is no port.
            let port = port.map_or(ENVD_PORT, |port| port.parse().unwrap_or_default());
            Some(Self { id, port })
        })
    }

    fn of_host(host: &str) -> Option<Self> {
        let (label, _) = host.split_once('.')?;
        let (port, id) = label.split_once('-')?;
        Some(Self { id: id.to_owned(), port: port.parse().ok()? })
    }
}

/// Sends requests for ports of user programs there, and tells the others which sandbox they are for.
pub(super) async fn route(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let Some(target) = Target::from_headers(request.headers()) else {
        return next.run(request).await;
    };
    if target.port != ENVD_PORT && target.port != CODE_PORT {
        return match app.find(&target.id) {
            Some(record) => proxy::forward(&app, &record, target.port, request).await,
            None => sandbox_gone(&target.id),
        };
    }
    if target.port == CODE_PORT
        && let (Some(faults), Some(record)) = (&app.faults, app.find(&target.id))
        && !faults.has_code_interpreter(&record.template)
    {
        return port_closed(&target.id, CODE_PORT);
    }
    request.extensions_mut().insert(target);
    next.run(request).await
}

/// The holder of the server's key.
pub(super) struct Owner;

impl FromRequestParts<Arc<App>> for Owner {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let given = parts.headers.get("x-api-key").and_then(|value| value.to_str().ok());
        let message = match given {
            Some(given) if app.key.matches(given) => return Ok(Self),
            Some(_) => "Invalid API key: E2B_API_KEY is not the key of this server",
            None => "API key is missing: set E2B_API_KEY to the key of this server",
        };
        Err(ApiError::new(StatusCode::UNAUTHORIZED, message).into_response())
    }
}

/// The sandbox of a request to envd or the code interpreter, with or without its token.
pub(super) struct AnySandbox(pub(super) Arc<Record>);

impl FromRequestParts<Arc<App>> for AnySandbox {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let Some(target) = parts.extensions.get::<Target>() else {
            let message = "The request names no sandbox: set E2B_SANDBOX_URL to this server";
            return Err(ApiError::bad_request(message).into_response());
        };
        let gone = || sandbox_gone(&target.id);
        let record = app.find(&target.id).ok_or_else(gone)?;
        if record.is_paused() {
            // What the caller may not do does not wake a sandbox.
            if !record.resumes_by_itself() || !has_token(&record, &parts.headers) {
                return Err(gone());
            }
            record.resume(None).await.map_err(|error| ApiError::from(error).into_response())?;
        }
        Ok(Self(record))
    }
}

/// The sandbox of a request to envd that has its token.
pub(super) struct Sandbox(pub(super) Arc<Record>);

impl FromRequestParts<Arc<App>> for Sandbox {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        let AnySandbox(record) = AnySandbox::from_request_parts(parts, app).await?;
        if has_token(&record, &parts.headers) {
            return Ok(Self(record));
        }
        Err(unauthorized().into_response())
    }
}

/// The answer of envd to a request without the token of its sandbox.
pub(super) fn unauthorized() -> ApiError {
    let message =
        "unauthorized access, please provide a valid access token or method signing if supported";
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// Returns true for the token of the sandbox, where it has one.
pub(super) fn has_token(record: &Record, headers: &HeaderMap) -> bool {
    let given = headers.get("x-access-token").and_then(|value| value.to_str().ok());
    record.envd_token.as_ref().is_none_or(|token| given.is_some_and(|given| token.matches(given)))
}

/// Returns true for the token that opens the ports of a sandbox, where one is needed.
pub(super) fn may_reach_ports(record: &Record, headers: &HeaderMap) -> bool {
    let given = headers.get("e2b-traffic-access-token").and_then(|value| value.to_str().ok());
    record
        .traffic_token
        .as_ref()
        .is_none_or(|token| given.is_some_and(|given| token.matches(given)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_named_by_host_or_headers() {
        let of = |fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| {
                (name.parse::<axum::http::HeaderName>().unwrap(), value.parse().unwrap())
            });
            Target::from_headers(&fields.collect::<HeaderMap>())
        };
        let target = |id: &str, port| Some(Target { id: id.to_owned(), port });
        assert_eq!(of(&[("host", "8000-abc1.localhost:3000")]), target("abc1", 8000));
        assert_eq!(
            of(&[("host", "127.0.0.1:3000"), ("e2b-sandbox-id", "x")]),
            target("x", ENVD_PORT)
        );
        let headers =
            [("host", "localhost:1"), ("e2b-sandbox-id", "x"), ("e2b-sandbox-port", "49999")];
        assert_eq!(of(&headers), target("x", CODE_PORT));
        for host in ["localhost:3000", "127.0.0.1", "api.example.com", "99999-x.localhost"] {
            assert_eq!(of(&[("host", host)]), None, "{host}");
        }
    }
}
