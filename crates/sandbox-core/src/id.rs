//! Ids of sandboxes and runs.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};
use crate::model::Variant;

/// The full id of a sandbox: `<variant>/<id>`, with the id in `[A-Za-z0-9._-]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SandboxId {
    variant: Variant,
    local: String,
}

impl SandboxId {
    /// Joins a variant and an id of its own.
    ///
    /// # Errors
    /// The id is empty, longer than 128 bytes, or has other characters than `[A-Za-z0-9._-]`.
    pub fn new(variant: Variant, local: impl Into<String>) -> Result<Self> {
        let local = local.into();
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
        let dots = local.bytes().all(|b| b == b'.');
        if local.is_empty() || local.len() > 128 || dots || !local.bytes().all(allowed) {
            return Err(Error::invalid(
                "id",
                format!("{local:?} is not a sandbox id (letters, digits, `.`, `_` and `-`)"),
            ));
        }
        Ok(Self { variant, local })
    }

    /// A new random id.
    pub fn random(variant: Variant) -> Self {
        Self { variant, local: random_hex(6) }
    }

    /// The variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// The id without the variant.
    pub fn local(&self) -> &str {
        &self.local
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.variant, self.local)
    }
}

impl FromStr for SandboxId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (variant, local) = text.split_once('/').ok_or_else(|| {
            Error::invalid(
                "id",
                format!("{text:?} is not a full sandbox id such as local-eval/9f3a"),
            )
        })?;
        Self::new(variant.parse()?, local)
    }
}

/// A new run id: unique on this host and beyond, and cheap.
pub fn new_run_id() -> String {
    static PROCESS: OnceLock<String> = OnceLock::new();
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let process = PROCESS.get_or_init(|| random_hex(8));
    format!("{process}-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// `bytes` random bytes in hexadecimal, for ids that must not collide.
pub fn random_hex(bytes: usize) -> String {
    use std::fmt::Write as _;

    let mut raw = vec![0; bytes];
    if getrandom::fill(&mut raw).is_err() {
        // Without a random source ids still have to differ.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let seed = u64::from(std::process::id()) << 32 | NEXT.fetch_add(1, Ordering::Relaxed);
        raw.iter_mut()
            .zip(seed.to_le_bytes().into_iter().cycle())
            .for_each(|(to, from)| *to = from);
    }
    raw.iter().fold(String::with_capacity(bytes * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_checked() {
        assert_eq!("eval/9f3a".parse::<SandboxId>().unwrap().to_string(), "local-eval/9f3a");
        for bad in ["", "9f3a", "eval/", "eval/../../x", "eval/..", "eval/a b", "nope/x", "eval/é"]
        {
            bad.parse::<SandboxId>().unwrap_err();
        }
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random_hex(6), random_hex(6));
        assert_ne!(new_run_id(), new_run_id());
        assert_eq!(random_hex(6).len(), 12);
    }
}
