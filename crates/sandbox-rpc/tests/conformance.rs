//! The groups of the suite about what crosses a connection, over `local-eval` at the other end of a socket pair.
//!
//! `conformance_detached` of the command line runs other groups over the same protocol.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_conformance::Target;
use sandbox_core::Backend;
use tokio::net::UnixStream;
use tokio::runtime::Handle;

/// Returns a remote backend connected to a server in this process.
fn through_a_socket(config: EvalConfig) -> Arc<dyn Backend> {
    let (near, far) = UnixStream::pair().expect("a socket pair");
    let runtime = Handle::current();
    let backend = Arc::new(EvalBackend::new(config));
    runtime.spawn(sandbox_rpc::serve(backend, far));
    let connected = std::thread::spawn(move || runtime.block_on(sandbox_rpc::connect(near)));
    Arc::new(connected.join().expect("no panic").expect("a connection"))
}

/// Groups about requests and answers that the tests of the supervisor, which use the same protocol, leave out.
const GROUPS: [&str; 6] = ["cleanup", "concurrency", "unsupported", "rich", "variables", "watch"];

/// Reason for leaving the other groups out.
const REASON: &str =
    "its group is about the backend behind a connection, and is run with the supervisor";

fn main() -> ExitCode {
    let state = tempfile::tempdir().expect("a directory");
    let mut config = EvalConfig::default();
    config.snapshot_directory = Some(state.path().join("snapshots"));
    let target = Target::new("local-eval-remote", move || through_a_socket(config.clone()));
    let target = target.part(GROUPS, REASON);
    sandbox_conformance::main(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
