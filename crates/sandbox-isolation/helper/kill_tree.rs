//! Kills and signals process trees in a strict cell.
//!
//! Every root has a UTS namespace of its own, inherited by its descendants. Code in a cell can neither leave the
//! namespace nor enter another: it has no capability, and cannot make a user namespace to get one. So the namespace is
//! a tag that daemons cannot drop. A process whose tag is unreadable, or belongs to no root, is treated as hostile and
//! killed with the first tree that is killed.

use crate::exit_events::read_starts;
use crate::processes;
use crate::roots::{Phase, Roots};
use crate::sys::{self, EBUSY, EINTR, ESRCH, Result};

/// Maximum number of rounds in which new processes appear in a tree that is being killed.
const MAX_GROWTH_ROUNDS: u32 = 20;
const MAX_ROUNDS: u32 = 2000;

/// Kills the tree of one root. `reap` reaps dead processes between rounds. Returns true if everything in the cell was
/// killed, which is the case when the root is the only one.
///
/// If processes cannot be listed, no process is known to be dead, which is an error.
pub fn kill(roots: &mut Roots, index: usize, reap: &mut dyn FnMut(&mut Roots)) -> Result<bool> {
    let (id, tag) = (roots.at(index).id, roots.at(index).tag);
    let is_only_root = roots.find(|root| root.id != id).is_none();
    if !is_only_root {
        let mut killed_pids = KilledPids::new()?;
        let outcome = kill_one_tree(roots, id, tag, &mut killed_pids, reap);
        killed_pids.free();
        if outcome? {
            return Ok(false);
        }
    }
    kill_everything(roots, reap).map(|()| true)
}

/// Returns true when the tree is gone, false when it grows as fast as it is killed.
fn kill_one_tree(
    roots: &mut Roots,
    id: u32,
    tag: u32,
    killed_pids: &mut KilledPids,
    reap: &mut dyn FnMut(&mut Roots),
) -> Result<bool> {
    let mut growth = 0;
    for count in 0..MAX_ROUNDS {
        let round = kill_round(roots, id, tag, killed_pids)?;
        reap(roots);
        if round.killed == 0 {
            return Ok(true);
        }
        // Processes that were already killed only need time: they free much memory, or the machine is busy.
        growth += u32::from(round.new != 0);
        if growth == MAX_GROWTH_ROUNDS {
            return Ok(false);
        }
        // A growing tree gets no more rounds in the same time.
        if count == 0 || round.new == 0 {
            sleep_for_deaths(count);
        } else {
            sleep_briefly();
        }
    }
    Err(EBUSY)
}

/// The processes that were already killed, one bit for each process id.
struct KilledPids {
    bits: &'static mut [u8],
}

impl KilledPids {
    /// The maximum number of process ids of the kernel.
    const IDS: usize = 4 << 20;

    fn new() -> Result<Self> {
        Ok(Self { bits: sys::allocate(Self::IDS / 8)? })
    }

    /// Adds a process; returns true if it is new.
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
    /// The number of those killed for the first time.
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
    // A process sleeps in the kernel where no signal reaches it.
    Err(EBUSY)
}

/// Returns true when a process runs, or cannot be ruled out to run.
fn is_alive(pid: i32) -> bool {
    processes::read(pid).map_or_else(|| !is_gone(pid), |process| !process.dead)
}

/// Returns true when there is no such process, not even a zombie.
fn is_gone(pid: i32) -> bool {
    sys::kill(pid, 0) == Err(ESRCH)
}

/// Kills every process that does not belong to another root.
fn kill_round(
    roots: &mut Roots,
    victim: u32,
    victim_tag: u32,
    killed_pids: &mut KilledPids,
) -> Result<Round> {
    let mut round = Round { killed: 0, new: 0 };
    processes::for_each(|pid| {
        if pid == 1 || is_spared(roots, pid, victim, victim_tag) {
            return;
        }
        // It may belong to a program that has started meanwhile: its tag is sent before the program runs.
        read_starts(roots, true);
        if !is_spared(roots, pid, victim, victim_tag) {
            let _ = sys::kill(pid, sys::SIGKILL);
            round.killed += 1;
            round.new += u32::from(killed_pids.add(pid));
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
            // The kernel reuses the inode number of an ended namespace, possibly for the killed tree.
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

/// Returns true for a checkpoint, or a child of one, which will replace it. They have the tag of the tree they came
/// from, but belong to no tree.
fn is_checkpoint(roots: &Roots, pid: i32) -> bool {
    if roots.find(|root| root.phase == Phase::Checkpoint).is_none() {
        return false;
    }
    let waits = |pid| {
        let found = roots.find(|root| root.pid == pid && root.phase == Phase::Checkpoint);
        found.is_some_and(|index| !processes::is_gone(roots.get(index).pidfd))
    };
    waits(pid) || processes::read(pid).is_some_and(|process| waits(process.parent))
}

/// Returns true for a process with an unreadable tag that is dead, or whose ancestors include another root: it cannot
/// control its ancestors.
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

/// Removes dead roots whose trees have ended and whose handles were dropped.
pub fn forget_ended(roots: &mut Roots) {
    let mut seen = [0_u64; crate::roots::MAX_ROOTS / 64];
    let listed = processes::for_each(|pid| {
        let Some(tag) = processes::tag(pid) else { return };
        for index in roots.indices() {
            if roots.at(index).tag == tag {
                seen[index / 64] |= 1 << (index % 64);
            }
        }
    });
    if listed.is_err() {
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

/// Sleeps for a millisecond, so that killed processes can exit.
pub fn sleep_briefly() {
    wait(1000);
}

/// Sleeps for a shorter time in the first rounds, because most processes exit at once.
fn sleep_for_deaths(rounds: u32) {
    wait(if rounds < 20 { 100 } else { 1000 });
}

fn wait(microseconds: u32) {
    while sys::poll(&mut [], Some(microseconds)) == Err(EINTR) {}
}
