//! Finding out what works here, by doing it.

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
    /// Whether a cell of this machine has it.
    pub available: bool,
    /// Whether there are no strict cells without it.
    pub required: bool,
}

/// What a probe found.
#[derive(Debug)]
pub struct Probe {
    /// With which rights cells are made; `None` when there was no launcher.
    pub privilege: Option<Privilege>,
    /// Each layer, compared with the host's after making a cell.
    pub layers: Vec<Layer>,
    /// Why there are no cells here, with the fix.
    pub error: Option<Error>,
    /// How long starting the launcher took.
    pub start: Duration,
    /// How long making one cell and running one program in it took.
    pub cell: Duration,
}

impl Probe {
    /// Whether strict cells work here.
    #[must_use]
    pub fn is_available(&self) -> bool {
        let missing = self.layers.iter().any(|layer| layer.required && !layer.available);
        self.error.is_none() && !missing
    }
}

/// What `/proc/self/ns` calls each namespace, and its name.
const NAMESPACES: [(&str, &str); 7] = [
    ("user", "user namespace"),
    ("pid", "process namespace"),
    ("mnt", "mount namespace"),
    ("net", "network namespace"),
    ("ipc", "ipc namespace"),
    ("uts", "host name namespace"),
    ("cgroup", "control group namespace"),
];

/// Makes a cell, runs a program in it that looks around, and reports each layer. Never fails:
/// what does not work is in the result. Takes some milliseconds.
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
    let begin = Instant::now();
    let launcher = CellLauncher::start().await?;
    probe.start = begin.elapsed();
    probe.privilege = Some(launcher.privilege());
    let begin = Instant::now();
    let found = look_around(&launcher).await?;
    probe.cell = begin.elapsed();
    probe.layers = layers(&found.0, &found.1);
    Ok(())
}

/// What a program in a cell sees of itself.
async fn look_around(launcher: &CellLauncher) -> Result<(String, Vec<&'static str>), Error> {
    let cell = launcher.cell(&CellSpec::strict()).await?;
    let (reader, writer) = std::io::pipe().map_err(Error::io("cannot make a pipe"))?;
    // In a `/proc` of the host, a process has a number for each of the namespaces that it is in.
    let script = "for ns in user pid mnt net ipc uts cgroup; do readlink /proc/self/ns/$ns; done; \
                  grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; \
                  set -- $(grep ^NSpid: /proc/self/status); test $# = 2 && echo proc-own";
    let mut spec = SpawnSpec::new(["/bin/sh", "-c", script]);
    spec.stdout = Some(writer.into());
    let process = cell.spawn(spec).await?;
    process.wait().await?;
    let read = tokio::task::spawn_blocking(move || std::io::read_to_string(reader)).await;
    let read = read.map_err(|_| Error::Closed)?;
    let said = read.map_err(Error::io("cannot read what the cell said"))?;
    Ok((said, cell.layers().to_vec()))
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
    layers.push(required("filter of system calls (seccomp)", has("Seccomp:\t2")));
    let landlock = of_cell.contains(&"landlock");
    layers.push(Layer {
        name: "second wall for files (Landlock)",
        available: landlock,
        required: false,
    });
    layers
}
