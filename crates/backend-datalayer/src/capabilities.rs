//! The verbs and restrictions that the service has requests for. All others are refused.

use sandbox_core::{Capabilities, CreateSpec, Result, Variant};

/// Returns the capabilities of every runtime.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        run_code: true,
        run_stdin: true,
        run_script: true,
        rich_results: true,
        live_output: true,
        contexts: true,
        variables: true,
        interrupt: true,
        restart: true,
        tools: true,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: true,
        files: true,
        watch: true,
        set_tags: true,
        set_lifetime: true,
        pause: true,
        snapshot: true,
        detached: true,
        lifetime: true,
        gpu: true,
        idempotent_create: true,
        environments: true,
        sizes: true,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        ..Capabilities::default()
    }
}

/// Checks what a create asks for.
///
/// # Errors
/// `Unsupported` for a restriction that the service cannot enforce.
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    capabilities().check(spec).map_err(|error| {
        error.with_context("variant", Variant::DATALAYER_RUNTIME.as_str()).with_hint(
            "the service has no request for that; it has lifetime, gpu, and environments with their cpu, memory and disk",
        )
    })
}
