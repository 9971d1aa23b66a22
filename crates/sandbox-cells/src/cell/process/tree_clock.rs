//! Processor time of a process of a cell and of everything it has started, as the host's `/proc` tells.
//!
//! In a strict cell whatever comes from one root has its UTS namespace, which it cannot shed: see `tree.rs` of the helper.
//! Elsewhere a worker takes in what loses its parent, as the keeper of a program does, so that all of it is below that.
//!
//! What has ended counts in two ways, and the larger sum holds: whoever has waited for it has its time from the kernel, and
//! what nobody has waited for, or the cell's first process has, counts as it was seen last. So code has to start processes
//! that live for less than two looks, and have them reaped unseen, to use some that is not counted.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::proc_stat::{ProcStat, processes};
use sandbox_engine::host::TreeClock;

/// The unit of processor times. It is the same on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// What tells one process from a later one with its number.
fn key(seen: &ProcStat) -> (u32, u64) {
    (seen.pid, seen.start)
}

/// A clock of one process and all that comes from it.
#[derive(Debug)]
pub(crate) struct ProcTree {
    root: u32,
    /// The first process of its cell, to which what has lost its parent goes.
    first: Option<u32>,
    /// Its UTS namespace, where it has one of its own.
    tag: Option<PathBuf>,
    /// Own times as they were seen last, by number and start.
    known: HashMap<(u32, u64), u64>,
    /// Own times of those that are gone.
    gone: u64,
    /// Both sums when the clock was made.
    began: (u64, u64),
}

impl ProcTree {
    /// A clock for what is used from now on. `first` is the first process of a strict cell.
    pub(crate) fn new(root: u32, first: Option<u32>) -> Self {
        let tag = tag_of(root).filter(|tag| tag_of(std::process::id()).as_ref() != Some(tag));
        let (known, gone, began) = (HashMap::new(), 0, (0, 0));
        let mut clock =
            Self { root, first: first.filter(|_| tag.is_some()), tag, known, gone, began };
        clock.began = clock.sums();
        clock
    }

    /// The time with what was waited for, and the time with what is gone.
    fn sums(&mut self) -> (u64, u64) {
        let members = self.members();
        let waited = members.iter().map(|seen| seen.times.own + seen.times.waited).sum();
        let mut known = HashMap::with_capacity(members.len());
        for seen in &members {
            self.known.remove(&key(seen));
            known.insert(key(seen), seen.times.own);
        }
        self.gone += self.known.values().sum::<u64>();
        let living: u64 = known.values().sum();
        self.known = known;
        (waited, living + self.gone)
    }

    fn members(&self) -> Vec<ProcStat> {
        let mut members: Vec<ProcStat> = ProcStat::read(self.root).into_iter().collect();
        // Whose tag cannot be read may be of this tree: its parents decide.
        let mut others = Vec::new();
        for pid in processes().filter(|pid| *pid != self.root && Some(*pid) != self.first) {
            match (&self.tag, self.tag.as_ref().and_then(|_| tag_of(pid))) {
                (Some(tag), Some(found)) if found == *tag => members.extend(ProcStat::read(pid)),
                (Some(_), Some(_)) => {}
                _ => others.extend(ProcStat::read(pid)),
            }
        }
        loop {
            // The dead have no tag. One that waits for the first process may have been anybody's, such as another command.
            let is_inside = |seen: &ProcStat| {
                (Some(seen.parent) == self.first
                    && (!seen.dead || self.known.contains_key(&key(seen))))
                    || members.iter().any(|member| member.pid == seen.parent)
            };
            let (inside, outside): (Vec<_>, Vec<_>) = others.into_iter().partition(is_inside);
            if inside.is_empty() {
                return members;
            }
            members.extend(inside);
            others = outside;
        }
    }
}

impl TreeClock for ProcTree {
    fn used(&mut self) -> Duration {
        let (waited, gone) = self.sums();
        let used = waited.saturating_sub(self.began.0).max(gone.saturating_sub(self.began.1));
        TICK * u32::try_from(used).unwrap_or(u32::MAX)
    }
}

fn tag_of(pid: u32) -> Option<PathBuf> {
    let first = fs::read_link(format!("/proc/{pid}/ns/uts"));
    // Its first thread may have ended, and others go on.
    first.ok().or_else(|| {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        threads.find_map(|thread| fs::read_link(thread.ok()?.path().join("ns/uts")).ok())
    })
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// Shell that burns some time.
    const BURN: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

    fn shell(script: &str) -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).spawn().unwrap()
    }

    fn shows(clock: &mut ProcTree, least: Duration) -> bool {
        let end = Instant::now() + Duration::from_secs(30);
        while Instant::now() < end {
            if clock.used() >= least {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn time_of_children_counts_living_and_dead() {
        let script = format!("read x 2>/dev/null; sleep 0.2; ({BURN}); ({BURN}) & wait; sleep 100");
        let mut root = shell(&script);
        let mut clock = ProcTree::new(root.id(), None);
        assert_eq!(clock.used(), Duration::ZERO, "nothing was used yet");
        assert!(shows(&mut clock, Duration::from_millis(100)));
        let shown = clock.used();
        assert!(clock.used() >= shown, "it never goes back");
        root.kill().unwrap();
        root.wait().unwrap();
        assert!(clock.used() >= shown / 2, "what is gone still counts");
    }

    #[test]
    fn the_dead_of_others_do_not_count() {
        let mut root = shell("sleep 100");
        let mut clock = ProcTree::new(root.id(), None);
        // As in a cell whose first process is this one.
        (clock.first, clock.tag) = (Some(std::process::id()), Some("uts:[0]".into()));
        let mut other = shell(BURN);
        while !ProcStat::read(other.id()).is_some_and(|seen| seen.dead) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(ProcStat::read(other.id()).is_some_and(|seen| seen.times.own >= 5), "control");
        assert!(clock.used() < Duration::from_millis(50), "{:?}", clock.used());
        other.wait().unwrap();
        root.kill().unwrap();
        root.wait().unwrap();
    }

    #[test]
    fn time_of_others_does_not_count() {
        let mut root = shell("sleep 100");
        let mut other = shell(BURN);
        let mut clock = ProcTree::new(root.id(), None);
        other.wait().unwrap();
        assert!(clock.used() < Duration::from_millis(50), "{:?}", clock.used());
        root.kill().unwrap();
        root.wait().unwrap();
    }
}
