//! The backend against a service of the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod ahead;
mod clients;
mod create;
mod faults;
mod life;

mod plain_images;
mod programs;
mod resident;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_modal::{ModalBackend, ModalConfig};
use sandbox_core::{Backend, CallContext, Sandbox, SandboxBuilder, SingleBackend};
use support::Service;

/// A service, and a backend that uses it.
struct Bench {
    service: Service,
    backend: Arc<dyn Backend>,
}

impl Bench {
    fn start() -> Self {
        let service = Service::start();
        let backend = Arc::new(ModalBackend::new(service.config()));
        Self { service, backend }
    }

    /// Returns another backend, as another process of this user has it.
    fn another(&self) -> Arc<dyn Backend> {
        self.with(|_| ())
    }

    fn with(&self, change: impl FnOnce(&mut ModalConfig)) -> Arc<dyn Backend> {
        let mut config = self.service.config();
        change(&mut config);
        Arc::new(ModalBackend::new(config))
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::clone(&self.backend))
    }

    async fn create(&self) -> Sandbox {
        self.builder().create().await.unwrap()
    }

    /// Waits until no sandbox is left: some ends are not waited for.
    async fn assert_nothing_left(&self) {
        let begun = Instant::now();
        while !self.service.running().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", self.service.running());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn call() -> CallContext {
    CallContext::new()
}
