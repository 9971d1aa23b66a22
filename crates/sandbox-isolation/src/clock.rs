//! Processor time of other processes.

use std::time::Duration;

use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

/// Processor time that a process of this host has used, all its threads and none of its children.
/// `None` when there is no such process.
#[must_use]
pub fn process_cpu_time(pid: u32) -> Option<Duration> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    // The C library asks the kernel for the clock's resolution first, which is how a dead process is told.
    let time = clock_getcpuclockid(pid).and_then(clock_gettime).ok()?;
    Some(Duration::from(time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_this_process_goes_on() {
        let own = std::process::id();
        let before = process_cpu_time(own).unwrap();
        let end = std::time::Instant::now() + Duration::from_millis(20);
        while std::time::Instant::now() < end {}
        assert!(process_cpu_time(own).unwrap() > before);
        assert_eq!(process_cpu_time(4_194_304 * 2), None);
    }
}
