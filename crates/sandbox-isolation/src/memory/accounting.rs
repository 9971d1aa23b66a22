//! Charges kernel memory to the processes of a cell, and selects the processes to kill.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use super::descriptors::{self, Open};
use super::processes::MemoryUse;
use super::scan_budget::ScanBudget;
use super::sockets::SocketUsage;

/// Capacity of a pipe: code in monitored cells cannot enlarge it.
const PIPE_SIZE: u64 = crate::policy::seccomp::PIPE_SIZE as u64;
const PAGES_PER_PIPE: u64 = 16;
/// Number of pipes that are not charged. With more, each is charged as if it were full: the kernel does not report fill
/// levels.
const MAX_UNCOUNTED_PIPES: u64 = 64;
/// Approximate kernel memory of an epoll watch.
const WATCH_SIZE: u64 = 200;
/// Maximum number of descriptors in flight through sockets, where they are invisible: the limit of open files, and the
/// maximum of one message.
const MAX_IN_FLIGHT: u64 = 512 + 253;

/// The cell's share of the quotas of a host user, as which the cell runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Maximum number of epoll watches.
    watches: u64,
    pipes: u64,
}

impl Share {
    /// Returns a share that leaves the user most watches and half of the pipes: once the quota of full-size pipes is
    /// used up, new pipes are small.
    pub(super) fn for_this_host() -> Self {
        static FOUND: OnceLock<Share> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let read = |path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
            let watches = read("/proc/sys/fs/epoll/max_user_watches").unwrap_or(u64::MAX);
            let pages = read("/proc/sys/fs/pipe-user-pages-soft").filter(|pages| *pages > 0);
            let pipes = pages.map_or(u64::MAX, |pages| pages / PAGES_PER_PIPE);
            Self { watches: watches / 4, pipes: pipes / 2 }
        })
    }

    /// Returns true when a cell with so many descriptors could exceed the share.
    pub(super) fn may_be_exceeded_by(self, count: u64) -> bool {
        count > self.pipes || max_watches(count) > self.watches
    }

    /// Returns the processes to kill so that the others stay within the share.
    pub(super) fn select_excess(self, all: &[Process]) -> Vec<u32> {
        let mut left: Vec<&Process> = all.iter().collect();
        let mut ended = Vec::new();
        let mut end = |left: &mut Vec<&Process>, key: fn(&Process) -> u64| {
            let most = left.iter().enumerate().max_by_key(|(_, process)| key(process));
            let most = most.map(|(place, _)| place);
            ended.extend(most.map(|place| left.swap_remove(place).pid));
            most.is_some()
        };
        while left.iter().map(|process| process.watches()).sum::<u64>() > self.watches {
            end(&mut left, Process::watches);
        }
        while distinct_pipes(&left) > self.pipes && end(&mut left, Process::pipes) {}
        ended
    }

    /// Returns the number of watches at which counting may stop.
    pub(super) fn max_watches_counted(share: Option<Self>) -> u64 {
        share.map_or(u64::MAX, |share| share.watches)
    }
}

/// Returns the maximum number of watches: half of the descriptors are epolls that watch the other half.
fn max_watches(count: u64) -> u64 {
    let half = count.saturating_add(MAX_IN_FLIGHT) / 2;
    half.saturating_mul(half)
}

/// Returns the maximum kernel memory of descriptors other than sockets.
pub(super) fn max_kernel_memory(count: u64) -> u64 {
    let half = count / 2;
    let pipes = count.saturating_sub(MAX_UNCOUNTED_PIPES).saturating_mul(PIPE_SIZE);
    pipes.saturating_add(half.saturating_mul(half).saturating_mul(WATCH_SIZE))
}

/// The open descriptors of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    pub(super) pid: u32,
    count: u64,
    open: Open,
}

impl Process {
    pub(super) fn scan(
        processes: &OwnedFd,
        pid: u32,
        budget: ScanBudget,
        max_watches_counted: u64,
    ) -> Self {
        let count = descriptors::count(processes, pid);
        Self { pid, count, open: descriptors::open(processes, pid, budget, max_watches_counted) }
    }

    /// Drops everything but the sockets.
    pub(super) fn keep_sockets_only(&mut self) {
        self.open.pipes.clear();
        self.open.watches = 0;
    }

    /// Returns the number of watches; of descriptors that were not scanned, the maximum.
    fn watches(&self) -> u64 {
        let half = if self.open.hidden { self.count / 2 } else { 0 };
        self.open.watches.max(half.saturating_mul(half))
    }

    fn pipes(&self) -> u64 {
        if self.open.hidden { self.count } else { self.open.pipes.len() as u64 }
    }
}

fn distinct_pipes(all: &[&Process]) -> u64 {
    let seen = all.iter().filter(|process| !process.open.hidden);
    let seen: HashSet<_> = seen.flat_map(|process| &process.open.pipes).collect();
    let hidden = all.iter().filter(|process| process.open.hidden);
    hidden.map(|process| process.count).sum::<u64>().saturating_add(seen.len() as u64)
}

