//! What the host can see of sandboxes that run on it: processes, mounts, descriptors.

use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A process of this host. The start time tells it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    parent: u32,
    start: u64,
    zombie: bool,
    pub(crate) command: String,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may itself contain any of these characters.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Some(Self {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
            zombie: fields.first() == Some(&"Z"),
            command: String::from_utf8_lossy(&command).replace('\0', " "),
        })
    }

    /// Whether it only ends, or is about to without having a say in that.
    fn is_killed(&self) -> bool {
        const KILL: u64 = 1 << (9 - 1);
        let is_killed = || {
            let Ok(status) = fs::read_to_string(format!("/proc/{}/status", self.pid)) else {
                return true;
            };
            let pending = |name: &str| {
                let set = status.lines().find_map(|line| line.strip_prefix(name));
                set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or_default()
            };
            (pending("SigPnd:") | pending("ShdPnd:")) & KILL != 0 || self.is_exiting()
        };
        // Between the signal and the end there is a moment without either.
        is_killed() || {
            std::thread::sleep(Duration::from_millis(1));
            is_killed()
        }
    }

    fn is_exiting(&self) -> bool {
        const PF_EXITING: u64 = 4;
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6));
        flags.and_then(|flags| flags.parse().ok()).is_none_or(|flags: u64| flags & PF_EXITING != 0)
    }

    /// Reads what `Display` wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (pid, start) = text.trim().split_once('@')?;
        let (pid, start) = (pid.parse().ok()?, start.parse().ok()?);
        Some(Self { pid, parent: 0, start, zombie: false, command: String::new() })
    }

    /// The same process as it is now, while it still runs. A zombie does not.
    pub(crate) fn now(&self) -> Option<Self> {
        Self::read(self.pid).filter(|now| now.start == self.start && !now.zombie)
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.pid, self.start)
    }
}

/// Every process of this host that can be seen.
pub(crate) fn processes() -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        all.extend(name.to_str().and_then(|name| name.parse().ok()).and_then(Process::read));
    }
    Ok(all)
}

/// Every process that descends from this one, zombies included.
pub(crate) fn descendants() -> io::Result<Vec<Process>> {
    let all = processes()?;
    let mut family = vec![std::process::id()];
    let mut found: Vec<Process> = Vec::new();
    while let Some(parent) = family.pop() {
        for process in all.iter().filter(|process| process.parent == parent) {
            family.push(process.pid);
            found.push(process.clone());
        }
    }
    Ok(found)
}

/// Running processes with that text in their command line.
pub(crate) fn running_with(text: &str) -> io::Result<Vec<Process>> {
    let mut all = processes()?;
    all.retain(|process| !process.zombie && process.command.contains(text));
    Ok(all)
}

/// Of these, those that can still run code of theirs. One that has been killed cannot, though it may be there until the
/// kernel has taken its memory back.
pub(crate) fn able_to_run_with(text: &str) -> io::Result<Vec<Process>> {
    let mut all = running_with(text)?;
    all.retain(|process| !process.is_killed());
    Ok(all)
}

/// The mounts this process sees.
pub(crate) fn mounts() -> io::Result<String> {
    fs::read_to_string("/proc/self/mountinfo")
}

/// Resident memory of this process in bytes.
pub(crate) fn resident_memory() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other("no VmRSS"))
}

/// What no sandbox may know, while the hostile suite runs.
pub(crate) fn secret() -> Option<&'static str> {
    static SECRET: OnceLock<Option<String>> = OnceLock::new();
    SECRET.get_or_init(|| std::env::var(crate::hostile::SECRET).ok()).as_deref()
}

/// A process of the host that code in a sandbox must not reach. Ended when dropped.
#[derive(Debug)]
pub(crate) struct Decoy(Child);

impl Decoy {
    pub(crate) fn start() -> io::Result<Self> {
        let child = Command::new("sleep")
            .arg("3600")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Self(child))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn is_alive(&mut self) -> io::Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A text that occurs nowhere else.
pub(crate) fn token(prefix: &str) -> String {
    format!("{prefix}{}", sandbox_core::random_hex(8))
}
