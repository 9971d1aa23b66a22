//! A server that speaks as Daytona does: its API, and below `/toolbox` the toolbox of each sandbox.
//!
//! Sources: the generated clients `daytona_api_client` and `daytona_toolbox_api_client` 0.226.1 (paths, bodies, required fields),
//! the client `daytona` 0.226.1 (order of requests, headers), and the behaviour of the toolbox's own program, version 0.190.

mod api;
mod files;
mod interpreter;
mod pty;
mod sandboxes;
mod session;
mod toolbox;
mod volumes;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::DATE;
use axum::middleware::map_response;
use axum::response::Response;
use chrono::{TimeDelta, Utc};

use self::sandboxes::Registry;
use crate::faults::Faults;
use crate::serve::Served;

/// The key that the server accepts.
pub const KEY: &str = "dtn_0123456789abcdef";

/// The JSON web token that the server accepts, with [`ORGANIZATION`].
pub const TOKEN: &str = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ0ZXN0In0.c2ln";

/// The organization of everything.
pub const ORGANIZATION: &str = "org-test";

/// How a server differs from the provider, for tests that cannot wait.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time that a sandbox takes to start.
    pub start_time: Duration,
    /// Time that is a minute to the server's own expiries.
    pub minute: Duration,
    /// How far its clock is ahead of that of this computer.
    pub clock_ahead: TimeDelta,
}

impl Default for Options {
    fn default() -> Self {
        let (start_time, minute) = (Duration::from_millis(30), Duration::from_secs(60));
        Self { start_time, minute, clock_ahead: TimeDelta::zero() }
    }
}

/// A running server.
#[derive(Debug)]
pub struct DaytonaServer {
    /// Faults and notes.
    pub served: Served,
    registry: Arc<Registry>,
}

impl DaytonaServer {
    /// Starts a server on a free port.
    ///
    /// # Errors
    /// What keeps the port from being opened.
    pub async fn start(options: Options) -> io::Result<Self> {
        let faults = Faults::default();
        let registry = Arc::new(Registry::new(options, faults.clone()));
        let shared = Arc::clone(&registry);
        let served = Served::start(faults, move |address| {
            shared.set_address(address);
            let api = api::routes(Arc::clone(&shared));
            let toolbox = toolbox::routes(Arc::clone(&shared));
            let app = Router::new().nest("/api", api).nest("/toolbox", toolbox);
            app.layer(map_response(move |response| dated(response, options.clock_ahead)))
        });
        Ok(Self { served: served.await?, registry })
    }

    /// Returns the address of the API.
    pub fn api_url(&self) -> String {
        format!("http://{}/api", self.served.address)
    }

    /// Returns the faults.
    pub fn faults(&self) -> &Faults {
        &self.served.faults
    }

    /// Returns the ids of sandboxes that have not ended.
    pub fn alive(&self) -> Vec<String> {
        self.registry.alive()
    }

    /// Ends a sandbox, as the provider may.
    pub async fn destroy(&self, id: &str) {
        self.registry.destroy(id).await;
    }
}

/// Tells the time of the server, as the HTTP servers of providers do.
async fn dated(mut response: Response, ahead: TimeDelta) -> Response {
    let now = (Utc::now() + ahead).format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(now) = HeaderValue::try_from(now) {
        response.headers_mut().insert(DATE, now);
    }
    response
}
