//! The variants that this version knows by name.
//!
//! Written by `cargo xtask generate` from the manifests of the backends; not to be edited.

use super::{Variant, WellKnown};

impl Variant {
    /// Python workers on this host, in kernel-isolated cells.
    pub const LOCAL_EVAL: Self = Self(&["local-eval", "eval"]);
    /// Jupyter kernels of this host, in kernel-isolated cells, or behind a Jupyter Server.
    pub const LOCAL_JUPYTER: Self = Self(&["local-jupyter", "jupyter", "jupyter-server"]);
    /// Hardened containers of Docker or Podman.
    pub const LOCAL_DOCKER: Self = Self(&["local-docker", "docker"]);
    /// Datalayer runtimes in the cloud.
    pub const DATALAYER_RUNTIME: Self = Self(&["datalayer-runtime", "datalayer"]);
    /// Sandboxes of Daytona.
    pub const DAYTONA: Self = Self(&["daytona"]);
    /// Sandboxes of E2B.
    pub const E2B: Self = Self(&["e2b"]);
    /// Sandboxes of Modal.
    pub const MODAL: Self = Self(&["modal"]);
    /// Sandboxes of Cloudflare.
    pub const CLOUDFLARE: Self = Self(&["cloudflare"]);
}

/// Every well-known variant, in the order of the documentation.
pub(super) const TABLE: &[WellKnown] = &[
    WellKnown { variant: Variant::LOCAL_EVAL, is_local: true },
    WellKnown { variant: Variant::LOCAL_JUPYTER, is_local: true },
    WellKnown { variant: Variant::LOCAL_DOCKER, is_local: true },
    WellKnown { variant: Variant::DATALAYER_RUNTIME, is_local: false },
    WellKnown { variant: Variant::DAYTONA, is_local: false },
    WellKnown { variant: Variant::E2B, is_local: false },
    WellKnown { variant: Variant::MODAL, is_local: false },
    WellKnown { variant: Variant::CLOUDFLARE, is_local: false },
];
