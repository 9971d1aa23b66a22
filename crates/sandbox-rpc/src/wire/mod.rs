//! The types of the core in the form in which they travel. Each conversion names every field, so that a new one cannot be
//! forgotten in silence.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod request;
pub(crate) mod spec;

use std::collections::BTreeMap;

use sandbox_core::{Capabilities, Instance, SandboxInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::error::WireError;

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
    /// Why facets are missing, by name.
    #[serde(default)]
    pub(crate) missing: BTreeMap<String, WireError>,
}

/// The facets that an instance has not, by name, with the reasons.
pub(crate) fn missing(instance: &dyn Instance) -> BTreeMap<String, WireError> {
    let facets = [
        ("code", instance.code().err()),
        ("commands", instance.commands().err()),
        ("files", instance.files().err()),
        ("packages", instance.packages().err()),
        ("snapshots", instance.snapshots().err()),
        ("ports", instance.ports().err()),
    ];
    let missing = facets.into_iter().filter_map(|(name, why)| Some((name, why?)));
    missing.map(|(name, why)| (name.to_owned(), WireError::from(&why))).collect()
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
