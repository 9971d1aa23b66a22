//! TLS configuration. Certificates are verified as the operating system does.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls_platform_verifier::Verifier;

use super::error::ServerError;

/// Returns the configuration of REST and WebSockets. `roots` are further trusted certificates, in PEM.
pub(super) fn configuration(roots: &[u8]) -> Result<Arc<ClientConfig>, ServerError> {
    let tls_error = |why: String| ServerError::Tls { why };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let roots: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(roots)
        .collect::<Result<_, _>>()
        .map_err(|error| tls_error(format!("invalid additional certificates: {error}")))?;
    let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider))
        .map_err(|error| tls_error(error.to_string()))?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(error.to_string()))?;
    let dangerous = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(dangerous.with_no_client_auth()))
}
