//! A stream of what is read on the threads for files, one piece ahead.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::Result;
use tokio::sync::oneshot;

use super::error::PathContext;
use super::pool::{self, User};

/// Bytes of one piece. One piece is read ahead, so a stream takes twice that.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Part of what is read.
#[derive(Debug)]
pub struct Chunk {
    /// What was read.
    pub bytes: Bytes,
    /// Set on the last piece.
    pub last: bool,
}

/// What chunks come from.
pub trait Source: Send + 'static {
    /// Reads the next piece.
    ///
    /// # Errors
    /// When it cannot be read.
    fn next(&mut self) -> Result<Chunk>;
}

/// A source, and the piece that it gave.
pub type Step<S> = (S, Result<Chunk>);

/// Takes one piece.
pub fn step<S: Source>(mut source: S) -> Step<S> {
    let piece = source.next();
    (source, piece)
}

enum Next<S> {
    Known(Step<S>),
    Pending(oneshot::Receiver<io::Result<Step<S>>>),
    Over,
}

/// The stream that begins with the first step. Nothing is read while nobody takes what there is.
pub fn chunks<S: Source>(
    about: PathContext,
    user: Option<User>,
    first: Step<S>,
) -> impl Stream<Item = Result<Bytes>> + Send {
    let steps = stream::unfold((about, Next::Known(first)), move |(about, next)| async move {
        let known = match next {
            Next::Over => return None,
            Next::Known(step) => Ok(step),
            Next::Pending(step) => step.await.unwrap_or_else(|_| Err(io::Error::other("given up"))),
        };
        let (source, piece) = match known {
            Ok(step) => step,
            Err(error) => return Some((Err(about.unexpected(error)), (about, Next::Over))),
        };
        match piece {
            Err(error) => Some((Err(error), (about, Next::Over))),
            Ok(piece) if piece.last => Some((Ok(piece.bytes), (about, Next::Over))),
            // While this piece is used, the next one is read.
            Ok(piece) => {
                let ahead = pool::start(user, move || step(source));
                Some((Ok(piece.bytes), (about, Next::Pending(ahead))))
            }
        }
    });
    steps.filter(|piece| {
        let has_something = !matches!(piece, Ok(bytes) if bytes.is_empty());
        std::future::ready(has_something)
    })
}
