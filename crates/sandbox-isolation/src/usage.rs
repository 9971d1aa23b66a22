//! What a cell uses, as the kernel tells this process. Nothing in the cell is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, openat2};

use crate::cell::Cell;
use crate::memory::processes::{FIRST, MemoryUse, each, read, read_exactly, total, used};
use crate::spec::CellKind;

/// The unit of processor times. It is the same on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// How long the files of a cell without a file system of its own may take to be added up.
const FILES_TIMEOUT: Duration = Duration::from_secs(10);

/// What all processes of a cell but its first use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time of the processors: of those that live, with what they have waited for, and of those that the first process has
    /// waited for. What a parent outside of the cell waits for is not in it, nor what ended without being waited for.
    pub cpu: Duration,
    /// Bytes of memory: private, a part of what is shared, and files in memory.
    pub memory: u64,
    /// Bytes of files: those in memory, or without isolation those in the private directory.
    pub files: u64,
    /// Processes that live.
    pub processes: u32,
}

impl Cell {
    /// What the cell uses now. `adopted` are the host's numbers of processes that entered it from outside, which only count
    /// where the cell has no processes of its own. Reads a few files for each process, so it takes a while.
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
            return Err(io::Error::other("what is at /proc is not of the kernel"));
        }
        let files = used(self.open(".")?)? + used(self.open("dev/shm")?)?;
        let first = ProcStat::read(&processes, FIRST).ok_or(io::ErrorKind::NotFound)?;
        let (mut ticks, mut living, mut all) = (first.waited, 0, Vec::new());
        each(&processes, |pid| {
            let Some(seen) = ProcStat::read(&processes, pid) else { return false };
            ticks += seen.own + seen.waited;
            living += u32::from(!seen.dead);
            all.extend(read_exactly(&processes, pid));
            true
        })?;
        let memory = total(&all, files);
        Ok(Usage { cpu: time(ticks), memory, files, processes: living })
    }

    fn usage_below(&self, adopted: &[u32]) -> io::Result<Usage> {
        let processes = self.open("proc")?;
        let mut table = BTreeMap::new();
        each(&processes, |pid| {
            ProcStat::read(&processes, pid).is_some_and(|seen| table.insert(pid, seen).is_none())
        })?;
        let first = table.remove(&self.pid()).ok_or(io::ErrorKind::NotFound)?;
        let mut members: BTreeSet<u32> =
            adopted.iter().copied().filter(|pid| table.contains_key(pid)).collect();
        loop {
            let comes_from_it =
                |seen: &ProcStat| seen.parent == self.pid() || members.contains(&seen.parent);
            let more: Vec<u32> = table
                .iter()
                .filter(|(pid, seen)| !members.contains(pid) && comes_from_it(seen))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                break;
            }
            members.extend(more);
        }
        let (mut ticks, mut living, mut all) = (first.waited, 0, Vec::<MemoryUse>::new());
        for (pid, seen) in members.iter().filter_map(|pid| table.get_key_value(pid)) {
            ticks += seen.own + seen.waited;
            // Those that look after a program each are ours.
            let is_subreaper = seen.parent == self.pid() && seen.name == first.name;
            if !is_subreaper {
                living += u32::from(!seen.dead);
                all.extend(read_exactly(&processes, *pid));
            }
        }
        let files = size_of(self.work_dir())?;
        Ok(Usage { cpu: time(ticks), memory: total(&all, 0), files, processes: living })
    }

    /// A directory of the cell that is no link, and not below one.
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

/// One look at a process. Times are in ticks.
#[derive(Clone, Debug)]
struct ProcStat {
    name: String,
    parent: u32,
    own: u64,
    /// Of children that it has waited for, with those that they have.
    waited: u64,
    dead: bool,
}

impl ProcStat {
    fn read(processes: &OwnedFd, pid: u32) -> Option<Self> {
        Self::parse(&read(processes, &format!("{pid}/stat"))?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name, in parentheses, may itself contain anything.
        let (head, rest) = stat.rsplit_once(')')?;
        let name = head.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        let dead = match *fields.first()? {
            // Its first thread is, and others may go on.
            "Z" => number(17)? <= 1,
            state => matches!(state, "X" | "x"),
        };
        let (own, waited) = (number(11)? + number(12)?, number(13)? + number(14)?);
        Some(Self { name, parent: number(1)?.try_into().ok()?, own, waited, dead })
    }
}

/// Bytes that the files below a directory take. Links are not followed, and what goes meanwhile does not count.
fn size_of(directory: &Path) -> io::Result<u64> {
    let until = Instant::now() + FILES_TIMEOUT;
    let (mut size, mut seen) = (0, BTreeSet::new());
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let Ok(about) = entry.metadata() else { continue };
            if about.is_dir() {
                left.push(entry.path());
            }
            size += allocated(&about, &mut seen);
        }
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(size)
}

/// What one file takes. One that has several names counts once.
fn allocated(about: &fs::Metadata, seen: &mut BTreeSet<(u64, u64)>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let is_new = about.is_dir() || about.nlink() < 2 || seen.insert((about.dev(), about.ino()));
    if is_new { about.blocks().saturating_mul(512) } else { 0 }
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
