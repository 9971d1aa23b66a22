//! Memory of processes, from the kernel's files.

use std::fs::File;
use std::io::{self, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, RawDir, fstatfs, openat, statat};

/// Memory of one process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(super) pid: u32,
    pub(super) private: u64,
    pub(super) shared: u64,
    /// Kernel memory: data in its sockets and pipes, and its epoll watches.
    pub(super) kernel: u64,
}

impl MemoryUse {
    pub(super) fn all(self) -> u64 {
        self.private.saturating_add(self.shared).saturating_add(self.kernel)
    }
}

/// Returns the total memory of processes and files.
pub(crate) fn total(all: &[MemoryUse], files: u64) -> u64 {
    let private: u64 = all.iter().map(|has| has.private).sum();
    let shared: u64 = all.iter().map(|has| has.shared).sum();
    let kernel: u64 = all.iter().map(|has| has.kernel).sum();
    private.saturating_add(shared.max(files)).saturating_add(kernel)
}

/// The process id of a cell's first process, with which all others end.
pub(crate) const FIRST: u32 = 1;

/// Buffer size for directory entries of `/proc`: small, so that each process is scanned soon after it is listed.
const LIST_BUFFER_SIZE: usize = 512;

/// Calls `scan` for each process of a cell but the first. Returns how many had exited before they could be scanned.
pub(crate) fn for_each(
    processes: &OwnedFd,
    mut scan: impl FnMut(u32) -> bool,
) -> io::Result<usize> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let list = openat(processes, ".", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); LIST_BUFFER_SIZE];
    let mut entries = RawDir::new(list, &mut buffer);
    let mut gone = 0;
    while let Some(entry) = entries.next() {
        let pid: Option<u32> = entry?.file_name().to_str().ok().and_then(|name| name.parse().ok());
        gone += usize::from(pid.is_some_and(|pid| pid != FIRST && !scan(pid)));
    }
    Ok(gone)
}

/// Opens the directory of a process. Signals sent through it never reach a later process with the same id.
pub(super) fn open(processes: &OwnedFd, pid: u32) -> Option<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(processes, pid.to_string(), flags, Mode::empty()).ok()
}

/// Returns true for a stopped process.
pub(super) fn is_stopped(processes: &OwnedFd, pid: u32) -> bool {
    let status = read(processes, &format!("{pid}/status"));
    status.is_some_and(|status| status.contains("\nState:\tT"))
}

pub(super) fn exists(processes: &OwnedFd, pid: u32) -> bool {
    statat(processes, pid.to_string(), AtFlags::empty()).is_ok()
}

/// Returns the used bytes of an in-memory file system.
pub(crate) fn used_bytes(files: impl AsFd) -> io::Result<u64> {
    let state = fstatfs(files)?;
    let size = u64::try_from(state.f_bsize).unwrap_or(0);
    Ok(state.f_blocks.saturating_sub(state.f_bfree).saturating_mul(size))
}

/// Size of a process's page tables: a page of memory for each 2 MiB that it has only read.
const PAGE_TABLES: &str = "VmPTE:";
const PRIVATE: &str = "RssAnon:";

/// Returns an upper bound of a process's memory, with shared memory counted in full. Cheap.
pub(super) fn read_estimate(processes: &OwnedFd, pid: u32) -> Option<MemoryUse> {
    let (_, text) = live_thread(processes, pid)?;
    let private = field(&text, PRIVATE) + field(&text, "VmSwap:") + field(&text, PAGE_TABLES);
    Some(MemoryUse { pid, private, shared: field(&text, "RssShmem:"), kernel: 0 })
}

/// Returns a process's memory, with its share of shared memory.
pub(crate) fn read_exact_use(processes: &OwnedFd, pid: u32) -> Option<MemoryUse> {
    let (place, status) = live_thread(processes, pid)?;
    // A process may forbid this, and then counts by its upper bound.
    let Some(text) = read(processes, &format!("{place}/smaps_rollup")) else {
        return read_estimate(processes, pid);
    };
    let private =
        field(&text, "Pss_Anon:") + field(&text, "SwapPss:") + field(&status, PAGE_TABLES);
    Some(MemoryUse { pid, private, shared: field(&text, "Pss_Shmem:"), kernel: 0 })
}

/// Returns the directory and status of a process. If its first thread has ended before the others, those of another
/// thread.
pub(super) fn live_thread(processes: &OwnedFd, pid: u32) -> Option<(String, String)> {
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

/// Returns true when a status has memory fields. The process name in it may be any text.
fn has_memory_fields(status: &str) -> bool {
    status.lines().any(|line| line.starts_with(PRIVATE))
}

/// Reads a kernel file as text. A process name in it may have any bytes.
pub(crate) fn read(processes: &OwnedFd, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(processes, path, flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// Parses a field in KiB, and returns bytes.
fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_files_count_once() {
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
    fn a_process_name_is_no_memory_field() {
        assert!(!has_memory_fields("Name:\tRssAnon:\nState:\tZ (zombie)\n"));
        assert!(has_memory_fields("Name:\tx\nRssAnon:\t0 kB\n"));
    }
}
