//! Failures on demand, for tests of clients: what the provider's edge and its envd do at their worst.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::time::sleep;

use super::app::App;
use super::templates::name_of;

/// How long the content before a cut has to be sent.
const SENT_BEFORE_CUT: Duration = Duration::from_millis(100);

/// One failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Status 429 with that `Retry-After`, in seconds; the request has no effect.
    RateLimited {
        /// Seconds to wait.
        retry_after: u32,
    },
    /// Status 502 as the edge gives it for a sandbox that is gone; the request has no effect.
    SandboxNotFound,
    /// That status; the request has no effect.
    Status(u16),
    /// The answer ends after that many bytes of its body, with the connection cut.
    CutAfter(u64),
    /// The request takes effect, and the connection is cut before the answer.
    LostAnswer,
}

/// The failures that a server is to have. Clones are the same. Nothing fails unless it is asked for.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    planned: Mutex<Vec<Planned>>,
    process_traps: AtomicBool,
    without_code: Mutex<BTreeSet<String>>,
    calls: Mutex<Vec<String>>,
}

#[derive(Debug)]
struct Planned {
    request: String,
    fault: Fault,
    times: u32,
}

impl Faults {
    fn planned(&self) -> MutexGuard<'_, Vec<Planned>> {
        self.shared.planned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the next `times` requests fail whose `METHOD /path` begins with that text, such as `POST /v2/sandboxes`.
    pub fn fail(&self, request: impl Into<String>, fault: Fault, times: u32) {
        self.planned().push(Planned { request: request.into(), fault, times });
    }

    /// Drops the failures that are still to come.
    pub fn clear(&self) {
        self.planned().clear();
    }

    /// Makes commands end as in the provider's sandboxes: a deadline kills the started process and not its children, and
    /// there is no end before every child has closed the output. A process outlives its client always.
    pub fn set_process_traps(&self, on: bool) {
        self.shared.process_traps.store(on, Ordering::Relaxed);
    }

    pub(super) fn has_process_traps(&self) -> bool {
        self.shared.process_traps.load(Ordering::Relaxed)
    }

    /// Has sandboxes of that template without the code interpreter: nothing listens on its port, as in the provider's
    /// template `base`.
    pub fn remove_code_interpreter(&self, template: impl Into<String>) {
        let mut all = self.shared.without_code.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(template.into());
    }

    pub(super) fn has_code_interpreter(&self, template: &str) -> bool {
        let all = self.shared.without_code.lock().unwrap_or_else(PoisonError::into_inner);
        !all.contains(name_of(template))
    }

    /// Has sandboxes of a snapshot with what the sandbox has that it is taken of.
    pub(super) fn inherit(&self, template: &str, snapshot: &str) {
        if !self.has_code_interpreter(template) {
            self.remove_code_interpreter(name_of(snapshot));
        }
    }

    /// Returns the requests so far, as `METHOD /path`, and forgets them. At most the last 10,000.
    pub fn take_calls(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn next(&self, request: &str) -> Option<Fault> {
        const MAX_CALLS: usize = 10_000;
        {
            let mut calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
            if calls.len() >= MAX_CALLS {
                calls.clear();
            }
            calls.push(request.to_owned());
        }
        let mut planned = self.planned();
        let at = planned.iter().position(|plan| request.starts_with(&plan.request))?;
        let plan = planned.get_mut(at)?;
        let fault = plan.fault;
        plan.times = plan.times.saturating_sub(1);
        if plan.times == 0 {
            planned.remove(at);
        }
        Some(fault)
    }
}

/// Lets a request fail that was chosen for it.
pub(super) async fn inject(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(faults) = &app.faults else { return next.run(request).await };
    let fault = faults.next(&format!("{} {}", request.method(), request.uri().path()));
    let plain = |status: StatusCode, message: &str| {
        (status, Json(json!({ "code": status.as_u16(), "message": message }))).into_response()
    };
    match fault {
        None => next.run(request).await,
        Some(Fault::RateLimited { retry_after }) => {
            let mut response = plain(StatusCode::TOO_MANY_REQUESTS, "Rate limit exceeded");
            response.headers_mut().insert(header::RETRY_AFTER, retry_after.into());
            response
        }
        Some(Fault::SandboxNotFound) => super::error::sandbox_gone("unknown"),
        Some(Fault::Status(status)) => plain(
            StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            "failed on demand",
        ),
        Some(Fault::CutAfter(bytes)) => cut(next.run(request).await, bytes),
        Some(Fault::LostAnswer) => {
            drop(next.run(request).await);
            cut(StatusCode::OK.into_response(), 0)
        }
    }
}

/// Ends the body with an error, which makes the server close the connection in the middle of the answer.
fn cut(response: Response, bytes: u64) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    let broken = || std::io::Error::other("cut on demand");
    let state = (body.into_data_stream(), Some(bytes));
    let pieces = stream::unfold(state, move |(mut body, left)| async move {
        let left = left?;
        if left == 0 {
            // An error discards what the connection has not sent yet.
            sleep(SENT_BEFORE_CUT).await;
            return Some((Err(broken()), (body, None)));
        }
        match body.next().await {
            Some(Ok(mut piece)) => {
                piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let rest = left - piece.len() as u64;
                Some((Ok(piece), (body, Some(rest))))
            }
            _ => Some((Err(broken()), (body, None))),
        }
    });
    Response::from_parts(parts, Body::from_stream(pieces))
}
