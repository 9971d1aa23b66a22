//! Checks what this host has for cells.

use std::collections::BTreeSet;

use sandbox_core::{Check, Health, IsolationMode};
use sandbox_isolation::{
    CellSpec, Enforcer, Hidden, Layer, Probe, hidden_configuration, host_limits, probe,
};

use super::gate;
use super::launchers::{CellLaunchers, no_isolation};
use sandbox_engine::background;
use sandbox_engine::checks::health_of;

/// Returns the health of a backend whose sandboxes are cells; `content` is the check of what runs in them.
pub async fn health_in_cells(content: Check, what: &str, launchers: &CellLaunchers) -> Health {
    let probe = probe().await;
    let (further, probe_failed) = (further_checks(&probe.layers), probe.error.is_some());
    let mut checks = vec![content];
    checks.extend(isolation_checks(probe));
    let mut health = health_of(checks, what);
    if probe_failed {
        health.checks.push(best_effort(launchers).await);
    }
    health.checks.extend(further);
    health.checks.push(configuration(&hidden_configuration()));
    // Reported, and no reason against the variant: most sandboxes have no network.
    if health.usable {
        health.checks.push(gate::check(launchers).await);
    }
    health
}

/// Makes the checks of everything that cells cannot do without, with a fix for what is missing.
fn isolation_checks(probe: Probe) -> Vec<Check> {
    let fix = match &probe.error {
        Some(sandbox_isolation::Error::Unavailable { fix, .. }) => Some(fix.clone()),
        _ => None,
    };
    let problem = probe.error.as_ref().map(ToString::to_string);
    if let (Some(problem), true) = (&problem, probe.layers.is_empty()) {
        // The probe did not get as far as the layers.
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

/// Checks the isolation of code where there is no cell, from the layers of such a process.
async fn best_effort(launchers: &CellLaunchers) -> Check {
    let made = async {
        let maker = launchers.get(IsolationMode::BestEffort).await?;
        let cell = async move { maker.cell(&CellSpec::confined()).await };
        background(cell).await?.map_err(no_isolation)
    };
    let name = "best effort".to_owned();
    match made.await {
        Ok(cell) => {
            let layers: Vec<_> = cell.layers().iter().map(ToString::to_string).collect();
            let detail = format!("without a cell there is still: {}", layers.join(", "));
            let fix = "for code that you trust somewhat: `.isolation(IsolationMode::BestEffort)`";
            Check { name, ok: true, detail, fix: Some(fix.to_owned()) }
        }
        Err(error) => {
            let fix = error.hint().map(str::to_owned);
            Check { name, ok: false, detail: error.to_string(), fix }
        }
    }
}

/// Names the configuration of installed packages that cells do not show. Most is hidden because of its subject; what is
/// hidden because of its content is named, because a program may miss it.
fn configuration(hidden: &[Hidden]) -> Check {
    const MAX_NAMED: usize = 12;
    let (about, found): (Vec<_>, Vec<_>) = hidden.iter().partition(|hidden| hidden.is_by_name);
    let names = |all: &[&Hidden]| {
        let shown = all.iter().take(MAX_NAMED).map(|hidden| hidden.path.display().to_string());
        let more = all.len().saturating_sub(MAX_NAMED);
        let more = (more > 0).then(|| format!("{more} more"));
        shown.chain(more).collect::<Vec<_>>().join(", ")
    };
    let mut detail = "cells show what packages have put into /etc for programs".to_owned();
    if !about.is_empty() {
        detail += &format!("; hidden because of their subject: {}", names(&about));
    }
    for why in found.iter().map(|hidden| hidden.why).collect::<BTreeSet<_>>() {
        let all: Vec<_> = found.iter().copied().filter(|hidden| hidden.why == why).collect();
        detail += &format!("; hidden because {why}: {}", names(&all));
    }
    Check { name: "configuration".to_owned(), ok: true, detail, fix: None }
}

/// Makes the checks of what is good to have, and without which sandboxes are isolated all the same.
fn further_checks(layers: &[Layer]) -> Vec<Check> {
    const LANDLOCK: &str = "use a kernel of version 5.19 or newer with `landlock` among its security modules \
                            (`lsm=` on its command line)";
    const GROUPS: &str = "run as root in the topmost control group, or in a group below one that is yours to divide \
                          (`Delegate=yes`), or put the whole program into a group with `systemd-run --scope -p \
                          MemoryMax=.. -p CPUQuota=..`";
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
            let missing = "missing: only mounts and permissions keep files apart";
            let detail = if layer.available { "available" } else { missing };
            row(layer.name, layer.available, detail, LANDLOCK)
        })
        .collect();
    checks.push(match limits.memory {
        Enforcer::Kernel => row("memory limit", true, "kept by the kernel in a control group", ""),
        Enforcer::Watchdog => {
            // The layer is there, and less strict than it could be.
            let detail = "kept, and weaker than by a control group: the kernel limits each process alone, and all \
                          together are added up ten times a second, so code may have more for a moment";
            Check { fix: Some(GROUPS.to_owned()), ..row("memory limit", true, detail, "") }
        }
    });
    let detail = if limits.cpu { "kept by the kernel" } else { "missing: `cpu` is refused" };
    checks.push(row("cpu limit", limits.cpu, detail, GROUPS));
    checks
}
