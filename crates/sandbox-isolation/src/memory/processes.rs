//! What processes have in memory, as the kernel tells it.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RawDir, fstatfs, openat, statat};

/// What one process has, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(super) pid: u32,
    pub(super) private: u64,
    pub(super) shared: u64,
    /// What the kernel holds for it: what waits in its sockets and pipes, what its epolls watch.
    pub(super) kernel: u64,
}

impl MemoryUse {
    pub(super) fn all(self) -> u64 {
        self.private.saturating_add(self.shared).saturating_add(self.kernel)
    }
}

/// What processes and files come to.
pub(crate) fn total(all: &[MemoryUse], files: u64) -> u64 {
    let private: u64 = all.iter().map(|has| has.private).sum();
    let shared: u64 = all.iter().map(|has| has.shared).sum();
    let kernel: u64 = all.iter().map(|has| has.kernel).sum();
    private.saturating_add(shared.max(files)).saturating_add(kernel)
}

/// The first process of a cell, which all others end with.
pub(crate) const FIRST: u32 = 1;

/// Bytes of the list of processes that are asked for at once: few, so that each is looked at while it is there.
const SOME: usize = 512;

/// Looks at each process of a cell but the first. How many had gone before they could be looked at.
pub(crate) fn each(processes: &OwnedFd, mut look: impl FnMut(u32) -> bool) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = openat(processes, ".", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); SOME];
    let mut entries = RawDir::new(list, &mut buffer);
    let mut gone = 0;
    while let Some(entry) = entries.next() {
        let pid: Option<u32> = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        gone += usize::from(pid.is_some_and(|pid| pid != FIRST && !look(pid)));
    }
    Ok(gone)
}

/// A process, which may be signalled by it: its directory stands for it, and for no later one with the same number.
pub(super) fn open(processes: &OwnedFd, pid: u32) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(processes, pid.to_string(), flags, Mode::empty()).ok()
}

/// Whether somebody has stopped it.
pub(super) fn is_stopped(processes: &OwnedFd, pid: u32) -> bool {
    let status = read(processes, &format!("{pid}/status"));
    status.is_some_and(|status| status.contains("\nState:\tT"))
}

pub(super) fn is_there(processes: &OwnedFd, pid: u32) -> bool {
    statat(processes, pid.to_string(), AtFlags::empty()).is_ok()
}

/// Bytes that a file system in memory has.
pub(crate) fn used(files: impl AsFd) -> io::Result<u64> {
    let state = fstatfs(files)?;
    let size = u64::try_from(state.f_bsize).unwrap_or(0);
    Ok(state.f_blocks.saturating_sub(state.f_bfree).saturating_mul(size))
}

/// The field with what a process has of page tables: a page of memory for each 2 MiB that it has only looked at.
const PAGE_TABLES: &str = "VmPTE:";
const PRIVATE: &str = "RssAnon:";

/// What a process has, or more: what it shares with others counts for each. Reading that takes little.
pub(super) fn read_roughly(processes: &OwnedFd, pid: u32) -> Option<MemoryUse> {
    let (_, text) = living(processes, pid)?;
    let private = field(&text, PRIVATE) + field(&text, "VmSwap:") + field(&text, PAGE_TABLES);
    Some(MemoryUse { pid, private, shared: field(&text, "RssShmem:"), kernel: 0 })
}

/// What a process has, its part of what it shares with others.
pub(crate) fn read_exactly(processes: &OwnedFd, pid: u32) -> Option<MemoryUse> {
    let (place, status) = living(processes, pid)?;
    // A process may forbid to be looked into, and then counts for what it has at most.
    let Some(text) = read(processes, &format!("{place}/smaps_rollup")) else {
        return read_roughly(processes, pid);
    };
    let private =
        field(&text, "Pss_Anon:") + field(&text, "SwapPss:") + field(&status, PAGE_TABLES);
    Some(MemoryUse { pid, private, shared: field(&text, "Pss_Shmem:"), kernel: 0 })
}

/// Where a process is told of, and its status. When its first thread has ended before the others, only they have what it
/// has.
pub(super) fn living(processes: &OwnedFd, pid: u32) -> Option<(String, String)> {
    let place = pid.to_string();
    let status = read(processes, &format!("{place}/status"))?;
    if has_memory_fields(&status) {
        return Some((place, status));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let threads = openat(processes, format!("{pid}/task"), flags, Mode::empty()).ok()?;
    for thread in Dir::new(threads).ok()?.flatten() {
        let Ok(thread) = thread.file_name().to_str() else { continue };
        let of_thread = format!("{pid}/task/{thread}");
        let found = read(processes, &format!("{of_thread}/status"));
        if let Some(status) = found.filter(|status| has_memory_fields(status)) {
            return Some((of_thread, status));
        }
    }
    Some((place, status))
}

/// Whether the status has what a process has in memory. Its name, which is in there too, may be anything.
fn has_memory_fields(status: &str) -> bool {
    status.lines().any(|line| line.starts_with(PRIVATE))
}

/// What the kernel tells in a file. A process may have a name of any bytes.
pub(crate) fn read(processes: &OwnedFd, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(processes, path, flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A field that the kernel gives in KiB.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_from_files_counts_once() {
        let has = |private, shared| MemoryUse { pid: 2, private, shared, kernel: 0 };
        assert_eq!(total(&[], 7), 7);
        assert_eq!(total(&[has(10, 5), has(1, 0)], 3), 16);
        assert_eq!(total(&[has(10, 5), has(1, 0)], 8), 19);
        assert_eq!(total(&[has(u64::MAX, 1)], 1), u64::MAX);
        assert_eq!(total(&[MemoryUse { kernel: 4, ..has(10, 5) }], 3), 19);
    }

    #[test]
    fn fields_of_the_kernel_are_read_in_bytes() {
        let text = "Name:\tx\nRssAnon:\t    12 kB\nRssShmem:\t0 kB\n";
        assert_eq!((field(text, "RssAnon:"), field(text, "RssShmem:")), (12 * 1024, 0));
        assert_eq!(field(text, "RssFile:"), 0);
    }

    #[test]
    fn a_name_tells_no_memory() {
        assert!(!has_memory_fields("Name:\tRssAnon:\nState:\tZ (zombie)\n"));
        assert!(has_memory_fields("Name:\tx\nRssAnon:\t0 kB\n"));
    }
}
