//! From bytes, as they come, to entries and their content.

use bytes::{Buf as _, Bytes};
use tar::{EntryType, Header, PaxExtensions};

use super::header::{checked_path, padding, refused};
use super::{BLOCK, Entry, EntryKind, MAX_ENTRIES, MAX_METADATA};
use crate::error::{Error, Result};

/// The longest name, and the longest list of attributes of one entry.
const MAX_NAME: u64 = 8192;
const MAX_ATTRIBUTES: u64 = 1 << 20;

/// An item that the decoder finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An entry begins.
    Entry(Entry),
    /// Content of the file that began last.
    Data(Bytes),
    /// The content of that file is complete. Comes for empty files too, and only for files.
    FileEnd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extra {
    Path,
    Link,
    Attributes,
    Ignored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Header,
    Extra(Extra, u64),
    Content(u64),
    Padding(usize),
    End,
}

/// Attributes that precede an entry.
#[derive(Debug, Default)]
struct Extras {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

/// Takes the bytes of an archive as they come.
///
/// Feed it, take items until there is none, feed it again; at the end of the bytes call [`Decoder::finish`].
#[derive(Debug)]
pub struct Decoder {
    input: Bytes,
    partial: Vec<u8>,
    state: State,
    extras: Extras,
    padding: usize,
    entries: usize,
    metadata: u64,
    passes_over_special: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            input: Bytes::new(),
            partial: Vec::new(),
            state: State::Header,
            extras: Extras::default(),
            padding: 0,
            entries: 0,
            metadata: 0,
            passes_over_special: false,
        }
    }
}

impl Decoder {
    /// Makes one that passes over FIFOs and devices, which have no content, as where the `tar` of an image has packed a
    /// directory.
    pub fn passing_over_special() -> Self {
        Self { passes_over_special: true, ..Self::default() }
    }

    /// Takes more bytes. What was fed before must have been used up: [`Decoder::next`] gave `None`.
    pub fn feed(&mut self, bytes: Bytes) {
        debug_assert!(self.input.is_empty(), "items are left");
        self.input = bytes;
    }

