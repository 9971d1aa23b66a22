//! Faults on demand: what a server does to the next requests that match.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

/// What is done to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Answers with this status, body and headers, and does nothing.
    Answer(u16, Value, Vec<(&'static str, &'static str)>),
    /// Does what is asked and breaks the connection before the answer.
    LoseAnswer,
    /// Waits before anything is done.
    Delay(Duration),
    /// Breaks a stream, such as a followed log, after that many bytes.
    Cut(usize),
    /// Something that only this server knows, by name.
    Named(&'static str),
}

/// The requests that a fault is for.
#[derive(Clone, Debug)]
pub struct Matcher {
    method: &'static str,
    path: &'static str,
}

#[derive(Debug)]
struct Pending {
    matcher: Matcher,
    fault: Fault,
    times: u32,
}

/// The faults of a server.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<Vec<Pending>>>);

impl Faults {
    /// Adds a fault for the next `times` requests of that method (or any, for an empty one) whose path contains `path`.
    pub fn add(&self, method: &'static str, path: &'static str, fault: Fault, times: u32) {
        let matcher = Matcher { method, path };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Pending { matcher, fault, times });
    }

    /// Takes the fault of a request, if there is one that `wanted` accepts.
    pub fn take(&self, method: &str, path: &str, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter_mut().find(|pending| {
            let Matcher { method: of, path: part } = &pending.matcher;
            pending.times > 0
                && (of.is_empty() || *of == method)
                && path.contains(part)
                && wanted(&pending.fault)
        })?;
        found.times -= 1;
        Some(found.fault.clone())
    }

    /// Returns true when no fault waits for a request.
    pub fn is_empty(&self) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().all(|pending| pending.times == 0)
    }
}

/// Does to a request what its fault says.
pub(crate) async fn apply(faults: Faults, request: Request, next: Next) -> Response {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let is_of_request = |fault: &Fault| !matches!(fault, Fault::Cut(_) | Fault::Named(_));
    match faults.take(&method, &path, is_of_request) {
        None | Some(Fault::Cut(_) | Fault::Named(_)) => next.run(request).await,
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            next.run(request).await
        }
        Some(Fault::Answer(status, body, headers)) => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            let mut response = (status, Json(body)).into_response();
            for (name, value) in headers {
                let name = HeaderName::from_static(name);
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            response
        }
        Some(Fault::LoseAnswer) => {
            let (parts, _) = next.run(request).await.into_parts();
            let broken = futures_util::stream::once(async {
                Err::<bytes::Bytes, _>(std::io::Error::other("the answer is lost"))
            });
            let mut response = Response::from_parts(parts, Body::from_stream(broken));
            response.headers_mut().remove("content-length");
            response
        }
    }
}
