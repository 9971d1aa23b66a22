//! HTTP for the services of a provider.
//!
//! A [`Client`] sends [`Request`]s with the credentials of its [`Auth`](crate::auth::Auth). A failed request is repeated
//! when two things hold: the failure is temporary, and the first attempt cannot have had an effect that a second one would
//! double. `POST` is such a request once it was sent, unless [`Request::idempotent`] says otherwise. All attempts share one
//! deadline. Credentials go to the origins of the [`Service`] only, and redirections are not followed.
//!
//! ```no_run
//! use sandbox_cloud::auth::{KeyAuth, KeyLookup, Scheme, process_env};
//! use sandbox_cloud::http::{ClientFactory, ErrorRules, Request, Service, join, parse_endpoint};
//! use sandbox_core::{CallContext, ErrorKind};
//! use serde_json::Value;
//!
//! static ERRORS: ErrorRules = ErrorRules {
//!     hints: &[(ErrorKind::Unauthenticated, None, "set EXAMPLE_API_KEY")],
//!     ..ErrorRules::DEFAULT
//! };
//!
//! # async fn list() -> sandbox_core::Result<()> {
//! let api = parse_endpoint("api_url", "https://api.example.com")?;
//! let key = KeyLookup::new(&process_env).variables(&["EXAMPLE_API_KEY"]).key();
//! let auth = KeyAuth::new(Scheme::Header("x-api-key"), key, "there is no Example API key", "set EXAMPLE_API_KEY");
//! let client = ClientFactory::default().client(Service::new("Example", [api.clone()], &ERRORS), auth)?;
//! let request = Request::get("list", join(&api, &["sandboxes"]));
//! let sandboxes: Vec<Value> = client.json(&CallContext::new(), &request).await?;
//! # Ok(())
//! # }
//! ```

mod client;
mod clock;
mod endpoint;
mod error;
mod events;
mod factory;
mod pages;
mod request;
mod response;
mod retry;
mod send;
#[cfg(feature = "websocket")]
pub mod terminal;
pub mod tls;
#[cfg(feature = "websocket")]
pub mod websocket;

pub use client::{Client, Service};
pub use clock::ServiceClock;
pub use endpoint::{is_loopback, join, parse_endpoint};
pub use error::{ErrorRules, Hint, Meaning, clean};
pub use events::{ServerEvent, lines, server_events};
pub use factory::ClientFactory;
pub use pages::{MAX_PAGES, all_pages};
pub use request::{DEFAULT_MAX_RESPONSE, Part, Request};
pub use reqwest::{Method, StatusCode, Url, header};
pub use response::{Response, StreamingResponse};
pub use retry::{MAX_RETRY_WAIT, may_repeat, retry_by_effect, within_deadline};
