//! Fields of packets and plans.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::error::Error;

/// Appends fields.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn message(kind: u8) -> Self {
        Self(vec![kind])
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Appends a text, which must not contain a NUL byte.
    pub(crate) fn text(&mut self, text: impl AsRef<OsStr>) -> &mut Self {
        self.0.extend(text.as_ref().as_bytes());
        self.u8(0)
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(length(bytes.len()));
        self.0.extend(bytes);
        self
    }
}

/// Converts a size for the protocol. No message comes near the limit.
pub(crate) fn length(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Refuses texts with NUL bytes.
pub(crate) fn check_text(what: &str, text: impl AsRef<OsStr>) -> Result<(), Error> {
    if text.as_ref().as_bytes().contains(&0) {
        return Err(Error::Invalid(format!("{what} contains a NUL byte")));
    }
    Ok(())
}

/// Reads fields from the front of a packet.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or_else(short)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Error> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Error> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Error> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Error> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self) -> Result<String, Error> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(short)?;
        let text = String::from_utf8_lossy(&self.0[..end]).into_owned();
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    pub(crate) fn end(&self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Protocol("packet too long".to_owned())) }
    }
}

fn short() -> Error {
    Error::Protocol("packet too short".to_owned())
}
