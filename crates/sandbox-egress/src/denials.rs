//! What was refused, within bounds.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandbox_core::NetworkDenial;

/// Denials that are remembered; the oldest go first.
const MOST: usize = 256;

/// Denials that one answer has, and that are remembered of one stretch: the first ones, so that no flood hides what
/// came before it.
const MOST_TOLD: usize = 64;

/// What was refused since when. Times are counted in marks: each ends a stretch within which like denials are one.
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
        let mut stretched = 0;
        for (_, known) in state.entries.iter_mut().rev().take_while(|(at, _)| *at == stretch) {
            if known.is_like(&denial) {
                known.count += denial.count;
                return;
            }
            stretched += 1;
        }
        if stretched >= MOST_TOLD {
            return;
        }
        if state.entries.len() >= MOST {
            state.entries.pop_front();
        }
        state.entries.push_back((stretch, denial));
    }

    /// Now, for [`Denials::since`].
    pub(crate) fn mark(&self) -> u64 {
        let mut state = self.state();
        state.stretch += 1;
        state.stretch
    }

    /// What was refused since a mark, in its order, each once.
    pub(crate) fn since(&self, mark: u64) -> Vec<NetworkDenial> {
        let state = self.state();
        let mut found: Vec<NetworkDenial> = Vec::new();
        for (_, denial) in state.entries.iter().filter(|(at, _)| *at >= mark) {
            let known = found.iter().position(|known| known.is_like(denial));
            match known {
                Some(at) => found[at].count += denial.count,
                None if found.len() < MOST_TOLD => found.push(denial.clone()),
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

    fn told(denials: &[NetworkDenial]) -> String {
        let told = denials.iter().map(|denial| format!("{} {}", denial.host, denial.count));
        told.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_mark_sees_what_came_after_it() {
        let denials = Denials::default();
        denials.add(denial("before"));
        let first = denials.mark();
        denials.add(denial("a"));
        denials.add(denial("b"));
        denials.add(denial("a"));
        let second = denials.mark();
        denials.add(denial("a"));
        assert_eq!(told(&denials.since(first)), "a 3, b 1");
        assert_eq!(told(&denials.since(second)), "a 1");
        assert_eq!(told(&denials.since(denials.mark())), "");
    }

    #[test]
    fn a_flood_is_bounded() {
        let denials = Denials::default();
        let mark = denials.mark();
        for number in 0..10_000 {
            denials.add(denial(&number.to_string()));
        }
        let told = denials.since(mark);
        assert_eq!((told.len(), told[0].host.as_str()), (MOST_TOLD, "0"));
        for _ in 0..2 * MOST / MOST_TOLD {
            denials.mark();
            (0..MOST_TOLD).for_each(|number| denials.add(denial(&number.to_string())));
        }
        assert_eq!(denials.state().entries.len(), MOST);
    }
}
