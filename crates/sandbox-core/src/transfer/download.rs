//! From a sandbox to this computer.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;

use super::channel::{ChunkReceiver, bridge, start, take_blocking};
use super::local::{Access, create, create_directory, failed, refused, set_mode, set_modified};
use super::merge::merge;
use super::skipped::left_out;
use super::unpack::unpack;
use super::{OnProgress, Progress, SizeLimit, Transferred};
use crate::error::{Error, ErrorKind, Result};
use crate::files::Files;
use crate::id::random_hex;
use crate::model::{FileInfo, FileKind};
use crate::request::{ByteRange, ByteStream};

const DOWNLOAD: &str = "download";

pub(super) async fn download(
    files: Files<'_>,
    local: PathBuf,
    path: String,
    mut progress: OnProgress<'_>,
    most: SizeLimit,
    arrival: Arrival,
) -> Result<Transferred> {
    let (info, content) = open(files, &path).await?;
    let is_archive = info.is_directory();
    let total = info.is_file().then_some(info.size);
    let about = CopiedAttributes::from_info(&info);
    let (giver, taker) = bridge();
    let target = local.clone();
    let writing = start(DOWNLOAD, move || match is_archive {
        true => write_directory(&target, taker, about, arrival),
        false => write_file(&target, taker, about, arrival),
    })?;
    send(content, giver, total, &mut progress, most).await;
    let mut done = writing.get(DOWNLOAD).await?;
    if is_archive {
        done.skipped.extend(left_out(files, &info, &local).await);
    }
    Ok(done)
}

/// How what comes over arrives here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) merges: bool,
    pub(super) access: Access,
}

/// Attributes that a copy keeps besides the content.
#[derive(Clone, Copy, Debug)]
struct CopiedAttributes {
    mode: u32,
    modified: f64,
}

impl CopiedAttributes {
    /// Returns `None` for a link, whose target is not known.
    fn from_info(info: &FileInfo) -> Option<Self> {
        let mode = u32::from_str_radix(&info.permissions, 8).ok()?;
        (info.kind != FileKind::Symlink).then_some(Self { mode, modified: info.modified })
    }
}

/// What is there, links followed, and its content: of a directory, its archive.
async fn open(files: Files<'_>, path: &str) -> Result<(FileInfo, ByteStream)> {
    let mut info = files.stat(path).await?;
    if info.kind != FileKind::Directory {
        match files.stream(path, ByteRange::default()).await {
            Ok(content) => return Ok((info, content)),
            // What a link points to is only known to be a directory now.
            Err(error) if info.kind == FileKind::Symlink && is_directory(&error) => {}
            Err(error) => return Err(error),
        }
    }
    info.kind = FileKind::Directory;
    Ok((info, files.read_archive(path).await?))
}

fn is_directory(error: &Error) -> bool {
    error.context().iter().any(|(key, value)| *key == "cause" && value == "is_a_directory")
}

/// Sends the whole content, an error of it included. Without a receiver, the thread has the better error.
async fn send(
    mut content: ByteStream,
    mut giver: super::channel::ChunkSender,
    total: Option<u64>,
    progress: &mut OnProgress<'_>,
    most: SizeLimit,
) {
    let mut bytes = 0;
    progress(Progress { bytes, total });
    while let Some(piece) = content.next().await {
        bytes += piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let piece = most.check(DOWNLOAD, bytes).and(piece);
        let over = piece.is_err();
        if !giver.give(piece).await || over {
            return;
        }
        progress(Progress { bytes, total });
    }
    giver.complete().await;
}

/// Something new beside where it shall be in the end. Removed when dropped.
struct TempFile {
    path: PathBuf,
    moved: bool,
}

impl TempFile {
    fn beside(local: &Path) -> Self {
        Self { path: local.with_file_name(draft_name()), moved: false }
    }

    fn put(mut self, local: &Path) -> Result<()> {
        fs::rename(&self.path, local).map_err(|error| failed(DOWNLOAD, local, error))?;
        self.moved = true;
        Ok(())
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.moved {
            let is_directory = fs::symlink_metadata(&self.path).is_ok_and(|found| found.is_dir());
            // The reason why it is not moved is the error that counts.
            let _ = match is_directory {
                true => fs::remove_dir_all(&self.path),
                false => fs::remove_file(&self.path),
            };
        }
    }
}

fn draft_name() -> String {
    format!(".sandbox-{}", random_hex(8))
}

fn write_file(
    local: &Path,
    mut taker: ChunkReceiver,
    about: Option<CopiedAttributes>,
    arrival: Arrival,
) -> Result<Transferred> {
    let before = match fs::symlink_metadata(local) {
        Ok(found) if found.is_file() => Some(found),
        Ok(found) if found.is_symlink() => {
            return Err(refused(
                DOWNLOAD,
                local,
                "is a link, and nothing is written through links",
            ));
        }
        Ok(_) => return Err(refused(DOWNLOAD, local, "is there already, and is no file")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(DOWNLOAD, local, error)),
    };
    if local.file_name().is_none() {
        return Err(refused(DOWNLOAD, local, "has no name for a file"));
    }
    let io = |error| failed(DOWNLOAD, local, error);
    let draft = TempFile::beside(local);
    let mut file = create(&draft.path).map_err(io)?;
    let mut done = Transferred { files: 1, ..Transferred::default() };
    let mut complete = false;
    while let Some(piece) = take_blocking(&mut taker) {
        let piece = piece?;
        complete = piece.is_empty();
        file.write_all(&piece).map_err(io)?;
        done.bytes += piece.len() as u64;
    }
    check_complete(complete)?;
    match before {
        Some(before) => file.set_permissions(before.permissions()).map_err(io)?,
        None => {
            if let Some(about) = about {
                set_mode(&file, about.mode, arrival.access, 0o600).map_err(io)?;
            }
        }
    }
    if let Some(about) = about {
        set_modified(&file, about.modified);
    }
    draft.put(local)?;
    Ok(done)
}

fn write_directory(
    local: &Path,
    mut taker: ChunkReceiver,
    about: Option<CopiedAttributes>,
    arrival: Arrival,
) -> Result<Transferred> {
    if arrival.merges && fs::metadata(local).is_ok_and(|found| found.is_dir()) {
        // Beside what is there, on the same file system, and merged when all of it has come.
        let draft = TempFile { path: local.join(draft_name()), moved: false };
        create_directory(&draft.path).map_err(|error| failed(DOWNLOAD, &draft.path, error))?;
        let done = unpack(&draft.path, &mut taker, arrival.access)?;
        merge(&draft.path, local)?;
        return Ok(done);
    }
    if local.file_name().is_none() || fs::symlink_metadata(local).is_ok() {
        let message = format!("{} on this computer exists already", local.display());
        return Err(Error::new(ErrorKind::AlreadyExists, DOWNLOAD, message)
            .with_context("local", local.to_string_lossy()));
    }
    let draft = TempFile::beside(local);
    create_directory(&draft.path).map_err(|error| failed(DOWNLOAD, local, error))?;
    let done = unpack(&draft.path, &mut taker, arrival.access)?;
    if let Some(about) = about {
        let kept = fs::File::open(&draft.path).and_then(|directory| {
            set_modified(&directory, about.modified);
            set_mode(&directory, about.mode, arrival.access, 0o700)
        });
        kept.map_err(|error| failed(DOWNLOAD, local, error))?;
    }
    draft.put(local)?;
    Ok(done)
}

/// The end is told by an empty piece: without it the other side was dropped in the middle.
fn check_complete(complete: bool) -> Result<()> {
    if complete {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Cancelled, DOWNLOAD, "the transfer was given up"))
}
