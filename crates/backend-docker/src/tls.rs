//! TLS connections with engines. Both ends have certificates, and that of the engine is verified against the configured
//! authority only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bollard::errors::Error as Cause;
use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use sandbox_core::{Effect, Error, ErrorKind, Result};

/// Files of the authority that signs the engine's certificate, and of this end's certificate and key.
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

const HINT: &str = "a directory of certificates has ca.pem, cert.pem and key.pem; DOCKER_CERT_PATH names it with DOCKER_TLS_VERIFY=1, and \
                    `docker context update NAME --docker \"host=..,ca=..,cert=..,key=..\"` puts them into a context";

/// Interval of TCP keep-alive probes.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Returns a client of the engine at `host`, a name and a port. Reads files.
///
/// # Errors
/// `NotFound`, `PermissionDenied` or `InvalidArgument` for certificates that are missing or not usable.
pub(crate) fn client(host: &str, certificates: &Path, seconds: u64) -> Result<Docker> {
    let config = configuration(certificates)?;
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_keepalive(Some(KEEPALIVE));
    let mut client = Client::builder(TokioExecutor::new());
    client.pool_max_idle_per_host(0);
    let client = client.build(HttpsConnector::from((http, config)));
    let request = move |request: BollardRequest| {
        let client = client.clone();
        async move { client.request(request).await.map_err(Cause::from) }
    };
    let address = format!("https://{host}");
    Docker::connect_with_custom_transport(request, Some(address), seconds, API_DEFAULT_VERSION)
        .map_err(|error| unusable(certificates, "no client can be set up").with_source(error))
}

/// Builds the configuration with an explicit provider: a program may link several, and then none is the default.
fn configuration(directory: &Path) -> Result<ClientConfig> {
    let path = directory.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(chain(&path)?);
    if added == 0 {
        return Err(unusable(&path, NO_CERTIFICATE));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(directory, "no encryption can be set up").with_source(error))?
        .with_root_certificates(roots);
    let own = [CERTIFICATE, KEY].map(|name| directory.join(name));
    if own.iter().all(|path| is_missing(path)) {
        // Few engines accept that; the others report it.
        return Ok(builder.with_no_client_auth());
    }
    let [certificate, key] = own;
    let secret = PrivateKeyDer::from_pem_slice(&read(&key)?)
        .map_err(|error| unusable(&key, "the file has no key").with_source(error))?;
    builder.with_client_auth_cert(chain(&certificate)?, secret).map_err(|error| {
        unusable(&certificate, "the certificate does not match the key beside it")
            .with_source(error)
    })
}

fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        let (kind, what) = match error.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, "is missing"),
            io::ErrorKind::PermissionDenied => {
                (ErrorKind::PermissionDenied, "may not be read by this user")
            }
            _ => (ErrorKind::InvalidArgument, "cannot be read"),
        };
        let message =
            format!("{} {what}, which the connection with the engine needs", path.display());
        Error::new(kind, "create", message)
            .with_effect(Effect::NotSent)
            .with_source(error)
            .with_hint(HINT)
    })
}

fn chain(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(path)?;
    let found: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match found {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(unusable(path, NO_CERTIFICATE)),
        Err(error) => Err(unusable(path, NO_CERTIFICATE).with_source(error)),
    }
}

const NO_CERTIFICATE: &str = "the file has no certificate";

fn unusable(path: &Path, why: &str) -> Error {
    let message =
        format!("{} cannot be used for the connection with the engine: {why}", path.display());
    Error::new(ErrorKind::InvalidArgument, "create", message)
        .with_effect(Effect::NotSent)
        .with_hint(HINT)
}

/// Explains a failed TLS handshake with kind, reason and hint. Returns `None` for any other error.
pub(crate) fn refusal(
    error: &(dyn std::error::Error + 'static),
) -> Option<(ErrorKind, String, &'static str)> {
    use rustls::{AlertDescription, Error as Tls};
    let mut next = Some(error);
    while let Some(cause) = next {
        // An `io::Error` holds the cause of a broken connection, and does not return it as its source.
        if let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            next = Some(inner);
            continue;
        }
        match cause.downcast_ref::<Tls>() {
            Some(Tls::InvalidCertificate(why)) => {
                let message = format!("its certificate is not trusted: {why:?}");
                let hint = "ca.pem has to be the certificate that signs the engine's, for the name in the address";
                return Some((ErrorKind::PermissionDenied, message, hint));
            }
            Some(Tls::AlertReceived(
                AlertDescription::CertificateRequired
                | AlertDescription::BadCertificate
                | AlertDescription::UnknownCA
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateExpired
                | AlertDescription::HandshakeFailure
                | AlertDescription::AccessDenied,
            )) => {
                let message = "it does not accept the certificate of this end".to_owned();
                let hint = "cert.pem and key.pem have to be signed for clients of that engine";
                return Some((ErrorKind::PermissionDenied, message, hint));
            }
            Some(other) => {
                let message = format!("no encrypted connection was established: {other}");
                let hint = "an engine without encryption needs an address without certificates: unset DOCKER_TLS_VERIFY";
                return Some((ErrorKind::Unavailable, message, hint));
            }
            None => next = cause.source(),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_that_are_missing_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let check_error = |kind, part: &str| {
            let error = client("far:2376", folder.path(), 5).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.message().contains(part), "{error:?}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("DOCKER_CERT_PATH")),
                "{error:?}"
            );
        };
        check_error(ErrorKind::NotFound, "ca.pem");
        fs::write(folder.path().join("ca.pem"), "malformed").unwrap();
        check_error(ErrorKind::InvalidArgument, "ca.pem");
        // The program needs no default provider.
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
    }
}
