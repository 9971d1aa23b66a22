//! Keys and defaults of this process, and the variants that have keys.
//!
//! ```
//! use code_sandboxes::{Configuration, Registry, Variant, configure};
//!
//! # fn main() -> code_sandboxes::Result<()> {
//! configure(Configuration::new().variable("E2B_API_KEY", "a key").default_variant("local-eval"))?;
//! let statuses = Registry::new().variants();
//! let e2b = statuses.iter().find(|status| status.variant == Variant::E2B).unwrap();
//! assert!(e2b.has_credentials());
//! # code_sandboxes::clear_variable("E2B_API_KEY");
//! # Ok(())
//! # }
//! ```

use std::cmp::Reverse;
use std::env;
use std::sync::{PoisonError, RwLock};

use sandbox_core::{Error, IntoVariant, Result, Secret, Variant, set_variable, variable};

use crate::{Manager, Registry, VariantStatus};

/// The variant that is used when none is named.
static DEFAULT: RwLock<Option<Variant>> = RwLock::new(None);

/// Keys and defaults of this process, for [`configure`].
#[derive(Debug, Default)]
#[must_use = "it counts once it is given to configure()"]
pub struct Configuration {
    variables: Vec<(String, Secret)>,
    keys: Vec<(Result<Variant>, Secret)>,
    default_variant: Option<Result<Variant>>,
}

impl Configuration {
    /// Makes a configuration that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the key of a variant whose credentials are one variable, such as `e2b`.
    pub fn key(mut self, variant: impl IntoVariant, key: impl Into<Secret>) -> Self {
        self.keys.push((variant.into_variant(), key.into()));
        self
    }

    /// Sets a variable that backends read, such as `CLOUDFLARE_SANDBOX_BASE_URL`, in place of that of the environment.
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Sets the variant of builders that name none. Default: `local-eval`.
    pub fn default_variant(mut self, variant: impl IntoVariant) -> Self {
        self.default_variant = Some(variant.into_variant());
        self
    }
}

/// Sets keys and defaults for the whole process: everything, or on an error nothing.
///
/// Backends that were used before read their keys for each call, so they use new ones from then on.
///
/// # Errors
/// `InvalidArgument` for an unknown variant, and for a key of a variant that has none or needs several variables;
/// `Unsupported` for a default variant that this build does not have.
pub fn configure(configuration: Configuration) -> Result<()> {
    let Configuration { mut variables, keys, default_variant } = configuration;
    for (variant, key) in keys {
        variables.push((key_variable(variant?)?.to_owned(), key));
    }
    let default = default_variant.transpose()?;
    if let Some(variant) = default {
        Registry::new().backend(variant)?;
    }
    for (name, value) in variables {
        set_variable(name, value);
    }
    if default.is_some() {
        *DEFAULT.write().unwrap_or_else(PoisonError::into_inner) = default;
    }
    Ok(())
}

/// Returns the default that was configured.
pub(crate) fn default_variant() -> Option<Variant> {
    *DEFAULT.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the one variable that has the key of a variant.
fn key_variable(variant: Variant) -> Result<&'static str> {
    let known = Registry::new().variants().into_iter().find(|status| status.variant == variant);
    let alternatives = known.map(|status| status.credentials).unwrap_or_default();
    let single = alternatives.iter().find_map(|all| match all {
        [name] if !name.starts_with("~/") && !name.ends_with("_ID") => Some(*name),
        _ => None,
    });
    single.ok_or_else(|| {
        let needed: Vec<_> = alternatives.iter().map(|all| all.join(" and ")).collect();
        let needed = if needed.is_empty() { "no key".to_owned() } else { needed.join(", or ") };
        let message = format!("of {variant} is not one key: it needs {needed}");
        Error::invalid("key", message).with_hint("use `Configuration::variable` for each")
    })
}

impl VariantStatus {
    /// Returns true when one of the alternatives of its credentials is there as a whole. False without any.
    pub fn has_credentials(&self) -> bool {
        self.credentials.iter().any(|all| all.iter().all(|one| is_there(one)))
    }

