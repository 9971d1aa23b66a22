//! The byte format of every message: frames made of length-prefixed fields.
//!
//! A frame on a stream is `u32` length of the rest, `u8` kind, then fields. A field is `u32`
//! length and that many bytes. All lengths are little-endian. An integer is a field of 8 bytes
//! (two's complement, little-endian), text is UTF-8, a flag is the integer 0 or 1, and a list is
//! one field whose bytes are the fields of its items, one after the other.
//!
//! The peer runs hostile code, so decoding is strict. A length is a claim: nothing is allocated
//! for it before the bytes are there, and whatever does not fit the vocabulary exactly is an error.

use thiserror::Error;

/// Maximum length of a frame, in bytes, without its length prefix: 64 MiB.
pub const MAX_FRAME: usize = 64 * 1024 * 1024;

/// Maximum length of a packet on a packet socket, in bytes.
///
/// A packet must fit the default send buffer of a Unix socket.
pub const MAX_PACKET: usize = 200 * 1024;

/// Maximum number of items of a list.
const MAX_ITEMS: usize = 1 << 16;

const LENGTH: usize = 4;
/// Maximum capacity that the reader keeps between frames, in bytes.
const MAX_KEPT_CAPACITY: usize = 256 * 1024;

/// Reason why bytes are not a message, or a message cannot become bytes.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum WireError {
    /// The length prefix, or the packet, has no room for a kind.
    #[error("empty frame")]
    Empty,
    /// The frame is longer than the limit.
    #[error("frame of {length} bytes is over the limit of {limit}")]
    TooLong {
        /// Length of the frame in bytes.
        length: u64,
        /// The limit that holds here, in bytes.
        limit: u64,
    },
    /// No message has this kind in this direction.
    #[error("unknown message kind {0}")]
    UnknownKind(u8),
    /// The message ends before this field is complete.
    #[error("message ends inside field `{0}`")]
    Truncated(&'static str),
    /// Bytes are left after the last field.
    #[error("{0} bytes after the last field")]
    Trailing(usize),
    /// A list has more items than any message has. Empty items take a few bytes in a frame, and many times that in
    /// memory.
    #[error("field `{field}` has more than {limit} items")]
    TooMany {
        /// The list.
        field: &'static str,
        /// The limit of that list.
        limit: usize,
    },
    /// The field is not UTF-8.
    #[error("field `{0}` is not UTF-8")]
    NotText(&'static str),
    /// The field is malformed: a wrong width, or a number out of range.
    #[error("field `{0}` has an invalid value")]
    Invalid(&'static str),
}

/// One frame, still undecoded. Borrows from its [`FrameReader`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Frame<'a> {
    /// The kind of the message; the numbers depend on the direction.
    pub kind: u8,
    /// The fields.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Reads one packet of a packet socket as a frame.
    ///
    /// # Errors
    /// [`WireError::Empty`] or [`WireError::TooLong`].
    pub fn from_packet(packet: &'a [u8]) -> Result<Self, WireError> {
        if packet.len() > MAX_PACKET {
            return Err(too_long(packet.len() as u64, MAX_PACKET));
        }
        let (kind, body) = packet.split_first().ok_or(WireError::Empty)?;
        Ok(Self { kind: *kind, body })
    }

    /// Reads the message in the frame: `read` gets its kind and its fields, and has to read all of them.
    ///
    /// # Errors
    /// Those of `read`; [`WireError::Trailing`] when bytes are left.
    pub fn read<T>(
        self,
        read: impl FnOnce(u8, &mut Fields<'a>) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let mut fields = Fields::new(self.body);
        let message = read(self.kind, &mut fields)?;
        fields.finish()?;
        Ok(message)
    }
}

/// Cuts a byte stream into frames.
///
/// The reader holds only what was pushed and not yet taken: take all frames after each push, and its memory stays below
/// [`MAX_FRAME`] plus one push. The first error is final, because after it the borders of the frames are unknown.
#[derive(Debug, Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    taken: usize,
    failed: Option<WireError>,
}

impl FrameReader {
    /// Makes an empty reader.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds bytes from the stream. Bytes after an error are dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        self.drop_taken();
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame, or `None` until more bytes are pushed.
    ///
    /// # Errors
    /// [`WireError::Empty`] or [`WireError::TooLong`], as soon as the length prefix is there.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, WireError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let rest = &self.buffer[self.taken..];
        let Some((prefix, rest)) = rest.split_first_chunk::<LENGTH>() else { return Ok(None) };
        let length = u32::from_le_bytes(*prefix);
        let wanted = match check_length(u64::from(length)) {
            Ok(wanted) => wanted,
            Err(error) => {
                self.buffer = Vec::new();
                self.taken = 0;
                self.failed = Some(error.clone());
                return Err(error);
            }
        };
        if rest.len() < wanted {
            return Ok(None);
        }
        let start = self.taken + LENGTH;
        self.taken = start + wanted;
        let frame = &self.buffer[start..self.taken];
        Ok(Some(Frame { kind: frame[0], body: &frame[1..] }))
    }

    /// Returns the number of bytes that belong to no complete frame yet. More than 0 at the end of the stream means
    /// that the peer stopped in the middle of a frame.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.taken
    }

    fn drop_taken(&mut self) {
        if self.taken == 0 {
            return;
        }
        self.buffer.drain(..self.taken);
        self.taken = 0;
        if self.buffer.capacity() > MAX_KEPT_CAPACITY && self.buffer.len() <= MAX_KEPT_CAPACITY {
            self.buffer.shrink_to(MAX_KEPT_CAPACITY);
        }
    }
}

