//! The behaviour suite over the whole stack of layers around `local-eval`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_conformance::Target;
use sandbox_core::Layer as _;
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, RetryLayer,
    RetryPolicy, ScanLayer, ScanPolicy,
};

fn main() -> ExitCode {
    let state = tempfile::tempdir().expect("a directory");
    let mut config = EvalConfig::default();
    // It has the packages that some cases use.
    config.python = std::env::var_os("SANDBOX_TEST_PYTHON").map(Into::into);
    config.snapshot_directory = Some(state.path().join("snapshots"));
    let log = AuditLog::open(state.path().join("audit"), AuditPolicy::default());
    let audit = AuditLayer::new(log.expect("an audit log"));
    // Cases that make the place fail on purpose must not keep the later ones from it.
    let policy = BreakerPolicy { failure_threshold: 1000, ..BreakerPolicy::default() };
    let breaker = BreakerLayer::new(CircuitBreaker::new(policy));
    let layered = move || {
        let cells = Arc::new(EvalBackend::new(config.clone()));
        let delays = (Duration::from_millis(1), Duration::from_millis(2));
        let policy = RetryPolicy::default().delays(delays.0, delays.1);
        let retried = RetryLayer::new(policy).layer(cells);
        // Without masked secrets: cases look for secret variables in output.
        audit.layer(ScanLayer::new(ScanPolicy::warn()).layer(breaker.layer(retried)))
    };
    sandbox_conformance::main(Target::new("local-eval-layered", layered))
}
