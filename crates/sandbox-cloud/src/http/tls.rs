//! Encryption, with certificates checked as the operating system checks them.

use std::sync::{Arc, OnceLock};

use rustls::ClientConfig;
use rustls_platform_verifier::Verifier;
use sandbox_core::{Error, ErrorKind, Result};

/// Returns the configuration for connections to a provider, of HTTP and of whatever else a backend opens. The system's
/// certificates are read once for a process, which takes milliseconds; clones share the sessions that TLS can resume.
///
/// `jupyter-protocol` has a twin of this function: that crate depends on nothing of Code Sandboxes, and clouds without
/// Jupyter do not depend on it.
///
/// # Errors
/// `Unexpected` where the system has no certificates to trust.
pub fn client_config() -> Result<ClientConfig> {
    static SHARED: OnceLock<ClientConfig> = OnceLock::new();
    match SHARED.get() {
        Some(config) => Ok(config.clone()),
        None => new_config().map(|config| SHARED.get_or_init(|| config).clone()),
    }
}

fn new_config() -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(Arc::clone(&provider)).map_err(not_set_up)?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let dangerous = builder.map_err(not_set_up)?.dangerous();
    Ok(dangerous.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn not_set_up(error: rustls::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "connect", "cannot set up encryption").with_source(error)
}
