//! The clock of a service, as its answers tell it.

use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, Utc};
use reqwest::header::{DATE, HeaderMap};

/// Difference, in milliseconds, that is none: answers take time, and tell whole seconds.
const TOLERANCE: i64 = 5000;

/// The clock of a service compared with that of this computer, either of which may be wrong by hours.
///
/// Providers tell the end of a sandbox as a time of their own clock. On the clock of this computer it is found by
/// [`ServiceClock::to_local`].
#[derive(Debug, Default)]
pub struct ServiceClock {
    /// Milliseconds by which the clock of this computer is ahead.
    ahead: AtomicI64,
}

impl ServiceClock {
    /// Creates one for a computer whose clock is that many seconds ahead of the service's.
    pub fn ahead_of_service(seconds: f64) -> Self {
        Self { ahead: AtomicI64::new((seconds * 1e3) as i64) }
    }

    /// Notes the time of an answer that was just received. Headers without one change nothing.
    pub fn note(&self, headers: &HeaderMap) {
        let date = headers.get(DATE).and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok()) {
            let ahead = Utc::now().signed_duration_since(date).num_milliseconds();
            let ahead = if ahead.abs() <= TOLERANCE { 0 } else { ahead };
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// Returns a time of the service as one of this computer, both in unix seconds.
    pub fn to_local(&self, time: f64) -> f64 {
        time + self.ahead.load(Ordering::Relaxed) as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn times_of_a_service_are_read_on_the_clock_of_this_computer() {
        let clock = ServiceClock::default();
        let note = |date: &str| clock.note(&HeaderMap::from_iter([(DATE, date.parse().unwrap())]));
        for (ahead, shift) in [(TimeDelta::hours(3), 10_800), (TimeDelta::hours(-3), -10_800)] {
            note(&(Utc::now() - ahead).to_rfc2822());
            let seen = clock.to_local(1000.0) - 1000.0;
            assert!((seen - f64::from(shift)).abs() < 3.0, "{seen}");
        }
        note("yesterday");
        assert!(clock.to_local(1000.0) < 0.0, "what is no time changes nothing");
        note(&(Utc::now() - TimeDelta::seconds(2)).to_rfc2822());
        assert_eq!(clock.to_local(1000.0), 1000.0);
    }
}
