//! Bodies and queries of requests to the control plane and the code interpreter. What is wrong with one is told in the
//! shape of the provider's errors.

use axum::body::HttpBody as _;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use http_body_util::{BodyExt as _, Limited};
use serde::de::DeserializeOwned;

use super::body_timeout::{is_too_late, is_too_long};
use super::envelope::MAX_MESSAGE;
use super::error::ApiError;

/// A body of JSON. An empty one is an empty object.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Response;

    async fn from_request(request: Request, _: &S) -> Result<Self, Response> {
        let too_large = || {
            let message = format!("the body is larger than {MAX_MESSAGE} bytes");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
        };
        if request.body().size_hint().lower() > MAX_MESSAGE as u64 {
            return Err(too_large());
        }
        let body = Limited::new(request.into_body(), MAX_MESSAGE).collect().await;
        let body = body.map_err(|error| match &*error {
            error if is_too_long(error) => too_large(),
            error if is_too_late(error) => {
                ApiError::new(StatusCode::REQUEST_TIMEOUT, error.to_string()).into_response()
            }
            error => ApiError::bad_request(format!("the body broke off: {error}")).into_response(),
        })?;
        let body = body.to_bytes();
        let text = if body.is_empty() { b"{}" } else { &body[..] };
        serde_json::from_slice(text).map(Self).map_err(|error| {
            ApiError::bad_request(format!("the body is not as it should be: {error}"))
                .into_response()
        })
    }
}

/// The query of a request.
pub(super) struct UrlQuery<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for UrlQuery<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(error) => Err(ApiError::bad_request(error.body_text()).into_response()),
        }
    }
}
