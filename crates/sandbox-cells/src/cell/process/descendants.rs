//! Finds what a process of this host has started lately, in the host's `/proc`.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, sleep};

use super::proc_stat::{ProcStat, processes, status};

/// Maximum number of times that new processes are looked for. Those that were found are stopped and start no more.
const MAX_ROUNDS: u32 = 20;

const ROUND_INTERVAL: Duration = Duration::from_millis(1);

/// The unit of start times. It is the same on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// A moment as start times have it: ticks since the host was booted.
type Ticks = u128;

/// Processes that were started after one moment, and for certain not before another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    since: Ticks,
    /// Set when processes that were started in the tick of `since` itself count too.
    inclusive: bool,
}

impl Started {
    /// Selects what was started after `since`, when something else ended at `former`. What may have been started by
    /// that does not count.
    pub(crate) fn since(since: Instant, former: Option<Instant>) -> Self {
        let now = boot_time();
        let ticks = |at: Instant| now.saturating_sub(at.elapsed()).as_nanos() / TICK.as_nanos();
        let inclusive = former.is_none_or(|former| ticks(former) < ticks(since));
        Self { since: ticks(since), inclusive }
    }

    fn has(self, start: Ticks) -> bool {
        start > self.since || self.inclusive && start == self.since
    }
}

fn boot_time() -> Duration {
    // Cannot fail for this clock; a time since boot is never negative.
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn everything() -> Vec<ProcStat> {
    processes().filter_map(ProcStat::read).collect()
}

/// Returns the children of `root` that were started then, and everything below them.
fn descendants(root: u32, started: Started) -> Vec<ProcStat> {
    let all = everything();
    let is_child = |seen: &&ProcStat| seen.parent == root && started.has(seen.start.into());
    let mut found: Vec<ProcStat> = all.iter().filter(is_child).copied().collect();
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|seen| seen.pid) {
        found.extend(all.iter().filter(|seen| seen.parent == parent).copied());
        next += 1;
    }
    found.retain(|seen| !seen.dead);
    found
}

/// Returns the host's id of a process that a cell, whose first process is `first`, knows as `inside`.
pub(crate) fn host_pid(first: u32, inside: u32) -> Option<u32> {
    let all = everything();
    let mut members = vec![first];
    let mut next = 0;
    while let Some(parent) = members.get(next).copied() {
        members.extend(all.iter().filter(|seen| seen.parent == parent).map(|seen| seen.pid));
        next += 1;
    }
    members.into_iter().find(|pid| *pid != first && is_known_as(*pid, inside))
}

/// Returns the host's id of the parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    ProcStat::read(pid).map(|seen| seen.parent)
}

/// Returns true when the innermost process namespace of a process has that id for it.
fn is_known_as(pid: u32, inside: u32) -> bool {
    let numbers = status(pid, "NSpid");
    let innermost = numbers.as_deref().and_then(|numbers| numbers.split_whitespace().next_back());
    innermost.is_some_and(|number| number.parse() == Ok(inside))
}

/// Opens a process that cannot be mistaken for a later one with its id.
fn hold(seen: ProcStat) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(seen.pid).ok()?)?;
    let held = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    ProcStat::read(seen.pid).is_some_and(|now| now.start == seen.start).then_some(held)
}

/// Kills what `root` has started then, with everything below it.
///
/// Processes that have other parents by now, as a daemon has, are not found.
pub(crate) async fn end(root: u32, started: Started) {
    let (mut known, mut held) = (BTreeSet::new(), Vec::new());
    for _ in 0..MAX_ROUNDS {
        let new: Vec<ProcStat> =
            descendants(root, started).into_iter().filter(|seen| known.insert(seen.pid)).collect();
        if new.is_empty() {
            break;
        }
        for process in new.into_iter().filter_map(hold) {
            // A stopped process starts no more, and what it has started stays below it.
            let _ = pidfd_send_signal(process.as_fd(), Signal::STOP);
            held.push(process);
        }
        sleep(ROUND_INTERVAL).await;
    }
    for process in held {
        let _ = pidfd_send_signal(process.as_fd(), Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(since: Ticks, inclusive: bool) -> Started {
        Started { since, inclusive }
    }

    #[test]
    fn what_is_older_does_not_count() {
        assert!(!started(100, true).has(99));
        assert!(started(100, true).has(100));
        assert!(started(100, true).has(101));
    }

    #[test]
    fn what_may_be_older_does_not_count() {
        assert!(!started(100, false).has(100));
        assert!(started(100, false).has(101));
    }

    #[tokio::test]
    async fn only_an_end_in_the_same_tick_leaves_a_doubt() {
        let now = Instant::now();
        assert!(Started::since(now, None).inclusive);
        assert!(Started::since(now, now.checked_sub(2 * TICK)).inclusive);
        assert!(!Started::since(now, Some(now)).inclusive);
    }

    #[test]
    fn this_process_has_started_before_now() {
        let own = ProcStat::read(std::process::id()).unwrap();
        assert!(u128::from(own.start) <= boot_time().as_nanos() / TICK.as_nanos());
        assert!(!own.dead);
        assert!(everything().iter().any(|seen| seen.pid == own.pid));
    }
}
