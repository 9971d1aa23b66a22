//! From this computer to a sandbox.

use std::fs::{File, Metadata};
use std::io::Read as _;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use futures_util::future::poll_fn;
use futures_util::task::AtomicWaker;
use futures_util::{StreamExt as _, stream};

use super::channel::{ChunkReceiver, ChunkSender, bridge, start};
use super::local::{CHUNK_SIZE, failed, mode, modified, refused};
use super::pack::Packer;
use super::{OnProgress, Progress, SizeLimit, Transferred};
use crate::error::{Error, ErrorKind, Result};
use crate::files::Files;
use crate::request::{ByteStream, WriteOptions};

const UPLOAD: &str = "upload";

/// Mode of directories that archives make.
const NEW_DIRECTORY: u32 = 0o755;

/// What is to be sent, found out on the thread before anything is.
enum Found {
    File(File, Metadata),
    Directory(Metadata),
}

pub(super) async fn upload(
    files: Files<'_>,
    local: PathBuf,
    path: String,
    mut progress: OnProgress<'_>,
    most: SizeLimit,
) -> Result<Transferred> {
    let at = local.clone();
    let found = start(UPLOAD, move || look(&at))?.get(UPLOAD).await?;
    let (giver, taker) = bridge();
    match found {
        Found::Directory(metadata) => {
            let is_new = files.stat(&path).await.is_err();
            let packing = start(UPLOAD, move || Packer::new(local, giver).pack())?;
            let sent = Arc::<Sent>::default();
            let archive = counted(taker, &sent, most);
            let sending = files.write_archive(&path, archive);
            watched(sending, &sent, None, &mut progress).await?;
            // An archive tells of what is in the directory, and not of itself.
            let mode = mode(&metadata) | 0o700;
            if is_new && mode != NEW_DIRECTORY {
                files.chmod(&path, mode).await?;
            }
            packing.get(UPLOAD).await
        }
        Found::File(file, metadata) => {
            let total = Some(metadata.len());
            let options = WriteOptions {
                mode: Some(mode(&metadata)),
                modified: modified(&metadata),
                ..WriteOptions::default()
            };
            let reading = start(UPLOAD, move || {
                read(file, &local, giver);
                Ok(())
            })?;
            let sent = Arc::<Sent>::default();
            let content = whole(counted(taker, &sent, most));
            let sending = files.write_stream(&path, content, options);
            let bytes = watched(sending, &sent, total, &mut progress).await?;
            reading.get(UPLOAD).await?;
            Ok(Transferred { bytes, files: 1, skipped: Vec::new() })
        }
    }
}

fn look(local: &std::path::Path) -> Result<Found> {
    let io = |error| failed(UPLOAD, local, error);
    let metadata = std::fs::metadata(local).map_err(io)?;
    if metadata.is_dir() {
        return Ok(Found::Directory(metadata));
    }
    if !metadata.is_file() {
        return Err(refused(UPLOAD, local, "is neither a file nor a directory"));
    }
    let file = File::open(local).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    Ok(Found::File(file, metadata))
}

fn read(mut file: File, local: &std::path::Path, mut giver: ChunkSender) {
    loop {
        let mut piece = Vec::with_capacity(CHUNK_SIZE);
        let read = (&mut file).take(CHUNK_SIZE as u64).read_to_end(&mut piece);
        let piece = match read {
            Ok(0) => {
                giver.give_blocking(Ok(Bytes::new()));
                return;
            }
            Ok(_) => Ok(Bytes::from(piece)),
            Err(error) => Err(failed(UPLOAD, local, error)),
        };
        let over = piece.is_err();
        if !giver.give_blocking(piece) || over {
            return;
        }
    }
}

/// Bytes that were taken of a stream. A backend may take them in a task of its own, so the one that watches them is woken.
#[derive(Default)]
struct Sent {
    bytes: AtomicU64,
    watching: AtomicWaker,
}

/// A stream that counts what is taken of it, and ends with an error when that is too much.
fn counted(taker: ChunkReceiver, sent: &Arc<Sent>, most: SizeLimit) -> ByteStream {
    let sent = Arc::clone(sent);
    Box::pin(taker.map(move |piece| {
        let size = piece.as_ref().map_or(0, |piece| piece.len() as u64);
        let bytes = sent.bytes.fetch_add(size, Ordering::Relaxed) + size;
        sent.watching.wake();
        most.check(UPLOAD, bytes).and(piece)
    }))
}

/// Content whose end is told by an empty piece. Without it the reader was lost in the middle.
fn whole(content: ByteStream) -> ByteStream {
    let complete = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&complete);
    let content = content.inspect(move |piece| {
        if piece.as_ref().is_ok_and(Bytes::is_empty) {
            seen.store(true, Ordering::Relaxed);
        }
    });
    let end = stream::once(async move {
        let lost = || Error::new(ErrorKind::Unexpected, UPLOAD, "the local file was read in part");
        (!complete.load(Ordering::Relaxed)).then(|| Err(lost()))
    });
    Box::pin(content.chain(end.filter_map(std::future::ready)))
}

/// Tells of the progress whenever the future has made some, from the task that waits for it.
async fn watched<T>(
    work: impl Future<Output = Result<T>>,
    sent: &Sent,
    total: Option<u64>,
    progress: &mut OnProgress<'_>,
) -> Result<T> {
    let mut work = pin!(work);
    let mut told = None;
    poll_fn(|cx| {
        sent.watching.register(cx.waker());
        let polled = work.as_mut().poll(cx);
        let bytes = sent.bytes.load(Ordering::Relaxed);
        if told != Some(bytes) {
            told = Some(bytes);
            progress(Progress { bytes, total });
        }
        polled
    })
    .await
}
