//! Unpacks archives: entries are validated here, the image's `tar` unpacks them into a staging directory, and then they are
//! moved to their places.

use std::collections::HashMap;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::tar::{self, Decoder, Entry, EntryKind, Item, is_inside};
use sandbox_core::{ByteStream, Error, Result};

use super::files::{FILES, ShellFiles, argument, staging_name};
use super::parse_listing::failed;
use sandbox_engine::host::Links;

/// Problem of a link out of the archive.
const LEADS_OUT: &str = "is a link that leads out of it";

/// Links in one path that kernels follow at most.
const MAX_LINKS: usize = 40;

/// Unpacks an archive into a directory, all or nothing.
pub(super) async fn unpack(
    files: &ShellFiles,
    path: &str,
    archive: ByteStream,
    links: Links,
) -> Result<()> {
    let target = files.target("write_archive", path)?;
    let is_new = matches!(
        files.ask(&target, "stat", &[]).await,
        Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound
    );
    let (staged, path) = (staging_name(), argument(&target));
    let guard = files.staging_guard(&target, &staged, is_new);
    let arguments = ["unpack", &path, &staged];
    let unpacked = async {
        let (output, _) = files.shell.feed(FILES, &arguments, validated(archive, links)).await?;
        if output.status != 0 {
            return Err(failed(&target, &output));
        }
        files.act(&target, "merge", &[&staged]).await
    };
    let unpacked = unpacked.await;
    guard.finish(unpacked.is_ok()).await;
    unpacked
}

/// Passes an archive through until an entry is invalid, which is an error.
fn validated(archive: ByteStream, allowed: Links) -> ByteStream {
    through(EntryValidator::new(allowed), archive)
}

/// Removes FIFOs and devices from an archive that the image's `tar` has packed.
pub(super) fn packed(archive: ByteStream) -> ByteStream {
    let decoder = Decoder::passing_over_special();
    // Links in a packed directory are not restricted.
    through(EntryValidator { decoder, ..EntryValidator::new(Links::Any) }, archive)
}

