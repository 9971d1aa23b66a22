//! What the manifest of a backend says about it: `[package.metadata.sandbox-backend]`.
//!
//! `cargo xtask generate` makes of it everything that is said of backends elsewhere. The keys are described in CONTRIBUTING.md.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::metadata::Metadata;

/// Alternatives, each with all that it needs: names of variables, and files of the home directory as `~/name`.
pub(crate) type Credentials = Vec<Vec<String>>;

/// A backend that has a crate.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Descriptor {
    pub(crate) variant: String,
    #[serde(default)]
    pub(crate) aliases: Vec<String>,
    /// The place among the variants, in every list. Of those with credentials `-p auto` takes the first.
    pub(crate) order: u32,
    /// Whether code runs on this host.
    pub(crate) local: bool,
    /// The cargo feature of the facade and of the command line.
    pub(crate) feature: String,
    /// The type that implements `Backend`, at the root of the crate. It has a default.
    #[serde(rename = "type")]
    pub(crate) backend: String,
    pub(crate) description: String,
    pub(crate) boundary: String,
    pub(crate) interpreter: String,
    /// The page of the documents.
    pub(crate) page: Option<String>,
    #[serde(default)]
    pub(crate) credentials: Credentials,
    pub(crate) key_page: Option<String>,
    /// Packages that the facade with this backend alone does not depend on; [`HTTP_CLIENT`] stands for all of them.
    #[serde(default)]
    pub(crate) never_pulls: Vec<String>,
    /// Capabilities that the tests of the crate show against a server with the protocol of the provider, and no case of the
    /// behaviour suite.
    #[serde(default)]
    pub(crate) shown_by_tests: Vec<String>,
    #[serde(default)]
    pub(crate) forwarded: Vec<Forwarded>,
    /// Variables that have to be the same for the supervisor as for who asks it for a sandbox.
    #[serde(default)]
    pub(crate) same_in_supervisor: Vec<String>,
    /// Whether a program that is built from source has it when nothing else is asked for.
    #[serde(default)]
    pub(crate) from_source: bool,
    /// Parts of it that are features of their own in the facade and the command line, by name.
    #[serde(default)]
    pub(crate) parts: BTreeMap<String, Part>,
    /// The folder of the crate.
    #[serde(skip)]
    pub(crate) folder: String,
    /// The name of the package.
    #[serde(skip)]
    pub(crate) package: String,
}

/// A part of a backend.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Part {
    /// The cargo feature of the backend that brings it.
    pub(crate) feature: String,
    pub(crate) description: String,
}

/// What the environment of a caller says of a sandbox that the supervisor makes, unless the caller says it otherwise.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Forwarded {
    /// A provider option.
    pub(crate) option: Option<String>,
    /// A field of every request.
    pub(crate) field: Option<String>,
    /// Variables, the first that is set counts; `NAME/path` is a file that must be there below what `NAME` says.
    pub(crate) from: Vec<String>,
    /// Options and fields beside which it means nothing.
    #[serde(default)]
    pub(crate) unless: Vec<String>,
    /// Whether it is a path, which begins in the directory of the caller.
    #[serde(default)]
    pub(crate) path: bool,
}

/// A variant that has a name, and whose backend is still to come.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Planned {
    #[serde(skip)]
    pub(crate) variant: String,
    pub(crate) order: u32,
    pub(crate) description: String,
    pub(crate) boundary: String,
    #[serde(default)]
    pub(crate) credentials: Credentials,
    pub(crate) key_page: Option<String>,
}

/// In `never-pulls`: every HTTP client.
pub(crate) const HTTP_CLIENT: &str = "http-client";

/// Where manifests of backends and that of the workspace say so.
const BACKEND: &str = "sandbox-backend";
pub(crate) const PLANNED: &str = "planned-backends";

/// The fields of a request that `forwarded` can name.
const FIELDS: [&str; 1] = ["image"];

/// Features of the facade that are no backends.
const OTHER_FEATURES: [&str; 5] = ["default", "full", "blocking", "detached", "pool"];

