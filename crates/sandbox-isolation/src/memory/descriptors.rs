//! What processes of a cell have open, as far as the kernel holds something for it that no process has mapped.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, readlinkat, statat};

use super::processes::living;
use super::scan_budget::ScanBudget;

/// What one process has open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Open {
    /// Numbers of its sockets.
    pub(super) sockets: Vec<u32>,
    /// Numbers of its pipes.
    pub(super) pipes: Vec<u32>,
    /// What its epolls watch, all together.
    pub(super) watches: u64,
    /// Some of it was not looked at: the process forbids it, or that took too long.
    pub(super) hidden: bool,
}

/// How many descriptors a process has.
pub(super) fn count(processes: &OwnedFd, pid: u32) -> u64 {
    count_at(processes, &place(processes, pid))
}

fn count_at(processes: &OwnedFd, place: &str) -> u64 {
    let path = format!("{place}/fd");
    let told = statat(processes, &path, AtFlags::empty()).map_or(0, |found| found.st_size);
    if told > 0 {
        return told.cast_unsigned();
    }
    // Kernels before 6.2 do not tell.
    directory(processes, &path).map_or(0, |entries| entries.count().saturating_sub(2) as u64)
}

/// Where the descriptors of a process are told. When its first thread has ended before the others, only they have them;
/// threads of what is counted share theirs.
fn place(processes: &OwnedFd, pid: u32) -> String {
    let own = pid.to_string();
    if count_at(processes, &own) > 0 {
        return own;
    }
    living(processes, pid).map_or(own, |(place, _)| place)
}

/// Looks at the descriptors of a process while there is budget, and no further than `most` watches.
pub(super) fn open(processes: &OwnedFd, pid: u32, budget: ScanBudget, most: u64) -> Open {
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
        if budget.is_spent() || found.watches > most {
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
            let watches = watches(processes, &path, most.saturating_sub(found.watches));
            found.watches = found.watches.saturating_add(watches.unwrap_or(0));
        }
    }
    found
}

fn directory(processes: &OwnedFd, path: &str) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(Dir::new(openat(processes, path, flags, Mode::empty())?)?)
}

/// The number in `socket:[1]`.
fn numbered(what: &str, kind: &str) -> Option<u32> {
    what.strip_prefix(kind)?.strip_suffix(']')?.parse().ok()
}

/// How much one epoll watches, or a little more than `most`.
fn watches(processes: &OwnedFd, path: &str, most: u64) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut file = BufReader::new(File::from(openat(processes, path, flags, Mode::empty())?));
    let (mut line, mut count) = (String::new(), 0);
    while count <= most && file.read_line(&mut line)? > 0 {
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
    fn descriptors_are_told_apart() {
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
        // Other tests of this program open and close, too.
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
