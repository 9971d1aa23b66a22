//! Finds backends by variant: those of this build, and those that the program has brought along.

use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use sandbox_core::{
    Backend, BackendResolver, Error, ErrorKind, IntoBackend, Layer as _, Result, Variant,
};

use crate::Sandbox;

mod backends;

use backends::BACKENDS;

/// A well-known variant, and whether this build has its backend.
struct Entry {
    variant: Variant,
    description: &'static str,
    credentials: &'static [&'static [&'static str]],
    key_page: Option<&'static str>,
    /// The cargo feature that brings it. `None` as long as it is not written.
    feature: Option<&'static str>,
    make: Option<fn() -> Arc<dyn Backend>>,
    made: OnceLock<Arc<dyn Backend>>,
}

/// Backends that the program has brought along.
static REGISTERED: RwLock<Vec<Arc<dyn Backend>>> = RwLock::new(Vec::new());

/// Finds backends by variant. One backend of a kind serves the whole process, so its warm parts are shared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registry {
    _private: (),
}

/// What is known of a variant in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct VariantStatus {
    /// The variant.
    pub variant: Variant,
    /// Whether this process has its backend.
    pub available: bool,
    /// What it is, in one phrase. Empty for a variant that the program has brought along.
    pub description: &'static str,
    /// Alternatives, each with all that is needed: names of variables, and files of the home directory as `~/name`. Empty
    /// when none are needed.
    pub credentials: &'static [&'static [&'static str]],
    /// The page where credentials can be had.
    pub key_page: Option<&'static str>,
}

impl Registry {
    /// The registry of this build.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the variant that is used when none is named: `local-eval`, which needs no key, unless
    /// [`configure`](crate::configure) has set another one.
    pub fn default_variant(self) -> Variant {
        crate::configure::default_variant().unwrap_or(Variant::LOCAL_EVAL)
    }

    /// Every variant: the well-known ones in the order of the documentation, then those of [`Registry::register`].
    pub fn variants(self) -> Vec<VariantStatus> {
        let well_known = BACKENDS.iter().map(Entry::status);
        let own = registered().into_iter().map(|backend| backend.variant());
        let own = own.filter(|variant| entry(*variant).is_none()).map(|variant| VariantStatus {
            variant,
            available: true,
            description: "",
            credentials: &[],
            key_page: None,
        });
        well_known.chain(own).collect()
    }

    /// Brings a backend along, for the whole process: from now on builders, ids and lists know its variant.
    ///
    /// # Errors
    /// `InvalidArgument` when its variant has a backend in this process already.
    pub fn register(self, backend: impl IntoBackend) -> Result<()> {
        let backend = backend.into_backend();
        let variant = backend.variant();
        let mut registered = REGISTERED.write().unwrap_or_else(PoisonError::into_inner);
        let is_built = entry(variant).is_some_and(|entry| entry.make.is_some());
        if is_built || registered.iter().any(|one| one.variant() == variant) {
            let message = format!("{variant} has a backend in this process already");
            return Err(Error::new(ErrorKind::InvalidArgument, "register", message));
        }
        registered.push(backend);
        Ok(())
    }

    /// The backend of a variant, with its configuration from the environment.
    ///
    /// # Errors
    /// `Unsupported` when this process does not have it, with what to do.
    pub fn backend(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let built = entry(variant).and_then(Entry::backend).map(Arc::clone);
        built.or_else(|| own(variant)).ok_or_else(|| missing(variant, &BACKENDS))
    }

    /// Returns the backend of a variant as its crate has it, with the tags by which [`reap`](crate::reap) knows its own.
    pub(crate) fn plain_backend(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let make = entry(variant).and_then(|entry| entry.make);
        let built = make.map(|make| make());
        built.or_else(|| own(variant)).ok_or_else(|| missing(variant, &BACKENDS))
    }