/// Every variant: those with a crate, and those that are planned, each in order.
#[derive(Debug)]
pub(crate) struct Backends {
    pub(crate) built: Vec<Descriptor>,
    pub(crate) planned: Vec<Planned>,
}

impl Backends {
    /// Reads all manifests.
    ///
    /// # Errors
    /// Says which manifest is wrong, and how.
    pub(crate) fn read(metadata: &Metadata) -> Result<Self, String> {
        let mut built = Vec::new();
        for package in &metadata.packages {
            let Some(value) = package.metadata.get(BACKEND) else { continue };
            let mut descriptor: Descriptor = parse(value).map_err(|why| {
                format!("{}/Cargo.toml: [package.metadata.{BACKEND}] {why}", package.folder)
            })?;
            descriptor.folder.clone_from(&package.folder);
            descriptor.package.clone_from(&package.name);
            built.push(descriptor);
        }
        let planned: BTreeMap<String, Planned> = match metadata.workspace.get(PLANNED) {
            Some(value) => parse(value).map_err(|why| format!("Cargo.toml: {PLANNED}: {why}"))?,
            None => BTreeMap::new(),
        };
        let is_built = |variant: &str| built.iter().any(|one| one.variant == variant);
        let mut planned: Vec<_> = planned
            .into_iter()
            .filter(|(variant, _)| !is_built(variant))
            .map(|(variant, planned)| Planned { variant, ..planned })
            .collect();
        built.sort_by_key(|one| (one.order, one.variant.clone()));
        planned.sort_by_key(|one| (one.order, one.variant.clone()));
        let backends = Self { built, planned };
        backends.check()?;
        Ok(backends)
    }

    /// Every variant with its aliases, in order.
    pub(crate) fn variants(&self) -> Vec<Variant<'_>> {
        let built = self.built.iter().map(|one| Variant {
            name: &one.variant,
            aliases: &one.aliases,
            order: one.order,
            local: one.local,
            description: &one.description,
            boundary: &one.boundary,
            credentials: &one.credentials,
            key_page: one.key_page.as_deref(),
            backend: Some(one),
        });
        let planned = self.planned.iter().map(|one| Variant {
            name: &one.variant,
            aliases: &[],
            order: one.order,
            local: false,
            description: &one.description,
            boundary: &one.boundary,
            credentials: &one.credentials,
            key_page: one.key_page.as_deref(),
            backend: None,
        });
        let mut all: Vec<_> = built.chain(planned).collect();
        all.sort_by_key(|one| (one.order, one.name));
        all
    }

    fn check(&self) -> Result<(), String> {
        let mut names = BTreeMap::new();
        for variant in self.variants() {
            for name in std::iter::once(variant.name).chain(variant.aliases.iter().map(|a| &**a)) {
                if !is_name(name) {
                    return Err(format!(
                        "{name:?} is no name of a variant: a-z, 0-9 and inner `-`"
                    ));
                }
                if let Some(other) = names.insert(name, variant.name) {
                    return Err(format!("{other} and {} have one name: {name}", variant.name));
                }
            }
        }
        for one in &self.built {
            one.check().map_err(|why| format!("{}/Cargo.toml: {why}", one.folder))?;
        }
        Ok(())
    }
}

/// A variant, with or without a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant<'a> {
    pub(crate) name: &'a str,
    pub(crate) aliases: &'a [String],
    order: u32,
    pub(crate) local: bool,
    pub(crate) description: &'a str,
    pub(crate) boundary: &'a str,
    pub(crate) credentials: &'a Credentials,
    pub(crate) key_page: Option<&'a str>,
    pub(crate) backend: Option<&'a Descriptor>,
}

impl Variant<'_> {
    /// Its constant, such as `LOCAL_EVAL`.
    pub(crate) fn constant(&self) -> String {
        self.name.to_uppercase().replace('-', "_")
    }
}

impl Descriptor {
    /// The library as code names it.
    pub(crate) fn library(&self) -> String {
        self.folder.trim_start_matches("crates/").replace('-', "_")
    }

    /// The dependency as manifests name it.
    pub(crate) fn dependency(&self) -> &str {
        self.folder.trim_start_matches("crates/")
    }

