//! Checks the frames of a kernel before a ZeroMQ library reads them.
//!
//! The library allocates the length in a frame header, so nine bytes could abort the process. The limiter reads every
//! header first and passes only frames within the limits.

use bytes::BytesMut;
use thiserror::Error;

use super::ready::property;
use super::{COMMAND, GREETING, LONG, MAX_COMMAND, MORE};
use crate::limits::Limits;

/// The reason why a connection is cut.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum Violation {
    /// The greeting is not that of ZMTP 3.
    #[error("the other side does not speak ZMTP 3")]
    Greeting,
    /// The security mechanism is not supported.
    #[error("the other side requires the security mechanism {0:?}, but only NULL is supported")]
    Mechanism(String),
    /// The socket type of the other side does not fit the channel.
    #[error("the other side is a {0:?} socket, which does not fit the channel")]
    SocketType(String),
    /// A frame has invalid flags, or a command is too long.
    #[error("invalid frame header")]
    Header,
    /// A message preceded the end of the handshake, or the handshake is invalid.
    #[error("invalid handshake")]
    Handshake,
    /// A frame or a message exceeds a limit.
    #[error("{length} bytes are over the limit of {limit}")]
    TooLong {
        /// Length in bytes.
        length: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A message has more frames than [`Limits::frames`].
    #[error("more than {limit} frames in one message")]
    TooManyFrames {
        /// The limit.
        limit: usize,
    },
}

/// A filter for the incoming bytes of one connection.
///
/// The output is well-formed: a greeting, READY, and messages within the limits. Commands after READY are removed. No
/// byte of a frame passes before its header is checked.
#[derive(Clone, Debug)]
pub struct FrameLimiter {
    peers: &'static [&'static str],
    limits: Limits,
    state: State,
    buffered: Vec<u8>,
    is_ready: bool,
    frames: usize,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Greeting,
    Header,
    /// A command with this many missing bytes. It is buffered until it is complete.
    Command(usize),
    /// The body of a frame with this many missing bytes.
    Body(u64),
}

