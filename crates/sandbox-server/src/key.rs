//! The key that a client of a server needs.

use std::fmt;

use sandbox_core::{Secret, random_hex};
use subtle::ConstantTimeEq as _;

/// Random bytes of a key that is made here.
const KEY_BYTES: usize = 20;

/// A key of a server. It is never shown by `Debug`.
#[derive(Clone)]
pub struct AccessKey(Secret);

impl AccessKey {
    /// Takes a key that the person who starts the server has chosen.
    pub fn new(key: impl Into<Secret>) -> Self {
        Self(key.into())
    }

    /// Makes a random key with a prefix, such as `e2b_`.
    pub fn random(prefix: &str) -> Self {
        Self(Secret::new(format!("{prefix}{}", random_hex(KEY_BYTES))))
    }

    /// Returns true for the same key. The time it takes does not depend on where they differ.
    pub fn matches(&self, given: &str) -> bool {
        self.0.expose().as_bytes().ct_eq(given.as_bytes()).into()
    }

    /// The key itself, to be printed for the person who started the server.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_key_matches_and_none_is_shown() {
        let key = AccessKey::random("e2b_");
        assert!(key.expose().starts_with("e2b_") && key.expose().len() == 4 + 2 * KEY_BYTES);
        assert!(key.matches(key.expose()));
        for other in ["", "e2b_", &key.expose()[1..], AccessKey::random("e2b_").expose()] {
            assert!(!key.matches(other), "{other}");
        }
        assert_eq!(format!("{key:?}"), "AccessKey(***)");
    }
}
