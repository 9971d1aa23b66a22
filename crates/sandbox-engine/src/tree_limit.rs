//! Limits the CPU time, and the growth of the memory, of a process and everything that it has started.

use std::time::Duration;

use tokio::time::Instant;

use crate::host::{Process, TreeClock};

/// Minimum time between two measurements, each of which reads every process of this host.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Minimum time between two measurements, as a multiple of the time that one takes.
const MEASURE_SHARE: u32 = 20;

/// One limit, and how much of it was used.
#[derive(Debug)]
pub(crate) struct TreeLimit {
    clock: Box<dyn TreeClock>,
    limit: Duration,
    used: Duration,
    next: Instant,
}

impl TreeLimit {
    /// Starts a limit for what is used from now on. `None`: the usage cannot be measured.
    pub(crate) fn begin(process: &dyn Process, limit: Duration) -> Option<Self> {
        let clock = process.tree_clock()?;
        Some(Self { clock, limit, used: Duration::ZERO, next: Instant::now() + POLL_INTERVAL })
    }

    /// Measures the usage, which takes a few milliseconds.
    pub(crate) fn measure(&mut self) {
        let began = Instant::now();
        self.used = self.clock.used();
        self.next = Instant::now() + POLL_INTERVAL.max(began.elapsed() * MEASURE_SHARE);
    }

    /// Returns the time of the next measurement.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns true when it is time for the next measurement.
    pub(crate) fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    /// Returns true when the limit was used up at the last measurement.
    pub(crate) fn is_used_up(&self) -> bool {
        self.used >= self.limit
    }
}

/// Minimum time between two measurements of memory.
const MEMORY_INTERVAL: Duration = Duration::from_millis(10);

/// A limit of the memory that is in use beyond what there was at its beginning.
#[derive(Debug)]
pub(crate) struct MemoryLimit {
    clock: Box<dyn TreeClock>,
    limit: u64,
    /// What was in use at the beginning: the quick figure, and the exact one.
    began: (u64, u64),
    is_exceeded: bool,
    next: Instant,
}

impl MemoryLimit {
    /// Starts a limit for growth from now on. `None`: memory cannot be measured.
    pub(crate) fn begin(process: &dyn Process, limit: u64) -> Option<Self> {
        let mut clock = process.tree_clock()?;
        let began = (clock.memory(false), clock.memory(true));
        let next = Instant::now() + MEMORY_INTERVAL;
        Some(Self { clock, limit, began, is_exceeded: false, next })
    }

    /// Measures the memory, which takes a few milliseconds.
    pub(crate) fn measure(&mut self) {
        let began = Instant::now();
        let has_grown = |now: u64, before: u64| now.saturating_sub(before) > self.limit;
        // Processes that share memory each count all of it in the quick figure.
        self.is_exceeded = has_grown(self.clock.memory(false), self.began.0)
            && has_grown(self.clock.memory(true), self.began.1);
        self.next = Instant::now() + MEMORY_INTERVAL.max(began.elapsed() * MEASURE_SHARE / 2);
    }

    /// Returns the time of the next measurement.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// Returns true when it is time for the next measurement.
    pub(crate) fn is_due(&self) -> bool {
        self.next <= Instant::now()
    }

    /// Returns true when the limit was exceeded at the last measurement.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }
}
