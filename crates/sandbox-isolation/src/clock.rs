//! Processor time of other processes.

use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// The clock of one process of this host: the processor time of all its threads, without its children.
#[derive(Clone, Copy, Debug)]
pub struct ProcessClock(ClockId);

impl ProcessClock {
    /// Returns the clock of a process. `None` when there is no such process.
    #[must_use]
    pub fn for_process(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?);
        clock_getcpuclockid(pid).ok().map(Self)
    }

    /// Reads the clock. `None` once the process is gone.
    #[must_use]
    pub fn read(&self) -> Option<Duration> {
        clock_gettime(self.0).ok().map(Duration::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_this_process_advances() {
        let clock = ProcessClock::for_process(std::process::id()).unwrap();
        let before = clock.read().unwrap();
        let end = std::time::Instant::now() + Duration::from_millis(20);
        while std::time::Instant::now() < end {}
        assert!(clock.read().unwrap() > before);
        assert!(ProcessClock::for_process(4_194_304 * 2).is_none());
    }
}
