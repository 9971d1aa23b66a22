//! What a server says of its kernels.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::json::JsonMap;

/// A kernel that a server runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct KernelModel {
    /// Its id.
    pub id: String,
    /// The name of its specification.
    pub name: String,
    /// When it did something last, ISO 8601.
    pub last_activity: Option<String>,
    /// What it does: `starting`, `idle`, `busy`, `dead`.
    pub execution_state: Option<String>,
    /// How many clients are connected. Servers count wrong now and then, and say less than none.
    pub connections: Option<i64>,
    /// Anything else the server says.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// A notebook, a console or something else that is open on a server, and its kernel.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct SessionModel {
    /// Its id. Not that of a [`Session`](crate::Session), which a client makes.
    pub id: String,
    /// Where it is: for a notebook the path of its file, as for [`ServerClient::contents`](super::ServerClient::contents).
    pub path: String,
    /// What it is called.
    pub name: String,
    /// What it is: `notebook`, `console`, `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kernel that runs its code. `None`: there is none any more.
    pub kernel: Option<KernelModel>,
    /// Anything else the server says.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// The kernels that a server can start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerKernelSpecs {
    /// The name of the one that is started when none is asked for.
    pub default: Option<String>,
    /// All of them by name.
    pub kernelspecs: BTreeMap<String, ServerKernelSpec>,
}

/// A kernel that a server can start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerKernelSpec {
    /// Its name.
    pub name: String,
    /// What its `kernel.json` says.
    pub spec: JsonMap,
    /// Where its logos are.
    pub resources: JsonMap,
}
