//! What this host has for cells.

use sandbox_core::{Check, Health};
use sandbox_isolation::{Enforcer, Layer, Probe, host_limits, probe};

use super::gate;
use super::makers::Makers;
use crate::checks::health_of;

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
        health.checks.push(gate::check(makers).await);
    }
    health
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
