//! A limit of the CPU time of a process and of everything that it has started.

use std::time::Duration;

use tokio::time::Instant;

use crate::host::{Process, TreeClock};

/// How soon what was used is looked at again, and how many times as long as a look takes. It costs a look at every process
/// of this host.
const POLL: Duration = Duration::from_millis(20);
const SHARE: u32 = 20;

/// One limit, and how much of it is used up.
#[derive(Debug)]
pub(crate) struct TreeLimit {
    clock: Box<dyn TreeClock>,
    limit: Duration,
    used: Duration,
    next: Instant,
}

impl TreeLimit {
    /// A limit of what is used from now on. `None`: nobody can tell what that is.
    pub(crate) fn begin(process: &dyn Process, limit: Duration) -> Option<Self> {
        let clock = process.tree_clock()?;
        Some(Self { clock, limit, used: Duration::ZERO, next: Instant::now() + POLL })
    }

    /// Looks at what was used. That takes a few milliseconds.
    pub(crate) fn look(&mut self) {
        let began = Instant::now();
        self.used = self.clock.used();
        self.next = Instant::now() + POLL.max(began.elapsed() * SHARE);
    }

    /// When it is to be looked at again.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Whether it is time for that.
    pub(crate) fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    /// Whether all of it was used when it was looked at.
    pub(crate) fn is_used_up(&self) -> bool {
        self.used >= self.limit
    }
}