fn through(validator: EntryValidator, archive: ByteStream) -> ByteStream {
    let state = Some((validator, archive));
    Box::pin(stream::unfold(state, |state| async move {
        let (mut validator, mut archive) = state?;
        match validator.next(&mut archive).await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some((validator, archive)))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// Kind of an earlier entry.
#[derive(Clone, Copy, PartialEq)]
enum ExistingEntry {
    File,
    Directory,
    Link,
}

struct EntryValidator {
    allowed: Links,
    decoder: Decoder,
    seen: HashMap<Vec<u8>, ExistingEntry>,
    /// Targets of links that have to stay inside.
    links: HashMap<Vec<u8>, Vec<u8>>,
    padding: usize,
    finished: bool,
}

impl EntryValidator {
    fn new(allowed: Links) -> Self {
        Self {
            allowed,
            decoder: Decoder::default(),
            seen: HashMap::new(),
            links: HashMap::new(),
            padding: 0,
            finished: false,
        }
    }

    async fn next(&mut self, archive: &mut ByteStream) -> Result<Option<Bytes>> {
        if self.finished {
            return Ok(None);
        }
        loop {
            match self.decoder.next()? {
                Some(Item::Entry(mut entry)) => {
                    self.check(&entry)?;
                    if matches!(entry.kind, EntryKind::Symlink(_)) {
                        // Links have no permissions of their own.
                        entry.mode = 0o777;
                    }
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
                        self.check_links()?;
                        self.finished = true;
                        return Ok(Some(Bytes::from_static(&tar::END)));
                    }
                },
            }
        }
    }

    /// Refuses links that lead out through one another.
    fn check_links(&self) -> Result<()> {
        let leads_out = self.links.keys().find(|path| self.leads_out(path));
        leads_out.map_or(Ok(()), |path| Err(in_archive(path, LEADS_OUT)))
    }

    fn leads_out(&self, path: &[u8]) -> bool {
        let parts = |path: &[u8]| -> Vec<Vec<u8>> {
            path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect()
        };
        // The remaining parts, the next one at the end, and the path resolved so far.
        let (mut remaining, mut resolved) = (parts(path), Vec::<Vec<u8>>::new());
        let mut followed = 0;
        while let Some(part) = remaining.pop() {
            match &part[..] {
                b"" | b"." => {}
                b".." if resolved.pop().is_none() => return true,
                b".." => {}
                _ => {
                    resolved.push(part);
                    let Some(to) = self.links.get(&resolved.join(&b'/')) else { continue };
                    resolved.pop();
                    remaining.extend(parts(to));
                    followed += 1;
                    // A cycle of links leads nowhere.
                    if followed > MAX_LINKS {
                        return false;
                    }
                }
            }
        }
        false
    }

    fn check(&mut self, entry: &Entry) -> Result<()> {
        let twice = "occurs twice, or is below an entry that is no directory";
        let mut above = &entry.path[..];
        while let Some(at) = memchr::memrchr(b'/', above) {
            above = &above[..at];
            if *self.seen.entry(above.to_vec()).or_insert(ExistingEntry::Directory)
                != ExistingEntry::Directory
            {
                return Err(in_archive(&entry.path, twice));
            }
        }
        let was = match &entry.kind {
            EntryKind::File(_) => ExistingEntry::File,
            EntryKind::Directory => ExistingEntry::Directory,
            EntryKind::Symlink(_) if self.allowed == Links::Any => ExistingEntry::Link,
            EntryKind::Symlink(to) if is_inside(&entry.path, to) => {
                self.links.insert(entry.path.clone(), to.clone());
                ExistingEntry::Link
            }
            EntryKind::Symlink(_) => return Err(in_archive(&entry.path, LEADS_OUT)),
            EntryKind::HardLink(to) if self.seen.get(to) == Some(&ExistingEntry::File) => {
                ExistingEntry::File
            }
            EntryKind::HardLink(_) => {
                return Err(in_archive(&entry.path, "is a link to a file that is not before it"));
            }
        };
        match self.seen.insert(entry.path.clone(), was) {
            None => Ok(()),
            Some(ExistingEntry::Directory) if was == ExistingEntry::Directory => Ok(()),
            Some(_) => Err(in_archive(&entry.path, twice)),
        }
    }
}

fn in_archive(path: &[u8], problem: &str) -> Error {
    let name = String::from_utf8_lossy(path);
    Error::invalid("archive", format!("has {name:?}, which {problem}"))
        .with_context("cause", "archive")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(path: &str, to: &str) -> Entry {
        let (path, kind) = (path.into(), EntryKind::Symlink(to.into()));
        Entry { path, kind, mode: 0o777, modified: 0 }
    }

    #[test]
    fn links_that_lead_out_through_others_are_found() {
        for (links, fine) in [
            (&[("a/up", ".."), ("out", "a/up/..")][..], false),
            (&[("a/up", ".."), ("in", "a/up/x")], true),
            (&[("a", "b"), ("b", "a")], true),
            (&[("a/b/c", "../../x/y"), ("x/y", "../x")], true),
        ] {
            let mut validator = EntryValidator::new(Links::Inside);
            links.iter().for_each(|(path, to)| validator.check(&link(path, to)).unwrap());
            assert_eq!(validator.check_links().is_ok(), fine, "{links:?}");
        }
    }

    #[test]
    fn an_entry_that_occurs_twice_or_is_below_a_file_is_refused() {
        let entry = |path: &str, kind| Entry { path: path.into(), kind, mode: 0o644, modified: 0 };
        let mut validator = EntryValidator::new(Links::Inside);
        validator.check(&entry("d", EntryKind::Directory)).unwrap();
        validator.check(&entry("d/x", EntryKind::File(0))).unwrap();
        validator.check(&entry("d", EntryKind::Directory)).unwrap();
        validator.check(&entry("d/y", EntryKind::HardLink(b"d/x".to_vec()))).unwrap();
        for bad in [
            entry("d/x", EntryKind::File(0)),
            entry("d/x/z", EntryKind::File(0)),
            entry("h", EntryKind::HardLink(b"nothing".to_vec())),
        ] {
            validator.check(&bad).unwrap_err();
        }
    }
}
