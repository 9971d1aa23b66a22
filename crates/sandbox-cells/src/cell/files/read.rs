//! Reads a file in chunks.

use std::sync::Arc;

use rustix::fs::OFlags;
use sandbox_core::{ByteRange, ByteStream, Result};

use super::chunks::{chunks, step};
use super::path::CellPath;
use super::path::RootDir;
use super::pool;
use sandbox_engine::files::reader::FileReader;

/// Opens a file, links followed, and returns its content as a stream. The first chunk is read before this returns.
pub(crate) async fn stream(
    tree: Arc<RootDir>,
    target: CellPath,
    range: ByteRange,
) -> Result<ByteStream> {
    let (about, user) = (target.about.clone(), tree.user);
    let open = move || {
        let (file, status) = target.open_regular(&tree, OFlags::RDONLY)?;
        Ok(step(FileReader::new(file, &status, target.about.clone(), range)))
    };
    let opened = pool::run(user, open).await;
    let first = opened.map_err(|error| about.unexpected(error))??;
    Ok(Box::pin(chunks(about, user, first)))
}
