//! What this host has for sandboxes, as checks of a backend's health, and whether it has what a create asks for.

use sandbox_core::{ByteSize, Check, CreateSpec, Error, Result};
use sandbox_isolation::{Enforcer, Layer, Probe, host_limits};

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
pub fn isolation_checks(probe: Probe) -> Vec<Check> {
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
pub fn further_checks(layers: &[Layer]) -> Vec<Check> {
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
