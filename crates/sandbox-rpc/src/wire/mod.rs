//! The types of the core in the form in which they travel. Each conversion names every field, so that a new one cannot be
//! forgotten in silence.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod request;
pub(crate) mod spec;

use sandbox_core::{Capabilities, SandboxInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What is known of a sandbox without asking it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) info: SandboxInfo,
    /// Contexts in which code runs.
    pub(crate) executing: Vec<String>,
}

/// A sandbox that the other side now holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handed {
    pub(crate) state: State,
    pub(crate) capabilities: Vec<String>,
}

/// A command that the other side now holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Started {
    pub(crate) id: String,
    pub(crate) pid: Option<u32>,
}

/// A page of a listing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) items: Vec<SandboxInfo>,
    pub(crate) next: Option<String>,
}

/// The names of what is declared.
pub(crate) fn names(capabilities: &Capabilities) -> Vec<String> {
    let declared = capabilities.entries().into_iter().filter(|(_, declared)| *declared);
    declared.map(|(name, _)| name.to_owned()).collect()
}

/// What is declared by name. Names of a newer version mean nothing here.
pub(crate) fn capabilities(names: &[String]) -> Capabilities {
    let known = Capabilities::default().entries();
    let declared = known.iter().filter(|(name, _)| names.iter().any(|declared| declared == name));
    let map: Map<_, _> =
        declared.map(|(name, _)| ((*name).to_owned(), Value::Bool(true))).collect();
    serde_json::from_value(Value::Object(map)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_travel_by_name() {
        let declared = Capabilities { run_code: true, watch: true, ..Capabilities::default() };
        let mut names = names(&declared);
        assert_eq!(capabilities(&names), declared);
        names.push("of_the_future".into());
        assert_eq!(capabilities(&names), declared);
    }
}
