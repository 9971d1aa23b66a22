//! Killing and signalling process trees in a strict cell.
//!
//! Every root has a UTS namespace of its own, inherited by all it starts. Code in a cell can
//! neither leave it nor enter another: it has no capability, and cannot make a user namespace to
//! get one. So the namespace is a tag that daemons cannot shed. A process whose tag nobody can
//! read or no root has is treated as hostile and goes with the first tree that is killed.

use crate::processes;
use crate::roots::{Phase, Roots};
use crate::sys::{self, EBUSY, EINTR, ESRCH, Result};

/// How often new processes may appear in a tree that is being killed.
const MAX_GROWTH_ROUNDS: u32 = 20;
const MAX_ROUNDS: u32 = 2000;

/// Kills the tree of one root. `reap` takes the dead between rounds. Returns whether everything in
/// the cell was killed, which is what happens when the root is the only one.
///
/// Where processes cannot be looked for, nothing is known to be dead, and that is an error.
pub fn kill(roots: &mut Roots, index: usize, reap: &mut dyn FnMut(&mut Roots)) -> Result<bool> {
    let (id, tag) = (roots.at(index).id, roots.at(index).tag);
    let alone = roots.find(|root| root.id != id).is_none();
    if !alone {
        let mut known = Known::new()?;
        let outcome = kill_one_tree(roots, id, tag, &mut known, reap);
        known.free();
        if outcome? {
            return Ok(false);
        }
    }
    kill_everything(roots, reap).map(|()| true)
}

/// Returns whether the tree is gone. It is not when it grows as fast as it is killed.
fn kill_one_tree(
    roots: &mut Roots,
    id: u32,
    tag: u32,
    known: &mut Known,
    reap: &mut dyn FnMut(&mut Roots),
) -> Result<bool> {
    let mut growth = 0;
    for count in 0..MAX_ROUNDS {
        let round = kill_round(roots, id, tag, known)?;
        reap(roots);
        if round.killed == 0 {
            return Ok(true);
        }
        // What has been killed before only takes its time: much memory, or a busy machine.
        growth += u32::from(round.new != 0);
        if growth == MAX_GROWTH_ROUNDS {
            return Ok(false);
        }
        // A tree that grows gets no more rounds in the same time.
        if count == 0 || round.new == 0 {
            sleep_for_deaths(count);
        } else {
            sleep_briefly();
        }
    }
    Err(EBUSY)
}

/// The processes that were killed before, one bit for each process id.
struct Known {
    bits: &'static mut [u8],
}

impl Known {
    /// As many process ids as the kernel allows.
    const IDS: usize = 4 << 20;

    fn new() -> Result<Self> {
        Ok(Self { bits: sys::allocate(Self::IDS / 8)? })
    }

    /// Returns whether this one is new.
    fn add(&mut self, pid: i32) -> bool {
        let (byte, bit) = (pid as usize / 8, 1 << (pid % 8));
        let Some(bits) = self.bits.get_mut(byte) else { return true };
        let new = *bits & bit == 0;
        *bits |= bit;
        new
    }

    fn free(self) {
        sys::unmap(self.bits);
    }
}

struct Round {
    killed: u32,
    /// Of these, how many for the first time.
    new: u32,
}

/// Kills every process of the cell but this one.
fn kill_everything(roots: &mut Roots, reap: &mut dyn FnMut(&mut Roots)) -> Result<()> {
    for count in 0..MAX_ROUNDS {
        let _ = sys::kill(-1, sys::SIGKILL);
        reap(roots);
        let mut alive = 0;
        processes::for_each(|pid| {
            if pid != 1 && is_alive(pid) {
                alive += 1;
            }
        })?;
        if alive == 0 {
            return Ok(());
        }
        sleep_for_deaths(count);
    }
    // Something sleeps in the kernel where no signal reaches it.
    Err(EBUSY)
}

/// Whether a process runs, or may run for all we can see.
fn is_alive(pid: i32) -> bool {
    processes::read(pid).map_or_else(|| !is_gone(pid), |process| !process.dead)
}

/// Whether there is no such process, not even a dead one.
fn is_gone(pid: i32) -> bool {
    sys::kill(pid, 0) == Err(ESRCH)
}

