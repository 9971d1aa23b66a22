//! Errors in the three shapes that the protocol has: control plane and envd's HTTP routes, Connect, and the edge.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use sandbox_core::{Error, ErrorKind};
use serde_json::json;

/// An error of the control plane, or of a route of envd that is not Connect: `{"code": 404, "message": ".."}`.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    message: String,
    retry_after: Option<Duration>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), retry_after: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// The error as JSON.
    pub(super) fn json(&self) -> serde_json::Value {
        json!({ "code": self.status.as_u16(), "message": self.message })
    }

    /// The answer about a sandbox that is not there.
    pub(super) fn no_sandbox(id: &str) -> Self {
        Self::not_found(format!("sandbox \"{id}\" doesn't exist or you don't have access to it"))
    }

    /// The answer to what this server does not have.
    pub(super) fn not_here(what: &str) -> Self {
        let message = format!("{what} is not here: this server has sandboxes on your own backends");
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }
}

/// Returns the message of an error with its advice.
pub(super) fn message_of(error: &Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

/// Returns the HTTP status that stands for a kind of error.
fn status_of(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::InvalidArgument | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
        ErrorKind::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorKind::PermissionDenied => StatusCode::FORBIDDEN,
        ErrorKind::NotFound | ErrorKind::Terminated | ErrorKind::NotStarted => {
            StatusCode::NOT_FOUND
        }
        ErrorKind::AlreadyExists => StatusCode::CONFLICT,
        ErrorKind::RateLimited | ErrorKind::QuotaExceeded | ErrorKind::ResourceExhausted => {
            StatusCode::TOO_MANY_REQUESTS
        }
        ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Unavailable | ErrorKind::ConnectionLost => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let retry_after = error.retry_after();
        Self { status: status_of(&error), message: message_of(&error), retry_after }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.json())).into_response();
        if let Some(after) = self.retry_after {
            let seconds = after.as_secs().max(1);
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// The answer of the edge about a sandbox that is not running.
pub(super) fn sandbox_gone(id: &str) -> Response {
    let body = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// The answer of the edge about a port on which nothing listens.
pub(super) fn port_closed(id: &str, port: u16) -> Response {
    let message = "The sandbox is running but port is not open";
    let body = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(body)).into_response()
}

/// The codes of the Connect protocol that this server gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Canceled,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl Code {
    fn as_str(self) -> &'static str {
        match self {
            Self::Canceled => "canceled",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::DataLoss => "data_loss",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    fn status(self) -> u16 {
        match self {
            Self::Canceled => 499,
            Self::InvalidArgument | Self::FailedPrecondition => 400,
            Self::DeadlineExceeded => 504,
            Self::NotFound => 404,
            Self::AlreadyExists => 409,
            Self::PermissionDenied => 403,
            Self::ResourceExhausted => 429,
            Self::Unimplemented => 501,
            Self::Internal | Self::DataLoss => 500,
            Self::Unavailable => 503,
            Self::Unauthenticated => 401,
        }
    }
}

/// An error of a Connect call.
#[derive(Clone, Debug)]
pub(super) struct ConnectError {
    pub(super) code: Code,
    pub(super) message: String,
}

impl ConnectError {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The error as JSON, as unary answers have it as their body and streams in their last envelope.
    pub(super) fn json(&self) -> serde_json::Value {
        json!({ "code": self.code.as_str(), "message": self.message })
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            ErrorKind::InvalidArgument => Code::InvalidArgument,
            ErrorKind::Unauthenticated => Code::Unauthenticated,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::Unsupported => Code::Unimplemented,
            ErrorKind::IsolationUnavailable | ErrorKind::NotStarted => Code::FailedPrecondition,
            ErrorKind::RateLimited | ErrorKind::QuotaExceeded | ErrorKind::ResourceExhausted => {
                Code::ResourceExhausted
            }
            ErrorKind::Timeout => Code::DeadlineExceeded,
            ErrorKind::Cancelled => Code::Canceled,
            ErrorKind::Unavailable | ErrorKind::ConnectionLost | ErrorKind::Terminated => {
                Code::Unavailable
            }
            _ => Code::Internal,
        };
        Self::new(code, message_of(&error))
    }
}

impl IntoResponse for ConnectError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        (status, Json(self.json())).into_response()
    }
}