/// Adds each process's share of kernel memory. Memory without a known owner, such as that of a socket in flight through
/// another one, is charged to the processes with hidden descriptors, or else to all.
pub(super) fn charge(all: &mut [MemoryUse], open: &[Process], sockets: &SocketUsage) {
    let holders = |select: fn(&Open) -> &Vec<u32>| {
        let mut holders: HashMap<u32, u64> = HashMap::new();
        for process in open {
            let own: HashSet<_> = select(&process.open).iter().copied().collect();
            own.into_iter().for_each(|inode| *holders.entry(inode).or_default() += 1);
        }
        holders
    };
    let (of_sockets, of_pipes) = (holders(|open| &open.sockets), holders(|open| &open.pipes));
    // Sockets without an inode, such as connections that wait to be accepted, are summed up.
    let mut bytes: HashMap<u32, u64> = HashMap::new();
    for socket in &sockets.sockets {
        let sum = bytes.entry(socket.inode).or_default();
        *sum = sum.saturating_add(socket.bytes);
    }
    let many = of_pipes.len() as u64 > MAX_UNCOUNTED_PIPES;
    for process in open {
        let Some(has) = all.iter_mut().find(|has| has.pid == process.pid) else { continue };
        let part = |inode: &u32, holders: &HashMap<u32, u64>, bytes: u64| {
            bytes / holders.get(inode).copied().unwrap_or(1).max(1)
        };
        let own: HashSet<_> = process.open.sockets.iter().collect();
        let in_sockets = own
            .into_iter()
            .map(|inode| part(inode, &of_sockets, bytes.get(inode).copied().unwrap_or(0)));
        let own: HashSet<_> = process.open.pipes.iter().filter(|_| many).collect();
        let in_pipes = own.into_iter().map(|inode| part(inode, &of_pipes, PIPE_SIZE));
        let hidden = if process.open.hidden { max_kernel_memory(process.count) } else { 0 };
        has.kernel = in_sockets
            .chain(in_pipes)
            .fold(process.open.watches.saturating_mul(WATCH_SIZE), u64::saturating_add)
            .saturating_add(hidden);
    }
    let found = |inode: &u32| of_sockets.contains_key(inode);
    let unowned = bytes.iter().filter(|(inode, _)| !found(inode)).map(|(_, bytes)| bytes);
    let unowned = unowned.fold(sockets.closed, |sum, bytes| sum.saturating_add(*bytes));
    let hides = |has: &MemoryUse| open.iter().any(|one| one.pid == has.pid && one.open.hidden);
    let some_hide = all.iter().any(hides);
    let mut charged: Vec<_> = all.iter_mut().filter(|has| !some_hide || hides(has)).collect();
    let each = unowned / (charged.len() as u64).max(1);
    charged.iter_mut().for_each(|has| has.kernel = has.kernel.saturating_add(each));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::sockets::SocketMemory;

    fn process(pid: u32, open: Open) -> Process {
        Process { pid, count: 100, open }
    }

    fn charged(open: &[Process], sockets: &SocketUsage) -> Vec<u64> {
        let mut all: Vec<_> =
            open.iter().map(|one| MemoryUse { pid: one.pid, ..MemoryUse::default() }).collect();
        charge(&mut all, open, sockets);
        all.iter().map(|has| has.kernel).collect()
    }

    #[test]
    fn sockets_are_charged_to_their_holders() {
        let socket = |inode, bytes| SocketMemory { inode, bytes, ..SocketMemory::default() };
        let sockets = SocketUsage { sockets: vec![socket(5, 100), socket(6, 40)], closed: 0 };
        let holds = |sockets: &[u32]| Open { sockets: sockets.to_vec(), ..Open::default() };
        let two = [process(2, holds(&[5, 5])), process(3, holds(&[5, 6]))];
        assert_eq!(charged(&two, &sockets), [50, 90]);
        // Sockets without an owner are charged to all, or to the process with hidden descriptors.
        let one = [process(2, holds(&[5])), process(3, holds(&[]))];
        assert_eq!(charged(&one, &sockets), [120, 20]);
        let hides = Open { hidden: true, ..Open::default() };
        let one = [process(2, holds(&[5])), process(3, hides)];
        assert_eq!(charged(&one, &sockets), [100, 40 + max_kernel_memory(100)]);
        // The same holds for each connection that waits to be accepted.
        let waiting = SocketUsage { sockets: vec![socket(0, 100), socket(0, 30)], closed: 0 };
        assert_eq!(charged(&[process(2, holds(&[]))], &waiting), [130]);
        let closed = SocketUsage { closed: 8, ..SocketUsage::default() };
        assert_eq!(charged(&[process(2, holds(&[]))], &closed), [8]);
    }

    #[test]
    fn many_pipes_count_as_full() {
        let pipes = |count: u32| Open { pipes: (0..count).collect(), ..Open::default() };
        assert_eq!(charged(&[process(2, pipes(64))], &SocketUsage::default()), [0]);
        assert_eq!(charged(&[process(2, pipes(65))], &SocketUsage::default()), [65 * PIPE_SIZE]);
        let watches = Open { watches: 3, ..Open::default() };
        assert_eq!(charged(&[process(2, watches)], &SocketUsage::default()), [3 * WATCH_SIZE]);
    }

    #[test]
    fn the_largest_user_of_a_shared_quota_is_killed() {
        let share = Share { watches: 100, pipes: 10 };
        let watches = |watches| Open { watches, ..Open::default() };
        let pipes = |from: u32, to: u32| Open { pipes: (from..to).collect(), ..Open::default() };
        let small = process(2, watches(20));
        assert!(share.select_excess(&[small.clone(), process(3, watches(80))]).is_empty());
        let all = [small.clone(), process(3, watches(70)), process(4, watches(50))];
        assert_eq!(share.select_excess(&all), [3]);
        assert!(
            share.select_excess(&[process(2, pipes(0, 10)), process(3, pipes(0, 9))]).is_empty()
        );
        let all = [process(2, pipes(0, 8)), process(3, pipes(5, 11))];
        assert_eq!(share.select_excess(&all), [2]);
        assert_eq!(
            share.select_excess(&[process(2, Open { hidden: true, ..Open::default() })]),
            [2]
        );
        assert!(
            share.may_be_exceeded_by(11)
                && !Share { watches: u64::MAX, ..share }.may_be_exceeded_by(10)
        );
    }
}
