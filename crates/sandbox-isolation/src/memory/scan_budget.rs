//! How long one look at a cell may take.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time of a processor that a look takes at most. Code decides how much there is to look at.
const CPU_TIMEOUT: Duration = Duration::from_millis(100);

/// The same with what others have the processors for meanwhile: a machine that is busy is no reason to take less for
/// looked at.
const WALL_TIMEOUT: Duration = Duration::from_millis(500);

/// What is left of a look that this thread has begun.
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

/// What this thread has had of processors.
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
    fn waiting_for_a_processor_counts_less_than_having_one() {
        let budget = ScanBudget::start();
        std::thread::sleep(2 * CPU_TIMEOUT);
        assert!(!budget.is_spent(), "somebody else had the processors");
        let budget = ScanBudget::start();
        while !budget.is_spent() {}
        assert!(budget.deadline + WALL_TIMEOUT > Instant::now(), "it has an end");
        let budget = ScanBudget { cpu_deadline: Duration::MAX, ..ScanBudget::start() };
        std::thread::sleep(WALL_TIMEOUT + CPU_TIMEOUT);
        assert!(budget.is_spent(), "nothing takes longer");
    }
}
