//! The verbs and restrictions that Daytona has. All others are refused.

use sandbox_core::{Capabilities, CreateSpec, Result, Variant};

/// Returns the capabilities of every sandbox.
pub(crate) fn capabilities() -> Capabilities {
    Capabilities {
        run_code: true,
        run_stdin: true,
        run_script: true,
        live_output: true,
        contexts: true,
        variables: true,
        interrupt: true,
        restart: true,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        files: true,
        install_python: true,
        expose_port: true,
        set_tags: true,
        set_lifetime: true,
        pause: true,
        snapshot: true,
        fork: true,
        detached: true,
        idempotent_create: true,
        limit_output: true,
        lifetime: true,
        idle_timeout: true,
        gpu: true,
        environments: true,
        sizes: true,
        images: true,
        network_none: true,
        network_allowlist: true,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        ..Capabilities::default()
    }
}

/// Checks what a create asks for.
///
/// # Errors
/// `Unsupported` for a restriction that the provider cannot enforce.
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    capabilities().check(spec).map_err(|error| {
        error.with_context("variant", Variant::DAYTONA.as_str()).with_hint(
            "Daytona has no setting for that; it has images, cpu, memory, disk, gpu, lifetime, idle timeout and networks",
        )
    })
}
