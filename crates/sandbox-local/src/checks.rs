//! What this host has for sandboxes, as checks of a backend's health, and whether it has what a create asks for.

use sandbox_core::{
    ByteSize, Check, CreateSpec, Error, Health, IsolationMode, NetworkMode, Result, Variant,
};
use sandbox_isolation::{Enforcer, Layer, Probe, host_limits, probe};

use crate::makers::Makers;
use crate::network;

/// What to do instead of something that a sandbox in a cell cannot be asked for. `enforced` is what its backend has.
pub fn instead(error: Error, spec: &CreateSpec, variant: Variant, enforced: &str) -> Error {
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
        (IsolationMode::BestEffort, _) => {
            "this host has no namespaces for this user, and without them only the network can be closed; \
             `sandboxes doctor` says how to get them"
        }
        (IsolationMode::Strict, _) if spec.cpu.is_some() => {
            "a share of the processors takes a control group: run as root in the topmost one"
        }
        _ => return error.with_context("variant", variant.as_str()).with_hint(enforced),
    };
    error.with_context("variant", variant.as_str()).with_hint(hint)
}

/// A check of something that is there, with what it is, or is not, with the reason.
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

/// Usable when every check holds, and then what it is.
pub fn health_of(checks: Vec<Check>, what: &str) -> Health {
    let broken = checks.iter().find(|check| !check.ok).cloned();
    let detail = broken
        .as_ref()
        .map_or_else(|| what.to_owned(), |check| format!("{}: {}", check.name, check.detail));
    let (usable, fix) = (broken.is_none(), broken.and_then(|check| check.fix));
    Health { usable, detail, fix, checks }
}

/// The health of a backend whose sandboxes are cells with something in them.
pub async fn health_in_cells(content: Check, what: &str, makers: &Makers) -> Health {
    let probe = probe().await;
    let further = further_checks(&probe.layers);
    let mut checks = vec![content];
    checks.extend(isolation_checks(probe));
    let mut health = health_of(checks, what);
    health.checks.extend(further);
    // Told, and no reason against the variant: most sandboxes have no network.
    if health.usable {
        health.checks.push(network::check(makers).await);
    }
    health
}

/// What only this host can say: whether it has what is asked for.
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

/// What cells cannot do without, and what to do about what is missing.
fn isolation_checks(probe: Probe) -> Vec<Check> {
    let fix = match &probe.error {
        Some(sandbox_isolation::Error::Unavailable { fix, .. }) => Some(fix.clone()),
        _ => None,
    };
    let problem = probe.error.as_ref().map(ToString::to_string);
    if let (Some(problem), true) = (&problem, probe.layers.is_empty()) {
        // It did not come to looking at layers.
        let (name, detail) = ("isolated cells".to_owned(), problem.clone());
        return vec![Check { name, ok: false, detail, fix }];
    }
    let check = |layer: Layer| Check {
        name: layer.name.to_string(),
        ok: layer.available,
        detail: if layer.available {
            "available".into()
        } else {
            problem.clone().unwrap_or_default()
        },
        fix: if layer.available { None } else { fix.clone() },
    };
    probe.layers.into_iter().filter(|layer| layer.required).map(check).collect()
}

/// What is good to have, and without which sandboxes are isolated all the same.
fn further_checks(layers: &[Layer]) -> Vec<Check> {
    const LANDLOCK: &str = "use a kernel of version 5.19 or newer with `landlock` among its security modules \
                            (`lsm=` on its command line)";
    const GROUPS: &str = "run as root in the topmost control group, or put the whole program into a group with \
                          `systemd-run --scope -p MemoryMax=.. -p CPUQuota=..`";
    let limits = host_limits();
    let row = |name: &str, ok: bool, detail: &str, fix: &str| Check {
        name: name.to_owned(),
        ok,
        detail: detail.to_owned(),
        fix: (!ok).then(|| fix.to_owned()),
    };
    let optional = layers.iter().filter(|layer| !layer.required);
    let mut checks: Vec<_> = optional
        .map(|layer| {
            let missing = "missing: mounts and permissions alone keep files apart";
            let detail = if layer.available { "available" } else { missing };
            row(layer.name, layer.available, detail, LANDLOCK)
        })
        .collect();
    checks.push(match limits.memory {
        Enforcer::Kernel => row("memory limit", true, "kept by the kernel in a control group", ""),
        Enforcer::Watchdog => {
            let detail =
                "kept by the kernel for each process, and added up for all ten times a second";
            row("memory limit", true, detail, "")
        }
    });
    let detail = if limits.cpu { "kept by the kernel" } else { "missing: `cpu` is refused" };
    checks.push(row("cpu limit", limits.cpu, detail, GROUPS));
    checks
}