    /// Returns the credentials that are missing from the alternative of which most is there; of several, from the first.
    pub fn missing_credentials(&self) -> Vec<&'static str> {
        let count = |all: &[&str]| all.iter().filter(|one| is_there(one)).count();
        let nearest = self.credentials.iter().min_by_key(|all| Reverse(count(all)));
        let nearest = nearest.into_iter().flat_map(|all| all.iter().copied());
        nearest.filter(|one| !is_there(one)).collect()
    }
}

fn is_there(credential: &str) -> bool {
    match credential.strip_prefix("~/") {
        Some(file) => env::home_dir().is_some_and(|home| home.join(file).is_file()),
        None => variable(credential).is_some(),
    }
}

impl Registry {
    /// Returns the variants of this build with credentials, in the order in which they are chosen.
    pub fn with_credentials(self) -> Vec<Variant> {
        let known = self.variants().into_iter();
        let has = |status: &VariantStatus| status.available && status.has_credentials();
        known.filter(has).map(|status| status.variant).collect()
    }

    /// Returns the first variant of this build with credentials; without any, the default one.
    pub fn detect(self) -> Variant {
        self.with_credentials().first().copied().unwrap_or_else(|| self.default_variant())
    }
}

impl Manager {
    /// Manages every variant of this build with credentials; without any, the default one. The first is the default, and
    /// there is no fallback: set one with [`Manager::with_chain`].
    ///
    /// # Errors
    /// `Unsupported` when the default variant is not in this build.
    pub fn detect() -> Result<Self> {
        let registry = Registry::new();
        let mut variants = registry.with_credentials();
        if variants.is_empty() {
            variants.push(registry.default_variant());
        }
        let places = variants.into_iter().map(|variant| registry.backend(variant));
        Self::new(places.collect::<Result<Vec<_>>>()?)
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, clear_variable};

    use super::*;

    #[test]
    fn the_first_variant_with_all_its_credentials_is_chosen() {
        let names = [
            "CLOUDFLARE_SANDBOX_BASE_URL",
            "CLOUDFLARE_API_TOKEN",
            "E2B_API_KEY",
            "DAYTONA_API_KEY",
        ];
        let has = |variant| {
            let all = Registry::new().variants();
            all.into_iter().find(|status| status.variant == variant).unwrap().has_credentials()
        };
        let missing = |variant| {
            let all = Registry::new().variants();
            let status = all.into_iter().find(|status| status.variant == variant).unwrap();
            status.missing_credentials()
        };
        let modal = ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET", "~/.modal.toml"];
        if names.iter().chain(&modal).any(|name| is_there(name)) {
            return; // Keys of the person who runs the tests.
        }
        set_variable(names[0], "x");
        assert!(!has(Variant::CLOUDFLARE), "half of them");
        assert_eq!(missing(Variant::CLOUDFLARE), [names[1]]);
        assert_eq!(missing(Variant::MODAL), ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"]);
        set_variable(names[1], "x");
        assert!(has(Variant::CLOUDFLARE) && !has(Variant::E2B));
        configure(Configuration::new().key("e2b", "x")).unwrap();
        assert!(has(Variant::E2B));
        names.iter().for_each(|name| clear_variable(name));
        assert!(!has(Variant::E2B) && !has(Variant::LOCAL_EVAL));
    }

    #[test]
    fn a_wrong_configuration_changes_nothing() {
        for (configuration, kind) in [
            (Configuration::new().key("nowhere", "x"), ErrorKind::InvalidArgument),
            (Configuration::new().key("cloudflare", "x"), ErrorKind::InvalidArgument),
            (Configuration::new().key("local-eval", "x"), ErrorKind::InvalidArgument),
            (Configuration::new().default_variant("nowhere"), ErrorKind::InvalidArgument),
        ] {
            let error = configure(configuration.variable("CONFIGURE_TEST", "x")).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(variable("CONFIGURE_TEST"), None);
        }
        let error = configure(Configuration::new().key("cloudflare", "x")).unwrap_err();
        assert!(
            error.message().contains("CLOUDFLARE_SANDBOX_BASE_URL and CLOUDFLARE_API_TOKEN"),
            "{error}"
        );
    }
}
