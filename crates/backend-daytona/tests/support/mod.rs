//! The behaviour suite over sandboxes of a server of ours that speaks as Daytona does.

use std::sync::Arc;

use backend_daytona::{DaytonaBackend, DaytonaConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};

/// The suite over a server of its own.
pub(crate) fn target(name: &str) -> Target {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = runtime.block_on(DaytonaServer::start(Options::default())).expect("a server");
    let state = tempfile::tempdir().expect("a folder");
    let mut config = DaytonaConfig::default();
    config.api_key = Some(Secret::new(KEY));
    config.api_url = Some(server.api_url());
    config.state_dir = Some(state.path().to_owned());
    // All of it is there as long as there are backends.
    let held = Arc::new((runtime, server, state));
    let target = Target::new(name, move || {
        let _held = &held;
        Arc::new(DaytonaBackend::new(config.clone()))
    });
    of_daytona(target).exposes_this_host()
}

/// What Daytona does otherwise, by design.
fn of_daytona(target: Target) -> Target {
    const INPUT: &str = "the toolbox keeps the input of a command open, and takes what is written after the command has closed it";
    const RICH: &str = "the interpreter has no `display`: values are shown as text alone";
    const LOOP: &str = "the provider's interpreter reads its requests in the process of the code, which can break the modules it needs";
    const MINUTES: &str = "the provider counts times in whole minutes";
    const OTHERS: &str = "the toolbox does not tell what another handle runs";
    const FILES: &str = "a snapshot of the provider has files, and no description and no variables";
    target
        .differs("lifecycle::idle_timeout_ends_it", MINUTES)
        .differs("lifecycle::use_holds_off_the_idle_timeout", MINUTES)
        .differs("detached::it_expires_though_nobody_looks", MINUTES)
        .differs("detached::a_run_of_another", OTHERS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("slow_reader::a_large_result_in_time_is_a_success", RICH)
        .differs("slow_reader::a_run_that_was_read_half_is_a_success", RICH)
        .differs("slow_reader::code_that_runs_on_is_killed", RICH)
        .differs("variables::a_broken_json_module_does_not_matter", LOOP)
        .differs("driver::broken_builtins_do_not_matter", LOOP)
        .differs("driver::broken_modules_do_not_matter", LOOP)
        .differs("driver::an_audit_hook_that_raises", LOOP)
        .differs("snapshots::it_is_listed_until_it_is_deleted", FILES)
        .differs("snapshots::code_meets_no_child_that_it_has_not_started", FILES)
        .differs("background::it_keeps_the_sandbox_from_being_idle", MINUTES)
}
