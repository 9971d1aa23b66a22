//! Pauses and resumes all processes of a cell.
//!
//! Processes are stopped by a signal that no program can catch, while this process keeps running: if it were frozen
//! with the others, it could not detect the end of the host. The price is that a program may notice that it was
//! continued.

use crate::kill_tree::sleep_briefly;
use crate::processes;
use crate::roots::{Phase, Roots};
use crate::subreaper::{MAX_PROCESSES, Snapshot};
use crate::sys::{self, EBUSY, Result, SIGCONT, SIGSTOP};

/// Maximum number of scans, a millisecond apart, until every process is stopped.
const MAX_ROUNDS: u32 = 3000;

/// The cell whose processes are paused.
pub struct Scope<'a> {
    pub strict: bool,
    /// The process id of this process.
    pub own: i32,
    pub roots: &'a Roots,
}

/// The pause of a cell, and the processes that were already stopped before it.
#[derive(Default)]
pub struct PauseState {
    before: Option<&'static mut [i32]>,
    count: usize,
}

impl PauseState {
    pub fn is_paused(&self) -> bool {
        self.before.is_some()
    }

    /// Pauses every process. If some process does not stop, resumes all.
    pub fn pause(&mut self, scope: &Scope<'_>) -> Result<u32> {
        if self.is_paused() {
            return Ok(0);
        }
        let mut all = Snapshot::new()?;
        let outcome = self.record_stopped(&mut all, scope).and_then(|()| stop(&mut all, scope));
        all.free();
        if outcome.is_err() {
            self.resume(scope);
        }
        outcome.map(|()| 0)
    }

    /// Records the processes that are already stopped.
    fn record_stopped(&mut self, all: &mut Snapshot, scope: &Scope<'_>) -> Result<()> {
        // SAFETY: zero is a number.
        let before: &'static mut [i32] = unsafe { sys::table(MAX_PROCESSES) }?;
        self.count = 0;
        let taken = all.take();
        for at in 0..all.count() {
            let process = all.get(at);
            if process.is_stopped() && scope.contains(all, process.pid) {
                before[self.count] = process.pid;
                self.count += 1;
            }
        }
        self.before = Some(before);
        taken
    }

    /// Resumes every process that was not stopped before the pause.
    pub fn resume(&mut self, scope: &Scope<'_>) {
        let Some(before) = self.before.take() else { return };
        let known = &before[..self.count];
        match Snapshot::new() {
            Ok(mut all) => {
                // If listing fails part-way, resume at least the processes that were listed.
                let _ = all.take();
                resume_all(&all, scope, known);
                all.free();
            }
            Err(_) if scope.strict => drop(sys::kill(-1, SIGCONT)),
            Err(_) => {}
        }
        sys::unmap_table(before);
        self.count = 0;
    }
}

impl Scope<'_> {
    /// Returns true for a process of the cell that is not one of its subreapers.
    fn contains(&self, all: &Snapshot, pid: i32) -> bool {
        if self.strict {
            return pid != self.own;
        }
        let is_alive = |phase| matches!(phase, Phase::Starting | Phase::Running);
        if self.roots.find(|root| !root.is_adopted() && root.pid == pid).is_some() {
            return false;
        }
        let adopted = self.roots.find(|root| {
            root.is_adopted()
                && is_alive(root.phase)
                && (root.pid == pid || all.is_below(pid, root.pid))
                && !processes::is_gone(root.pidfd)
        });
        adopted.is_some() || all.is_below(pid, self.own)
    }
}

fn stop(all: &mut Snapshot, scope: &Scope<'_>) -> Result<()> {
    let mut quiet = 0;
    for _ in 0..MAX_ROUNDS {
        if scope.strict {
            // Reaches all processes at one moment, including those that are being forked.
            let _ = sys::kill(-1, SIGSTOP);
        }
        all.take()?;
        let mut moving = 0;
        for at in 0..all.count() {
            let process = all.get(at);
            if process.is_stopped() || process.dead || !scope.contains(all, process.pid) {
                continue;
            }
            moving += u32::from(!process.is_still());
            if !scope.strict {
                let _ = sys::kill(process.pid, SIGSTOP);
            }
        }
        // An unseen process may have been forked during the scan.
        quiet = if moving == 0 { quiet + 1 } else { 0 };
        if quiet == 2 {
            return Ok(());
        }
        if moving > 0 {
            sleep_briefly();
        }
    }
    Err(EBUSY)
}

/// Resumes descendants before their ancestors: a parent that waits for a child then never finds it stopped.
fn resume_all(all: &Snapshot, scope: &Scope<'_>, before: &[i32]) {
    let resume_one = |at: usize| {
        let pid = all.get(at).pid;
        // Includes a process that is not stopped yet: it waits in the kernel, and would stop when that wait ends.
        if scope.contains(all, pid) && !before.contains(&pid) {
            let _ = sys::kill(pid, SIGCONT);
        }
    };
    // SAFETY: zero is a number.
    let Ok(depths) = (unsafe { sys::table::<usize>(all.count().max(1)) }) else {
        return (0..all.count()).for_each(resume_one);
    };
    let mut deepest = 0;
    for (at, depth) in depths.iter_mut().take(all.count()).enumerate() {
        *depth = all.depth(all.get(at).pid);
        deepest = deepest.max(*depth);
    }
    for depth in (0..=deepest).rev() {
        (0..all.count()).filter(|at| depths[*at] == depth).for_each(resume_one);
    }
    sys::unmap_table(depths);
}
