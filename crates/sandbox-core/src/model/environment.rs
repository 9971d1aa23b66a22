//! Environments a sandbox can be created from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// An environment: an image, a template, or the host's interpreter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SandboxEnvironment {
    /// The name to give at create.
    pub name: String,
    /// A title for people.
    pub title: String,
    /// Main language.
    pub language: String,
    /// The owner; `local` for this host.
    pub owner: String,
    /// The visibility; `local` for this host.
    pub visibility: String,
    /// Credits per second.
    pub burning_rate: f64,
    /// CPU, as the provider writes it.
    pub cpu: Option<String>,
    /// Memory, as the provider writes it, such as `16Gi`.
    pub memory: Option<String>,
    /// GPU type.
    pub gpu: Option<String>,
    /// Number of GPUs.
    pub gpu_count: Option<u32>,
    /// Whatever else the provider says.
    pub metadata: Map<String, Value>,
}

impl SandboxEnvironment {
    /// A free environment of this host.
    pub fn local(name: impl Into<String>, title: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            language: "python".into(),
            owner: "local".into(),
            visibility: "local".into(),
            ..Self::default()
        }
    }

    /// The `features` list of the metadata.
    pub fn features(&self) -> Vec<&str> {
        let features = self.metadata.get("features").and_then(Value::as_array);
        features.into_iter().flatten().filter_map(Value::as_str).collect()
    }
}
