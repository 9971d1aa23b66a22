//! Engines that are talked to over TLS. Both ends show certificates, and the one of the engine is checked against the
//! authority that is named, and no other.

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

/// Who signs the engine's certificate, and what this end shows.
const AUTHORITY: &str = "ca.pem";
const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

const HINT: &str = "a directory of certificates has ca.pem, cert.pem and key.pem; DOCKER_CERT_PATH names it with DOCKER_TLS_VERIFY=1, and \
                    `docker context update NAME --docker \"host=..,ca=..,cert=..,key=..\"` puts them into a context";

/// How often the network asks whether the other end is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// A client of the engine at `host`, which is a name and a port. Reads files.
///
/// # Errors
/// `NotFound`, `PermissionDenied` or `InvalidArgument` for certificates that are not there or not usable.
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
        .map_err(|error| unusable(certificates, "it cannot be used").with_source(error))
}

/// With a provider of its own: a program may have linked several, and then none is the default.
fn configuration(directory: &Path) -> Result<ClientConfig> {
    let path = directory.join(AUTHORITY);
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(chain(&path)?);
    if added == 0 {
        return Err(unusable(&path, "there is no certificate in it"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(directory, "no encryption can be set up").with_source(error))?
        .with_root_certificates(roots);
    let own = [CERTIFICATE, KEY].map(|name| directory.join(name));
    if own.iter().all(|path| is_missing(path)) {
        // Few engines take that, and those that do not say so.
        return Ok(builder.with_no_client_auth());
    }
    let [certificate, key] = own;
    let secret = PrivateKeyDer::from_pem_slice(&read(&key)?)
        .map_err(|error| unusable(&key, "there is no key in it").with_source(error))?;
    builder.with_client_auth_cert(chain(&certificate)?, secret).map_err(|error| {
        unusable(&certificate, "it does not go with the key beside it").with_source(error)
    })
}

fn is_missing(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn read(path: &PathBuf) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        let (kind, what) = match error.kind() {
            io::ErrorKind::NotFound => (ErrorKind::NotFound, "is not there"),
            io::ErrorKind::PermissionDenied => {
                (ErrorKind::PermissionDenied, "may not be read by this user")
            }
            _ => (ErrorKind::InvalidArgument, "cannot be read"),
        };
        let message = format!("{}, for the connection with the engine, {what}", path.display());
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
        Ok(_) => Err(unusable(path, "there is no certificate in it")),
        Err(error) => Err(unusable(path, "there is no certificate in it").with_source(error)),
    }
}

fn unusable(path: &Path, why: &str) -> Error {
    let message = format!("{}, for the connection with the engine: {why}", path.display());
    Error::new(ErrorKind::InvalidArgument, "create", message)
        .with_effect(Effect::NotSent)
        .with_hint(HINT)
}

/// What kept an encrypted connection from coming to be, if it was that.
pub(crate) fn refusal(
    error: &(dyn std::error::Error + 'static),
) -> Option<(ErrorKind, String, &'static str)> {
    use rustls::{AlertDescription, Error as Tls};
    let mut next = Some(error);
    while let Some(cause) = next {
        // What broke a connection is in errors of the operating system's kind, which do not show it as their source.
        if let Some(inner) = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            next = Some(inner);
            continue;
        }
        match cause.downcast_ref::<Tls>() {
            Some(Tls::InvalidCertificate(why)) => {
                let message = format!("its certificate is not trusted: {why:?}");
                let hint = "ca.pem of the certificates has to be what the engine's certificate is signed with, for the name in the address";
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
                let message = "it does not take the certificate of this end".to_owned();
                let hint = "cert.pem and key.pem of the certificates have to be signed for clients of that engine";
                return Some((ErrorKind::PermissionDenied, message, hint));
            }
            Some(other) => {
                let message = format!("no encrypted connection came to be: {other}");
                let hint = "an engine without encryption is told by an address without certificates: unset DOCKER_TLS_VERIFY";
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
        let told = |kind, part: &str| {
            let error = client("far:2376", folder.path(), 5).unwrap_err();
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(error.message().contains(part), "{error:?}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains("DOCKER_CERT_PATH")),
                "{error:?}"
            );
        };
        told(ErrorKind::NotFound, "ca.pem");
        fs::write(folder.path().join("ca.pem"), "nonsense").unwrap();
        told(ErrorKind::InvalidArgument, "ca.pem");
        // Nothing of this depends on what the whole program uses, which may be undecided.
        assert!(rustls::crypto::CryptoProvider::get_default().is_none());
    }
}
