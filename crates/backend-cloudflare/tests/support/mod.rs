//! The behaviour suite over sandboxes of a server of ours that speaks as the bridge Worker does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use backend_cloudflare::{CloudflareBackend, CloudflareConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use sandbox_test_server::cloudflare::{CloudflareServer, Generation, KEY};

/// Input travels through a FIFO of the sandbox.
const INPUT: &str =
    "input travels through a FIFO of the sandbox, which takes it for a command that has closed it";

/// Runs the suite over a generation of the bridge, and without `cargo xtask test --full` these groups of it.
pub(crate) fn run<const N: usize>(
    name: &str,
    generation: Generation,
    groups: [&'static str; N],
) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let python = std::env::var_os("SANDBOX_TEST_PYTHON").map(PathBuf::from);
    let server = CloudflareServer::with_python(generation, python);
    let server = runtime.block_on(server).expect("a server");
    let state = tempfile::tempdir().expect("a folder");
    let mut config = CloudflareConfig::default();
    config.api_token = Some(Secret::new(KEY));
    config.base_url = Some(server.url());
    config.state_dir = Some(state.path().to_owned());
    let target = Target::new(name, move || Arc::new(CloudflareBackend::new(config.clone())));
    let target = of_cloudflare(target).part(groups, "left to `cargo xtask test --full`");
    sandbox_conformance::main(target.exposes_this_host())
}

/// What the bridge does otherwise, by design.
fn of_cloudflare(target: Target) -> Target {
    target.differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
}
