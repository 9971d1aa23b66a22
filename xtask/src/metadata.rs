//! The packages of the workspace and what their manifests say, as cargo reads them.

use std::path::Path;

use serde_json::Value;

use crate::command::output;
use crate::suites::cargo;
use crate::workspace;

/// What cargo says of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    /// Its packages, by folder.
    pub(crate) packages: Vec<Package>,
    /// `[workspace.metadata]`.
    pub(crate) workspace: Value,
}

/// A package of the workspace.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// From the root of the workspace, such as `crates/cli`.
    pub(crate) folder: String,
    pub(crate) description: String,
    /// The packages of the workspace that it needs itself, by name.
    pub(crate) needs: Vec<String>,
    /// The features that it has without being asked.
    pub(crate) default_features: Vec<String>,
    /// All features but `default`, `full`, and those of optional dependencies.
    pub(crate) features: Vec<String>,
    /// `[package.metadata]`.
    pub(crate) metadata: Value,
}

impl Metadata {
    /// Asks cargo. Nothing is fetched or built.
    pub(crate) fn read() -> Result<Self, String> {
        let text =
            output(&mut cargo(&["metadata", "--no-deps", "--format-version", "1", "--offline"]))?;
        let all: Value = serde_json::from_str(&text)
            .map_err(|error| format!("cargo metadata says what is no JSON: {error}"))?;
        let mut packages: Vec<_> =
            all["packages"].as_array().into_iter().flatten().map(package).collect();
        packages.sort_by(|a, b| a.folder.cmp(&b.folder));
        Ok(Self { packages, workspace: all["metadata"].clone() })
    }
}

fn package(value: &Value) -> Package {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let manifest = text(&value["manifest_path"]);
    let folder = Path::new(&manifest).parent().unwrap_or(Path::new(""));
    let folder = folder.strip_prefix(workspace::root()).unwrap_or(folder);
    let of_workspace = value["dependencies"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["kind"].is_null() && one["path"].is_string());
    let default = value["features"]["default"].as_array().into_iter().flatten();
    Package {
        name: text(&value["name"]),
        folder: folder.display().to_string(),
        description: text(&value["description"]),
        needs: of_workspace.map(|one| text(&one["name"])).collect(),
        default_features: default.map(text).collect(),
        features: features(&value["features"]),
        metadata: value["metadata"].clone(),
    }
}

fn features(all: &Value) -> Vec<String> {
    let all = all.as_object().into_iter().flatten();
    // A dependency without a feature of its own has one of its name, which only turns it on.
    let is_own = |(name, needs): &(&String, &Value)| {
        let implied = format!("dep:{name}");
        !matches!(name.as_str(), "default" | "full")
            && needs.as_array().is_none_or(|needs| needs.iter().all(|need| *need != implied))
    };
    all.filter(is_own).map(|(name, _)| name.clone()).collect()
}

impl Metadata {
    /// All features of a package but `default` and `full`.
    pub(crate) fn features(&self, package: &str) -> Vec<String> {
        let found = self.packages.iter().find(|one| one.name == package);
        found.map(|one| one.features.clone()).unwrap_or_default()
    }

    /// The features that a package has without being asked.
    pub(crate) fn default_features(&self, package: &str) -> Vec<String> {
        let found = self.packages.iter().find(|one| one.name == package);
        found.map(|one| one.default_features.clone()).unwrap_or_default()
    }
}
