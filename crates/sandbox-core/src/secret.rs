//! A string that is never shown.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use zeroize::{Zeroize as _, ZeroizeOnDrop};

/// A credential. `Debug`, `Display` and serialization show `***`; only [`Secret::expose`] gives it.
/// Its memory is overwritten when it is dropped; copies made by its receivers are not.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// The value itself. Keep it out of logs, errors and command lines.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_never_shown() {
        let secret = Secret::new("hunter2");
        let shown = format!("{secret} {secret:?} {}", serde_json::to_string(&secret).unwrap());
        assert_eq!(shown, "*** *** \"***\"");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn is_overwritten_at_its_end() {
        fn ends(_: impl ZeroizeOnDrop) {}
        let mut secret = Secret::new("hunter2");
        // What dropping does; of what is freed nothing can be read.
        secret.0.zeroize();
        assert_eq!(secret.expose(), "");
        ends(secret);
        assert!(std::mem::needs_drop::<Secret>());
    }
}