    fn check(&self) -> Result<(), String> {
        if !self.folder.starts_with("crates/backend-") {
            return Err("a backend is in a folder crates/backend-<name>".into());
        }
        if !is_name(&self.feature) || OTHER_FEATURES.contains(&&*self.feature) {
            return Err(format!("{:?} is no feature that a backend can have", self.feature));
        }
        if let Some(name) = self.parts.keys().find(|name| !is_name(name)) {
            return Err(format!("{name:?} is no feature that a part can have"));
        }
        let parts = self.parts.values().map(|part| &part.description);
        for text in [&self.description, &self.boundary, &self.interpreter].into_iter().chain(parts)
        {
            if text.is_empty() || text.contains(['\n', '|']) || text.ends_with('.') {
                return Err(format!("{text:?} is no phrase of one line without a full stop"));
            }
        }
        for forwarded in &self.forwarded {
            match (&forwarded.option, &forwarded.field) {
                (Some(_), None) => {}
                (None, Some(field)) if FIELDS.contains(&&**field) => {}
                _ => {
                    let fields = FIELDS.join(", ");
                    return Err(format!("`forwarded` has `option` or `field` ({fields})"));
                }
            }
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && !name.starts_with('-') && !name.ends_with('-') && name.bytes().all(allowed)
}

fn parse<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    T::deserialize(value).map_err(|error| error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;
    use crate::metadata::Package;

    /// A workspace with one backend, `toy`, and two planned ones.
    pub(crate) fn example() -> Metadata {
        let backend = json!({
            "variant": "local-toy", "aliases": ["toy"], "order": 20, "local": true, "feature": "toy",
            "type": "ToyBackend", "description": "Toys", "boundary": "none", "interpreter": "none", "from-source": true,
            "parts": {"toy-server": {"feature": "server", "description": "Servers of toys"}},
            "same-in-supervisor": ["TOY_HOST"],
            "forwarded": [{"option": "shell", "from": ["TOY_SHELL"], "path": true}],
        });
        let planned = json!({
            "cloudy": {"order": 10, "description": "Clouds", "boundary": "a VM", "credentials": [["A", "B"], ["~/.c"]]},
            "local-toy": {"order": 1, "description": "Toys to come", "boundary": "none"},
        });
        Metadata {
            packages: vec![Package {
                name: "code-sandboxes-backend-toy".into(),
                folder: "crates/backend-toy".into(),
                metadata: json!({"sandbox-backend": backend}),
                ..Package::default()
            }],
            workspace: json!({"planned-backends": planned}),
        }
    }

    fn problem(change: impl FnOnce(&mut Value)) -> String {
        let mut metadata = example();
        change(&mut metadata.packages[0].metadata["sandbox-backend"]);
        Backends::read(&metadata).unwrap_err()
    }

    #[test]
    fn a_crate_takes_the_place_of_what_was_planned() {
        let backends = Backends::read(&example()).unwrap();
        let names: Vec<_> = backends.variants().iter().map(|one| one.name.to_owned()).collect();
        assert_eq!(names, ["cloudy", "local-toy"]);
        assert_eq!(backends.variants()[1].constant(), "LOCAL_TOY");
        assert_eq!(backends.built[0].library(), "backend_toy");
    }

    #[test]
    fn mistakes_are_named() {
        let wrong = problem(|toy| toy["colour"] = json!("red"));
        assert!(wrong.starts_with("crates/backend-toy/Cargo.toml: "), "{wrong}");
        assert!(wrong.contains("unknown field `colour`"), "{wrong}");
        assert!(problem(|toy| toy["variant"] = json!("Toy")).contains("no name of a variant"));
        assert!(problem(|toy| toy["aliases"] = json!(["cloudy"])).contains("have one name"));
        assert!(problem(|toy| toy["feature"] = json!("pool")).contains("no feature"));
        assert!(problem(|toy| toy["description"] = json!("Toys.")).contains("full stop"));
        let forwarded = json!([{"field": "colour", "from": ["X"]}]);
        assert!(problem(|toy| toy["forwarded"] = forwarded).contains("`forwarded` has"));
    }
}
