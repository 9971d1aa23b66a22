//! Follows TLS handshakes with a second ClientHello. A server may request one (HelloRetryRequest, RFC 8446, 4.1.4), and
//! it names a host again.
//!
//! So no possible ClientHello is forwarded before the server has answered the first one, and if the server requests
//! another, that one is inspected too. All other bytes of the client, such as early data, are forwarded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::client_hello::{self, ClientHello};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const SERVER_HELLO: u8 = 2;
/// Size of a record header.
const HEADER: usize = 5;
/// Maximum number of bytes before the server's first answer, which follows a warning at most. After more bytes, a
/// second ClientHello is assumed to be requested.
const MAX_BEFORE_ANSWER: usize = 4096;

/// The random bytes of a HelloRetryRequest.
const RETRY_RANDOM: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

/// The server's answer to the first ClientHello, once it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer(Arc<AtomicU8>);

impl Answer {
    const RETRY: u8 = 1;
    const LAST: u8 = 2;

    /// Returns true if the server requests a second ClientHello.
    fn requests_retry(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::RETRY
    }

    /// Returns true if no second ClientHello is expected.
    fn is_last(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::LAST
    }

    fn set(&self, retry: bool) {
        self.0.store(if retry { Self::RETRY } else { Self::LAST }, Ordering::Release);
    }
}

/// Observes the server's bytes up to its answer.
#[derive(Debug)]
pub(crate) struct ServerObserver {
    answer: Answer,
    held: Option<Vec<u8>>,
}

impl ServerObserver {
    /// Starts at the server's first byte.
    pub(crate) fn new(answer: Answer) -> Self {
        Self { answer, held: Some(Vec::new()) }
    }

    /// Observes bytes before they are forwarded.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        let Some(held) = &mut self.held else { return };
        held.extend(bytes);
        let retry = match requests_retry(held) {
            None if held.len() <= MAX_BEFORE_ANSWER => return,
            None => true,
            Some(retry) => retry,
        };
        self.answer.set(retry);
        self.held = None;
    }
}

/// Returns whether the server's first message requests a second ClientHello; `None` when more bytes are needed. Bytes
/// other than TLS request nothing.
fn requests_retry(bytes: &[u8]) -> Option<bool> {
    const VERSION_AND_RANDOM: std::ops::Range<usize> = 6..38;
    let mut message: Vec<u8> = Vec::new();
    let mut rest = bytes;
    loop {
        if message.first().is_some_and(|kind| *kind != SERVER_HELLO) {
            return Some(false);
        }
        if let Some(random) = message.get(VERSION_AND_RANDOM) {
            return Some(random == RETRY_RANDOM);
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

/// Inspects the client's bytes after its first ClientHello.
#[derive(Debug)]
pub(crate) struct ClientFollower {
    answer: Answer,
    /// The host of the first ClientHello.
    host: Option<String>,
    /// The received part of a record header.
    header: Vec<u8>,
    /// The number of bytes still to come of a record that is forwarded.
    passing: usize,
    /// The received part of the second ClientHello.
    second: Vec<u8>,
}

/// Next step after inspecting some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// All received bytes were forwarded or are held.
    More,
    /// All bytes from here on are forwarded.
    Open,
    /// The bytes are malformed, or a second ClientHello that was not requested.
    Invalid,
    /// The second ClientHello names another host than the first.
    Other(Option<String>),
}

impl ClientFollower {
    pub(crate) fn new(answer: Answer, host: Option<String>) -> Self {
        Self { answer, host, header: Vec::new(), passing: 0, second: Vec::new() }
    }

    /// Inspects received bytes, and appends the bytes to forward to `out`.
    pub(crate) fn push(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Next {
        while !bytes.is_empty() {
            if !self.second.is_empty() {
                return self.inspect_second(bytes, out);
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
                HANDSHAKE if self.answer.requests_retry() => self.second = header.to_vec(),
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

    fn inspect_second(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Next {
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

    /// Returns the start of a server's first message, with these random bytes.
    pub(crate) fn answer(random: [u8; 32]) -> Vec<u8> {
        let message =
            [&[SERVER_HELLO, 0, 0, 40, 3, 3][..], &random, &[0, 0x13, 1, 0, 0, 0]].concat();
        let mut record = vec![HANDSHAKE, 3, 3, 0, u8::try_from(message.len()).unwrap()];
        record.extend(message);
        record
    }

    /// Returns a message of a server that requests a second ClientHello.
    pub(crate) fn hello_retry_request() -> Vec<u8> {
        answer(RETRY_RANDOM)
    }

    #[test]
    fn a_server_answer_is_recognized_however_it_is_split() {
        for (received, retry) in [
            (hello_retry_request(), true),
            ([vec![ALERT, 3, 3, 0, 2, 1, 112], hello_retry_request()].concat(), true),
            (answer([7; 32]), false),
            (b"HTTP/1.1 400 Bad Request\r\n".to_vec(), false),
            (vec![HANDSHAKE, 3, 3, 0, 4, 0, 0, 0, 0], false),
        ] {
            let known = Answer::default();
            let mut observer = ServerObserver::new(known.clone());
            for byte in &received {
                assert!(observer.held.is_none() || !known.requests_retry() && !known.is_last());
                observer.push(&[*byte]);
            }
            assert_eq!((known.requests_retry(), known.is_last()), (retry, !retry), "{received:?}");
        }
        let known = Answer::default();
        let warnings = [ALERT, 3, 3, 0, 2, 1, 112].repeat(1000);
        ServerObserver::new(known.clone()).push(&warnings);
        assert!(known.requests_retry(), "warnings without end are no answer");
    }
}
