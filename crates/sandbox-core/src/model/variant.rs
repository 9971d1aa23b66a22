//! The kinds of sandboxes: those that this version knows, and those that a program brings with its own backend.

use std::fmt;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind, Result};

mod well_known;

/// A kind of sandbox, such as [`Variant::LOCAL_EVAL`]. Parses every known spelling: case, `_`, and aliases do not matter.
///
/// The set is open: a program that brings its own [`Backend`](crate::Backend) names it with [`Variant::register`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Variant(
    /// The canonical name, then every alias.
    &'static [&'static str],
);

/// What is known of a variant besides its names.
struct WellKnown {
    variant: Variant,
    is_local: bool,
}

/// Maximum number of names that a process can register. Each of them takes memory until the process ends.
const MAX_REGISTERED: usize = 64;

/// Maximum length of a registered name.
const MAX_NAME_LENGTH: usize = 40;

/// A name that lets the command line choose the variant.
const RESERVED: &str = "auto";

static REGISTERED: RwLock<Vec<Variant>> = RwLock::new(Vec::new());

impl Variant {
    /// Names the variant of a backend that a program brings with it, for the whole process. The same name gives the same
    /// variant again.
    ///
    /// ```
    /// # fn main() -> sandbox_core::Result<()> {
    /// use sandbox_core::Variant;
    ///
    /// let mine = Variant::register("my-cloud")?;
    /// assert_eq!(mine, "my-cloud");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` when the name is not made of `a` to `z`, `0` to `9` and inner `-`, is longer than 40 characters, is
    /// that of a well-known variant, or is one too many: a process can register 64.
    pub fn register(name: &str) -> Result<Self> {
        check_name(name)?;
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = registered.iter().find(|variant| variant.as_str() == name) {
            return Ok(*known);
        }
        if registered.len() >= MAX_REGISTERED {
            let message = format!(
                "{name:?} is one too many: a process can register {MAX_REGISTERED} variants"
            );
            return Err(invalid("register", message));
        }
        let name: &'static str = Box::leak(name.into());
        let variant = Self(Box::leak(Box::new([name])));
        registered.push(variant);
        Ok(variant)
    }

    /// Returns the variants that this version knows by name, in the order of the documentation.
    pub fn well_known() -> Vec<Self> {
        well_known::TABLE.iter().map(|known| known.variant).collect()
    }

    /// Returns every variant: the well-known ones, then those that this process has registered.
    pub fn all() -> Vec<Self> {
        let mut all = Self::well_known();
        all.extend(REGISTERED.read().unwrap_or_else(PoisonError::into_inner).iter());
        all
    }

    /// The canonical name, such as `local-eval`.
    pub fn as_str(self) -> &'static str {
        self.0[0]
    }

    /// The canonical name, then every alias.
    pub fn names(self) -> &'static [&'static str] {
        self.0
    }

    /// Returns true for a well-known variant whose code runs on this host. Of a registered one that is not known.
    pub fn is_local(self) -> bool {
        well_known::TABLE.iter().any(|known| known.variant == self && known.is_local)
    }
}

fn check_name(name: &str) -> Result<()> {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_word = !name.starts_with('-') && !name.ends_with('-') && name.bytes().all(allowed);
    if name.is_empty() || name.len() > MAX_NAME_LENGTH || !is_word {
        let message = format!(
            "{name:?} is not a name of a variant: it has `a` to `z`, `0` to `9` and inner `-`, and at most {MAX_NAME_LENGTH} characters"
        );
        return Err(invalid("register", message));
    }
    let is_known = well_known::TABLE.iter().any(|known| known.variant.names().contains(&name));
    if is_known || name == RESERVED {
        let message =
            format!("{name:?} has a meaning in this library already; choose another name");
        return Err(invalid("register", message));
    }
    Ok(())
}

fn invalid(operation: &'static str, message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, operation, message).with_context("field", "variant")
}

impl fmt::Debug for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Variant").field(&self.as_str()).finish()
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
        let all = Self::all();
        let found = all.iter().find(|variant| variant.names().contains(&name.as_str()));
        found.copied().ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|variant| variant.as_str()).collect();
            let known = known.join(", ");
            let message =
                format!("unknown sandbox variant: {text:?} (supported variants: {known})");
            invalid("create", message)
        })
    }
}

/// Compares the canonical name: `sandbox.variant() == "local-eval"`. Aliases are parsed, and not compared.
impl PartialEq<str> for Variant {
    fn eq(&self, name: &str) -> bool {
        self.as_str() == name
    }
}

/// As the comparison with `str`.
impl PartialEq<&str> for Variant {
    fn eq(&self, name: &&str) -> bool {
        self.as_str() == *name
    }
}

/// As the comparison of the variant with `str`.
impl PartialEq<Variant> for &str {
    fn eq(&self, variant: &Variant) -> bool {
        *self == variant.as_str()
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
            ("local-eval", Variant::LOCAL_EVAL),
            (" Local_Eval ", Variant::LOCAL_EVAL),
            ("EVAL", Variant::LOCAL_EVAL),
            ("jupyter_server", Variant::LOCAL_JUPYTER),
            ("datalayer", Variant::DATALAYER_RUNTIME),
        ] {
            assert_eq!(text.parse::<Variant>().unwrap(), variant);
        }
    }

    #[test]
    fn unknown_variants_list_the_known_ones() {
        let error = "invalid-variant".parse::<Variant>().unwrap_err();
        let message = error.to_string();
        let known: Vec<_> = Variant::well_known().iter().map(|known| known.as_str()).collect();
        let expected = format!(
            "unknown sandbox variant: \"invalid-variant\" (supported variants: {}",
            known.join(", ")
        );
        // Another test may have registered more.
        assert!(message.starts_with(&expected), "{message}");
    }

    #[test]
    fn names_are_unique_and_well_formed() {
        let all = Variant::well_known();
        let mut names: Vec<_> = all.iter().flat_map(|variant| variant.names()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        for name in names {
            let error = Variant::register(name).unwrap_err().to_string();
            assert!(error.ends_with("has a meaning in this library already; choose another name"));
        }
    }

    #[test]
    fn a_program_brings_its_own_variants() {
        "my-cloud".parse::<Variant>().unwrap_err();
        let mine = Variant::register("my-cloud").unwrap();
        assert_eq!(Variant::register("my-cloud").unwrap(), mine);
        assert_eq!("My_Cloud".parse::<Variant>().unwrap(), mine);
        assert_eq!(
            (mine.as_str(), mine.names(), mine.is_local()),
            ("my-cloud", &["my-cloud"][..], false)
        );
        assert_ne!(mine, Variant::LOCAL_EVAL);
        assert!(Variant::all().contains(&mine) && !Variant::well_known().contains(&mine));
        assert_eq!(serde_json::to_string(&mine).unwrap(), "\"my-cloud\"");
        assert_eq!(serde_json::from_str::<Variant>("\"my-cloud\"").unwrap(), mine);
        assert_eq!(format!("{mine:?}"), "Variant(\"my-cloud\")");
        let listed = "other-cloud".parse::<Variant>().unwrap_err().to_string();
        assert!(listed.contains("my-cloud"), "{listed}");
    }

    #[test]
    fn bad_names_are_refused() {
        let long = "x".repeat(MAX_NAME_LENGTH + 1);
        for name in
            ["", "My-Cloud", "my_cloud", "-x", "x-", "a/b", "a b", "\u{e9}", "auto", "eval", &long]
        {
            let error = Variant::register(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}");
        }
    }
}
