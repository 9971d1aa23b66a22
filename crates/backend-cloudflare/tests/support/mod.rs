//! The behaviour suite over sandboxes of a server of ours that speaks as the bridge Worker does.

use std::path::PathBuf;
use std::sync::Arc;

use backend_cloudflare::{CloudflareBackend, CloudflareConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use sandbox_test_server::cloudflare::{CloudflareServer, Generation, KEY};

/// Input travels through a FIFO of the sandbox.
const INPUT: &str =
    "input travels through a FIFO of the sandbox, which takes it for a command that has closed it";

/// The suite over a generation of the bridge.
pub(crate) fn target(name: &str, generation: Generation) -> Target {
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
    // All of it is there as long as there are backends.
    let held = Arc::new((runtime, server, state));
    let target = Target::new(name, move || {
        let _held = &held;
        Arc::new(CloudflareBackend::new(config.clone()))
    });
    of_cloudflare(target).exposes_this_host()
}

/// What the bridge does otherwise, by design.
fn of_cloudflare(target: Target) -> Target {
    const FILES: &str = "a snapshot has files, and no variables";
    const ID: &str =
        "tags of `get_or_create` stand for an id, so the next sandbox with them has that id again";
    const SHELLS: &str = "a command has shells around it, which are processes of the sandbox";
    target
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("detached::it_is_found_again_by_its_tags", ID)
        .differs("snapshots::code_meets_no_child_that_it_has_not_started", FILES)
        .differs("metrics::processes_are_counted", SHELLS)
}
