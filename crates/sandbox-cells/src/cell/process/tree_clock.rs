//! Measures the processor time and the memory of a process of a cell and of everything it has started, from the host's
//! `/proc`.
//!
//! In a strict cell all descendants of one root have its UTS namespace, which they cannot leave: see `kill_tree.rs` of
//! the helper. Elsewhere a worker adopts processes that lose their parent, as the subreaper of a program does, so that
//! all of them are below it.
//!
//! The time of ended processes is counted in two ways, and the larger sum holds: a parent that has reaped them has
//! their time from the kernel, and processes that were not reaped, or were reaped by the cell's first process, count
//! with the time that was read last. So code has to start processes that live for less than two measurements, and have
//! them reaped meanwhile, to use time that is not counted.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::proc_stat::{ProcStat, memory_of, processes};
use sandbox_engine::host::TreeClock;

/// The unit of processor times. It is the same on every architecture.
const TICK: Duration = Duration::from_millis(10);

/// Tells a process from a later one with its id.
fn key(seen: &ProcStat) -> (u32, u64) {
    (seen.pid, seen.start)
}

/// A clock of one process and its descendants.
#[derive(Debug)]
pub(crate) struct ProcTree {
    root: u32,
    /// The first process of its cell, which adopts processes that have lost their parent.
    first: Option<u32>,
    /// The UTS namespace of the root, where it has one of its own.
    tag: Option<PathBuf>,
    /// Times that were read last, by id and start.
    known: HashMap<(u32, u64), u64>,
    /// The sum of the times of ended processes.
    gone: u64,
    /// Both sums when the clock was made.
    began: (u64, u64),
}

impl ProcTree {
    /// Starts a clock. `first` is the first process of a strict cell.
    pub(crate) fn new(root: u32, first: Option<u32>) -> Self {
        let tag = tag_of(root).filter(|tag| tag_of(std::process::id()).as_ref() != Some(tag));
        let (known, gone, began) = (HashMap::new(), 0, (0, 0));
        let mut clock =
            Self { root, first: first.filter(|_| tag.is_some()), tag, known, gone, began };
        clock.began = clock.sums();
        clock
    }

    /// Returns the time with reaped children, and the time with ended processes.
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
        // A process whose tag cannot be read may be of this tree: its parents decide.
        let mut others = Vec::new();
        for pid in processes().filter(|pid| *pid != self.root && Some(*pid) != self.first) {
            match (&self.tag, self.tag.as_ref().and_then(|_| tag_of(pid))) {
                (Some(tag), Some(found)) if found == *tag => members.extend(ProcStat::read(pid)),
                (Some(_), Some(_)) => {}
                _ => others.extend(ProcStat::read(pid)),
            }
        }
        loop {
            // The dead have no tag. A dead child of the first process may come from any tree, such as another command.
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

    fn memory(&mut self, exact: bool) -> u64 {
        let members = self.members();
        members.iter().filter(|seen| !seen.dead).map(|seen| memory_of(seen.pid, exact)).sum()
    }
}

fn tag_of(pid: u32) -> Option<PathBuf> {
    let first = fs::read_link(format!("/proc/{pid}/ns/uts"));
    // Its first thread may have ended while others live.
    first.ok().or_else(|| {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        threads.find_map(|thread| fs::read_link(thread.ok()?.path().join("ns/uts")).ok())
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// A shell command that uses some time.
    const BURN: &str = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";

    /// A shell in a process group of its own, which ends with this.
    struct Shell(Child);

    impl Shell {
        fn start(script: &str) -> Self {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdin(Stdio::null()).process_group(0);
            Self(command.spawn().unwrap())
        }

        fn id(&self) -> u32 {
            self.0.id()
        }

        fn kill(&mut self) {
            if matches!(self.0.try_wait(), Ok(None)) {
                kill_process_group(Pid::from_child(&self.0), Signal::KILL).unwrap();
                self.0.wait().unwrap();
            }
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            self.kill();
        }
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
        let mut root = Shell::start(&script);
        let mut clock = ProcTree::new(root.id(), None);
        assert_eq!(clock.used(), Duration::ZERO, "nothing was used yet");
        assert!(shows(&mut clock, Duration::from_millis(100)));
        let shown = clock.used();
        assert!(clock.used() >= shown, "it never goes back");
        root.kill();
        assert!(clock.used() >= shown / 2, "what is gone still counts");
    }

    #[test]
    fn the_dead_of_others_do_not_count() {
        let root = Shell::start("sleep 100");
        let mut clock = ProcTree::new(root.id(), None);
        // As in a cell whose first process is this one.
        (clock.first, clock.tag) = (Some(std::process::id()), Some("uts:[0]".into()));
        let other = Shell::start(BURN);
        while !ProcStat::read(other.id()).is_some_and(|seen| seen.dead) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(ProcStat::read(other.id()).is_some_and(|seen| seen.times.own >= 5), "control");
        assert!(clock.used() < Duration::from_millis(50), "{:?}", clock.used());
    }

    #[test]
    fn time_of_others_does_not_count() {
        let root = Shell::start("sleep 100");
        let mut other = Shell::start(BURN);
        let mut clock = ProcTree::new(root.id(), None);
        other.0.wait().unwrap();
        assert!(clock.used() < Duration::from_millis(50), "{:?}", clock.used());
    }
}
