//! The behaviour suite over the whole stack of layers around a cloud: a server of ours that speaks as Daytona does.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use backend_daytona::{DaytonaBackend, DaytonaConfig};
use sandbox_conformance::Target;
use sandbox_core::{Layer as _, Secret};
use sandbox_layers::{
    AuditLayer, AuditLog, AuditPolicy, BreakerLayer, BreakerPolicy, CircuitBreaker, RetryLayer,
    RetryPolicy, ScanLayer, ScanPolicy,
};
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};

/// The groups in which layers have something to do; the others are about the provider.
const GROUPS: [&str; 5] = ["cancellation", "contexts", "exec", "lifecycle", "unsupported"];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = runtime.block_on(DaytonaServer::start(Options::default())).expect("a server");
    let state = tempfile::tempdir().expect("a folder");
    let mut config = DaytonaConfig::default();
    config.api_key = Some(Secret::new(KEY));
    config.api_url = Some(server.api_url());
    config.state_dir = Some(state.path().join("records"));
    let log = AuditLog::open(state.path().join("audit"), AuditPolicy::default());
    let audit = AuditLayer::new(log.expect("an audit log"));
    // Cases that make the place fail on purpose must not keep the later ones from it.
    let policy = BreakerPolicy { failure_threshold: 1000, ..BreakerPolicy::default() };
    let breaker = BreakerLayer::new(CircuitBreaker::new(policy));
    let layered = move || {
        let cloud = Arc::new(DaytonaBackend::new(config.clone()));
        let delays = (Duration::from_millis(1), Duration::from_millis(2));
        let retried =
            RetryLayer::new(RetryPolicy::default().delays(delays.0, delays.1)).layer(cloud);
        audit.layer(ScanLayer::new(ScanPolicy::warn()).layer(breaker.layer(retried)))
    };
    const MINUTES: &str = "the provider counts times in whole minutes";
    const LINES: &str = "the interpreter is the provider's, and takes Python alone";
    let target = Target::new("daytona-layered", layered)
        .differs("lifecycle::idle_timeout_ends_it", MINUTES)
        .differs("lifecycle::use_holds_off_the_idle_timeout", MINUTES)
        .differs("exec::shell_lines", LINES);
    let target =
        target.only(GROUPS, "layers differ in what goes through them, and not in the provider");
    sandbox_conformance::main(target.exposes_this_host())
}
