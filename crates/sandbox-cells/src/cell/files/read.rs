//! Reading a file in pieces.

use std::sync::Arc;

use rustix::fs::OFlags;
use sandbox_core::{ByteRange, ByteStream, Result};

use super::path::CellPath;
use super::path::Tree;
use super::pieces::{pieces, step};
use super::pool;
use sandbox_engine::files::reading::Reading;

/// A stream of a file, opened, links followed, and with its first piece read before this returns.
pub(crate) async fn stream(
    tree: Arc<Tree>,
    target: CellPath,
    range: ByteRange,
) -> Result<ByteStream> {
    let (about, user) = (target.about.clone(), tree.user);
    let open = move || {
        let (file, status) = target.open_regular(&tree, OFlags::RDONLY)?;
        Ok(step(Reading::new(file, &status, target.about.clone(), range)))
    };
    let opened = pool::run(user, open).await;
    let first = opened.map_err(|error| about.unexpected(error))??;
    Ok(Box::pin(pieces(about, user, first)))
}
