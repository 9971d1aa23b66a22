//! Variables of a client that count when the supervisor creates a sandbox.
//!
//! Written by `cargo xtask generate` from the manifests of the backends; not to be edited.

use sandbox_core::Variant;

use super::client_env::{Forwarded, Target};

/// Variables by variant that supply parts which a request leaves out.
pub(super) const FORWARDED: &[(Variant, &[Forwarded])] = &[
    (
        Variant::LOCAL_EVAL,
        &[Forwarded {
            target: Target::Option("python"),
            from: &["CODE_SANDBOXES_PYTHON", "VIRTUAL_ENV/bin/python"],
            unless: &[],
            is_path: true,
        }],
    ),
    (
        Variant::LOCAL_JUPYTER,
        &[Forwarded {
            target: Target::Option("python"),
            from: &["CODE_SANDBOXES_PYTHON", "VIRTUAL_ENV/bin/python"],
            unless: &["server_url", "kernel_id", "connection_file"],
            is_path: true,
        }],
    ),
    (
        Variant::LOCAL_DOCKER,
        &[Forwarded {
            target: Target::Image,
            from: &["CODE_SANDBOXES_IMAGE"],
            unless: &["snapshot"],
            is_path: false,
        }],
    ),
];

/// Variables by variant that must be the same in the supervisor.
pub(super) const SAME: &[(Variant, &[&str])] = &[(
    Variant::LOCAL_DOCKER,
    &["DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"],
)];