/// Kills what does not belong to another root.
fn kill_round(roots: &mut Roots, victim: u32, victim_tag: u32, known: &mut Known) -> Result<Round> {
    let mut round = Round { killed: 0, new: 0 };
    processes::for_each(|pid| {
        if pid != 1 && !is_spared(roots, pid, victim, victim_tag) {
            let _ = sys::kill(pid, sys::SIGKILL);
            round.killed += 1;
            round.new += u32::from(known.add(pid));
        }
    })?;
    Ok(round)
}

fn is_spared(roots: &Roots, pid: i32, victim: u32, victim_tag: u32) -> bool {
    if is_other_root(roots, pid, victim) {
        return true;
    }
    match processes::tag(pid) {
        Some(tag) => {
            // The number of a namespace that ended may be used again, by the victim's for one.
            tag != victim_tag && roots.find(|root| root.id != victim && root.tag == tag).is_some()
        }
        None => is_dead_or_below_other(roots, pid, victim),
    }
}

fn is_other_root(roots: &Roots, pid: i32, victim: u32) -> bool {
    let alive = |phase| matches!(phase, Phase::Starting | Phase::Running);
    let other = roots.find(|root| root.pid == pid && root.id != victim && alive(root.phase));
    other.is_some() || is_checkpoint(roots, pid)
}

/// Whether a process waits to be resumed, or is the child of one that does: what that will leave in its place. They have the
/// tag of the tree that they came from, and belong to none.
fn is_checkpoint(roots: &Roots, pid: i32) -> bool {
    if roots.find(|root| root.phase == Phase::Checkpoint).is_none() {
        return false;
    }
    let waits = |pid| {
        let held = roots.find(|root| root.pid == pid && root.phase == Phase::Checkpoint);
        held.is_some_and(|index| !processes::is_gone(roots.get(index).pidfd))
    };
    waits(pid) || processes::read(pid).is_some_and(|process| waits(process.parent))
}

/// A process that hides its tag is spared only when its parents lead to another root: that is
/// beyond its control.
fn is_dead_or_below_other(roots: &Roots, pid: i32, victim: u32) -> bool {
    let mut at = pid;
    for step in 0..64 {
        let Some(process) = processes::read(at) else { return step == 0 && is_gone(at) };
        if step == 0 && process.dead {
            return true;
        }
        at = process.parent;
        if at <= 1 {
            return false;
        }
        if is_other_root(roots, at, victim) {
            return true;
        }
    }
    false
}

/// Sends a signal to every process of the tree with that tag; returns how many there were.
pub fn signal(roots: &Roots, tag: u32, signal: i32) -> Result<u32> {
    let mut count = 0;
    processes::for_each(|pid| {
        let belongs = pid != 1 && processes::tag(pid) == Some(tag) && !is_checkpoint(roots, pid);
        if belongs && sys::kill(pid, signal).is_ok() {
            count += 1;
        }
    })?;
    Ok(count)
}

/// Forgets dead roots whose trees have ended and whose handles are gone.
pub fn forget_ended(roots: &mut Roots) {
    let mut seen = [0_u64; crate::roots::MAX_ROOTS / 64];
    let looked = processes::for_each(|pid| {
        let Some(tag) = processes::tag(pid) else { return };
        for index in roots.indices() {
            if roots.at(index).tag == tag {
                seen[index / 64] |= 1 << (index % 64);
            }
        }
    });
    if looked.is_err() {
        return; // what was not seen may well be there
    }
    for index in roots.indices() {
        let root = roots.at(index);
        let ended = seen[index / 64] & 1 << (index % 64) == 0;
        if root.phase == Phase::Dead && root.forgotten && ended {
            roots.remove(index);
        }
    }
}

/// Lets the dying die.
pub fn sleep_briefly() {
    wait(1000);
}

/// The same where most deaths take no time: after that many rounds, they do.
fn sleep_for_deaths(rounds: u32) {
    wait(if rounds < 20 { 100 } else { 1000 });
}

fn wait(microseconds: u32) {
    while sys::poll(&mut [], Some(microseconds)) == Err(EINTR) {}
}
