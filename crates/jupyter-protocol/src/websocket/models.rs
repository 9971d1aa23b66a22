//! Models of the REST API.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::json::JsonMap;

/// A running kernel.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct KernelModel {
    /// The id of the kernel.
    pub id: String,
    /// The name of the kernel's specification.
    pub name: String,
    /// The time of the last activity, in ISO 8601.
    pub last_activity: Option<String>,
    /// The state: `starting`, `idle`, `busy` or `dead`.
    pub execution_state: Option<String>,
    /// The number of connected clients. Servers miscount now and then, even below zero.
    pub connections: Option<i64>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// A notebook, a console or another document that is open on a server, with its kernel.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct SessionModel {
    /// The id of the model. It differs from that of a [`Session`](crate::Session), which a client creates.
    pub id: String,
    /// The path of the document; for a notebook that of its file, as for
    /// [`ServerClient::contents`](super::ServerClient::contents).
    pub path: String,
    /// The name of the document.
    pub name: String,
    /// The type of the document: `notebook`, `console` or `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kernel of the document. `None` if it has ended.
    pub kernel: Option<KernelModel>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: JsonMap,
}

/// The kernels that a server can start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerKernelSpecs {
    /// The name of the default kernel.
    pub default: Option<String>,
    /// All kernels by name.
    pub kernelspecs: BTreeMap<String, ServerKernelSpec>,
}

/// A kernel that a server can start.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default)]
#[non_exhaustive]
pub struct ServerKernelSpec {
    /// The name of the kernel.
    pub name: String,
    /// The content of its `kernel.json`.
    pub spec: JsonMap,
    /// The URLs of its logos.
    pub resources: JsonMap,
}
