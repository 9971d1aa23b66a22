//! Writes a stream on the threads for files, while the next chunk is awaited.

use std::io;

use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use sandbox_core::{ByteStream, Result};

use super::error::PathContext;
use super::pool::{self, User};

/// A destination of chunks. Dropped before its end it leaves nothing.
pub(crate) trait Sink: Sized + Send + 'static {
    type Output: Send + 'static;

    fn write(&mut self, piece: Bytes) -> Result<()>;

    fn finish(self) -> Result<Self::Output>;
}

enum Step<S: Sink> {
    Open(S),
    Done(S::Output),
}

/// Writes all of the content to what `open` returns.
///
/// # Errors
/// Errors of `open`, of the sink, and of the content.
pub(crate) async fn drain<S: Sink>(
    about: PathContext,
    user: Option<User>,
    mut content: ByteStream,
    open: impl FnOnce() -> Result<S> + Send + 'static,
) -> Result<S::Output> {
    let mut open = Some(open);
    let mut sink: Option<S> = None;
    let mut piece = content.next().await.transpose()?;
    // Small content is complete now, and takes a single visit to a thread.
    let mut following = match piece {
        Some(_) => content.next().now_or_never(),
        None => Some(None),
    };
    loop {
        let (bytes, last) = (piece.take(), matches!(following, Some(None)));
        let (before, open) = (sink.take(), open.take());
        let working = pool::start(user, move || {
            let sink = match (before, open) {
                (Some(sink), _) => sink,
                (None, Some(open)) => open()?,
                (None, None) => return Err(sandbox_core::Error::invalid("content", "ended twice")),
            };
            step(sink, bytes, last)
        });
        let more = match following.take() {
            Some(known) => known,
            None => content.next().await,
        };
        let done = working.await.unwrap_or_else(|_| Err(io::Error::other("given up")));
        match done.map_err(|error| about.unexpected(error))?? {
            Step::Done(output) => return Ok(output),
            Step::Open(open) => sink = Some(open),
        }
        piece = match more.transpose() {
            Ok(piece) => piece,
            Err(error) => {
                // What there is of it is removed before the caller gets the error.
                let _ = pool::run(user, move || drop(sink)).await;
                return Err(error);
            }
        };
        following = match piece {
            Some(_) => content.next().now_or_never(),
            None => Some(None),
        };
    }
}

fn step<S: Sink>(mut sink: S, piece: Option<Bytes>, last: bool) -> Result<Step<S>> {
    if let Some(piece) = piece {
        sink.write(piece)?;
    }
    if last { sink.finish().map(Step::Done) } else { Ok(Step::Open(sink)) }
}
