//! Encryption: certificates are checked as the operating system does.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_platform_verifier::Verifier;
use sandbox_core::{Error, ErrorKind, Result};

/// What requests use.
///
/// # Errors
/// `Unexpected` where the system has no certificates to trust.
pub(crate) fn configuration() -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new(Arc::clone(&provider)).map_err(wrong)?;
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let dangerous = builder.map_err(wrong)?.dangerous();
    Ok(dangerous.with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

fn wrong(error: rustls::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "connect", "cannot set up encryption").with_source(error)
}
