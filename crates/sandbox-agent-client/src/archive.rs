//! Makes and unpacks archives on this side: the agent knows entries and bytes, and no format.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::tar::{self, Decoder, Entry, EntryKind, Item, is_inside};
use sandbox_core::{ByteStream, Result};

use crate::call::{Call, Guard};
use crate::connection::Answer;
use crate::error::{TargetExt as _, in_archive, no_record};
use crate::files::{Records, feed};
use crate::message::CHUNK;
use crate::streams::Writer;
use sandbox_engine::files::Target;
use sandbox_engine::host::Links;
use sandbox_engine::wire::Fields;

const FILE: i64 = 0;
const DIRECTORY: i64 = 1;
const SYMLINK: i64 = 2;
const HARD_LINK: i64 = 3;

/// An archive that is being made.
struct Packing {
    records: Records,
    guard: Option<Guard>,
    target: Target,
    /// Bytes of the current file that are still to come, and the padding after them.
    left: u64,
    padding: usize,
    entries: usize,
    over: bool,
}

/// Makes the tar stream of the entries that the agent sends.
pub(crate) fn packed(records: Records, guard: Guard, target: Target) -> ByteStream {
    let guard = Some(guard);
    let packing = Packing { records, guard, target, left: 0, padding: 0, entries: 0, over: false };
    Box::pin(stream::unfold(packing, |mut packing| async move {
        if packing.over {
            return None;
        }
        let piece = packing.next().await;
        packing.over |= piece.is_err();
        Some((piece, packing))
    }))
}

impl Packing {
    async fn next(&mut self) -> Result<Bytes> {
        if self.left > 0 {
            let most = usize::try_from(self.left).unwrap_or(CHUNK).min(CHUNK);
            let bytes = self.records.raw(most, &self.target).await?;
            self.left -= bytes.len() as u64;
            return Ok(bytes);
        }
        let mut piece = vec![0; std::mem::take(&mut self.padding)];
        match self.records.next(&self.target).await? {
            Some(record) => {
                let entry = entry(&record).ok_or_else(|| self.target.failed(&no_record()))?;
                self.entries += 1;
                self.target.check_entries(self.entries)?;
                if let EntryKind::File(size) = entry.kind {
                    (self.left, self.padding) = (size, tar::padding(size));
                }
                piece.extend(tar::encode(&entry));
            }
            None => {
                piece.extend(tar::END);
                self.over = true;
                if let Some(guard) = self.guard.take() {
                    guard.done();
                }
            }
        }
        Ok(piece.into())
    }
}

fn entry(record: &[u8]) -> Option<Entry> {
    let mut fields = Fields::new(record);
    let path = fields.bytes("path").ok()?.to_vec();
    let kind = fields.int("kind").ok()?;
    let mode = fields.number("mode").ok()?;
    let modified = fields.number("modified").ok()?;
    let detail = fields.bytes("detail").ok()?;
    let kind = match kind {
        FILE => EntryKind::File(u64::from_le_bytes(detail.try_into().ok()?)),
        DIRECTORY => EntryKind::Directory,
        SYMLINK => EntryKind::Symlink(detail.to_vec()),
        _ => return None,
    };
    Some(Entry { path, kind, mode, modified })
}

/// Encodes an entry for the agent: one record, then the content of a file.
fn record(entry: &Entry, links: Links) -> Result<Bytes> {
    let (kind, detail) = match &entry.kind {
        EntryKind::File(size) => (FILE, size.to_le_bytes().to_vec()),
        EntryKind::Directory => (DIRECTORY, Vec::new()),
        EntryKind::Symlink(target) => {
            if links == Links::Inside && !is_inside(&entry.path, target) {
                let path = String::from_utf8_lossy(&entry.path);
                return Err(in_archive(&path, "is a link that leads out of it"));
            }
            (SYMLINK, target.clone())
        }
        EntryKind::HardLink(target) => (HARD_LINK, target.clone()),
    };
    let modified = i64::try_from(entry.modified).unwrap_or(0);
    let fields: [&[u8]; 5] = [
        &entry.path,
        &kind.to_le_bytes(),
        &i64::from(entry.mode).to_le_bytes(),
        &modified.to_le_bytes(),
        &detail,
    ];
    let mut body = Vec::new();
    for field in fields {
        body.extend(u32::try_from(field.len()).unwrap_or(u32::MAX).to_le_bytes());
        body.extend(field);
    }
    let mut record = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes().to_vec();
    record.extend(body);
    Ok(record.into())
}

/// Sends the entries of a tar stream. The agent unpacks all or nothing: it gets the end only when the archive is
/// complete.
pub(crate) async fn unpack(
    call: Call,
    writer: Writer,
    archive: ByteStream,
    links: Links,
) -> Result<Answer> {
    let state = Some((Decoder::default(), archive));
    let entries = stream::unfold(state, move |state| async move {
        let (mut decoder, mut archive) = state?;
        match next(&mut decoder, &mut archive, links).await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some((decoder, archive)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    feed(call, writer, Box::pin(entries)).await
}

async fn next(
    decoder: &mut Decoder,
    archive: &mut ByteStream,
    links: Links,
) -> Result<Option<Bytes>> {
    loop {
        match decoder.next()? {
            Some(Item::Entry(entry)) => return record(&entry, links).map(Some),
            Some(Item::Data(bytes)) if bytes.is_empty() => {}
            Some(Item::Data(bytes)) => return Ok(Some(bytes)),
            Some(Item::FileEnd) => {}
            None => match archive.next().await.transpose()? {
                Some(bytes) => decoder.feed(bytes),
                None => {
                    decoder.finish()?;
                    return Ok(None);
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_python::agent::AGENT_PARTS;
    use sandbox_python::numbers;

    #[test]
    fn agents_have_the_same_kinds() {
        let trees = AGENT_PARTS.iter().filter(|(name, _)| *name == "file_trees");
        let link = ("LINK", SYMLINK.into());
        let [file, directory, hard_link] = numbers::named!(FILE DIRECTORY HARD_LINK);
        numbers::agree(trees, &[file, directory, link, hard_link]);
    }
}
