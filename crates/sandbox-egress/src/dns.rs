//! The part of DNS that a gate needs. No I/O.

use std::net::Ipv4Addr;

pub(crate) const A: u16 = 1;

/// Maximum size of a query: a name of 255 bytes and the extensions that resolvers send.
pub(crate) const MAX_MESSAGE_SIZE: usize = 1232;

const HEADER: usize = 12;
const MAX_NAME_LENGTH: usize = 253;
/// Time to live of an answer, in seconds. The gate never reassigns an address.
const TTL: u32 = 60;

/// One query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    id: [u8; 2],
    recursion_desired: bool,
    /// The question section as received: name, type and class.
    section: Vec<u8>,
    /// The name in lower case and without a final dot; `None` when it cannot be a host name.
    pub(crate) name: Option<String>,
    /// The record type, such as [`A`].
    pub(crate) kind: u16,
}

/// Result of parsing a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Question(Question),
    /// An error response to a malformed or unsupported query.
    Refusal(Vec<u8>),
    /// The packet is too broken for any response.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Address(Ipv4Addr),
    /// The name exists, and has no record of that type.
    Empty,
    NoSuchName,
    /// The lookup failed.
    Failure,
}

const FORMAT_ERROR: u8 = 1;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;
const NOT_IMPLEMENTED: u8 = 4;

pub(crate) fn parse(packet: &[u8]) -> Parsed {
    let Some(header) = packet.first_chunk::<HEADER>() else { return Parsed::Nothing };
    let is_answer = header[2] & 0x80 != 0;
    if is_answer || packet.len() > MAX_MESSAGE_SIZE {
        return Parsed::Nothing;
    }
    let id = [header[0], header[1]];
    let recursion_desired = header[2] & 1 != 0;
    let refuse = |code| Parsed::Refusal(head(id, recursion_desired, code, 0, 0));
    if header[2] & 0x78 != 0 {
        return refuse(NOT_IMPLEMENTED);
    }
    if header[4..6] != [0, 1] {
        return refuse(FORMAT_ERROR);
    }
    match section(&packet[HEADER..]) {
        Some((section, name, kind)) => {
            let section = section.to_vec();
            Parsed::Question(Question { id, recursion_desired, section, name, kind })
        }
        None => refuse(FORMAT_ERROR),
    }
}

/// Parses the first question: its bytes, its name as a host name, and its type.
fn section(bytes: &[u8]) -> Option<(&[u8], Option<String>, u16)> {
    const INTERNET: [u8; 2] = [0, 1];
    let mut at = 0;
    let mut name = Some(String::new());
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // A compression pointer in a first question has nothing to point to.
        if length > 63 || at + length > MAX_NAME_LENGTH + 2 {
            return None;
        }
        let label = bytes.get(at..at + length)?;
        name = name.and_then(|name| with_label(name, label));
        at += length;
    }
    let kind = bytes.get(at..at + 2)?;
    if bytes.get(at + 2..at + 4)? != INTERNET {
        return None;
    }
    let name = name.filter(|name| is_host(name));
    Some((&bytes[..at + 4], name, u16::from_be_bytes([kind[0], kind[1]])))
}

fn with_label(mut name: String, label: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(label).ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if !text.bytes().all(plain) {
        return None;
    }
    if !name.is_empty() {
        name.push('.');
    }
    name.push_str(&text.to_ascii_lowercase());
    Some(name)
}

/// Returns false for names that end in a number: those are spellings of IPv4 addresses.
fn is_host(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").unwrap_or(last);
    let numeric =
        |digit: u8| digit.is_ascii_digit() || (last != digits && digit.is_ascii_hexdigit());
    !name.is_empty() && name.len() <= MAX_NAME_LENGTH && !digits.bytes().all(numeric)
}

