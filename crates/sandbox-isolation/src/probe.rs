//! Tests which isolation works on this host, by making a cell.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::launcher::{CellLauncher, Privilege};
use crate::process::SpawnSpec;
use crate::spec::CellSpec;

/// One layer of isolation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// Its name, such as `network namespace`.
    pub name: &'static str,
    /// True when a cell of this machine has it.
    pub available: bool,
    /// True when strict cells cannot be made without it.
    pub required: bool,
}

/// Result of a probe.
#[derive(Debug)]
pub struct Probe {
    /// Rights with which cells are made; `None` when the launcher did not start.
    pub privilege: Option<Privilege>,
    /// Each layer, verified in a cell against the host.
    pub layers: Vec<Layer>,
    /// The error if cells cannot be made here, with the fix.
    pub error: Option<Error>,
    /// Time to start the launcher.
    pub start: Duration,
    /// Time to make one cell and run one program in it.
    pub cell: Duration,
}

impl Probe {
    /// Returns true when strict cells work here.
    #[must_use]
    pub fn is_available(&self) -> bool {
        let missing = self.layers.iter().any(|layer| layer.required && !layer.available);
        self.error.is_none() && !missing
    }
}

/// The name of each namespace in `/proc/self/ns`, and its description.
const NAMESPACES: [(&str, &str); 7] = [
    ("user", "user namespace"),
    ("pid", "process namespace"),
    ("mnt", "mount namespace"),
    ("net", "network namespace"),
    ("ipc", "ipc namespace"),
    ("uts", "host name namespace"),
    ("cgroup", "control group namespace"),
];

/// Makes a cell, runs a program in it that inspects its surroundings, and reports each layer. Never fails: the result
/// has the error. Takes some milliseconds.
pub async fn probe() -> Probe {
    let mut probe = Probe {
        privilege: None,
        layers: Vec::new(),
        error: None,
        start: Duration::ZERO,
        cell: Duration::ZERO,
    };
    if let Err(error) = run(&mut probe).await {
        probe.error = Some(error);
    }
    probe
}

async fn run(probe: &mut Probe) -> Result<(), Error> {
    let started = Instant::now();
    let launcher = CellLauncher::start().await?;
    probe.start = started.elapsed();
    probe.privilege = Some(launcher.privilege());
    let started = Instant::now();
    let found = inspect_cell(&launcher).await?;
    probe.cell = started.elapsed();
    probe.layers = layers(&found.0, &found.1);
    Ok(())
}

/// Runs a program in a cell that reports its namespaces and privileges.
async fn inspect_cell(launcher: &CellLauncher) -> Result<(String, Vec<&'static str>), Error> {
    let cell = launcher.cell(&CellSpec::strict()).await?;
    let (reader, writer) = std::io::pipe().map_err(Error::io("cannot make a pipe"))?;
    // In the host's `/proc`, `NSpid` has a number for each nested process namespace.
    let script = "for ns in user pid mnt net ipc uts cgroup; do readlink /proc/self/ns/$ns; done; \
                  grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                  set -- $(grep ^NSpid: /proc/self/status); test $# = 2 && echo proc-own";
    let mut spec = SpawnSpec::new(["/bin/sh", "-c", script]);
    spec.stdout = Some(writer.into());
    let process = cell.spawn(spec).await?;
    process.wait().await?;
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(reader)).await;
    let read = read.map_err(|_| Error::Closed)?;
    let output = read.map_err(Error::io("cannot read the output of the cell"))?;
    Ok((output, cell.layers().to_vec()))
}

fn layers(found: &str, of_cell: &[&str]) -> Vec<Layer> {
    let has = |line: &str| found.lines().any(|found| found == line);
    let own = |kind: &str| {
        let ours = std::fs::read_link(format!("/proc/self/ns/{kind}")).ok();
        let ours = ours.and_then(|link| link.into_os_string().into_string().ok());
        let theirs = found.lines().find(|line| line.starts_with(&format!("{kind}:[")));
        ours.is_some() && theirs.is_some() && theirs != ours.as_deref()
    };
    let none = "0000000000000000";
    let dropped = ["CapEff", "CapPrm", "CapBnd"].iter().all(|set| has(&format!("{set}:\t{none}")));
    let required = |name, available| Layer { name, available, required: true };
    let mut layers: Vec<_> =
        NAMESPACES.iter().map(|(kind, name)| required(*name, own(kind))).collect();
    layers.push(required("own /proc", has("proc-own")));
    layers.push(required("no capabilities", dropped));
    layers.push(required("no new privileges", has("NoNewPrivs:\t1")));
    layers.push(required("system call filter (seccomp)", has("Seccomp:\t2")));
    let landlock = of_cell.contains(&"landlock");
    layers.push(Layer {
        name: "file access rules (Landlock)",
        available: landlock,
        required: false,
    });
    layers
}
