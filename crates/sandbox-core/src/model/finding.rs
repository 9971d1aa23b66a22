//! Findings of a scan of code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Something in code that a rule of a scan is about. It says what the code may do, and not that the code has done it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Finding {
    /// The rule, such as `network`.
    pub rule: String,
    /// Line of the code, from 1.
    pub line: u64,
    /// The reason, for people.
    pub reason: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {} ({})", self.line, self.reason, self.rule)
    }
}
