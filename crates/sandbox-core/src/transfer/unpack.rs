//! An archive of a sandbox into a new local directory.
//!
//! The directory is new and its owner's alone, so no other user puts links into it; and links of the archive are made last,
//! so nothing can be written through one.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Transferred;
use super::channel::{ChunkReceiver, take_blocking};
use super::local::{Access, create, create_directory, failed, link, name, set_mode, set_modified};
use crate::error::{Error, ErrorKind, Result};
use crate::tar::{Decoder, Entry, EntryKind, Item, is_inside};

const DOWNLOAD: &str = "download";

/// An archive that is being unpacked below `root`.
struct Unpacker {
    root: PathBuf,
    access: Access,
    file: Option<(PathBuf, File, u32, u64)>,
    directories: Vec<(PathBuf, u32, u64)>,
    links: Vec<(Vec<u8>, Vec<u8>)>,
    done: Transferred,
}

/// Unpacks all that comes into `root`, which is new and empty.
pub(super) fn unpack(
    root: &Path,
    taker: &mut ChunkReceiver,
    access: Access,
) -> Result<Transferred> {
    let mut unpacker = Unpacker {
        root: root.to_owned(),
        access,
        file: None,
        directories: Vec::new(),
        links: Vec::new(),
        done: Transferred::default(),
    };
    let mut decoder = Decoder::default();
    while let Some(piece) = take_blocking(taker) {
        decoder.feed(piece?);
        while let Some(item) = decoder.next()? {
            unpacker.item(item)?;
        }
    }
    decoder.finish()?;
    unpacker.make_links()?;
    unpacker.finish_directories()?;
    Ok(unpacker.done)
}

fn refused(path: &[u8], problem: &str) -> Error {
    let path = String::from_utf8_lossy(path);
    Error::new(
        ErrorKind::InvalidArgument,
        DOWNLOAD,
        format!("the archive has {path:?}, which {problem}"),
    )
}

impl Unpacker {
    fn item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Entry(entry) => self.entry(entry),
            Item::Data(bytes) => match &mut self.file {
                Some((path, file, ..)) => {
                    self.done.bytes += bytes.len() as u64;
                    file.write_all(&bytes).map_err(|error| failed(DOWNLOAD, path, error))
                }
                None => Ok(()),
            },
            Item::FileEnd => {
                self.done.files += 1;
                match self.file.take() {
                    Some((path, file, mode, modified)) => {
                        set_mode(&file, mode, self.access, 0o600)
                            .map_err(|error| failed(DOWNLOAD, &path, error))?;
                        set_modified(&file, modified as f64);
                        Ok(())
                    }
                    None => Ok(()),
                }
            }
        }
    }

    /// Where a name of the archive is, with the directories above it made. None of them is a link.
    fn place(&self, path: &[u8]) -> Result<PathBuf> {
        let mut place = self.root.clone();
        let mut parts = path.split(|byte| *byte == b'/').peekable();
        while let Some(part) = parts.next() {
            let part = name(part).ok_or_else(|| refused(path, "cannot be a name here"))?;
            place.push(part);
            if parts.peek().is_some() {
                match create_directory(&place) {
                    Ok(()) => {}
                    Err(_) if is_directory(&place) => {}
                    Err(error) => return Err(failed(DOWNLOAD, &place, error)),
                }
            }
        }
        Ok(place)
    }

    fn entry(&mut self, entry: Entry) -> Result<()> {
        let place = self.place(&entry.path)?;
        let done = match entry.kind {
            EntryKind::Directory => {
                self.directories.push((place.clone(), entry.mode, entry.modified));
                match create_directory(&place) {
                    Err(_) if is_directory(&place) => Ok(()),
                    other => other,
                }
            }
            EntryKind::File(_) => create(&place).map(|file| {
                self.file = Some((place.clone(), file, entry.mode, entry.modified));
            }),
            EntryKind::Symlink(target) => {
                self.links.push((entry.path, target));
                Ok(())
            }
            EntryKind::HardLink(target) => {
                let target = self.place(&target)?;
                if !fs::symlink_metadata(&target).is_ok_and(|metadata| metadata.is_file()) {
                    return Err(refused(
                        &entry.path,
                        "is a link to what the archive does not have",
                    ));
                }
                fs::hard_link(target, &place)
            }
        };
        done.map_err(|error| failed(DOWNLOAD, &place, error))
    }

    fn make_links(&mut self) -> Result<()> {
        for (path, target) in std::mem::take(&mut self.links) {
            if is_inside(&path, &target) && goes_up_first(&target) {
                let place = self.place(&path)?;
                link(&target, &place).map_err(|error| failed(DOWNLOAD, &place, error))?;
            } else {
                self.done.skipped.push(String::from_utf8_lossy(&path).into_owned());
            }
        }
        Ok(())
    }
}

impl Unpacker {
    /// Last, and the deepest first: what is made in a directory changes its time.
    fn finish_directories(&mut self) -> Result<()> {
        self.directories.sort_by_key(|(place, ..)| std::cmp::Reverse(place.as_os_str().len()));
        for (place, mode, modified) in std::mem::take(&mut self.directories) {
            let finished = File::open(&place).and_then(|directory| {
                set_mode(&directory, mode, self.access, 0o700)?;
                set_modified(&directory, modified as f64);
                Ok(())
            });
            finished.map_err(|error| failed(DOWNLOAD, &place, error))?;
        }
        Ok(())
    }
}

/// Whether the way of a link goes up only where it begins.
///
/// There it goes through directories, as the archive names them. Further down it may have come through other links, and
/// could lead out although none of them looks like it, also from a place that is made later. If all of them go up first,
/// none leads out.
fn goes_up_first(target: &[u8]) -> bool {
    let mut parts = target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    parts.by_ref().find(|part| *part != b"..");
    parts.all(|part| part != b"..")
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}
