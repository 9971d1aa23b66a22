//! Capabilities of sandboxes in containers, by the runner of their code.

use sandbox_core::{Capabilities, CreateSpec, Error, ErrorKind, Result, Variant};
use sandbox_engine::checks::check_size;

use crate::config::CodeRunner;

/// Returns the capabilities with that runner. Snapshots need workers; `ipython` is false for a kernel of another language.
pub(crate) fn capabilities(runner: &CodeRunner, ipython: bool) -> Capabilities {
    if *runner == CodeRunner::None {
        return agentless_capabilities(true);
    }
    let workers = *runner == CodeRunner::Python;
    Capabilities {
        run_stdin: ipython,
        run_script: ipython,
        variables: ipython,
        tools: ipython,
        install_python: ipython,
        command_root: true,
        snapshot: workers,
        restore_snapshot: workers,
        images: true,
        mounts: true,
        limit_memory: true,
        limit_cpu: true,
        limit_disk: true,
        limit_processes: true,
        limit_open_files: true,
        gpu: true,
        network_none: true,
        network_allowlist: true,
        network_all: true,
        ..Capabilities::local_python()
    }
}

/// Returns the capabilities of an image without Python. Only an engine of this host gives it terminals.
pub(crate) fn agentless_capabilities(terminals: bool) -> Capabilities {
    Capabilities {
        command_pty: terminals,
        command_root: true,
        images: true,
        limit_memory: true,
        limit_cpu: true,
        limit_disk: true,
        limit_processes: true,
        limit_open_files: true,
        network_none: true,
        ..Capabilities::local_commands()
    }
}

/// Refuses a create that sandboxes with that runner do not support.
///
/// # Errors
/// `Unsupported` with what is enforced, and `NotFound` for an unknown environment.
pub(crate) fn check(spec: &CreateSpec, runner: &CodeRunner) -> Result<()> {
    capabilities(runner, true).check(spec).map_err(|error| {
        let hint = match runner {
            CodeRunner::None => "without Python in its image a container has no mounts, no snapshots and no network; it enforces memory, cpu, disk, processes, lifetime and idle timeout",
            _ => "local-docker enforces memory, cpu, disk, processes, GPUs by number, lifetime, idle timeout, mounts and the network",
        };
        error.with_context("variant", Variant::LOCAL_DOCKER.as_str()).with_hint(hint)
    })?;
    check_size(spec)?;
    let is_known = |name: &str| matches!(name, "local-docker" | "docker" | "python-cpu-env");
    match spec.environment.as_deref().filter(|name| !is_known(name)) {
        Some(name) => Err(Error::new(
            ErrorKind::NotFound,
            "create",
            format!("environment {name:?} not found (available: local-docker)"),
        )
        .with_hint("name an image with `.image(..)`")),
        None => Ok(()),
    }
}
