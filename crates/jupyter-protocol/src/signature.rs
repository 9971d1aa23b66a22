//! Signs and verifies messages.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Sha256, Sha384, Sha512};
use thiserror::Error;
use zeroize::Zeroizing;

/// The key shared by client and kernel. With an empty key, messages are not signed.
///
/// The memory is wiped when the key is dropped, and `Debug` hides it.
///
/// ```
/// use jupyter_protocol::Key;
///
/// let key = Key::generate();
/// assert_eq!(format!("{key:?}"), "Key(***)");
/// assert_eq!(key.expose().len(), 64);
/// ```
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Key(Zeroizing<Vec<u8>>);

impl Key {
    /// Creates a key from the bytes of the `key` in a connection file.
    #[must_use]
    pub fn new(key: impl Into<Vec<u8>>) -> Self {
        Self(Zeroizing::new(key.into()))
    }

    /// Generates a key of 256 random bits, in hexadecimal.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(crate::session::random_hex(32))
    }

    /// Returns true if messages are not signed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of the key. Keep them out of logs, errors and command lines.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Key(empty)" } else { "Key(***)" })
    }
}

/// The algorithm that signs messages.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum SignatureScheme {
    /// `hmac-sha256`, the usual scheme.
    #[default]
    HmacSha256,
    /// `hmac-sha384`.
    HmacSha384,
    /// `hmac-sha512`.
    HmacSha512,
}

impl SignatureScheme {
    /// Returns the name in connection files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac-sha256",
            Self::HmacSha384 => "hmac-sha384",
            Self::HmacSha512 => "hmac-sha512",
        }
    }
}

impl fmt::Display for SignatureScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Error of parsing a signature scheme: the name is unknown.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("unknown signature scheme {0:?}; known are hmac-sha256, hmac-sha384 and hmac-sha512")]
pub struct UnknownScheme(pub String);

impl FromStr for SignatureScheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<Self, UnknownScheme> {
        [Self::HmacSha256, Self::HmacSha384, Self::HmacSha512]
            .into_iter()
            .find(|scheme| scheme.as_str() == name)
            .ok_or_else(|| UnknownScheme(name.to_owned()))
    }
}

/// The reason why a signature is rejected. Reveals nothing about the expected one.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum SignatureError {
    /// There is a key, but the message is not signed.
    #[error("message is not signed")]
    Unsigned,
    /// The signature does not match the message and the key.
    #[error("message has an invalid signature")]
    Invalid,
    /// A message with the same signature was accepted before.
    #[error("message was received before")]
    Replayed,
}

/// Signs and verifies with one key.
///
/// A signature covers the four JSON frames, but not the buffers. It identifies the author of the text; it does not
/// protect the message as a whole. For that, use a Unix socket or TLS.
///
/// ```
/// use jupyter_protocol::{Key, SignatureScheme, Signer};
///
/// let signer = Signer::new(SignatureScheme::HmacSha256, &Key::new("secret"));
/// let parts: [&[u8]; 4] = [b"{}", b"{}", b"{}", b"{}"];
/// let signature = signer.sign(parts);
/// assert!(signature.starts_with(b"34982f0b"));
/// assert!(signer.verify(parts, &signature).is_ok());
/// assert!(signer.verify(parts, b"").is_err());
/// ```
#[derive(Clone)]
pub struct Signer(Option<State>);

#[derive(Clone)]
enum State {
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
}

/// Evaluates an expression for the hash of a scheme.
macro_rules! with_mac {
    ($state:expr, $mac:ident => $then:expr) => {
        match $state {
            State::Sha256($mac) => $then,
            State::Sha384($mac) => $then,
            State::Sha512($mac) => $then,
        }
    };
}

impl Signer {
    /// Creates a signer. With an empty key, it signs nothing and accepts everything.
    #[must_use]
    pub fn new(scheme: SignatureScheme, key: &Key) -> Self {
        if key.is_empty() {
            return Self(None);
        }
        let key = key.expose();
        Self(match scheme {
            SignatureScheme::HmacSha256 => Hmac::new_from_slice(key).ok().map(State::Sha256),
            SignatureScheme::HmacSha384 => Hmac::new_from_slice(key).ok().map(State::Sha384),
            SignatureScheme::HmacSha512 => Hmac::new_from_slice(key).ok().map(State::Sha512),
        })
    }

