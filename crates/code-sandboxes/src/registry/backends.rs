//! Every well-known variant, and the backends of this build.
//!
//! Written by `cargo xtask generate` from the manifests of the backends; not to be edited.

use std::sync::OnceLock;

use sandbox_core::Variant;

use super::Entry;

pub(super) static BACKENDS: [Entry; 8] = [
    Entry {
        variant: Variant::LOCAL_EVAL,
        description: "Python workers on this host, in kernel-isolated cells",
        credentials: &[],
        key_page: None,
        feature: Some("eval"),
        #[cfg(feature = "eval")]
        make: Some(|| std::sync::Arc::new(backend_eval::EvalBackend::default())),
        #[cfg(not(feature = "eval"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::LOCAL_JUPYTER,
        description: "Jupyter kernels of this host, in kernel-isolated cells, or behind a Jupyter Server",
        credentials: &[],
        key_page: None,
        feature: Some("jupyter"),
        #[cfg(feature = "jupyter")]
        make: Some(|| std::sync::Arc::new(backend_jupyter::JupyterBackend::default())),
        #[cfg(not(feature = "jupyter"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::LOCAL_DOCKER,
        description: "Hardened containers of Docker or Podman",
        credentials: &[],
        key_page: None,
        feature: Some("docker"),
        #[cfg(feature = "docker")]
        make: Some(|| std::sync::Arc::new(backend_docker::DockerBackend::default())),
        #[cfg(not(feature = "docker"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::DATALAYER_RUNTIME,
        description: "Datalayer runtimes in the cloud",
        credentials: &[
            &["DATALAYER_API_KEY"],
            &["TEST_DATALAYER_API_KEY"],
            &["DATALAYER_EXTERNAL_TOKEN"],
        ],
        key_page: Some("https://datalayer.app"),
        feature: Some("datalayer"),
        #[cfg(feature = "datalayer")]
        make: Some(|| std::sync::Arc::new(backend_datalayer::DatalayerBackend::default())),
        #[cfg(not(feature = "datalayer"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::DAYTONA,
        description: "Sandboxes of Daytona",
        credentials: &[&["DAYTONA_API_KEY"], &["DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"]],
        key_page: Some("https://app.daytona.io/dashboard/keys"),
        feature: Some("daytona"),
        #[cfg(feature = "daytona")]
        make: Some(|| std::sync::Arc::new(backend_daytona::DaytonaBackend::default())),
        #[cfg(not(feature = "daytona"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::E2B,
        description: "Sandboxes of E2B",
        credentials: &[&["E2B_API_KEY"]],
        key_page: Some("https://e2b.dev/dashboard?tab=keys"),
        feature: Some("e2b"),
        #[cfg(feature = "e2b")]
        make: Some(|| std::sync::Arc::new(backend_e2b::E2bBackend::default())),
        #[cfg(not(feature = "e2b"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::MODAL,
        description: "Sandboxes of Modal",
        credentials: &[&["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"], &["~/.modal.toml"]],
        key_page: Some("https://modal.com/settings/tokens"),
        feature: Some("modal"),
        #[cfg(feature = "modal")]
        make: Some(|| std::sync::Arc::new(backend_modal::ModalBackend::default())),
        #[cfg(not(feature = "modal"))]
        make: None,
        made: OnceLock::new(),
    },
    Entry {
        variant: Variant::CLOUDFLARE,
        description: "Sandboxes of Cloudflare",
        credentials: &[&["CLOUDFLARE_SANDBOX_BASE_URL", "CLOUDFLARE_API_TOKEN"]],
        key_page: Some("https://developers.cloudflare.com/sandbox/"),
        feature: Some("cloudflare"),
        #[cfg(feature = "cloudflare")]
        make: Some(|| std::sync::Arc::new(backend_cloudflare::CloudflareBackend::default())),
        #[cfg(not(feature = "cloudflare"))]
        make: None,
        made: OnceLock::new(),
    },
];
