//! Stops all processes of a cell for a moment, so that no process replaces another during a scan.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use super::processes;

/// Maximum number of rounds in which new processes are stopped as well.
const MAX_ROUNDS: usize = 100;

/// Time for a signal to reach a process that is forking.
const SIGNAL_DELAY: Duration = Duration::from_millis(1);

/// Stopped processes, which continue when the guard is dropped.
#[derive(Debug)]
pub(super) struct StopGuard {
    /// `None` for a process that was already stopped or has ended; it is left so.
    processes: HashMap<u32, Option<OwnedFd>>,
    is_complete: bool,
}

impl StopGuard {
    /// Stops all processes. An error means that the cell is gone.
    pub(super) fn stop_all(cell: &OwnedFd) -> io::Result<Self> {
        let mut stopped = Self { processes: HashMap::new(), is_complete: false };
        for round in 0..MAX_ROUNDS {
            let before = stopped.processes.len();
            let gone = processes::for_each(cell, |pid| {
                // A new process was forked by one that was not stopped a moment ago, so it is not stopped either.
                let is_old = round == 0;
                stopped.processes.contains_key(&pid) || stopped.add(cell, pid, is_old)
            })?;
            let is_quiet = gone == 0 && stopped.processes.len() == before;
            if is_quiet && stopped.is_complete {
                return Ok(stopped);
            }
            stopped.is_complete = is_quiet;
            if is_quiet {
                thread::sleep(SIGNAL_DELAY);
            }
        }
        stopped.is_complete = false;
        Ok(stopped)
    }

    /// Stops a process; returns whether it exists.
    fn add(&mut self, cell: &OwnedFd, pid: u32, is_old: bool) -> bool {
        if is_old && processes::is_stopped(cell, pid) {
            self.processes.insert(pid, None);
            return true;
        }
        let Some(process) = processes::open(cell, pid) else { return false };
        let is_there = pidfd_send_signal(&process, Signal::STOP).is_ok();
        if is_there {
            self.processes.insert(pid, Some(process));
        }
        is_there
    }

    /// Returns true when no process is left running.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        for process in self.processes.values().flatten() {
            // The process may have ended.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}
