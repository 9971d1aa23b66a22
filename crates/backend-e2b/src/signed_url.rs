//! Addresses of single files for anyone who has them, without a key.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sandbox_cloud::http::{Url, join};
use sandbox_core::{Error, ErrorKind, Result, Secret, unix_now};
use sha2::{Digest as _, Sha256};

/// The use of a signed address of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// `GET` reads the file.
    Read,
    /// `POST` writes the file.
    Write,
}

impl FileAccess {
    fn word(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Returns the signed address of a file below the address of the daemon.
///
/// # Errors
/// `Unsupported` for a sandbox without a token, whose files need no signature and have no protection.
pub(crate) fn sign(
    daemon: &str,
    token: Option<&Secret>,
    path: &str,
    access: FileAccess,
    expires_in: Option<Duration>,
) -> Result<String> {
    let operation = "signed_url";
    let Some(token) = token else {
        let message = "the sandbox has no token that could sign an address";
        return Err(Error::unsupported(operation, message));
    };
    let daemon = Url::parse(daemon).map_err(|error| {
        let message = "the sandbox has no address";
        Error::new(ErrorKind::Unexpected, operation, message).with_source(error)
    })?;
    let end = expires_in.map(|after| (unix_now() + after.as_secs_f64()).ceil());
    let end = end.map(|end| format!("{end:.0}"));
    let mut url = join(&daemon, &["files"]);
    let mut query = url.query_pairs_mut();
    query.append_pair("path", path);
    query.append_pair("signature", &signature(path, access, token, end.as_deref()));
    if let Some(end) = &end {
        query.append_pair("signature_expiration", end);
    }
    drop(query);
    Ok(url.to_string())
}

/// Returns the signature for the default user of the sandbox.
fn signature(path: &str, access: FileAccess, token: &Secret, end: Option<&str>) -> String {
    let mut raw = format!("{path}:{}::{}", access.word(), token.expose());
    if let Some(end) = end {
        raw = format!("{raw}:{end}");
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_of_the_provider() {
        let token = Secret::new("token");
        // Made by the provider's own Python client.
        assert_eq!(
            signature("/home/user/a b", FileAccess::Read, &token, None),
            "v1_89i1CdL10IxsNEUmvQmokwWMZvXEcyPUSmtaHQ34VYI"
        );
        assert_eq!(
            signature("/home/user/a b", FileAccess::Write, &token, Some("1700000000")),
            "v1_qSulRvlwYnM0vH0LvG7pmaTlboP/KpuI5SJxz8E7aoI"
        );
    }

    #[test]
    fn an_address_has_the_path_and_never_the_token() {
        let token = Secret::new("hunter2");
        let daemon = "https://49983-i1.e2b.app";
        let hour = Some(Duration::from_secs(3600));
        let url = sign(daemon, Some(&token), "/a b", FileAccess::Read, hour).unwrap();
        assert!(
            url.starts_with("https://49983-i1.e2b.app/files?path=%2Fa+b&signature=v1_"),
            "{url}"
        );
        assert!(url.contains("&signature_expiration=") && !url.contains("hunter2"), "{url}");
        assert!(sign(daemon, None, "/a", FileAccess::Read, None).is_err());
    }
}
