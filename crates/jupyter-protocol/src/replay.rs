//! The signatures of the last messages, to refuse what was recorded and sent again.

use std::collections::{HashSet, VecDeque};

/// Remembers the last signatures, the oldest forgotten first.
///
/// Takes signatures in hexadecimal, which is how they are sent. Enter a signature only after it was verified. Otherwise anybody could push out the real ones.
///
/// ```
/// use jupyter_protocol::ReplayWindow;
///
/// let mut window = ReplayWindow::new(2);
/// assert!(window.enter(b"a0") && window.enter(b"b0"));
/// assert!(!window.enter(b"a0"), "seen before");
/// assert!(window.enter(b"c0"));
/// assert!(window.enter(b"a0"), "forgotten by now");
/// ```
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    most: usize,
    order: VecDeque<Digest>,
    seen: HashSet<Digest>,
}

/// The first 128 bits of a signature: two different messages do not share them by accident.
type Digest = [u8; 16];

impl ReplayWindow {
    /// How many signatures [`ReplayWindow::default`] remembers. They take about 3 MiB.
    pub const DEFAULT: usize = 65_536;

    /// Remembers that many. With 0, nothing is ever refused.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, order: VecDeque::new(), seen: HashSet::new() }
    }

    /// Enters a signature. Whether it is new.
    pub fn enter(&mut self, signature: &[u8]) -> bool {
        if self.most == 0 {
            return true;
        }
        let digest = digest(signature);
        if !self.seen.insert(digest) {
            return false;
        }
        self.order.push_back(digest);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

/// Two hexadecimal digits become one byte. What is no digit may become anything.
fn digest(signature: &[u8]) -> Digest {
    let mut digest = Digest::default();
    for (at, byte) in signature.iter().take(32).enumerate() {
        let value = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            other => other & 15,
        };
        digest[at / 2] |= if at % 2 == 0 { value << 4 } else { value };
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let mut window = ReplayWindow::new(100);
        for number in 0..10_000_u32 {
            assert!(window.enter(format!("{number:064x}").as_bytes().rchunks(32).next().unwrap()));
        }
        assert_eq!((window.order.len(), window.seen.len()), (100, 100));
    }

    #[test]
    fn nothing_is_refused_without_a_window() {
        let mut window = ReplayWindow::new(0);
        assert!(window.enter(b"a") && window.enter(b"a"));
    }
}
