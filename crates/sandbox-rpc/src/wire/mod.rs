//! Messages beside the core's own types, which travel in their serialized form.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod request;

use std::collections::BTreeMap;

use sandbox_core::{Capabilities, Instance, SandboxInfo};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::error::WireError;

/// The state of a sandbox that the server sends without a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) info: SandboxInfo,
    /// Contexts in which code runs.
    pub(crate) executing: Vec<String>,
}

/// The reply with a sandbox that the client holds from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SandboxReply {
    pub(crate) state: State,
    pub(crate) capabilities: Vec<String>,
    /// The errors of missing facets, by name of the facet.
    #[serde(default)]
    pub(crate) missing: BTreeMap<String, WireError>,
}

/// The reply with a command that the client holds from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CommandReply {
    pub(crate) id: String,
    pub(crate) pid: Option<u32>,
}

/// Returns the errors of an instance's missing facets, by name of the facet.
pub(crate) fn missing_facets(instance: &dyn Instance) -> BTreeMap<String, WireError> {
    let facets = [
        ("code", instance.code().err()),
        ("commands", instance.commands().err()),
        ("files", instance.files().err()),
        ("packages", instance.packages().err()),
        ("snapshots", instance.snapshots().err()),
        ("ports", instance.ports().err()),
    ];
    let missing = facets.into_iter().filter_map(|(name, error)| Some((name, error?)));
    missing.map(|(name, error)| (name.to_owned(), WireError::from(&error))).collect()
}

/// Returns the names of the declared capabilities.
pub(crate) fn capability_names(capabilities: &Capabilities) -> Vec<String> {
    let declared = capabilities.entries().into_iter().filter(|(_, declared)| *declared);
    declared.map(|(name, _)| name.to_owned()).collect()
}

/// Returns the capabilities with these names. Unknown names, which a newer version may send, are ignored.
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
        let mut names = capability_names(&declared);
        assert_eq!(capabilities(&names), declared);
        names.push("of_the_future".into());
        assert_eq!(capabilities(&names), declared);
    }
}
