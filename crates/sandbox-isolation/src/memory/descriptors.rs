//! Open descriptors of processes that hold kernel memory.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, readlinkat, statat};

use super::processes::live_thread;
use super::scan_budget::ScanBudget;

/// The open descriptors of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// Inodes of its sockets.
    pub(super) sockets: Vec<u32>,
    /// Inodes of its pipes.
    pub(super) pipes: Vec<u32>,
    /// Number of watches of all its epolls.
    pub(super) watches: u64,
    /// True when some descriptors were not scanned: the process forbids it, or the budget was spent.
    pub(super) hidden: bool,
}

/// Returns the number of descriptors of a process.
pub(super) fn count(processes: &OwnedFd, pid: u32) -> u64 {
    count_at(processes, &place(processes, pid))
}

fn count_at(processes: &OwnedFd, place: &str) -> u64 {
    let path = format!("{place}/fd");
    let size = statat(processes, &path, AtFlags::empty()).map_or(0, |found| found.st_size);
    if size > 0 {
        return size.cast_unsigned();
    }
    // Kernels before 6.2 report no size.
    directory(processes, &path).map_or(0, |entries| entries.count().saturating_sub(2) as u64)
}

/// Returns the directory of `/proc` that lists the descriptors of a process. If its first thread has ended before the
/// others, only their directories do; threads of monitored processes share their descriptors.
fn place(processes: &OwnedFd, pid: u32) -> String {
    let own = pid.to_string();
    if count_at(processes, &own) > 0 {
        return own;
    }
    live_thread(processes, pid).map_or(own, |(place, _)| place)
}

/// Scans the descriptors of a process within the budget, and up to `max` watches.
pub(super) fn open(processes: &OwnedFd, pid: u32, budget: ScanBudget, max: u64) -> Open {
    let mut found = Open::default();
    let place = place(processes, pid);
    let Ok(entries) = directory(processes, &format!("{place}/fd")) else {
        return Open { hidden: true, ..found };
    };
    for entry in entries.flatten() {
        let Ok(number) = entry.file_name().to_str() else { continue };
        if number.starts_with('.') {
            continue;
        }
        if budget.is_spent() || found.watches > max {
            found.hidden = true;
            break;
        }
        let Ok(what) = readlinkat(processes, format!("{place}/fd/{number}"), Vec::new()) else {
            continue;
        };
        let what = what.to_string_lossy();
        if let Some(inode) = numbered(&what, "socket:[") {
            found.sockets.push(inode);
        } else if let Some(inode) = numbered(&what, "pipe:[") {
            found.pipes.push(inode);
        } else if what == "anon_inode:[eventpoll]" {
            let path = format!("{place}/fdinfo/{number}");
            let watches = watches(processes, &path, max.saturating_sub(found.watches));
            found.watches = found.watches.saturating_add(watches.unwrap_or(0));
        }
    }
    found
}

fn directory(processes: &OwnedFd, path: &str) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Dir::new(openat(processes, path, flags, Mode::empty())?)?)
}

/// Parses the number in `socket:[1]`.
fn numbered(what: &str, kind: &str) -> Option<u32> {
    what.strip_prefix(kind)?.strip_suffix(']')?.parse().ok()
}

/// Counts the watches of one epoll, up to slightly more than `max`.
fn watches(processes: &OwnedFd, path: &str, max: u64) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = BufReader::new(File::from(openat(processes, path, flags, Mode::empty())?));
    let (mut line, mut count) = (String::new(), 0);
    while count <= max && file.read_line(&mut line)? > 0 {
        count += u64::from(line.starts_with("tfd:"));
        line.clear();
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use rustix::event::epoll;

    use super::*;

    #[test]
    fn descriptors_are_distinguished() {
        let processes = OwnedFd::from(File::open("/proc").unwrap());
        let pid = std::process::id();
        let budget = ScanBudget::unlimited();
        let before = open(&processes, pid, budget, u64::MAX);
        assert!(!before.hidden);
        let (left, right) = UnixStream::pair().unwrap();
        let _pipe = std::io::pipe().unwrap();
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for (n, socket) in [left.as_fd(), right.as_fd()].into_iter().enumerate() {
            let data = epoll::EventData::new_u64(n as u64);
            epoll::add(&poll, socket, data, epoll::EventFlags::IN).unwrap();
        }
        let after = open(&processes, pid, budget, u64::MAX);
        // Other tests of this program open and close descriptors, too.
        assert!(after.sockets.len() >= 2 && after.pipes.len() >= 2, "{after:?}");
        assert!(after.watches >= 2 && count(&processes, pid) >= 5, "{after:?}");
        assert!(open(&processes, pid, budget, 0).watches >= 1);
        assert!(open(&processes, pid, ScanBudget::spent(), 9).hidden);
        assert_eq!(
            (numbered("pipe:[12]", "pipe:["), numbered("pipe:[x]", "pipe:[")),
            (Some(12), None)
        );
    }
}
