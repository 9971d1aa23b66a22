//! What calls carry: the token of the account, and the short-lived token that newer calls ask for besides.

use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sandbox_core::{Result, Secret, unix_now};
use serde_json::Value;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::account::Account;
use crate::channel::invalid_metadata;

/// Part of the validity of a token after which another one is asked for.
const USED_PART: f64 = 0.5;
/// Validity of a token that does not show its end, in seconds.
const UNKNOWN_VALIDITY: f64 = 300.0;

/// Type and version of the client in the words of the service: the one without Python whose calls these are.
const CLIENT_TYPE: &str = "9";
const CLIENT_VERSION: &str = "1.0.0";

/// The short-lived tokens of this process, by account.
#[derive(Debug, Default)]
pub(crate) struct TokenCache(Mutex<Vec<CachedToken>>);

#[derive(Clone, Debug)]
struct CachedToken {
    account: Account,
    token: Secret,
    refresh_at: f64,
}

impl TokenCache {
    fn tokens(&self) -> MutexGuard<'_, Vec<CachedToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the token of an account, unless another one has to be asked for.
    pub(crate) fn get(&self, account: &Account) -> Option<Secret> {
        let tokens = self.tokens();
        let found = tokens.iter().find(|cached| cached.account == *account)?;
        (found.refresh_at > unix_now()).then(|| found.token.clone())
    }

    /// Keeps a token.
    pub(crate) fn put(&self, account: &Account, token: &Secret) {
        let now = unix_now();
        let validity = expiry(token.expose()).map_or(UNKNOWN_VALIDITY, |end| end - now);
        let mut tokens = self.tokens();
        tokens.retain(|cached| cached.account != *account && cached.refresh_at > now);
        let refresh_at = now + validity * USED_PART;
        tokens.push(CachedToken { account: account.clone(), token: token.clone(), refresh_at });
    }

    /// Drops the token of an account, because the service has refused it.
    pub(crate) fn forget(&self, account: &Account) {
        self.tokens().retain(|cached| cached.account != *account);
    }
}

/// Returns the end of a token's validity in Unix seconds, as its claims have it.
fn expiry(token: &str) -> Option<f64> {
    let claims = token.split('.').nth(1)?;
    let claims = URL_SAFE_NO_PAD.decode(claims.trim_end_matches('=')).ok()?;
    serde_json::from_slice::<Value>(&claims).ok()?.get("exp")?.as_f64()
}

/// Adds what every call to the control plane carries.
///
/// # Errors
/// `Unauthenticated` without a token.
pub(crate) fn add_account(
    metadata: &mut MetadataMap,
    account: &Account,
    operation: &'static str,
) -> Result<()> {
    let (id, secret) = account.token(operation)?;
    add_secret(metadata, "x-modal-token-id", id)?;
    add_secret(metadata, "x-modal-token-secret", secret)?;
    metadata.insert("x-modal-client-type", MetadataValue::from_static(CLIENT_TYPE));
    metadata.insert("x-modal-client-version", MetadataValue::from_static(CLIENT_VERSION));
    let own = concat!("code-sandboxes/", env!("CARGO_PKG_VERSION"));
    metadata.insert("x-modal-libmodal-version", MetadataValue::from_static(own));
    Ok(())
}

/// Adds a secret, which no log of headers shows.
///
/// # Errors
/// `Unauthenticated` for a secret that no header can have.
pub(crate) fn add_secret(
    metadata: &mut MetadataMap,
    name: &'static str,
    secret: &Secret,
) -> Result<()> {
    let value: MetadataValue<Ascii> =
        secret.expose().parse().map_err(|_| invalid_metadata(name))?;
    let mut value = value;
    value.set_sensitive(true);
    metadata.insert(name, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_token_is_in_its_claims() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"exp": 1234.5}"#);
        assert_eq!(expiry(&format!("head.{claims}.sign")), Some(1234.5));
        assert_eq!(expiry("no token"), None);
    }

    #[test]
    fn secrets_are_in_the_metadata_and_not_in_its_debug_form() {
        let mut metadata = MetadataMap::new();
        add_secret(&mut metadata, "x-modal-token-secret", &"hunter2".into()).unwrap();
        assert_eq!(metadata.get("x-modal-token-secret").unwrap(), "hunter2");
        assert!(!format!("{metadata:?}").contains("hunter2"));
        add_secret(&mut metadata, "x-modal-token-id", &"hunter\n".into()).unwrap_err();
    }
}