impl Question {
    pub(crate) fn answer(&self, answer: Answer) -> Vec<u8> {
        let (code, address) = match answer {
            Answer::Address(address) => (0, Some(address)),
            Answer::Empty => (0, None),
            Answer::NoSuchName => (NO_SUCH_NAME, None),
            Answer::Failure => (SERVER_FAILURE, None),
        };
        let count = u8::from(address.is_some());
        let mut packet = head(self.id, self.recursion_desired, code, 1, count);
        packet.extend(&self.section);
        if let Some(address) = address {
            const QUESTION_NAME_POINTER: [u8; 2] = [0xc0, 12];
            packet.extend(QUESTION_NAME_POINTER);
            packet.extend([0, 1, 0, 1]);
            packet.extend(TTL.to_be_bytes());
            packet.extend([0, 4]);
            packet.extend(address.octets());
        }
        packet
    }
}

fn head(id: [u8; 2], recursion_desired: bool, code: u8, questions: u8, answers: u8) -> Vec<u8> {
    let flags = [0x80 | u8::from(recursion_desired), 0x80 | code];
    let counts = [0, questions, 0, answers, 0, 0, 0, 0];
    [&id[..], &flags, &counts].concat()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn packet(name: &str, kind: u16) -> Vec<u8> {
        let mut packet = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            packet.push(label.len() as u8);
            packet.extend(label.as_bytes());
        }
        packet.push(0);
        packet.extend(kind.to_be_bytes());
        packet.extend([0, 1]);
        packet
    }

    fn question(name: &str) -> Question {
        match parse(&packet(name, A)) {
            Parsed::Question(question) => question,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn questions_are_parsed_and_answered() {
        let question = question("WWW.Example.com");
        assert_eq!((question.name.as_deref(), question.kind), (Some("www.example.com"), A));
        let answer = question.answer(Answer::Address(Ipv4Addr::new(198, 18, 0, 2)));
        assert_eq!(&answer[..12], &[0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(&answer[12..29], b"\x03WWW\x07Example\x03com\x00");
        assert!(answer.ends_with(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 2]));
        assert_eq!(question.answer(Answer::NoSuchName)[3], 0x83);
        assert_eq!(question.answer(Answer::Failure)[3], 0x82);
        assert_eq!(question.answer(Answer::Empty)[3..8], [0x80, 0, 1, 0, 0]);
    }

    #[test]
    fn malformed_names_are_none() {
        for name in [
            "1.2.3.4",
            "0x7f000001",
            "2852039166",
            "a.0xA9FE",
            "127.1",
            "a b.example",
            "",
            "é.example",
        ] {
            assert_eq!(question(name).name, None, "{name}");
        }
        assert_eq!(question("_sip._tcp.a.example").name.as_deref(), Some("_sip._tcp.a.example"));
        assert_eq!(question("0xyz").name.as_deref(), Some("0xyz"));
    }

    #[test]
    fn broken_questions_are_refused_or_ignored() {
        let whole = packet("a.example", A);
        for length in 0..12 {
            assert_eq!(parse(&whole[..length]), Parsed::Nothing);
        }
        for length in 12..whole.len() {
            assert!(matches!(parse(&whole[..length]), Parsed::Refusal(_)), "{length}");
        }
        let changed = |at: usize, byte: u8| {
            let mut packet = whole.clone();
            packet[at] = byte;
            parse(&packet)
        };
        assert_eq!(changed(2, 0x81), Parsed::Nothing, "an answer");
        assert!(matches!(changed(2, 0x29), Parsed::Refusal(_)), "an update");
        assert!(matches!(changed(5, 2), Parsed::Refusal(_)), "two questions");
        assert!(matches!(changed(12, 0xc0), Parsed::Refusal(_)), "a pointer");
        assert_eq!(parse(&[&whole[..], &[0; 2000]].concat()), Parsed::Nothing, "a huge one");
        let long = packet(&["a".repeat(63).as_str(); 5].join("."), A);
        assert!(matches!(parse(&long), Parsed::Refusal(_)), "a name too long");
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Parsed::Question(question) = parse(&bytes) {
                prop_assert!(question.name.as_ref().is_none_or(|name| name.len() <= MAX_NAME_LENGTH));
            }
        }
    }
}
