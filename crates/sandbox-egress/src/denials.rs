//! Bounded record of refused connections and names.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox_core::NetworkDenial;

/// Maximum number of recorded denials; the oldest are dropped first.
const MAX_DENIALS: usize = 256;

/// Maximum number of denials in one report, and recorded between two marks: the first ones, so that a flood does not
/// hide what came before it.
const MAX_REPORTED: usize = 64;

/// Refused connections and names, by the mark after which they were refused. Equal denials between two marks are one
/// entry.
#[derive(Debug, Default)]
pub(crate) struct Denials(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    stretch: u64,
    entries: VecDeque<(u64, NetworkDenial)>,
}

impl Denials {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, denial: NetworkDenial) {
        let mut state = self.state();
        let stretch = state.stretch;
        let mut in_stretch = 0;
        for (_, known) in state.entries.iter_mut().rev().take_while(|(at, _)| *at == stretch) {
            if known.is_like(&denial) {
                known.count += denial.count;
                return;
            }
            in_stretch += 1;
        }
        if in_stretch >= MAX_REPORTED {
            return;
        }
        if state.entries.len() >= MAX_DENIALS {
            state.entries.pop_front();
        }
        state.entries.push_back((stretch, denial));
    }

    /// Sets a mark for [`Denials::since`].
    pub(crate) fn mark(&self) -> u64 {
        let mut state = self.state();
        state.stretch += 1;
        state.stretch
    }

    /// Returns the denials after a mark, in order, each once.
    pub(crate) fn since(&self, mark: u64) -> Vec<NetworkDenial> {
        let state = self.state();
        let mut found: Vec<NetworkDenial> = Vec::new();
        for (_, denial) in state.entries.iter().filter(|(at, _)| *at >= mark) {
            let known = found.iter().position(|known| known.is_like(denial));
            match known {
                Some(at) => found[at].count += denial.count,
                None if found.len() < MAX_REPORTED => found.push(denial.clone()),
                None => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::DenialReason;

    use super::*;

    fn denial(host: &str) -> NetworkDenial {
        let reason = DenialReason::NotListed;
        NetworkDenial { host: host.into(), port: None, reason, allow: None, count: 1 }
    }

    fn reported(denials: &[NetworkDenial]) -> String {
        let reported = denials.iter().map(|denial| format!("{} {}", denial.host, denial.count));
        reported.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_mark_reports_later_denials() {
        let denials = Denials::default();
        denials.add(denial("before"));
        let first = denials.mark();
        denials.add(denial("a"));
        denials.add(denial("b"));
        denials.add(denial("a"));
        let second = denials.mark();
        denials.add(denial("a"));
        assert_eq!(reported(&denials.since(first)), "a 3, b 1");
        assert_eq!(reported(&denials.since(second)), "a 1");
        assert_eq!(reported(&denials.since(denials.mark())), "");
    }

    #[test]
    fn a_flood_is_bounded() {
        let denials = Denials::default();
        let mark = denials.mark();
        for number in 0..10_000 {
            denials.add(denial(&number.to_string()));
        }
        let reported = denials.since(mark);
        assert_eq!((reported.len(), reported[0].host.as_str()), (MAX_REPORTED, "0"));
        for _ in 0..2 * MAX_DENIALS / MAX_REPORTED {
            denials.mark();
            (0..MAX_REPORTED).for_each(|number| denials.add(denial(&number.to_string())));
        }
        assert_eq!(denials.state().entries.len(), MAX_DENIALS);
    }
}
