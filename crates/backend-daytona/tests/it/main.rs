//! Daytona as users meet it, against a server of ours that speaks as it does.

mod channel;
mod clients;
mod code;
mod commands;
mod create;
mod faults;
mod life;

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_daytona::{DaytonaBackend, DaytonaConfig};
use sandbox_core::{Backend, Sandbox, SandboxBuilder, Secret, SingleBackend};
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};
use tempfile::TempDir;

/// A server and a backend for it.
struct Fixture {
    server: DaytonaServer,
    backend: Arc<dyn Backend>,
    config: DaytonaConfig,
    _state: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        Self::with(Options::default(), |_| ()).await
    }

    async fn with(options: Options, change: impl FnOnce(&mut DaytonaConfig)) -> Self {
        let server = DaytonaServer::start(options).await.expect("a server");
        let state = tempfile::tempdir().expect("a directory");
        let mut config = DaytonaConfig::default();
        config.api_key = Some(Secret::new(KEY));
        config.api_url = Some(server.api_url());
        config.state_dir = Some(state.path().to_owned());
        change(&mut config);
        let backend: Arc<dyn Backend> = Arc::new(DaytonaBackend::new(config.clone()));
        Self { server, backend, config, _state: state }
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::clone(&self.backend))
    }

    async fn sandbox(&self) -> Sandbox {
        self.builder().create().await.expect("a sandbox")
    }

    /// A backend of another process: it shares nothing with the first but the server.
    fn elsewhere(&self) -> Arc<dyn Backend> {
        let mut config = self.config.clone();
        config.state_dir = None;
        Arc::new(DaytonaBackend::new(config))
    }
}

/// Waits until something holds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(20), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}
