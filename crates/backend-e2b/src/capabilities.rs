//! The verbs and restrictions that the service has requests for. All others are refused.

use sandbox_core::{Capabilities, CreateSpec, Result, Variant};

use crate::{labels, network};

/// Returns the capabilities that a sandbox can have: its template decides which it has.
pub(crate) fn of_any_template() -> Capabilities {
    Capabilities { run_stdin: true, run_script: true, tools: true, ..with_interpreter() }
}

/// Returns the capabilities of a sandbox with the code interpreter.
pub(crate) fn with_interpreter() -> Capabilities {
    Capabilities {
        run_code: true,
        rich_results: true,
        live_output: true,
        contexts: true,
        variables: true,
        interrupt: true,
        restart: true,
        ..commands_only()
    }
}

/// Returns the capabilities of a sandbox whose template has Python and no code interpreter: code runs in our agent.
pub(crate) fn with_agent() -> Capabilities {
    of_any_template()
}

/// Returns the capabilities of a sandbox whose template has neither the code interpreter nor Python.
pub(crate) fn commands_only() -> Capabilities {
    Capabilities {
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        files: true,
        watch: true,
        install_python: true,
        install_system: true,
        expose_port: true,
        set_lifetime: true,
        pause: true,
        snapshot: true,
        fork: true,
        metrics: true,
        logs: true,
        detached: true,
        idempotent_create: true,
        lifetime: true,
        environments: true,
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
/// `Unsupported` for a restriction that the service cannot enforce, `InvalidArgument` for a tag with a name of ours.
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    of_any_template().check(spec).map_err(|error| {
        let hint = match spec.image.is_some() {
            true => "a sandbox of e2b starts from a built template: build one of the image, and name it with `.environment(..)`",
            false => "templates have their cpu, memory and disk: `Backend::environments()`; for a sandbox there are lifetime and network",
        };
        error.with_context("variant", Variant::E2B.as_str()).with_hint(hint)
    })?;
    labels::check(&spec.tags)?;
    network::check(spec)
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ByteSize, ErrorKind};

    use super::*;

    #[test]
    fn what_a_template_decides_is_refused_with_a_way_to_get_it() {
        let mut spec = CreateSpec::default();
        spec.image = Some("debian:12".into());
        let error = check(&spec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.hint().unwrap().contains("template"), "{error:?}");
        let mut spec = CreateSpec::default();
        spec.memory = Some(ByteSize::gib(1));
        assert!(check(&spec).unwrap_err().hint().unwrap().contains("environments"));
        check(&CreateSpec::default()).unwrap();
    }
}
