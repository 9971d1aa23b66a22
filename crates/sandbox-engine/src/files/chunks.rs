//! A stream of chunks that the threads for files read, one chunk ahead.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, stream};
use sandbox_core::Result;
use tokio::sync::oneshot;

use super::error::PathContext;
use super::pool::{self, User};

/// Most bytes of one piece of a stream.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Most bytes that a source gives at once, where there are many: each time costs two visits to threads. One such chunk is read
/// ahead, so a stream takes twice that.
pub const READ_SIZE: usize = 4 * CHUNK_SIZE;

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

/// A stream of chunks, between two pieces of it.
struct Stretch<S> {
    about: PathContext,
    /// The part of a chunk that is still to be given.
    rest: Bytes,
    next: Next<S>,
}

/// Makes the stream that begins with the first step. Nothing is read while the reader takes nothing.
pub fn chunks<S: Source>(
    about: PathContext,
    user: Option<User>,
    first: Step<S>,
) -> impl Stream<Item = Result<Bytes>> + Send {
    let state = Stretch { about, rest: Bytes::new(), next: Next::Known(first) };
    stream::unfold(state, move |mut state| async move {
        while state.rest.is_empty() {
            let known = match std::mem::replace(&mut state.next, Next::Over) {
                Next::Over => return None,
                Next::Known(step) => Ok(step),
                Next::Pending(step) => {
                    step.await.unwrap_or_else(|_| Err(io::Error::other("given up")))
                }
            };
            let (source, piece) = match known {
                Ok(step) => step,
                Err(error) => return Some((Err(state.about.unexpected(error)), state)),
            };
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => return Some((Err(error), state)),
            };
            if !piece.last {
                // While this chunk is used, the next one is read.
                state.next = Next::Pending(pool::start(user, move || step(source)));
            }
            state.rest = piece.bytes;
        }
        let most = state.rest.len().min(CHUNK_SIZE);
        Some((Ok(state.rest.split_to(most)), state))
    })
}
