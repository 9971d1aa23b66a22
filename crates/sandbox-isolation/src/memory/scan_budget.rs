//! Time budget of one scan of a cell.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Maximum processor time of a scan. Code controls how much there is to scan.
const CPU_TIMEOUT: Duration = Duration::from_millis(100);

/// Maximum wall time of a scan. It is longer, so that a busy machine does not shorten scans.
const WALL_TIMEOUT: Duration = Duration::from_millis(500);

/// The budget of a scan on the current thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScanBudget {
    cpu_deadline: Duration,
    deadline: Instant,
}

impl ScanBudget {
    pub(super) fn start() -> Self {
        Self {
            cpu_deadline: thread_cpu_time() + CPU_TIMEOUT,
            deadline: Instant::now() + WALL_TIMEOUT,
        }
    }

    pub(super) fn is_spent(self) -> bool {
        thread_cpu_time() > self.cpu_deadline || Instant::now() > self.deadline
    }
}

/// Returns the processor time of this thread.
fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
impl ScanBudget {
    /// For tests that are not about time.
    pub(super) fn unlimited() -> Self {
        Self { cpu_deadline: Duration::MAX, deadline: Instant::now() + Duration::from_secs(3600) }
    }

    pub(super) fn spent() -> Self {
        Self { cpu_deadline: Duration::MAX, deadline: Instant::now() - Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_has_a_larger_budget_than_processor_time() {
        let budget = ScanBudget::start();
        std::thread::sleep(2 * CPU_TIMEOUT);
        assert!(!budget.is_spent(), "the sleeping thread used no processor time");
        let budget = ScanBudget::start();
        while !budget.is_spent() {}
        assert!(budget.deadline + WALL_TIMEOUT > Instant::now(), "the processor time is limited");
        let budget = ScanBudget { cpu_deadline: Duration::MAX, ..ScanBudget::start() };
        std::thread::sleep(WALL_TIMEOUT + CPU_TIMEOUT);
        assert!(budget.is_spent(), "the wall time is limited");
    }
}
