//! Reads the host name from the first message of a TLS connection.

/// Result of parsing the first bytes of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientHello {
    /// More bytes are needed.
    Incomplete,
    /// The message is complete, and names this host or none.
    Whole(Option<String>),
    /// The bytes are not TLS, not a client's message, or encrypt the host name.
    Invalid,
}

/// Maximum size of the message. Browsers send some two thousand bytes.
pub(crate) const MAX_MESSAGE_SIZE: usize = 32 * 1024;

const HANDSHAKE: u8 = 22;
const MAX_RECORD_SIZE: usize = 1 << 14;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
/// Encrypted ClientHello: its inner message names the host that counts. The other numbers belong to its drafts and to
/// the encrypted SNI before them, which some servers may still accept.
const ENCRYPTED_NAMES: [u16; 8] = [0xfe0d, 0xfe0c, 0xfe0b, 0xfe0a, 0xfe09, 0xfe08, 0xff02, 0xffce];

/// Reads the bytes received so far. The message may be split into records at any byte, and must end with a record.
pub(crate) fn read(bytes: &[u8]) -> ClientHello {
    read_to_end(bytes).0
}

/// Like [`read`], and also returns the size of the message once it is complete.
pub(crate) fn read_to_end(bytes: &[u8]) -> (ClientHello, usize) {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let Some((header, after)) = rest.split_first_chunk::<5>() else {
            return (start(rest), 0);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != HANDSHAKE || header[1] != 3 || length == 0 || length > MAX_RECORD_SIZE {
            return (ClientHello::Invalid, 0);
        }
        let (piece, after) = after.split_at(length.min(after.len()));
        message.extend(piece);
        let hello = whole(&message);
        if piece.len() < length {
            let invalid = hello.filter(|hello| *hello == ClientHello::Invalid);
            return (invalid.unwrap_or(ClientHello::Incomplete), 0);
        }
        if let Some(hello) = hello {
            return (hello, bytes.len() - after.len());
        }
        rest = after;
    }
}

/// Checks the received part of a record header.
fn start(bytes: &[u8]) -> ClientHello {
    match bytes {
        [] | [HANDSHAKE] | [HANDSHAKE, 3, ..] => ClientHello::Incomplete,
        _ => ClientHello::Invalid,
    }
}

/// Parses the message when it is complete or cannot be valid.
fn whole(message: &[u8]) -> Option<ClientHello> {
    let kind = *message.first()?;
    if kind != CLIENT_HELLO {
        return Some(ClientHello::Invalid);
    }
    let header = message.first_chunk::<4>()?;
    let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
    if length > MAX_MESSAGE_SIZE {
        return Some(ClientHello::Invalid);
    }
    let body = message.get(4..4 + length)?;
    if message.len() > 4 + length {
        // The rest of the last record could be another ClientHello.
        return Some(ClientHello::Invalid);
    }
    Some(host(body).map_or(ClientHello::Invalid, ClientHello::Whole))
}

/// Returns the host named by a complete message; the outer `None` means that the message is malformed.
fn host(body: &[u8]) -> Option<Option<String>> {
    const VERSION_AND_RANDOM: usize = 34;
    let mut body = Fields(body);
    body.take(VERSION_AND_RANDOM)?;
    body.short()?;
    body.long()?;
    body.short()?;
    if body.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Fields(body.long()?);
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number()?;
        let content = extensions.long()?;
        if ENCRYPTED_NAMES.contains(&kind) {
            return None;
        }
        if kind == SERVER_NAME {
            // Of two server names, two parsers could choose different ones.
            if found.is_some() {
                return None;
            }
            found = Some(server_name(content)?);
        }
    }
    body.0.is_empty().then_some(found)
}

