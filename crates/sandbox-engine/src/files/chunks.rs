//! A stream of chunks that the threads for files read, one chunk ahead.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::Result;
use tokio::sync::oneshot;

use super::error::PathContext;
use super::pool::{self, User};

/// Bytes of one chunk. One chunk is read ahead, so a stream takes twice that.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// One chunk of a source.
#[derive(Debug)]
pub struct Chunk {
    /// The bytes that were read.
    pub bytes: Bytes,
    /// True for the last chunk.
    pub last: bool,
}

/// A source of chunks.
pub trait Source: Send + 'static {
    /// Reads the next chunk.
    ///
    /// # Errors
    /// When the chunk cannot be read.
    fn next(&mut self) -> Result<Chunk>;
}

/// A source, and the chunk that it gave.
pub type Step<S> = (S, Result<Chunk>);

/// Takes one chunk.
pub fn step<S: Source>(mut source: S) -> Step<S> {
    let piece = source.next();
    (source, piece)
}

enum Next<S> {
    Known(Step<S>),
    Pending(oneshot::Receiver<io::Result<Step<S>>>),
    Over,
}

/// Makes the stream that begins with the first step. Nothing is read while the reader takes nothing.
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
            // While this chunk is used, the next one is read.
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
