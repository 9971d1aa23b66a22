//! Holding all processes of a cell still, and letting them go on.
//!
//! They are stopped by a signal that no program can catch, and this process goes on: frozen with the others it could not
//! hear that the host is gone. The price is that a program may see that it was continued.

use crate::subreaper::{MAX_PROCESSES, Snapshot};
use crate::processes;
use crate::roots::{Phase, Roots};
use crate::sys::{self, EBUSY, Result, SIGCONT, SIGSTOP};
use crate::kill_tree::sleep_briefly;

/// How often all are looked at, a millisecond apart, until everything is still.
const MAX_ROUNDS: u32 = 3000;

/// Whose processes there are.
pub struct Scope<'a> {
    pub strict: bool,
    /// The number of this process.
    pub own: i32,
    pub roots: &'a Roots,
}

/// Whether the processes of a cell are held, and which had been stopped before.
#[derive(Default)]
pub struct PauseState {
    before: Option<&'static mut [i32]>,
    count: usize,
}

impl PauseState {
    pub fn is_paused(&self) -> bool {
        self.before.is_some()
    }

    /// Stops everything. What does not stop goes on, and so does all else.
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

    /// Takes note of what is stopped already.
    fn record_stopped(&mut self, all: &mut Snapshot, scope: &Scope<'_>) -> Result<()> {
        // SAFETY: zero is a number.
        let before: &'static mut [i32] = unsafe { sys::table(MAX_PROCESSES) }?;
        self.count = 0;
        let taken = all.take();
        for at in 0..all.count() {
            let process = all.get(at);
            if process.is_stopped() && scope.has(all, process.pid) {
                before[self.count] = process.pid;
                self.count += 1;
            }
        }
        self.before = Some(before);
        taken
    }

    /// Lets everything go on but what had been stopped before.
    pub fn resume(&mut self, scope: &Scope<'_>) {
        let Some(before) = self.before.take() else { return };
        let known = &before[..self.count];
        match Snapshot::new() {
            Ok(mut all) => {
                // What cannot be seen cannot be let go either; what was seen can.
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
    /// Whether a process is one of the cell's, and none of ours that only looks after one.
    fn has(&self, all: &Snapshot, pid: i32) -> bool {
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
            // All there are at one moment, also those that come to be now.
            let _ = sys::kill(-1, SIGSTOP);
        }
        all.take()?;
        let mut moving = 0;
        for at in 0..all.count() {
            let process = all.get(at);
            if process.is_stopped() || process.dead || !scope.has(all, process.pid) {
                continue;
            }
            moving += u32::from(!process.is_still());
            if !scope.strict {
                let _ = sys::kill(process.pid, SIGSTOP);
            }
        }
        // One that was not seen may have been made while the others were looked at.
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

/// The youngest of a family first: one that waits for another goes on after it, and so never meets it while it is stopped.
fn resume_all(all: &Snapshot, scope: &Scope<'_>, before: &[i32]) {
    let resume_one = |at: usize| {
        let pid = all.get(at).pid;
        // Also one that is not stopped yet: it waits for the kernel, and would be when it has what it waits for.
        if scope.has(all, pid) && !before.contains(&pid) {
            let _ = sys::kill(pid, SIGCONT);
        }
    };
    // SAFETY: zero is a number.
    let Ok(depths) = (unsafe { sys::table::<usize>(all.count().max(1)) }) else {
        return (0..all.count()).for_each(resume_one);
    };
    let mut deepest = 0;
    for at in 0..all.count() {
        depths[at] = all.depth(all.get(at).pid);
        deepest = deepest.max(depths[at]);
    }
    for depth in (0..=deepest).rev() {
        (0..all.count()).filter(|at| depths[*at] == depth).for_each(resume_one);
    }
    sys::unmap_table(depths);
}