    /// The backend of a variant whose sandboxes end with this process, as the supervisor itself uses it.
    ///
    /// # Errors
    /// As [`Registry::backend`].
    #[cfg(feature = "detached")]
    pub fn in_process_backend(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let make = entry(variant).and_then(|entry| entry.make);
        let built = make.map(|make| make());
        built.or_else(|| own(variant)).ok_or_else(|| missing(variant, &BACKENDS))
    }
}

impl Entry {
    fn status(&self) -> VariantStatus {
        VariantStatus {
            variant: self.variant,
            available: self.make.is_some() || own(self.variant).is_some(),
            description: self.description,
            credentials: self.credentials,
            key_page: self.key_page,
        }
    }

    fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.make.map(|make| self.made.get_or_init(|| detachable(make())))
    }
}

/// What runs on this host ends with its process, unless the supervisor has it. What runs elsewhere says whose it is.
fn detachable(backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    if !backend.variant().is_local() {
        return crate::OwnershipLayer.layer(backend);
    }
    #[cfg(feature = "detached")]
    if backend.variant().is_local() {
        return sandbox_supervisor::client::DetachedLayer.layer(backend);
    }
    backend
}

fn entry(variant: Variant) -> Option<&'static Entry> {
    BACKENDS.iter().find(|entry| entry.variant == variant)
}

fn registered() -> Vec<Arc<dyn Backend>> {
    REGISTERED.read().unwrap_or_else(PoisonError::into_inner).clone()
}

fn own(variant: Variant) -> Option<Arc<dyn Backend>> {
    registered().into_iter().find(|backend| backend.variant() == variant)
}

fn missing(variant: Variant, known: &[Entry]) -> Error {
    let found = known.iter().find(|entry| entry.variant == variant);
    let (what, hint) = match found.map(|entry| entry.feature) {
        Some(Some(feature)) => (
            "build",
            format!(
                "build it with the cargo feature `{feature}`, or with `full`, which has every feature"
            ),
        ),
        Some(None) => {
            let hint = "it is not written yet; choose another variant";
            ("version", hint.to_owned())
        }
        None => {
            let hint = "give it to the builder with `backend`, or to `Registry::register`";
            ("program", hint.to_owned())
        }
    };
    Error::unsupported("create", format!("this {what} has no {variant} backend"))
        .with_context("variant", variant.as_str())
        .with_hint(hint)
}

impl BackendResolver for Registry {
    type Sandbox = Sandbox;

    fn resolve(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>> {
        self.backend(variant.unwrap_or_else(|| self.default_variant()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left_out(variant: Variant, feature: Option<&'static str>) -> Entry {
        Entry {
            variant,
            description: "",
            credentials: &[],
            key_page: None,
            feature,
            make: None,
            made: OnceLock::new(),
        }
    }

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let known = [left_out(Variant::E2B, Some("e2b")), left_out(Variant::MODAL, None)];
        let error = missing(Variant::E2B, &known);
        assert_eq!(error.to_string(), "this build has no e2b backend");
        assert_eq!(
            error.hint(),
            Some("build it with the cargo feature `e2b`, or with `full`, which has every feature")
        );
        let error = missing(Variant::MODAL, &known);
        assert_eq!(error.to_string(), "this version has no modal backend");
        assert_eq!(error.hint(), Some("it is not written yet; choose another variant"));
        let error = missing(Variant::register("never-brought").unwrap(), &known);
        assert_eq!(error.to_string(), "this program has no never-brought backend");
    }

    #[test]
    fn what_is_available_is_what_can_be_had() {
        let all = Registry::new().variants();
        let names: Vec<_> = all.iter().map(|status| status.variant).collect();
        assert!(names.starts_with(&Variant::well_known()), "{names:?}");
        for status in all {
            let had = Registry::new().backend(status.variant);
            assert_eq!(had.is_ok(), status.available, "{}", status.variant);
            if let Ok(backend) = had {
                assert_eq!(backend.variant(), status.variant);
            }
        }
    }
}
