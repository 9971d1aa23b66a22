//! Unpacking: what comes is judged here, and unpacked by the image's `tar` beside what is there before it takes its place.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::tar::{self, Decoder, Entry, EntryKind, Item, is_inside};
use sandbox_core::{ByteStream, Error, Result};

use super::files::{FILES, PlainFiles, argument, staged};
use super::listing::failed;

/// Unpacks an archive into a directory, all or nothing.
pub(super) async fn unpack(files: &PlainFiles, path: &str, archive: ByteStream) -> Result<()> {
    let target = files.target("write_archive", path)?;
    let is_new = matches!(
        files.ask(&target, "stat", &[]).await,
        Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound
    );
    let (word, place) = (staged(), argument(&target));
    let clearing = files.clear(&target, &word, is_new);
    let arguments = ["unpack", &place, &word];
    let (said, _) = files.execs.feed(FILES, &arguments, judged(archive)).await?;
    if said.status != 0 {
        return Err(failed(&target, &said));
    }
    files.ask(&target, "merge", &[&word]).await?;
    clearing.done();
    Ok(())
}

/// The same archive as far as it may be one, or an error.
fn judged(archive: ByteStream) -> ByteStream {
    let state = Some((Judge::default(), archive));
    Box::pin(stream::unfold(state, |state| async move {
        let (mut judge, mut archive) = state?;
        match judge.next(&mut archive).await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some((judge, archive)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// What an entry is for those that come later.
#[derive(Clone, Copy, PartialEq)]
enum Was {
    File,
    Directory,
    Link,
}

#[derive(Default)]
struct Judge {
    decoder: Decoder,
    seen: HashMap<Vec<u8>, Was>,
    padding: usize,
    over: bool,
}

impl Judge {
    async fn next(&mut self, archive: &mut ByteStream) -> Result<Option<Bytes>> {
        if self.over {
            return Ok(None);
        }
        loop {
            match self.decoder.next()? {
                Some(Item::Entry(entry)) => {
                    self.check(&entry)?;
                    if let EntryKind::File(size) = entry.kind {
                        self.padding = tar::padding(size);
                    }
                    return Ok(Some(tar::encode(&entry).into()));
                }
                Some(Item::Data(bytes)) if bytes.is_empty() => {}
                Some(Item::Data(bytes)) => return Ok(Some(bytes)),
                Some(Item::FileEnd) if self.padding == 0 => {}
                Some(Item::FileEnd) => {
                    return Ok(Some(vec![0; std::mem::take(&mut self.padding)].into()));
                }
                None => match archive.next().await.transpose()? {
                    Some(bytes) => self.decoder.feed(bytes),
                    None => {
                        self.decoder.finish()?;
                        self.over = true;
                        return Ok(Some(Bytes::from_static(&tar::END)));
                    }
                },
            }
        }
    }

    fn check(&mut self, entry: &Entry) -> Result<()> {
        let twice = "comes twice, or goes through what is no directory";
        let mut above = &entry.path[..];
        while let Some(at) = memchr::memrchr(b'/', above) {
            above = &above[..at];
            if *self.seen.entry(above.to_vec()).or_insert(Was::Directory) != Was::Directory {
                return Err(in_archive(&entry.path, twice));
            }
        }
        let was = match &entry.kind {
            EntryKind::File(_) => Was::File,
            EntryKind::Directory => Was::Directory,
            EntryKind::Symlink(to) if is_inside(&entry.path, to) => Was::Link,
            EntryKind::Symlink(_) => {
                return Err(in_archive(&entry.path, "is a link that leads out of it"));
            }
            EntryKind::HardLink(to) if self.seen.get(to) == Some(&Was::File) => Was::File,
            EntryKind::HardLink(_) => {
                return Err(in_archive(&entry.path, "is a link to no file before it"));
            }
        };
        match self.seen.insert(entry.path.clone(), was) {
            None => Ok(()),
            Some(Was::Directory) if was == Was::Directory => Ok(()),
            Some(_) => Err(in_archive(&entry.path, twice)),
        }
    }
}

fn in_archive(path: &[u8], problem: &str) -> Error {
    let name = String::from_utf8_lossy(path);
    Error::invalid("archive", format!("has {name:?}, which {problem}"))
        .with_context("cause", "archive")
}
