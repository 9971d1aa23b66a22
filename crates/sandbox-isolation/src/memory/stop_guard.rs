//! All processes of a cell, stopped for a moment, so that none follows another while they are looked at.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use super::processes;

/// How often those that are new are stopped as well, before that is given up.
const MAX_ROUNDS: usize = 100;

/// How long a signal takes to reach a process that is making another one.
const SIGNAL_DELAY: Duration = Duration::from_millis(1);

/// Processes that go on when this is dropped.
#[derive(Debug)]
pub(super) struct StopGuard {
    /// `None`: somebody else has stopped it, or it has ended, and it stays so.
    processes: HashMap<u32, Option<OwnedFd>>,
    is_whole: bool,
}

impl StopGuard {
    /// An error means that the cell is gone.
    pub(super) fn stop_all(cell: &OwnedFd) -> io::Result<Self> {
        let mut stopped = Self { processes: HashMap::new(), is_whole: false };
        for round in 0..MAX_ROUNDS {
            let before = stopped.processes.len();
            let gone = processes::each(cell, |pid| {
                // Who is new was made by one that was not stopped, a moment ago, and is not stopped either.
                let is_old = round == 0;
                stopped.processes.contains_key(&pid) || stopped.add(cell, pid, is_old)
            })?;
            let is_quiet = gone == 0 && stopped.processes.len() == before;
            if is_quiet && stopped.is_whole {
                return Ok(stopped);
            }
            stopped.is_whole = is_quiet;
            if is_quiet {
                thread::sleep(SIGNAL_DELAY);
            }
        }
        stopped.is_whole = false;
        Ok(stopped)
    }

    /// Whether it is there.
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

    /// Whether no process is left that goes on.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }
}

impl Drop for StopGuard {
    fn drop(&mut self) {
        for process in self.processes.values().flatten() {
            // It may have ended.
            let _ = pidfd_send_signal(process, Signal::CONT);
        }
    }
}
