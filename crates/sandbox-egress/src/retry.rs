//! Second greetings of TLS. A server may ask for one (HelloRetryRequest, RFC 8446, 4.1.4), and it names a host again.
//!
//! So nothing that may be a greeting passes before the server has answered the first one, and where the answer asks for
//! another, that one is read as well. All else that a client says meanwhile, such as early data, passes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::client_hello::{self, ClientHello};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const SERVER_HELLO: u8 = 2;
/// What the header of a record takes.
const HEADER: usize = 5;
/// What comes before the first answer is a warning at most. More than this is read as if the server had asked again.
const MAX_BEFORE_ANSWER: usize = 4096;

/// The random bytes of a server that asks for another greeting.
const ASKS_AGAIN: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The answer of a server to the first greeting, as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer(Arc<AtomicU8>);

impl Answer {
    const ANOTHER: u8 = 1;
    const LAST: u8 = 2;

    /// Reports that the server wants another greeting.
    fn asks_again(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::ANOTHER
    }

    /// Reports that no other greeting is to come.
    fn is_last(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::LAST
    }

    fn set(&self, again: bool) {
        self.0.store(if again { Self::ANOTHER } else { Self::LAST }, Ordering::Release);
    }
}

/// Reads along with what a server says, up to its answer.
#[derive(Debug)]
pub(crate) struct Listener {
    answer: Answer,
    held: Option<Vec<u8>>,
}

impl Listener {
    /// Begins with the first byte of the server.
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, held: Some(Vec::new()) }
    }

    /// Takes bytes before they are passed on.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let Some(held) = &mut self.held else { return };
        held.extend(bytes);
        let again = match asks_again(held) {
            None if held.len() <= MAX_BEFORE_ANSWER => return,
            None => true,
            Some(again) => again,
        };
        self.answer.set(again);
        self.held = None;
    }
}

/// Reads the first message of a server; `None` when more bytes are needed. What is no TLS asks for nothing.
fn asks_again(bytes: &[u8]) -> Option<bool> {
    const VERSION_AND_RANDOM: std::ops::Range<usize> = 6..38;
    let mut message: Vec<u8> = Vec::new();
    let mut rest = bytes;
    loop {
        if message.first().is_some_and(|kind| *kind != SERVER_HELLO) {
            return Some(false);
        }
        if let Some(random) = message.get(VERSION_AND_RANDOM) {
            return Some(random == ASKS_AGAIN);
        }
        let (kind, _) = rest.split_first()?;
        if ![HANDSHAKE, ALERT].contains(kind) {
            return Some(false);
        }
        let (header, after) = rest.split_first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let (piece, after) = after.split_at(length.min(after.len()));
        if *kind == HANDSHAKE {
            message.extend(piece);
        }
        rest = after;
    }
}

/// Where a client is after its first greeting.
#[derive(Debug)]
pub(crate) struct Follow {
    answer: Answer,
    /// The host of the first greeting.
    host: Option<String>,
    /// The header of a record, as far as it came.
    header: Vec<u8>,
    /// What is still to come of a record that passes.
    passing: usize,
    /// The second greeting, as far as it came.
    second: Vec<u8>,
}

/// Says how to go on with a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// All that came was passed on or is held.
    More,
    /// Everything passes from here on.
    Open,
    /// What came is no greeting, or one that was not asked for.
    Invalid,
    /// The second greeting names another host than the first.
    Other(Option<String>),
}

impl Follow {
    pub(crate) fn new(answer: Answer, host: Option<String>) -> Self {
        Self { answer, host, header: Vec::new(), passing: 0, second: Vec::new() }
    }

    /// Takes bytes as they come, and adds to `out` what may be passed on.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Next {
        while !bytes.is_empty() {
            if !self.second.is_empty() {
                return self.greet(bytes, out);
            }
            if self.passing > 0 {
                let (piece, rest) = bytes.split_at(self.passing.min(bytes.len()));
                out.extend(piece);
                self.passing -= piece.len();
                bytes = rest;
                continue;
            }
            if self.answer.is_last() {
                out.append(&mut self.header);
                out.extend(bytes);
                return Next::Open;
            }
            let (piece, rest) = bytes.split_at((HEADER - self.header.len()).min(bytes.len()));
            self.header.extend(piece);
            bytes = rest;
            let Some(header) = self.header.first_chunk::<HEADER>() else { return Next::More };
            match header[0] {
                HANDSHAKE if self.answer.asks_again() => self.second = header.to_vec(),
                CHANGE_CIPHER_SPEC | ALERT | APPLICATION_DATA => {
                    self.passing = usize::from(u16::from_be_bytes([header[3], header[4]]));
                    out.extend(header);
                }
                _ => return Next::Invalid,
            }
            self.header.clear();
        }
        Next::More
    }

    fn greet(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Next {
        self.second.extend(bytes);
        match client_hello::read(&self.second) {
            ClientHello::Incomplete if self.second.len() <= client_hello::MAX_MESSAGE_SIZE => {
                Next::More
            }
            ClientHello::Incomplete | ClientHello::Invalid => Next::Invalid,
            ClientHello::Whole(host) if host != self.host => Next::Other(host),
            ClientHello::Whole(_) => {
                out.append(&mut self.second);
                Next::Open
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The beginning of a server's first message, with these random bytes.
    pub(crate) fn answer(random: [u8; 32]) -> Vec<u8> {
        let message =
            [&[SERVER_HELLO, 0, 0, 40, 3, 3][..], &random, &[0, 0x13, 1, 0, 0, 0]].concat();
        let mut record = vec![HANDSHAKE, 3, 3, 0, u8::try_from(message.len()).unwrap()];
        record.extend(message);
        record
    }

    /// What a server says that wants another greeting.
    pub(crate) fn another() -> Vec<u8> {
        answer(ASKS_AGAIN)
    }

    #[test]
    fn a_server_is_understood_at_any_place_of_its_answer() {
        for (said, again) in [
            (another(), true),
            ([vec![ALERT, 3, 3, 0, 2, 1, 112], another()].concat(), true),
            (answer([7; 32]), false),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), false),
            (vec![HANDSHAKE, 3, 3, 0, 4, 0, 0, 0, 0], false),
        ] {
            let known = Answer::default();
            let mut listener = Listener::new(known.clone());
            for byte in &said {
                assert!(listener.held.is_none() || !known.asks_again() && !known.is_last());
                listener.push(&[*byte]);
            }
            assert_eq!((known.asks_again(), known.is_last()), (again, !again), "{said:?}");
        }
        let known = Answer::default();
        let warnings = [ALERT, 3, 3, 0, 2, 1, 112].repeat(1000);
        Listener::new(known.clone()).push(&warnings);
        assert!(known.asks_again(), "warnings without end are no answer");
    }
}
