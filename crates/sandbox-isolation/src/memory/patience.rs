//! How long one look at a cell may take.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Time of a processor that a look takes at most. Code decides how much there is to look at.
const BUSY: Duration = Duration::from_millis(100);

/// The same with what others have the processors for meanwhile: a machine that is busy is no reason to take less for
/// looked at.
const ALL: Duration = Duration::from_millis(500);

/// What is left of a look that this thread has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    busy_until: Duration,
    until: Instant,
}

impl Patience {
    pub(super) fn begin() -> Self {
        Self { busy_until: busy() + BUSY, until: Instant::now() + ALL }
    }

    pub(super) fn is_over(self) -> bool {
        busy() > self.busy_until || Instant::now() > self.until
    }
}

/// What this thread has had of processors.
fn busy() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
impl Patience {
    /// For tests that are not about time.
    pub(super) fn endless() -> Self {
        Self { busy_until: Duration::MAX, until: Instant::now() + Duration::from_secs(3600) }
    }

    pub(super) fn none_left() -> Self {
        Self { busy_until: Duration::MAX, until: Instant::now() - Duration::from_secs(1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_processor_counts_less_than_having_one() {
        let patience = Patience::begin();
        std::thread::sleep(2 * BUSY);
        assert!(!patience.is_over(), "somebody else had the processors");
        let patience = Patience::begin();
        while !patience.is_over() {}
        assert!(patience.until + ALL > Instant::now(), "it has an end");
        let patience = Patience { busy_until: Duration::MAX, ..Patience::begin() };
        std::thread::sleep(ALL + BUSY);
        assert!(patience.is_over(), "nothing takes longer");
    }
}
