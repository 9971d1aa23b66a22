//! Which variants this build has.

use std::sync::{Arc, OnceLock};

use sandbox_core::{Backend, Error, Resolve, Result, Variant};

use crate::Sandbox;

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
        Variant::LocalEval
    }

    /// Every known variant, and whether this build has it.
    pub fn variants(self) -> Vec<VariantStatus> {
        let status = |variant| VariantStatus { variant, available: available(variant) };
        Variant::ALL.into_iter().map(status).collect()
    }

    /// The backend of a variant, with its configuration from the environment.
    ///
    /// # Errors
    /// `Unsupported` when this build does not have it, naming those it has.
    pub fn backend(self, variant: Variant) -> Result<Arc<dyn Backend>> {
        match variant {
            #[cfg(feature = "eval")]
            Variant::LocalEval => {
                static BACKEND: OnceLock<Arc<backend_eval::EvalBackend>> = OnceLock::new();
                let backend =
                    BACKEND.get_or_init(|| Arc::new(backend_eval::EvalBackend::default()));
                Ok(Arc::<backend_eval::EvalBackend>::clone(backend))
            }
            _ => Err(missing(variant)),
        }
    }
}

fn available(variant: Variant) -> bool {
    cfg!(feature = "eval") && variant == Variant::LocalEval
}

fn missing(variant: Variant) -> Error {
    let here: Vec<_> = Variant::ALL
        .into_iter()
        .filter(|variant| available(*variant))
        .map(Variant::as_str)
        .collect();
    Error::unsupported("create", format!("this build has no {variant} backend"))
        .with_context("variant", variant.as_str())
        .with_hint(format!("variants of this build: {}", here.join(", ")))
}

impl Resolve for Registry {
    type Sandbox = Sandbox;

    fn resolve(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>> {
        self.backend(variant.unwrap_or_else(|| self.default_variant()))
    }
}
