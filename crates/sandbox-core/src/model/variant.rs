//! The places where code can run.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};

/// A kind of sandbox. Parses every known spelling: case, `_`, and aliases do not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Variant {
    /// Python workers on this host, in kernel-isolated cells.
    LocalEval,
    /// A Jupyter kernel or server on this host.
    LocalJupyter,
    /// A hardened container.
    LocalDocker,
    /// A Datalayer runtime in the cloud.
    DatalayerRuntime,
    /// An E2B sandbox.
    E2b,
    /// A Daytona sandbox.
    Daytona,
    /// A Modal sandbox.
    Modal,
    /// A Cloudflare sandbox.
    Cloudflare,
}

impl Variant {
    /// Every variant, in the order of the documentation.
    pub const ALL: [Self; 8] = [
        Self::LocalEval,
        Self::LocalJupyter,
        Self::LocalDocker,
        Self::DatalayerRuntime,
        Self::E2b,
        Self::Daytona,
        Self::Modal,
        Self::Cloudflare,
    ];

    /// The canonical name, such as `local-eval`.
    pub fn as_str(self) -> &'static str {
        self.names()[0]
    }

    /// The canonical name, then every alias.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Self::LocalEval => &["local-eval", "eval"],
            Self::LocalJupyter => &["local-jupyter", "jupyter", "jupyter-server"],
            Self::LocalDocker => &["local-docker", "docker"],
            Self::DatalayerRuntime => &["datalayer-runtime", "datalayer"],
            Self::E2b => &["e2b"],
            Self::Daytona => &["daytona"],
            Self::Modal => &["modal"],
            Self::Cloudflare => &["cloudflare"],
        }
    }

    /// Whether the code runs on this host.
    pub fn is_local(self) -> bool {
        matches!(self, Self::LocalEval | Self::LocalJupyter | Self::LocalDocker)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Variant {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase().replace('_', "-");
        Self::ALL.into_iter().find(|variant| variant.names().contains(&name.as_str())).ok_or_else(
            || {
                let known: Vec<_> = Self::ALL.iter().map(|variant| variant.as_str()).collect();
                Error::new(
                    ErrorKind::InvalidArgument,
                    "create",
                    format!(
                        "unknown sandbox variant: {text:?} (supported variants: {})",
                        known.join(", ")
                    ),
                )
                .with_context("field", "variant")
            },
        )
    }
}

impl Serialize for Variant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Variant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Names a variant: a [`Variant`] or any spelling of one.
pub trait IntoVariant {
    /// The variant.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] with the list of known variants.
    fn into_variant(self) -> Result<Variant>;
}

impl IntoVariant for Variant {
    fn into_variant(self) -> Result<Variant> {
        Ok(self)
    }
}

impl IntoVariant for &str {
    fn into_variant(self) -> Result<Variant> {
        self.parse()
    }
}

impl IntoVariant for String {
    fn into_variant(self) -> Result<Variant> {
        self.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_accepted() {
        for (text, variant) in [
            ("local-eval", Variant::LocalEval),
            (" Local_Eval ", Variant::LocalEval),
            ("EVAL", Variant::LocalEval),
            ("jupyter_server", Variant::LocalJupyter),
            ("datalayer", Variant::DatalayerRuntime),
        ] {
            assert_eq!(text.parse::<Variant>().unwrap(), variant);
        }
    }

    #[test]
    fn unknown_variants_list_the_known_ones() {
        let error = "invalid-variant".parse::<Variant>().unwrap_err();
        insta::assert_snapshot!(error, @r#"unknown sandbox variant: "invalid-variant" (supported variants: local-eval, local-jupyter, local-docker, datalayer-runtime, e2b, daytona, modal, cloudflare)"#);
    }
}
