//! Cloudflare as users meet it, against a server of ours that speaks as both generations of the bridge do.

mod channel;
mod clients;
mod code;
mod commands;
mod create;
mod faults;
mod life;
mod slow;
mod transfers;

use std::path::PathBuf;
use std::sync::Arc;

use backend_cloudflare::{CloudflareBackend, CloudflareConfig};
use sandbox_core::{Backend, Sandbox, SandboxBuilder, Secret, SingleBackend};
use sandbox_test_server::cloudflare::{CloudflareServer, Generation, KEY};
use tempfile::TempDir;

/// The generations that are spoken.
const BOTH: [Generation; 2] = [Generation::Exec, Generation::Processes];

/// A server and a backend for it.
struct Fixture {
    server: CloudflareServer,
    backend: Arc<dyn Backend>,
    config: CloudflareConfig,
    _state: TempDir,
}

impl Fixture {
    async fn new(generation: Generation) -> Self {
        let python = std::env::var_os("SANDBOX_TEST_PYTHON").map(PathBuf::from);
        let server = CloudflareServer::with_python(generation, python).await.expect("a server");
        let state = tempfile::tempdir().expect("a directory");
        let mut config = CloudflareConfig::default();
        config.api_token = Some(Secret::new(KEY));
        config.base_url = Some(server.url());
        config.state_dir = Some(state.path().to_owned());
        let backend: Arc<dyn Backend> = Arc::new(CloudflareBackend::new(config.clone()));
        Self { server, backend, config, _state: state }
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::clone(&self.backend))
    }

    async fn sandbox(&self) -> Sandbox {
        self.builder().create().await.expect("a sandbox")
    }

    /// A backend of another process: it has the records of the computer of `other`.
    fn with_state_of(&self, other: &Self) -> Arc<dyn Backend> {
        let mut config = self.config.clone();
        config.state_dir.clone_from(&other.config.state_dir);
        Arc::new(CloudflareBackend::new(config))
    }

    /// A backend of another computer: it shares nothing with the first but the bridge.
    fn elsewhere(&self) -> (Arc<dyn Backend>, TempDir) {
        let state = tempfile::tempdir().expect("a directory");
        let mut config = self.config.clone();
        config.state_dir = Some(state.path().to_owned());
        (Arc::new(CloudflareBackend::new(config)), state)
    }
}
