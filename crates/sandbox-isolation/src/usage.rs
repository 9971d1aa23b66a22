//! Resource usage of a cell, from the kernel's files. Nothing in the cell takes part.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat2};

use crate::cell::Cell;
use crate::memory::processes::{
    FIRST, MemoryUse, for_each, read, read_exact_use, total, used_bytes,
};
use crate::spec::CellKind;

/// The unit of processor times, the same on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// Timeout for adding up the files of a cell without a file system of its own.
const FILES_TIMEOUT: Duration = Duration::from_secs(10);

/// Usage of all processes of a cell but its first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time: of running processes, of the children they waited for, and of the children that the first
    /// process waited for. Children of a parent outside of the cell, and those that were never waited for, are not
    /// included.
    pub cpu: Duration,
    /// Bytes of memory: private memory, a share of shared memory, and files in memory.
    pub memory: u64,
    /// Bytes of files: in memory, or without isolation in the private directory.
    pub files: u64,
    /// Number of running processes.
    pub processes: u32,
}

impl Cell {
    /// Measures the cell's current usage. `adopted` are the host's process ids of processes that entered from outside,
    /// needed only for a cell without a process namespace. Reads a few files per process, so it is slow.
    ///
    /// # Errors
    /// The cell is gone, or its files cannot be added up in time.
    pub fn usage(&self, adopted: &[u32]) -> io::Result<Usage> {
        match self.kind() {
            CellKind::Strict => self.usage_inside(),
            CellKind::Off | CellKind::Confined => self.usage_below(adopted),
        }
    }

    fn usage_inside(&self) -> io::Result<Usage> {
        let processes = self.open("proc")?;
        if fstatfs(&processes)?.f_type != PROC_SUPER_MAGIC {
            return Err(io::Error::other("/proc in the cell is not the kernel's"));
        }
        let files = used_bytes(self.open(".")?)? + used_bytes(self.open("dev/shm")?)?;
        let first = ProcStat::read(&processes, FIRST).ok_or(io::ErrorKind::NotFound)?;
        let (mut ticks, mut living, mut all) = (first.waited, 0, Vec::new());
        for_each(&processes, |pid| {
            let Some(stat) = ProcStat::read(&processes, pid) else { return false };
            ticks += stat.own + stat.waited;
            living += u32::from(!stat.dead);
            all.extend(read_exact_use(&processes, pid));
            true
        })?;
        let memory = total(&all, files);
        Ok(Usage { cpu: time(ticks), memory, files, processes: living })
    }

    fn usage_below(&self, adopted: &[u32]) -> io::Result<Usage> {
        let processes = self.open("proc")?;
        let mut table = BTreeMap::new();
        for_each(&processes, |pid| {
            ProcStat::read(&processes, pid).is_some_and(|stat| table.insert(pid, stat).is_none())
        })?;
        let first = table.remove(&self.pid()).ok_or(io::ErrorKind::NotFound)?;
        let mut members: BTreeSet<u32> =
            adopted.iter().copied().filter(|pid| table.contains_key(pid)).collect();
        loop {
            let comes_from_it =
                |stat: &ProcStat| stat.parent == self.pid() || members.contains(&stat.parent);
            let more: Vec<u32> = table
                .iter()
                .filter(|(pid, stat)| !members.contains(pid) && comes_from_it(stat))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            members.extend(more);
        }
        let (mut ticks, mut living, mut all) = (first.waited, 0, Vec::<MemoryUse>::new());
        for (pid, stat) in members.iter().filter_map(|pid| table.get_key_value(pid)) {
            ticks += stat.own + stat.waited;
            // Subreapers are part of the helper, not of the cell's programs.
            let is_subreaper = stat.parent == self.pid() && stat.name == first.name;
            if !is_subreaper {
                living += u32::from(!stat.dead);
                all.extend(read_exact_use(&processes, *pid));
            }
        }
        let files = size_of(self.work_dir())?;
        Ok(Usage { cpu: time(ticks), memory: total(&all, 0), files, processes: living })
    }

    /// Opens a directory of the cell without following links.
    fn open(&self, path: &str) -> io::Result<OwnedFd> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(self.root(), path, flags, Mode::empty(), resolve)?)
    }
}

fn time(ticks: u64) -> Duration {
    TICK * u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// Parsed `/proc/PID/stat`. Times are in ticks.
#[derive(Clone, Debug)]
struct ProcStat {
    name: String,
    parent: u32,
    own: u64,
    /// Of children that it has waited for, with their own children.
    waited: u64,
    dead: bool,
}

impl ProcStat {
    fn read(processes: &OwnedFd, pid: u32) -> Option<Self> {
        Self::parse(&read(processes, &format!("{pid}/stat"))?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may itself contain any bytes.
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let dead = match *fields.first()? {
            // The first thread is a zombie, but others may run.
            "Z" => number(17)? <= 1,
            state => matches!(state, "X" | "x"),
        };
        let (own, waited) = (number(11)? + number(12)?, number(13)? + number(14)?);
        Some(Self { name, parent: number(1)?.try_into().ok()?, own, waited, dead })
    }
}

/// Returns the allocated size of the files below a directory. Links are not followed, and files that are removed
/// meanwhile do not count.
fn size_of(directory: &Path) -> io::Result<u64> {
    let until = Instant::now() + FILES_TIMEOUT;
    let (mut size, mut seen) = (0, BTreeSet::new());
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            size += allocated(&metadata, &mut seen);
        }
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(size)
}

/// Returns the allocated size of one file. A file with several names counts once.
fn allocated(metadata: &fs::Metadata, seen: &mut BTreeSet<(u64, u64)>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let is_new =
        metadata.is_dir() || metadata.nlink() < 2 || seen.insert((metadata.dev(), metadata.ino()));
    if is_new { metadata.blocks().saturating_mul(512) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hide_nothing() {
        let rest = "7 1 1 0 -1 4194560 0 0 0 0 30 12 5 1 20 0";
        for (stat, name, dead) in [
            (format!("9 (a) R 1 ) S {rest} 1 0 900 0"), "a) R 1 ", false),
            (format!("9 (a) Z {rest} 1 0 900 0"), "a", true),
            (format!("9 (a) Z {rest} 2 0 900 0"), "a", false),
        ] {
            let seen = ProcStat::parse(&stat).unwrap();
            assert_eq!((seen.name.as_str(), seen.parent, seen.dead), (name, 7, dead), "{stat}");
            assert_eq!((seen.own, seen.waited), (42, 6), "{stat}");
        }
    }

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("large"), vec![1; 1 << 20]).unwrap();
        fs::hard_link(at("large"), at("again")).unwrap();
        fs::create_dir(at("below")).unwrap();
        std::os::unix::fs::symlink("/usr", at("below/link")).unwrap();
        let size = size_of(directory.path()).unwrap();
        assert!(((1 << 20)..(1 << 20) + (64 << 10)).contains(&size), "{size}");
    }
}
