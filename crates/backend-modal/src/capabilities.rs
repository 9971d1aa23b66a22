//! The verbs and restrictions that the service or the agent has. All others are refused.

use std::time::Duration;

use sandbox_core::{Capabilities, CreateSpec, Error, NetworkMode, Result, Variant};

/// Longest lifetime that the service gives a sandbox.
pub(crate) const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

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
        install_python: true,
        files: true,
        watch: true,
        expose_port: true,
        metrics: true,
        set_tags: true,
        snapshot: true,
        fork: true,
        detached: true,
        lifetime: true,
        idle_timeout: true,
        gpu: true,
        idempotent_create: true,
        images: true,
        limit_memory: true,
        limit_cpu: true,
        limit_output: true,
        network_none: true,
        network_allowlist: true,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        ..Capabilities::default()
    }
}

/// Returns the capabilities of a sandbox whose image has no Python: those that need no agent.
pub(crate) fn commands_only() -> Capabilities {
    Capabilities {
        run_code: false,
        run_stdin: false,
        run_script: false,
        rich_results: false,
        live_output: false,
        contexts: false,
        variables: false,
        interrupt: false,
        restart: false,
        tools: false,
        install_python: false,
        watch: false,
        metrics: false,
        ..capabilities()
    }
}

/// Checks what a create asks for.
///
/// # Errors
/// `Unsupported` for a restriction that the service cannot enforce.
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    capabilities().check(spec).map_err(|error| {
        error.with_context("variant", Variant::MODAL.as_str()).with_hint(
            "the service has no request for that; it has image, memory, cpu, gpu, lifetime, idle timeout, network",
        )
    })?;
    let refuse = |what: &str, hint: &str| {
        Err(Error::unsupported("create", format!("modal {what}"))
            .with_context("variant", Variant::MODAL.as_str())
            .with_hint(hint.to_owned()))
    };
    let asked = [spec.lifetime, spec.detached].into_iter().flatten().min();
    if asked.is_some_and(|asked| asked > MAX_LIFETIME) {
        return refuse(
            "ends every sandbox after 24 hours",
            "ask for a lifetime of at most 24 hours",
        );
    }
    if !spec.network.deny.is_empty() {
        return refuse(
            "has lists of allowed hosts alone, and none of denied ones",
            "name what is allowed",
        );
    }
    if spec.network.mode == NetworkMode::All && !spec.network.allow.is_empty() {
        return refuse(
            "reaches no addresses of your network",
            "leave the addresses out: with `all` the service allows every public one",
        );
    }
    if let Some(host) = spec.network.allow.iter().find(|host| host.port().is_some()) {
        return refuse(
            "allows a host with all of its ports",
            &format!("leave the port of `{host}` out"),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, NetworkPolicy};

    use super::*;

    #[test]
    fn what_the_service_cannot_enforce_is_refused() {
        let spec = |change: &dyn Fn(&mut CreateSpec)| {
            let mut spec = CreateSpec::default();
            change(&mut spec);
            check(&spec)
        };
        spec(&|spec| spec.network = NetworkPolicy::none()).unwrap();
        spec(&|spec| spec.lifetime = Some(Duration::from_secs(60))).unwrap();
        let changes: [&dyn Fn(&mut CreateSpec); 5] = [
            &|spec| spec.lifetime = Some(Duration::from_secs(25 * 3600)),
            &|spec| spec.processes = Some(10),
            &|spec| spec.network = NetworkPolicy::allowlist(["pypi.org:443"]).unwrap(),
            &|spec| spec.network.deny = vec!["pypi.org".parse().unwrap()],
            &|spec| spec.disk_files = Some(5000),
        ];
        for change in changes {
            assert_eq!(spec(change).unwrap_err().kind(), ErrorKind::Unsupported);
        }
    }
}
