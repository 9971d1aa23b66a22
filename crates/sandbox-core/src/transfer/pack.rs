//! A local directory as an archive.

use std::fs::{self, File, Metadata};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::Transferred;
use super::channel::ChunkSender;
use super::local::{CHUNK_SIZE, failed, mode, modified, refused};
use crate::error::Result;
use crate::tar::{self, Entry, EntryKind, MAX_DEPTH};

const UPLOAD: &str = "upload";

/// Packs what is in a directory. Links are never followed.
pub(super) struct Packer {
    root: PathBuf,
    giver: ChunkSender,
    piece: Vec<u8>,
    done: Transferred,
}

/// The reader of the archive is gone.
struct Cancelled;

enum Stop {
    Cancelled,
    Failed(crate::error::Error),
}

impl From<Cancelled> for Stop {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

impl From<crate::error::Error> for Stop {
    fn from(error: crate::error::Error) -> Self {
        Self::Failed(error)
    }
}

impl Packer {
    pub(super) fn new(root: PathBuf, giver: ChunkSender) -> Self {
        Self { root, giver, piece: Vec::new(), done: Transferred::default() }
    }

    /// Packs all of it. What goes wrong ends the archive with that error.
    pub(super) fn pack(mut self) -> Result<Transferred> {
        let root = self.root.clone();
        let packed = self.directory(&root, &[], 1).and_then(|()| {
            self.add(&tar::END)?;
            self.flush().map_err(Stop::from)
        });
        match packed {
            Ok(()) | Err(Stop::Cancelled) => {}
            Err(Stop::Failed(error)) => {
                self.giver.give_blocking(Err(error));
            }
        }
        Ok(self.done)
    }

    fn flush(&mut self) -> Result<(), Cancelled> {
        let piece = std::mem::take(&mut self.piece);
        if piece.is_empty() || self.giver.give_blocking(Ok(Bytes::from(piece))) {
            return Ok(());
        }
        Err(Cancelled)
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), Cancelled> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= CHUNK_SIZE { self.flush() } else { Ok(()) }
    }

    fn directory(&mut self, path: &Path, below: &[u8], depth: usize) -> Result<(), Stop> {
        let io = |error| failed(UPLOAD, path, error);
        let mut entries = fs::read_dir(path)
            .and_then(|entries| entries.collect::<Result<Vec<_>, _>>())
            .map_err(io)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        if depth > MAX_DEPTH && !entries.is_empty() {
            return Err(refused(UPLOAD, path, "is more than 64 levels deep").into());
        }
        for entry in entries {
            let path = entry.path();
            let metadata = entry.metadata().map_err(|error| failed(UPLOAD, &path, error))?;
            let mut name = below.to_vec();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend_from_slice(entry.file_name().as_encoded_bytes());
            if metadata.is_dir() {
                self.header(&name, EntryKind::Directory, &metadata)?;
                self.directory(&path, &name, depth + 1)?;
            } else if metadata.is_symlink() {
                self.link(&path, &name, &metadata)?;
            } else if metadata.is_file() {
                self.file(&path, &name)?;
            } else {
                let problem = "is neither a file nor a directory";
                return Err(refused(UPLOAD, &path, problem).into());
            }
        }
        Ok(())
    }

    fn header(
        &mut self,
        name: &[u8],
        kind: EntryKind,
        metadata: &Metadata,
    ) -> Result<(), Cancelled> {
        let entry = Entry {
            path: name.to_vec(),
            kind,
            mode: mode(metadata),
            modified: modified(metadata).unwrap_or_default(),
        };
        self.add(&tar::encode(&entry))
    }

    fn link(&mut self, path: &Path, name: &[u8], metadata: &Metadata) -> Result<(), Stop> {
        let target = fs::read_link(path).map_err(|error| failed(UPLOAD, path, error))?;
        let target = target.as_os_str().as_encoded_bytes();
        // The text may look harmless and lead out through another link; then resolving tells.
        let leads_out = fs::canonicalize(path).is_ok_and(|real| {
            fs::canonicalize(&self.root).is_ok_and(|root| !real.starts_with(root))
        });
        if leads_out || !tar::is_inside(name, target) {
            self.done.skipped.push(String::from_utf8_lossy(name).into_owned());
            return Ok(());
        }
        Ok(self.header(name, EntryKind::Symlink(target.to_vec()), metadata)?)
    }

    fn file(&mut self, path: &Path, name: &[u8]) -> Result<(), Stop> {
        let io = |error| failed(UPLOAD, path, error);
        let mut file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let size = metadata.len();
        self.header(name, EntryKind::File(size), &metadata)?;
        let mut left = size;
        while left > 0 {
            let room = left.min(CHUNK_SIZE as u64);
            let before = self.piece.len();
            let read = (&mut file).take(room).read_to_end(&mut self.piece).map_err(io)?;
            debug_assert_eq!(self.piece.len(), before + read, "what was read is there");
            if read == 0 {
                return Err(refused(UPLOAD, path, "got shorter while it was read").into());
            }
            left -= read as u64;
            if self.piece.len() >= CHUNK_SIZE {
                self.flush()?;
            }
        }
        self.add(&[0; tar::BLOCK][..tar::padding(size)])?;
        self.done.files += 1;
        self.done.bytes += size;
        Ok(())
    }
}