fn check_length(length: u64) -> Result<usize, WireError> {
    match usize::try_from(length) {
        Ok(0) => Err(WireError::Empty),
        Ok(length) if length <= MAX_FRAME => Ok(length),
        _ => Err(too_long(length, MAX_FRAME)),
    }
}

fn too_long(length: u64, limit: usize) -> WireError {
    WireError::TooLong { length, limit: limit as u64 }
}

/// Appends one frame to `out`: the fields are what `fields` writes.
///
/// On error `out` is as it was.
pub fn put_frame(
    out: &mut Vec<u8>,
    kind: u8,
    fields: impl FnOnce(&mut Writer<'_>),
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[0; LENGTH]);
    out.push(kind);
    fields(&mut Writer { out });
    let length = out.len() - start - LENGTH;
    match check_length(length as u64) {
        Ok(_) => {
            set_length(out, start, length);
            Ok(())
        }
        Err(error) => {
            out.truncate(start);
            Err(error)
        }
    }
}

/// Appends one packet (a frame without its length) to `out`. On error `out` is as it was.
pub fn put_packet(
    out: &mut Vec<u8>,
    kind: u8,
    fields: impl FnOnce(&mut Writer<'_>),
) -> Result<(), WireError> {
    let start = out.len();
    out.push(kind);
    fields(&mut Writer { out });
    let length = out.len() - start;
    if length > MAX_PACKET {
        out.truncate(start);
        return Err(too_long(length as u64, MAX_PACKET));
    }
    Ok(())
}

/// Fills in a length whose bytes were reserved. Lengths over `u32` only occur in frames that [`put_frame`] refuses
/// afterwards, so they may be cut here.
fn set_length(out: &mut [u8], at: usize, length: usize) {
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    out[at..at + LENGTH].copy_from_slice(&length.to_le_bytes());
}

/// Writes fields.
#[derive(Debug)]
pub struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    /// Makes a writer that appends to `out`.
    pub fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out }
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        let at = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH]);
        self.out.extend_from_slice(bytes);
        set_length(self.out, at, bytes.len());
    }

    /// Writes text.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Writes an integer.
    pub fn int(&mut self, value: i64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Writes a flag.
    pub fn flag(&mut self, value: bool) {
        self.int(i64::from(value));
    }

    /// Writes a list, each item with `item`.
    pub fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        mut item: impl FnMut(&mut Writer<'_>, T),
    ) {
        let at = self.out.len();
        self.out.extend_from_slice(&[0; LENGTH]);
        for value in items {
            item(&mut Writer { out: self.out }, value);
        }
        let length = self.out.len() - at - LENGTH;
        set_length(self.out, at, length);
    }
}

/// Reads fields in their order.
#[derive(Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Makes a reader of the fields of a message.
    pub fn new(body: &'a [u8]) -> Self {
        Self { rest: body }
    }

    /// Reads bytes.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn bytes(&mut self, name: &'static str) -> Result<&'a [u8], WireError> {
        let truncated = WireError::Truncated(name);
        let Some((prefix, rest)) = self.rest.split_first_chunk::<LENGTH>() else {
            return Err(truncated);
        };
        let length = usize::try_from(u32::from_le_bytes(*prefix)).unwrap_or(usize::MAX);
        let (field, rest) = rest.split_at_checked(length).ok_or(truncated)?;
        self.rest = rest;
        Ok(field)
    }

    /// Reads text.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn text(&mut self, name: &'static str) -> Result<String, WireError> {
        let text = std::str::from_utf8(self.bytes(name)?);
        text.map(str::to_owned).map_err(|_| WireError::NotText(name))
    }

    /// Reads an integer.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn int(&mut self, name: &'static str) -> Result<i64, WireError> {
        let field = self.bytes(name)?.try_into().map_err(|_| WireError::Invalid(name))?;
        Ok(i64::from_le_bytes(field))
    }

    /// Reads an integer that must fit `T`.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn number<T: TryFrom<i64>>(&mut self, name: &'static str) -> Result<T, WireError> {
        T::try_from(self.int(name)?).map_err(|_| WireError::Invalid(name))
    }

    /// Reads a flag.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn flag(&mut self, name: &'static str) -> Result<bool, WireError> {
        match self.int(name)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Invalid(name)),
        }
    }

    /// Reads a list, each item with `item`.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        item: impl FnMut(&mut Fields<'a>) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        self.list_of(name, MAX_ITEMS, item)
    }

    /// Reads a list of at most `most` items.
    ///
    /// # Errors
    /// When the field is missing or is something else.
    pub fn list_of<T>(
        &mut self,
        name: &'static str,
        most: usize,
        mut item: impl FnMut(&mut Fields<'a>) -> Result<T, WireError>,
    ) -> Result<Vec<T>, WireError> {
        let mut fields = Fields::new(self.bytes(name)?);
        let mut items = Vec::new();
        while !fields.rest.is_empty() {
            if items.len() == most {
                return Err(WireError::TooMany { field: name, limit: most });
            }
            items.push(item(&mut fields)?);
        }
        Ok(items)
    }

    /// Checks that all fields were read.
    ///
    /// # Errors
    /// When bytes are left.
    pub fn finish(self) -> Result<(), WireError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(WireError::Trailing(left)),
        }
    }
}