impl FrameLimiter {
    /// Creates a limiter for a new connection to one of these socket types.
    #[must_use]
    pub fn new(peers: &'static [&'static str], limits: Limits) -> Self {
        let state = State::Greeting;
        Self { peers, limits, state, buffered: Vec::new(), is_ready: false, frames: 0, bytes: 0 }
    }

    /// Appends the permitted bytes of `input` to `out`.
    ///
    /// # Errors
    /// [`Violation`]. Bytes that were appended before are valid; the connection must be cut.
    pub fn filter(&mut self, mut input: &[u8], out: &mut BytesMut) -> Result<(), Violation> {
        while !input.is_empty() {
            input = match self.state {
                State::Greeting => self.greeting(input, out)?,
                State::Header => self.header(input, out)?,
                State::Command(left) => self.command(input, left, out)?,
                State::Body(left) => self.body(input, left, out),
            };
        }
        Ok(())
    }

    /// Returns true if the output ends between two frames, so that another frame can be appended.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.is_ready && !matches!(self.state, State::Body(_) | State::Greeting)
    }

    fn greeting<'a>(&mut self, input: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], Violation> {
        let rest = self.buffer(input, GREETING);
        // Older versions send other bytes and then wait, so the first bytes are checked before all 64 have arrived.
        if self.buffered[0] != 0xff || self.buffered.get(9).is_some_and(|byte| *byte != 0x7f) {
            return Err(Violation::Greeting);
        }
        if self.buffered.len() == GREETING {
            if self.buffered[10] < 3 {
                return Err(Violation::Greeting);
            }
            let mechanism =
                self.buffered[12..32].split(|byte| *byte == 0).next().unwrap_or_default();
            if mechanism != b"NULL" {
                return Err(Violation::Mechanism(String::from_utf8_lossy(mechanism).into_owned()));
            }
            self.release(out);
            self.state = State::Header;
        }
        Ok(rest)
    }

    fn header<'a>(&mut self, input: &'a [u8], out: &mut BytesMut) -> Result<&'a [u8], Violation> {
        let flags = *self.buffered.first().unwrap_or(&input[0]);
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(Violation::Header);
        }
        let width = if flags & LONG == 0 { 2 } else { 9 };
        let rest = self.buffer(input, width);
        if self.buffered.len() < width {
            return Ok(rest);
        }
        let length =
            self.buffered[1..].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
        if flags & COMMAND == 0 {
            self.begin_frame(flags, length)?;
            self.release(out);
            self.state = State::Body(length);
        } else {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MAX_COMMAND {
                return Err(Violation::Header);
            }
            self.state = State::Command(length);
            // A command without a body is complete at once.
            if length == 0 {
                self.finish_command(out)?;
            }
        }
        self.skip_empty();
        Ok(rest)
    }

    /// Counts a frame of a message.
    fn begin_frame(&mut self, flags: u8, length: u64) -> Result<(), Violation> {
        if !self.is_ready {
            return Err(Violation::Handshake);
        }
        let too_long = |length, limit: usize| Violation::TooLong { length, limit: limit as u64 };
        if length > self.limits.frame as u64 {
            return Err(too_long(length, self.limits.frame));
        }
        self.frames += 1;
        self.bytes = self.bytes.saturating_add(length);
        if self.frames > self.limits.frames {
            return Err(Violation::TooManyFrames { limit: self.limits.frames });
        }
        if self.bytes > self.limits.message as u64 {
            return Err(too_long(self.bytes, self.limits.message));
        }
        if flags & MORE == 0 {
            self.frames = 0;
            self.bytes = 0;
        }
        Ok(())
    }

    fn command<'a>(
        &mut self,
        input: &'a [u8],
        left: usize,
        out: &mut BytesMut,
    ) -> Result<&'a [u8], Violation> {
        let (part, rest) = input.split_at(left.min(input.len()));
        self.buffered.extend_from_slice(part);
        self.state = State::Command(left - part.len());
        if left == part.len() {
            self.finish_command(out)?;
        }
        Ok(rest)
    }

    /// Passes READY once, and removes other commands.
    fn finish_command(&mut self, out: &mut BytesMut) -> Result<(), Violation> {
        self.state = State::Header;
        if self.is_ready {
            self.buffered.clear();
            return Ok(());
        }
        let body =
            if self.buffered[0] & LONG == 0 { &self.buffered[2..] } else { &self.buffered[9..] };
        let kind = property(body, "Socket-Type").ok_or(Violation::Handshake)?;
        if !self.peers.iter().any(|peer| peer.as_bytes() == kind) {
            return Err(Violation::SocketType(String::from_utf8_lossy(kind).into_owned()));
        }
        if property(body, "Identity").is_some_and(|identity| identity.len() > usize::from(u8::MAX))
        {
            return Err(Violation::Handshake);
        }
        self.is_ready = true;
        self.release(out);
        Ok(())
    }

    fn body<'a>(&mut self, input: &'a [u8], left: u64, out: &mut BytesMut) -> &'a [u8] {
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let (part, rest) = input.split_at(length);
        out.extend_from_slice(part);
        self.state = State::Body(left - length as u64);
        self.skip_empty();
        rest
    }

    fn skip_empty(&mut self) {
        if self.state == State::Body(0) {
            self.state = State::Header;
        }
    }

    /// Passes the buffered bytes.
    fn release(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(&self.buffered);
        self.buffered.clear();
    }

    /// Buffers bytes up to a total of `until`. Returns the rest of the input.
    fn buffer<'a>(&mut self, input: &'a [u8], until: usize) -> &'a [u8] {
        let (part, rest) = input.split_at((until - self.buffered.len()).min(input.len()));
        self.buffered.extend_from_slice(part);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTERS: &[&str] = &["ROUTER", "REP"];

    fn greeting() -> Vec<u8> {
        let mut bytes = vec![0; GREETING];
        bytes[0] = 0xff;
        bytes[9] = 0x7f;
        bytes[10] = 3;
        bytes[12..16].copy_from_slice(b"NULL");
        bytes
    }

    fn ready(kind: &str) -> Vec<u8> {
        let mut body = b"\x05READY\x0bSocket-Type".to_vec();
        body.extend_from_slice(&u32::try_from(kind.len()).unwrap().to_be_bytes());
        body.extend_from_slice(kind.as_bytes());
        let mut frame = vec![COMMAND, u8::try_from(body.len()).unwrap()];
        frame.extend(body);
        frame
    }

    fn opening() -> Vec<u8> {
        [greeting(), ready("ROUTER")].concat()
    }

    fn long(flags: u8, length: u64) -> Vec<u8> {
        [&[flags | LONG][..], &length.to_be_bytes()].concat()
    }

    /// Returns the output for input in chunks of this size.
    fn filter(bytes: &[u8], chunk: usize, limits: Limits) -> (Vec<u8>, Result<(), Violation>) {
        let mut limiter = FrameLimiter::new(ROUTERS, limits);
        let mut out = BytesMut::new();
        let result = bytes.chunks(chunk).try_for_each(|chunk| limiter.filter(chunk, &mut out));
        (out.to_vec(), result)
    }

    fn refused(bytes: &[u8], limits: Limits) -> Violation {
        let violations: Vec<Violation> = [1, 7, bytes.len()]
            .into_iter()
            .map(|chunk| filter(bytes, chunk, limits).1.unwrap_err())
            .collect();
        assert!(violations.windows(2).all(|pair| pair[0] == pair[1]), "{violations:?}");
        violations[0].clone()
    }

    #[test]
    fn a_good_connection_passes_unaltered() {
        let body = vec![7; 300];
        let bytes = [opening(), vec![MORE, 2, 1, 2], long(MORE, 300), body, vec![0, 0]].concat();
        for chunk in [1, 2, 3, 10, 64, 65, 1000] {
            let (out, result) = filter(&bytes, chunk, Limits::default());
            assert_eq!((out, result), (bytes.clone(), Ok(())), "{chunk}");
        }
    }

    #[test]
    fn nine_bytes_allocate_nothing() {
        for length in [1 << 36, 1 << 62, u64::MAX, 128 * 1024 * 1024 + 1] {
            let bytes = [opening(), long(0, length)].concat();
            assert!(matches!(refused(&bytes, Limits::default()), Violation::TooLong { .. }));
            assert_eq!(
                filter(&bytes, 5, Limits::default()).0,
                opening(),
                "the header did not pass"
            );
        }
    }

    #[test]
    fn messages_are_bounded_as_a_whole() {
        let limits = Limits { message: 10, frames: 3, ..Limits::default() };
        let frame =
            |flags, length: u8| [vec![flags, length], vec![0; usize::from(length)]].concat();
        let fits = [opening(), frame(MORE, 5), frame(0, 5), frame(MORE, 5), frame(0, 5)].concat();
        assert_eq!(filter(&fits, 4, limits).1, Ok(()));
        let long = [opening(), frame(MORE, 5), frame(MORE, 5), frame(0, 1)].concat();
        assert_eq!(refused(&long, limits), Violation::TooLong { length: 11, limit: 10 });
        let many =
            [opening(), frame(MORE, 0), frame(MORE, 0), frame(MORE, 0), frame(0, 0)].concat();
        assert_eq!(refused(&many, limits), Violation::TooManyFrames { limit: 3 });
    }

    #[test]
    fn only_a_kernel_is_let_in() {
        let limits = Limits::default();
        assert_eq!(refused(b"SSH-2.0", limits), Violation::Greeting);
        assert_eq!(refused(b"\xff\0\0\0\0\0\0\0\x01\0", limits), Violation::Greeting);
        let mut old = greeting();
        old[10] = 2;
        assert_eq!(refused(&old, limits), Violation::Greeting);
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(refused(&curve, limits), Violation::Mechanism("CURVE".into()));
        for kind in ["STREAM", "PUB", ""] {
            let bytes = [greeting(), ready(kind)].concat();
            assert_eq!(refused(&bytes, limits), Violation::SocketType(kind.into()));
        }
    }

    #[test]
    fn handshakes_are_checked() {
        let limits = Limits::default();
        for after in [vec![0, 1, 1], vec![COMMAND, 0], vec![COMMAND, 2, 9, 9]] {
            assert_eq!(refused(&[greeting(), after].concat(), limits), Violation::Handshake);
        }
        for header in [vec![8, 1], vec![0x80, 1], vec![MORE | COMMAND, 1], long(COMMAND, 4097)] {
            assert_eq!(refused(&[greeting(), header].concat(), limits), Violation::Header);
        }
    }

    #[test]
    fn later_commands_are_left_out() {
        let ping = [vec![COMMAND, 7], b"\x04PING\0\0".to_vec()].concat();
        let empty = vec![COMMAND, 0];
        let bytes = [opening(), ping, vec![0, 1, 9], empty, ready("STREAM"), vec![0, 0]].concat();
        for chunk in [1, 4, 1000] {
            let (out, result) = filter(&bytes, chunk, Limits::default());
            assert_eq!((out, result), ([opening(), vec![0, 1, 9, 0, 0]].concat(), Ok(())));
        }
    }

    #[test]
    fn a_frame_can_be_appended_between_frames_alone() {
        let between = |bytes: &[u8]| {
            let mut limiter = FrameLimiter::new(ROUTERS, Limits::default());
            limiter.filter(bytes, &mut BytesMut::new()).unwrap();
            limiter.is_between_frames()
        };
        assert!(!between(&greeting()) && between(&opening()));
        for (bytes, expected) in [
            (&[MORE, 1][..], false),
            (&[MORE, 1, 0], true),
            (&[MORE], true),
            (&[COMMAND, 3, 1], true),
        ] {
            assert_eq!(between(&[&opening(), bytes].concat()), expected, "{bytes:?}");
        }
    }
}
