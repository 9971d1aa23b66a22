//! Checks of this host: for the health of a backend, and for the request of a create.

use sandbox_core::{
    ByteSize, Check, CreateSpec, Error, Health, IsolationMode, NetworkMode, Result, Variant,
};

/// Adds the hint to the error of a create that a cell cannot fulfil. `enforced` is the hint of the backend itself.
pub fn with_unsupported_hint(
    error: Error,
    spec: &CreateSpec,
    variant: Variant,
    enforced: &str,
) -> Error {
    let hint = match (spec.isolation, spec.network.mode) {
        (IsolationMode::Off, NetworkMode::None | NetworkMode::Allowlist) => {
            "without isolation the code has the host's network; use strict isolation"
        }
        (IsolationMode::Off, _) if !spec.network.deny.is_empty() => {
            "without isolation the code has the host's network; use strict isolation"
        }
        (IsolationMode::Off, _) if !spec.mounts.is_empty() => {
            "without isolation the code has the host's files at their own paths; use strict isolation"
        }
        (IsolationMode::BestEffort, NetworkMode::All) => {
            "without a cell nothing keeps code from the private networks and the services of this host: use strict \
             isolation, and `Backend::health()` says what it takes; isolation `off` has the network of the host as it is"
        }
        (IsolationMode::BestEffort, _) => {
            "this host has no namespaces for this user, and without them only the network can be closed; \
             `Backend::health()` says how to get them"
        }
        (IsolationMode::Strict, _) if spec.cpu.is_some() => {
            "a share of the processors takes a control group that can be made here: `Backend::health()` says how"
        }
        _ => return error.with_context("variant", variant.as_str()).with_hint(enforced),
    };
    error.with_context("variant", variant.as_str()).with_hint(hint)
}

/// Makes a check: with the detail that was found, or with the reason why it failed.
pub fn check_of(name: &str, found: Result<String>) -> Check {
    let name = name.to_owned();
    match found {
        Ok(detail) => Check { name, ok: true, detail, fix: None },
        Err(error) => {
            let (detail, fix) = (error.to_string(), error.hint().map(str::to_owned));
            Check { name, ok: false, detail, fix }
        }
    }
}

/// Makes the health of a backend from its checks. It is usable when every check holds; `what` then describes it.
pub fn health_of(checks: Vec<Check>, what: &str) -> Health {
    let broken = checks.iter().find(|check| !check.ok).cloned();
    let detail = broken
        .as_ref()
        .map_or_else(|| what.to_owned(), |check| format!("{}: {}", check.name, check.detail));
    let (usable, fix) = (broken.is_none(), broken.and_then(|check| check.fix));
    Health { usable, detail, fix, checks }
}

/// Checks the request of a create against the size of this host.
///
/// # Errors
/// `InvalidArgument` with `memory` or `disk`.
pub fn check_size(spec: &CreateSpec) -> Result<()> {
    let Some(memory) = spec.memory else { return Ok(()) };
    let had = host_memory().filter(|had| memory > *had);
    if let Some(had) = had {
        let message = format!("must be at most what this host has, {had}, got {memory}");
        return Err(Error::invalid("memory", message));
    }
    match spec.disk.filter(|disk| *disk >= memory) {
        Some(disk) => {
            let message = format!(
                "must be less than the memory, because files are memory: {disk} of {memory}"
            );
            Err(Error::invalid("disk", message))
        }
        None => Ok(()),
    }
}

fn host_memory() -> Option<ByteSize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(ByteSize::bytes(kib.saturating_mul(1024)))
}