    /// Returns true if messages are signed.
    #[must_use]
    pub fn is_signing(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the signature of header, parent header, metadata and content, in lowercase hexadecimal.
    ///
    /// The signature is empty without a key.
    #[must_use]
    pub fn sign(&self, parts: [&[u8]; 4]) -> Bytes {
        let Some(state) = &self.0 else { return Bytes::new() };
        with_mac!(state, mac => to_hex(&digest(mac.clone(), parts).finalize().into_bytes()))
    }

    /// Verifies a signature in constant time.
    ///
    /// # Errors
    /// [`SignatureError::Unsigned`] or [`SignatureError::Invalid`]. Without a key, none.
    pub fn verify(&self, parts: [&[u8]; 4], signature: &[u8]) -> Result<(), SignatureError> {
        let Some(state) = &self.0 else { return Ok(()) };
        if signature.is_empty() {
            return Err(SignatureError::Unsigned);
        }
        let mut claimed = [0; MAX_DIGEST_SIZE];
        let claimed = from_hex(signature, &mut claimed).ok_or(SignatureError::Invalid)?;
        let matches = with_mac!(state, mac => digest(mac.clone(), parts).verify_slice(claimed));
        matches.map_err(|_| SignatureError::Invalid)
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            None => "Signer(no key)",
            Some(State::Sha256(_)) => "Signer(hmac-sha256)",
            Some(State::Sha384(_)) => "Signer(hmac-sha384)",
            Some(State::Sha512(_)) => "Signer(hmac-sha512)",
        })
    }
}

fn digest<M: hmac::Mac>(mut mac: M, parts: [&[u8]; 4]) -> M {
    for part in parts {
        mac.update(part);
    }
    mac
}

/// The size of the longest digest, SHA-512, in bytes.
const MAX_DIGEST_SIZE: usize = 64;

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

fn to_hex(bytes: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.extend([HEX_DIGITS[usize::from(byte >> 4)], HEX_DIGITS[usize::from(byte & 15)]]);
    }
    text.into()
}

/// Accepts only lower case, so that a signature has one spelling and cannot be replayed in another.
fn from_hex<'a>(text: &[u8], into: &'a mut [u8; MAX_DIGEST_SIZE]) -> Option<&'a [u8]> {
    let bytes = into.get_mut(..text.len() / 2)?;
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    let mut all = 0;
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        let [high, low] = [HEX_VALUES[usize::from(*high)], HEX_VALUES[usize::from(*low)]];
        all |= high | low;
        *byte = high << 4 | low & 15;
    }
    (all < 16).then_some(bytes)
}

/// The value of each hexadecimal digit, and 255 for other bytes. A table, because branches on random digits would be
/// mispredicted.
pub(crate) const HEX_VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < 16 {
        values[HEX_DIGITS[value] as usize] = value as u8;
        value += 1;
    }
    values
};

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: [&[u8]; 4] = [b"{}", b"{}", b"{}", b"{}"];

    #[test]
    fn every_scheme_verifies_its_own_and_no_other() {
        let schemes =
            [SignatureScheme::HmacSha256, SignatureScheme::HmacSha384, SignatureScheme::HmacSha512];
        let signers = schemes.map(|scheme| Signer::new(scheme, &Key::new("secret")));
        for (at, signer) in signers.iter().enumerate() {
            let signature = signer.sign(EMPTY);
            assert_eq!(signature.len(), [64, 96, 128][at]);
            for (other, verifier) in signers.iter().enumerate() {
                assert_eq!(verifier.verify(EMPTY, &signature).is_ok(), at == other);
            }
            assert_eq!(schemes[at].to_string().parse(), Ok(schemes[at]));
        }
        assert!("hmac-md5".parse::<SignatureScheme>().is_err());
    }

    #[test]
    fn unsigned_cut_and_altered_messages_are_refused() {
        let signer = Signer::new(SignatureScheme::HmacSha256, &Key::new("secret"));
        let signature = signer.sign(EMPTY);
        assert_eq!(signer.verify(EMPTY, b""), Err(SignatureError::Unsigned));
        for bad in [&signature[..62], &signature[..63], b"zz", &[b'0'; 64], &[b'0'; 4096]] {
            assert_eq!(signer.verify(EMPTY, bad), Err(SignatureError::Invalid));
        }
        let altered: [&[u8]; 4] = [b"{}", b"{}", b"{}", b"{ }"];
        assert_eq!(signer.verify(altered, &signature), Err(SignatureError::Invalid));
        let other = Signer::new(SignatureScheme::HmacSha256, &Key::new("other"));
        assert_eq!(other.verify(EMPTY, &signature), Err(SignatureError::Invalid));
    }

    #[test]
    fn without_a_key_nothing_is_signed() {
        let signer = Signer::new(SignatureScheme::HmacSha256, &Key::default());
        assert!(!signer.is_signing());
        assert_eq!(signer.sign(EMPTY), "");
        assert_eq!(signer.verify(EMPTY, b"anything"), Ok(()));
    }

    #[test]
    fn keys_are_not_shown() {
        let key = Key::new("secret");
        let shown = format!("{key:?} {:?}", Signer::new(SignatureScheme::HmacSha256, &key));
        assert_eq!(shown, "Key(***) Signer(hmac-sha256)");
        assert_ne!(Key::generate(), Key::generate());
    }
}
