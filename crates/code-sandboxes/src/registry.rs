//! Which variants this build has. A new backend is one entry in `BACKENDS`, and nothing else outside of its crate.

use std::sync::{Arc, OnceLock};

use sandbox_core::{Backend, BackendResolver, Error, Result, Variant};

use crate::Sandbox;

/// A backend that is written, and whether this build has it.
struct Entry {
    variant: Variant,
    /// The cargo feature that brings it.
    feature: &'static str,
    make: Option<fn() -> Arc<dyn Backend>>,
    made: OnceLock<Arc<dyn Backend>>,
}

macro_rules! backends {
    ($($variant:ident in $feature:literal is $backend:ty,)*) => {
        static BACKENDS: [Entry; [$($feature),*].len()] = [$(Entry {
            variant: Variant::$variant,
            feature: $feature,
            #[cfg(feature = $feature)]
            make: Some(|| Arc::new(<$backend>::default())),
            #[cfg(not(feature = $feature))]
            make: None,
            made: OnceLock::new(),
        },)*];
    };
}

backends! {
    LOCAL_EVAL in "eval" is backend_eval::EvalBackend,
    LOCAL_JUPYTER in "jupyter" is backend_jupyter::JupyterBackend,
    LOCAL_DOCKER in "docker" is backend_docker::DockerBackend,
    DATALAYER_RUNTIME in "datalayer" is backend_datalayer::DatalayerBackend,
}

/// Finds backends by variant. One backend of a kind serves the whole process, so its warm parts are shared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registry {
    _private: (),
}

/// Whether a variant is in this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantStatus {
    /// The variant.
    pub variant: Variant,
    /// Whether this build has it.
    pub available: bool,
}

impl Registry {
    /// The registry of this build.
    pub fn new() -> Self {
        Self::default()
    }

    /// The variant that is used when none is named: `local-eval`, which needs no key.
    pub fn default_variant(self) -> Variant {
        Variant::LOCAL_EVAL
    }

    /// Every known variant, and whether this build has it.
    pub fn variants(self) -> Vec<VariantStatus> {
        let status = |variant| VariantStatus { variant, available: available(variant) };
        Variant::well_known().into_iter().map(status).collect()
    }

    /// The backend of a variant, with its configuration from the environment.
    ///
    /// # Errors
    /// `Unsupported` when this build does not have it, naming those it has.
    pub fn backend(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        entry(variant)
            .and_then(Entry::backend)
            .map(Arc::clone)
            .ok_or_else(|| missing(variant, &BACKENDS))
    }

    /// The backend of a variant whose sandboxes end with this process, as the supervisor itself uses it.
    ///
    /// # Errors
    /// As [`Registry::backend`].
    #[cfg(feature = "detached")]
    pub fn backend_of_process(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let make = entry(variant).and_then(|entry| entry.make);
        make.map(|make| make()).ok_or_else(|| missing(variant, &BACKENDS))
    }
}

impl Entry {
    fn backend(&self) -> Option<&Arc<dyn Backend>> {
        self.make.map(|make| self.made.get_or_init(|| detachable(make())))
    }
}

/// What runs on this host ends with its process, unless the supervisor has it.
fn detachable(backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    #[cfg(feature = "detached")]
    if backend.variant().is_local() {
        use sandbox_core::Layer as _;

        return sandbox_supervisor::client::DetachedLayer.layer(backend);
    }
    backend
}

fn entry(variant: Variant) -> Option<&'static Entry> {
    BACKENDS.iter().find(|entry| entry.variant == variant)
}

fn available(variant: Variant) -> bool {
    entry(variant).is_some_and(|entry| entry.make.is_some())
}

fn missing(variant: Variant, known: &[Entry]) -> Error {
    let (what, hint) = match known.iter().find(|entry| entry.variant == variant) {
        Some(entry) => {
            ("build", format!("build code-sandboxes with its cargo feature `{}`", entry.feature))
        }
        None => {
            let names: Vec<_> = known.iter().map(|entry| entry.variant.as_str()).collect();
            ("version", format!("it is not written yet; use {}", names.join(", ")))
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

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let left_out =
            [Entry { variant: Variant::E2B, feature: "e2b", make: None, made: OnceLock::new() }];
        let error = missing(Variant::E2B, &left_out);
        assert_eq!(error.to_string(), "this build has no e2b backend");
        assert_eq!(error.hint(), Some("build code-sandboxes with its cargo feature `e2b`"));
        let error = missing(Variant::MODAL, &left_out);
        assert_eq!(error.to_string(), "this version has no modal backend");
        assert_eq!(error.hint(), Some("it is not written yet; use e2b"));
    }

    #[test]
    fn what_is_available_is_what_can_be_had() {
        for status in Registry::new().variants() {
            let had = Registry::new().backend(status.variant);
            assert_eq!(had.is_ok(), status.available, "{}", status.variant);
            if let Ok(backend) = had {
                assert_eq!(backend.variant(), status.variant);
            }
        }
        assert!(BACKENDS.iter().all(|entry| entry.make.is_some() == available(entry.variant)));
    }
}
