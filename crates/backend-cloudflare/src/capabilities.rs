//! The verbs and restrictions that the bridge or the agent has. All others are refused.

use sandbox_core::{Capabilities, CreateSpec, Result, Variant};

/// Returns the capabilities of a sandbox whose image has Python.
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
        files: true,
        watch: true,
        install_python: true,
        expose_port: true,
        metrics: true,
        set_tags: true,
        snapshot: true,
        detached: true,
        idempotent_create: true,
        limit_output: true,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        ..Capabilities::default()
    }
}

/// Checks what a create asks for.
///
/// # Errors
/// `Unsupported` for a restriction that the bridge cannot enforce.
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    capabilities().check(spec).map_err(|error| {
        error.with_context("variant", Variant::CLOUDFLARE.as_str()).with_hint(
            "the Worker decides image, sizes, network and how long a container stays, in its wrangler configuration; nothing \
             there ends a sandbox at a time",
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sandbox_core::{ErrorKind, NetworkPolicy};

    use super::*;

    #[test]
    fn what_the_worker_decides_is_refused() {
        let changes: [&dyn Fn(&mut CreateSpec); 4] = [
            &|spec| spec.lifetime = Some(Duration::from_secs(60)),
            &|spec| spec.image = Some("debian:12".into()),
            &|spec| spec.cpu = Some(2.0),
            &|spec| spec.network = NetworkPolicy::none(),
        ];
        for change in changes {
            let mut spec = CreateSpec::default();
            check(&spec).unwrap();
            change(&mut spec);
            let error = check(&spec).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.hint().unwrap().contains("Worker"), "{error:?}");
        }
    }
}
