//! The backend against a control plane of our own with real Jupyter Servers.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod clients;
mod code;
mod create;
mod faults;
mod life;
mod programs;
mod sidecar;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_datalayer::{DatalayerBackend, DatalayerConfig};
use sandbox_core::{
    Backend, CallContext, ErrorKind, FailureKind, Sandbox, SandboxBuilder, Secret, SingleBackend,
};
use support::ControlPlane;
use tempfile::TempDir;

/// A control plane, and a backend that uses it.
struct Bench {
    plane: ControlPlane,
    state: TempDir,
    backend: Arc<dyn Backend>,
}

impl Bench {
    fn start() -> Option<Self> {
        Self::speaking("both")
    }

    fn speaking(dialect: &str) -> Option<Self> {
        let plane = ControlPlane::speaking(dialect, 0)?;
        let state = tempfile::tempdir().expect("a folder");
        let backend = backend(&plane, &state, |_| ());
        Some(Self { plane, state, backend })
    }

    /// Another backend, as another process of this user has it.
    fn another(&self) -> Arc<dyn Backend> {
        backend(&self.plane, &self.state, |_| ())
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::clone(&self.backend))
    }

    fn created(&self) -> usize {
        let made = |request: &&String| *request == "POST /api/runtimes/v1/runtimes";
        self.plane.requests().iter().filter(made).count()
    }

    /// Waits until no runtime is left: some ends are not waited for.
    #[track_caller]
    fn assert_nothing_left(&self) {
        let begun = Instant::now();
        while !self.plane.runtimes().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", self.plane.runtimes());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Code that would go on for a minute ends when its sandbox does, and none can be run after it.
async fn assert_ends_what_runs(sandbox: &Sandbox, end: impl Future<Output = ()>) {
    let begun = Instant::now();
    let later = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        end.await;
    };
    let run = sandbox.run_code("import time; time.sleep(60)").timeout(Duration::from_secs(50));
    let (result, ()) = tokio::join!(async { run.await.unwrap() }, later);
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::Terminated), "{result:?}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
}

fn backend(
    plane: &ControlPlane,
    state: &TempDir,
    change: impl FnOnce(&mut DatalayerConfig),
) -> Arc<dyn Backend> {
    let mut config = DatalayerConfig::default();
    config.api_key = Some(Secret::new(plane.key.as_str()));
    config.run_url = Some(plane.url.clone());
    config.state_dir = Some(state.path().to_owned());
    change(&mut config);
    Arc::new(DatalayerBackend::new(config))
}

fn call() -> CallContext {
    CallContext::new()
}
