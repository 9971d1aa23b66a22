//! The backend against a server with the provider's protocol, whose code, commands and files really run.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod base;
mod code;
mod commands;
mod faults;
mod files;
mod life;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{Backend, Sandbox, SandboxBuilder, SingleBackend};

use self::support::Cloud;

impl Cloud {
    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(self.backend())
    }

    /// The requests of a kind since the last look.
    fn count(&self, request: &str) -> usize {
        self.faults.take_calls().iter().filter(|call| call.starts_with(request)).count()
    }

    /// Waits until no sandbox is left: some ends are not waited for.
    async fn assert_nothing_left(&self) {
        let begun = Instant::now();
        while self.server.sandbox_count() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(20), "a sandbox is left");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Attaches to a sandbox as another process does.
async fn attached(cloud: &Cloud, id: &str) -> Sandbox {
    let backend: Arc<dyn Backend> = cloud.backend();
    let instance = backend.attach(&sandbox_core::CallContext::new(), &id.parse().unwrap()).await;
    Sandbox::from_instance(backend, instance.unwrap())
}