fn server_name(content: &[u8]) -> Option<String> {
    const HOST: u8 = 0;
    let mut content = Fields(content);
    let mut list = Fields(content.long()?);
    let kind = *list.take(1)?.first()?;
    let name = list.long()?;
    let only = list.0.is_empty() && content.0.is_empty();
    let name = std::str::from_utf8(name).ok()?;
    (kind == HOST && only && !name.is_empty()).then(|| name.to_ascii_lowercase())
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    fn number(&mut self) -> Option<u16> {
        self.take(2)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
    }

    /// Takes bytes prefixed with their length in one byte.
    fn short(&mut self) -> Option<&'a [u8]> {
        let count = usize::from(*self.take(1)?.first()?);
        self.take(count)
    }

    /// Takes bytes prefixed with their length in two bytes.
    fn long(&mut self) -> Option<&'a [u8]> {
        let count = usize::from(self.number()?);
        self.take(count)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    /// Returns the first bytes that a TLS library sends to a host.
    pub(crate) fn hello(host: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let host = ServerName::try_from(host.to_owned()).unwrap();
        let mut bytes = Vec::new();
        ClientConnection::new(Arc::new(config), host).unwrap().write_tls(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_host_of_a_real_hello_is_found() {
        let bytes = hello("www.Example.com");
        assert_eq!(read(&bytes), ClientHello::Whole(Some("www.example.com".into())));
        assert_eq!(read(&hello("192.0.2.1")), ClientHello::Whole(None), "an address is not named");
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), ClientHello::Incomplete, "{length}");
        }
        assert!(matches!(read(&[&bytes[..], b"more"].concat()), ClientHello::Whole(_)));
    }

    #[test]
    fn a_hello_may_be_cut_into_records() {
        let bytes = hello("a.example");
        for size in [1, 7, 100] {
            let mut cut = Vec::new();
            for piece in bytes[5..].chunks(size) {
                cut.extend([22, 3, 1]);
                cut.extend((piece.len() as u16).to_be_bytes());
                cut.extend(piece);
            }
            assert_eq!(read(&cut), ClientHello::Whole(Some("a.example".into())), "{size}");
        }
    }

    #[test]
    fn a_message_that_shares_its_last_record_is_invalid() {
        let (one, two) = (hello("a.example"), hello("evil.example"));
        let both = [&one[5..], &two[5..]].concat();
        let mut record = vec![22, 3, 1];
        record.extend((both.len() as u16).to_be_bytes());
        record.extend(&both);
        assert_eq!(read(&record), ClientHello::Invalid);
        // A second message in a record of its own is not part of the first.
        let (hello, end) = read_to_end(&[&one[..], &two].concat());
        assert_eq!((hello, end), (ClientHello::Whole(Some("a.example".into())), one.len()));
    }

    #[test]
    fn other_bytes_are_invalid() {
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"SSH-2.0-OpenSSH_9\r\n",
            b"\x16\x02\x01\x00\x05",
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\xff\xff",
            b"\x16\x03\x01\x00\x04\x02\x00\x00\x00",
            b"\x16\x03\x01\x00\x04\x01\xff\xff\xff",
            b"\x80\x2e\x01\x03\x01",
            b"\x17",
        ] {
            assert_eq!(read(bytes), ClientHello::Invalid, "{bytes:?}");
        }
    }

    #[test]
    fn a_hidden_second_name_is_invalid() {
        let extension = |name: &str| {
            let length = name.len() as u16;
            let mut bytes = vec![0, 0];
            bytes.extend((length + 5).to_be_bytes());
            bytes.extend((length + 3).to_be_bytes());
            bytes.push(0);
            bytes.extend(length.to_be_bytes());
            bytes.extend(name.as_bytes());
            bytes
        };
        let message = |extensions: &[u8]| {
            let mut body = vec![3; 34];
            body.extend([0, 0, 2, 0x13, 1, 1, 0]);
            body.extend((extensions.len() as u16).to_be_bytes());
            body.extend(extensions);
            body
        };
        let (one, two) = (extension("a.example"), extension("b.example"));
        assert_eq!(host(&message(&one)), Some(Some("a.example".into())));
        assert_eq!(host(&message(&[&one[..], &two].concat())), None, "named twice");
        for kind in [[0xfe, 0x0d], [0xfe, 0x08], [0xfe, 0x0a], [0xff, 0x02], [0xff, 0xce]] {
            let encrypted = [&kind[..], &[0, 1, 0]].concat();
            let hidden = message(&[&one[..], &encrypted].concat());
            assert_eq!(host(&hidden), None, "one more inside: {kind:x?}");
        }
        let other = message(&[&one[..], &[0xfe, 0x0f, 0, 1, 0]].concat());
        assert_eq!(host(&other), Some(Some("a.example".into())), "control");
        assert_eq!(host(&message(&[])), Some(None));
    }

    proptest! {
        #[test]
        fn nothing_panics(at in 0_usize..200, byte in any::<u8>(), length in 0_usize..600) {
            let mut bytes = hello("a.example");
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = read(&bytes[..length.min(bytes.len())]);
        }
    }
}