    /// The next item. `None`: more bytes are needed.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no archive or may not be in one, `ResourceExhausted` for too much of it. The decoder
    /// is of no use after that.
    #[expect(clippy::should_implement_trait, reason = "there is more after `None`")]
    pub fn next(&mut self) -> Result<Option<Item>> {
        loop {
            match self.state {
                State::Header => {
                    if !self.gather(BLOCK) {
                        return Ok(None);
                    }
                    let block = std::mem::take(&mut self.partial);
                    if let Some(entry) = self.header(&block)? {
                        return Ok(Some(Item::Entry(entry)));
                    }
                }
                State::Extra(kind, size) => {
                    if !self.gather(size as usize + padding(size)) {
                        return Ok(None);
                    }
                    let mut content = std::mem::take(&mut self.partial);
                    content.truncate(size as usize);
                    self.extra(kind, content)?;
                    self.state = State::Header;
                }
                State::Content(0) => {
                    self.state = State::Padding(self.padding);
                    return Ok(Some(Item::FileEnd));
                }
                State::Content(left) => {
                    if self.input.is_empty() {
                        return Ok(None);
                    }
                    let here = left.min(self.input.len() as u64);
                    self.state = State::Content(left - here);
                    return Ok(Some(Item::Data(self.input.split_to(here as usize))));
                }
                State::Padding(left) => {
                    let here = left.min(self.input.len());
                    self.input.advance(here);
                    if here < left {
                        self.state = State::Padding(left - here);
                        return Ok(None);
                    }
                    self.state = State::Header;
                }
                State::End => {
                    if self.input.iter().any(|byte| *byte != 0) {
                        return Err(refused("has something after its end"));
                    }
                    self.input.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// Checks at the end of the bytes that the archive is complete.
    ///
    /// # Errors
    /// `InvalidArgument` when it is cut off.
    pub fn finish(&self) -> Result<()> {
        if self.state == State::End {
            return Ok(());
        }
        let nothing = self.entries == 0 && self.partial.is_empty() && self.state == State::Header;
        Err(refused(if nothing { "is empty, not even an archive" } else { "is cut off" }))
    }

    /// Collects bytes into `partial` until there are that many.
    fn gather(&mut self, size: usize) -> bool {
        let here = (size - self.partial.len()).min(self.input.len());
        self.partial.extend_from_slice(&self.input.split_to(here));
        self.partial.len() == size
    }

    fn header(&mut self, block: &[u8]) -> Result<Option<Entry>> {
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::End;
            return Ok(None);
        }
        let header = Header::from_byte_slice(block);
        check_sum(header, block)?;
        let size = header.entry_size().map_err(|_| refused("has a header without a size"))?;
        self.count(BLOCK as u64)?;
        match header.entry_type() {
            EntryType::GNULongName => self.begin_extra(Extra::Path, size, MAX_NAME),
            EntryType::GNULongLink => self.begin_extra(Extra::Link, size, MAX_NAME),
            EntryType::XHeader => self.begin_extra(Extra::Attributes, size, MAX_ATTRIBUTES),
            EntryType::XGlobalHeader => self.begin_extra(Extra::Ignored, size, MAX_ATTRIBUTES),
            _ => self.entry(header, size),
        }
    }

    fn begin_extra(&mut self, kind: Extra, size: u64, most: u64) -> Result<Option<Entry>> {
        if size > most {
            return Err(refused("has a name or a list of attributes that is too long"));
        }
        self.count(size)?;
        self.state = State::Extra(kind, size);
        Ok(None)
    }

    fn count(&mut self, metadata: u64) -> Result<()> {
        self.metadata += metadata;
        if self.metadata > MAX_METADATA + (MAX_ENTRIES * BLOCK) as u64 {
            return Err(too_much("more than 64 MiB of names"));
        }
        Ok(())
    }

    fn extra(&mut self, kind: Extra, mut content: Vec<u8>) -> Result<()> {
        if matches!(kind, Extra::Path | Extra::Link) {
            while content.last() == Some(&0) {
                content.pop();
            }
        }
        match kind {
            Extra::Path => self.extras.path = Some(content),
            Extra::Link => self.extras.link = Some(content),
            Extra::Attributes => self.attributes(&content)?,
            Extra::Ignored => {}
        }
        Ok(())
    }

    fn attributes(&mut self, content: &[u8]) -> Result<()> {
        for attribute in PaxExtensions::new(content) {
            let attribute = attribute.map_err(|_| refused("has attributes that cannot be read"))?;
            let value = attribute.value_bytes();
            match attribute.key_bytes() {
                b"path" => self.extras.path = Some(value.to_vec()),
                b"linkpath" => self.extras.link = Some(value.to_vec()),
                b"size" => {
                    let number = attribute.value().ok().and_then(|text| text.parse().ok());
                    let size = number.ok_or_else(|| refused("has a size that is no number"))?;
                    self.extras.size = Some(size);
                }
                key if key.starts_with(b"GNU.sparse") => {
                    return Err(refused("has a sparse file"));
                }
                // Times, owners and attributes of the file system are not taken over.
                _ => {}
            }
        }
        Ok(())
    }

    fn entry(&mut self, header: &Header, size: u64) -> Result<Option<Entry>> {
        let extras = std::mem::take(&mut self.extras);
        let name = extras.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let link = extras.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned()));
        let size = extras.size.unwrap_or(size);
        let kind = match header.entry_type() {
            // An old way to write a directory.
            EntryType::Regular if name.ends_with(b"/") => EntryKind::Directory,
            EntryType::Regular | EntryType::Continuous => EntryKind::File(size),
            EntryType::Directory => EntryKind::Directory,
            EntryType::Symlink => EntryKind::Symlink(link.unwrap_or_default()),
            EntryType::Link => {
                let target = checked_path(&link.unwrap_or_default())?;
                EntryKind::HardLink(target.ok_or_else(|| refused("has a link to nothing"))?)
            }
            EntryType::Fifo | EntryType::Char | EntryType::Block
                if self.passes_over_special && size == 0 =>
            {
                return Ok(None);
            }
            other => return Err(refused_kind(&name, other)),
        };
        let content = if let EntryKind::File(size) = kind { size } else { 0 };
        if content == 0 && size != 0 {
            return Err(refused("has content where there can be none"));
        }
        self.entries += 1;
        if self.entries > MAX_ENTRIES {
            return Err(too_much("more than 250000 entries"));
        }
        self.padding = padding(content);
        let is_file = matches!(kind, EntryKind::File(_));
        self.state = if is_file { State::Content(content) } else { State::Header };
        let Some(path) = checked_path(&name)? else {
            // The directory itself, as `tar .` begins.
            return match kind {
                EntryKind::Directory => Ok(None),
                _ => Err(refused("has a file without a name")),
            };
        };
        let mode = header.mode().map_err(|_| refused("has a mode that is no number"))? & 0o755;
        let modified = header.mtime().unwrap_or(0);
        Ok(Some(Entry { path, kind, mode, modified }))
    }
}

fn check_sum(header: &Header, block: &[u8]) -> Result<()> {
    let byte = |(place, byte): (usize, &u8)| {
        u32::from(if (148..156).contains(&place) { b' ' } else { *byte })
    };
    let sum: u32 = block.iter().enumerate().map(byte).sum();
    if header.cksum().is_ok_and(|stored| stored == sum) {
        return Ok(());
    }
    Err(match block {
        [0x1f, 0x8b, ..] | [b'B', b'Z', b'h', ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            refused("is compressed; give the tar inside of it")
        }
        _ => refused("is no tar, or is damaged"),
    })
}

fn refused_kind(name: &[u8], kind: EntryType) -> Error {
    let what = match kind {
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a FIFO",
        EntryType::GNUSparse => "a sparse file",
        _ => "of a kind that is not known",
    };
    refused(format!("has {:?}, which is {what}", String::from_utf8_lossy(name)))
}

fn too_much(what: &str) -> Error {
    let kind = crate::error::ErrorKind::ResourceExhausted;
    Error::new(kind, "unpack", format!("the archive has {what}")).with_context("cause", "archive")
}

#[cfg(test)]
mod tests;
