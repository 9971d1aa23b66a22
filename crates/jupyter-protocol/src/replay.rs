//! Detects replayed messages by their signatures.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use crate::signature::HEX_VALUES;

/// A window of the last signatures, which forgets the oldest first.
///
/// Signatures are hexadecimal, as on the wire. Insert a signature only after its verification; otherwise any peer could
/// push the genuine ones out.
///
/// ```
/// use jupyter_protocol::ReplayWindow;
///
/// let mut window = ReplayWindow::new(2);
/// assert!(window.insert(b"a0") && window.insert(b"b0"));
/// assert!(!window.insert(b"a0"), "seen before");
/// assert!(window.insert(b"c0"));
/// assert!(window.insert(b"a0"), "forgotten by now");
/// ```
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    capacity: usize,
    order: VecDeque<Digest>,
    seen: HashSet<Digest, BuildHasherDefault<IdentityHasher>>,
}

/// The first 64 bits of a signature. Two remembered messages do not share them by accident.
type Digest = u64;

/// A hasher that returns its input: a verified signature is as random as any hash of it.
#[derive(Clone, Copy, Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl ReplayWindow {
    /// The number of signatures that [`ReplayWindow::default`] remembers. They take about 2 MiB.
    pub const DEFAULT: usize = 65_536;

    /// Creates a window for `capacity` signatures. With 0, no message is rejected.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { capacity, order: VecDeque::new(), seen: HashSet::default() }
    }

    /// Inserts a signature. Returns true if it is new.
    pub fn insert(&mut self, signature: &[u8]) -> bool {
        if self.capacity == 0 {
            return true;
        }
        let digest = digest(signature);
        if !self.seen.insert(digest) {
            return false;
        }
        self.order.push_back(digest);
        if self.order.len() > self.capacity
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

/// Invalid hexadecimal digits count as the last one.
fn digest(signature: &[u8]) -> Digest {
    let digits = signature.iter().take(16).map(|byte| HEX_VALUES[usize::from(*byte)] & 15);
    digits.fold(0, |digest, digit| digest << 4 | u64::from(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded() {
        let mut window = ReplayWindow::new(100);
        for number in 0..10_000_u32 {
            assert!(window.insert(format!("{number:064x}").as_bytes().rchunks(16).next().unwrap()));
        }
        assert_eq!((window.order.len(), window.seen.len()), (100, 100));
    }

    #[test]
    fn nothing_is_refused_without_a_window() {
        let mut window = ReplayWindow::new(0);
        assert!(window.insert(b"a") && window.insert(b"a"));
    }
}
