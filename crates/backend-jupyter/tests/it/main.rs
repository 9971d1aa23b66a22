//! The backend against real Jupyter Servers, kernels that run already, and kernels that do not come up.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod beside;
mod faults;
mod flood;
mod hostile;
mod lineages;
mod local;
mod lost;
mod running;
mod server;
#[path = "../support/mod.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod support;
mod warm;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use backend_jupyter::JupyterBackend;
use jupyter_protocol::websocket::{KernelModel, ServerClient, Token};
use sandbox_core::{IsolationMode, Sandbox, SandboxBuilder, SingleBackend};
use support::server::{JupyterServer, TOKEN};

/// One server for all tests, as somebody else has one. It ends with this process.
fn jupyter() -> Option<&'static JupyterServer> {
    // Each test that is skipped says so.
    support::interpreter()?;
    static SERVER: OnceLock<Option<JupyterServer>> = OnceLock::new();
    SERVER.get_or_init(JupyterServer::start).as_ref()
}

/// A sandbox without isolation, as those are whose kernels are elsewhere.
fn builder() -> SandboxBuilder<SingleBackend> {
    let backend = Arc::new(JupyterBackend::new(support::config()));
    Sandbox::builder(backend).isolation(IsolationMode::Off)
}

/// A sandbox on that server.
fn on(server: &JupyterServer) -> SandboxBuilder<SingleBackend> {
    builder().provider_option("server_url", server.url.clone()).provider_option("token", TOKEN)
}

/// The server itself, as another client of it.
fn rest(server: &JupyterServer) -> ServerClient {
    ServerClient::new(&server.url, Token::new(TOKEN)).expect("an address")
}

/// The kernels of the server with that name.
async fn kernels(server: &JupyterServer, name: &str) -> Vec<KernelModel> {
    let all = rest(server).kernels().await.expect("kernels");
    all.into_iter().filter(|kernel| kernel.name == name).collect()
}

/// Waits until something is so.
async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let begun = Instant::now();
    while !check().await {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
