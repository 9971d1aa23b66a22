//! The variables of an interpreter as bytes, for interpreters of other sandboxes.

use std::fmt;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteStream, Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{Instant, timeout_at};

use super::context::{InterpreterContext, Slot, VARIABLE_BOUND};
use super::paused::{MOST_NOTES, OPERATION, Paused, ask, give_up, gone, is_long};
use crate::box_io::Channel;
use crate::message::Request;
use crate::wire::{Fields, WireError};

/// How long it may take to write them. A copy that is honest ends before.
const STORE_BOUND: Duration = Duration::from_secs(70);

/// The most that a copy may say it writes, in bytes. An honest one stops there.
const LARGEST: u64 = 2 << 30;

/// How long it may take to read them, which runs code of users.
const RESTORE_BOUND: Duration = Duration::from_secs(120);

/// Bytes of what is said before the variables.
const LONGEST_HEAD: usize = 64 << 10;

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// Variables on their way out of an interpreter.
pub struct StoredVariables {
    /// How many.
    pub count: u64,
    /// What is missing, in words.
    pub left_out: Vec<String>,
    /// All of them, to be given to [`Paused::restore`] as they are. It ends with an error when whoever writes them dies.
    pub content: ByteStream,
}

impl fmt::Debug for StoredVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredVariables").field("left_out", &self.left_out).finish_non_exhaustive()
    }
}

/// What is said before the variables.
struct Head {
    size: u64,
    count: u64,
    left_out: Vec<String>,
}

impl Paused {
    /// Its variables as they are now. A copy writes them, so the interpreter is free again when this returns. The inner error
    /// says why there are none.
    ///
    /// # Errors
    /// When the interpreter breaks the protocol or dies. It has ended then.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the queue goes on after that.
    pub async fn store(&mut self) -> Result<Result<StoredVariables, String>> {
        let Some((mut ours, channel)) = self.context.inner.box_io.open_channel()? else {
            return Ok(Err("nothing in this isolation gives them out".to_owned()));
        };
        let deadline = Instant::now() + STORE_BOUND;
        let slot = self.slot.take().ok_or_else(gone)?;
        let task = tokio::spawn(forked(slot, channel));
        let (slot, answer) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        if let Err(problem) = answer? {
            return Ok(Err(problem));
        }
        Ok(match timeout_at(deadline, head(&mut ours)).await.ok().flatten() {
            None => Err("the copy that was to give them out ended".to_owned()),
            Some(head) => {
                let content = limited(ours, head.size, deadline);
                Ok(StoredVariables { count: head.count, left_out: head.left_out, content })
            }
        })
    }

    /// Gives it variables that another one had. Without an interpreter one is started.
    ///
    /// # Errors
    /// `InvalidArgument` when they cannot be read here, in the words of the interpreter; what the stream says; whatever keeps
    /// an interpreter from starting.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the queue goes on after that.
    pub async fn restore(&mut self, content: ByteStream) -> Result<()> {
        let Some((ours, channel)) = self.context.inner.box_io.open_channel()? else {
            return Err(Error::unsupported(OPERATION, "this isolation takes no variables in"));
        };
        let slot = self.slot.take().ok_or_else(gone)?;
        let task = tokio::spawn(filled(self.context.clone(), slot, content, ours, channel));
        let (slot, answer) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        answer
    }
}

type Answered<T> = (OwnedMutexGuard<Slot>, Result<T>);

async fn forked(mut slot: OwnedMutexGuard<Slot>, channel: Channel) -> Answered<Result<(), String>> {
    let answer = match ask(&mut slot, |id| Request::Store { id }, VARIABLE_BOUND, channel).await {
        Ok(answer) => Ok(answer.map(drop)),
        Err(problem) => Err(give_up(&mut slot, problem).await),
    };
    (slot, answer)
}

async fn filled(
    context: InterpreterContext,
    mut slot: OwnedMutexGuard<Slot>,
    content: ByteStream,
    ours: UnixStream,
    channel: Channel,
) -> Answered<()> {
    if let Err(error) = context.worker(&mut slot).await {
        return (slot, Err(error));
    }
    let restore = |id| Request::Restore { id };
    let (answer, fed) = {
        let asking = pin!(ask(&mut slot, restore, RESTORE_BOUND, channel));
        // What the interpreter left behind may keep the channel open when it has answered.
        match select(asking, pin!(feed(ours, content))).await {
            Either::Left((answer, _)) => (answer, Ok(())),
            Either::Right((fed, asking)) => (asking.await, fed),
        }
    };
    let answer = match answer {
        Ok(answer) => fed.and(answer.map(drop).map_err(unreadable)),
        Err(problem) => Err(give_up(&mut slot, problem).await),
    };
    (slot, answer)
}

fn unreadable(problem: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, OPERATION, problem)
}

/// What is said first; `None` when that is not what is to be said.
async fn head(ours: &mut UnixStream) -> Option<Head> {
    let length = ours.read_u32_le().await.ok()? as usize;
    if length > LONGEST_HEAD {
        return None;
    }
    let mut told = vec![0; length];
    ours.read_exact(&mut told).await.ok()?;
    Head::read(&told).ok().filter(|head| {
        let notes = &head.left_out;
        let are_few = notes.len() <= MOST_NOTES && !notes.iter().any(|note| is_long(note));
        are_few && head.size <= LARGEST
    })
}

impl Head {
    fn read(told: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(told);
        let head = Self {
            size: fields.number("size")?,
            count: fields.number("count")?,
            left_out: fields.list("left_out", |note| note.text("note"))?,
        };
        fields.finish()?;
        Ok(head)
    }
}

/// That many bytes until then, or an error.
fn limited(ours: UnixStream, size: u64, deadline: Instant) -> ByteStream {
    let ended = || {
        let message = "the copy of the interpreter ended before all variables were stored";
        Error::new(ErrorKind::Unavailable, OPERATION, message)
    };
    Box::pin(stream::unfold((ours, size), move |(mut ours, left)| async move {
        if left == 0 {
            return None;
        }
        let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
        match timeout_at(deadline, ours.read(&mut piece)).await {
            Ok(Ok(count)) if count > 0 => {
                piece.truncate(count);
                Some((Ok(Bytes::from(piece)), (ours, left - count as u64)))
            }
            _ => Some((Err(ended()), (ours, 0))),
        }
    }))
}

/// Writes it all. Whoever has stopped to read says why.
async fn feed(mut ours: UnixStream, mut content: ByteStream) -> Result<()> {
    while let Some(piece) = content.next().await {
        if ours.write_all(&piece?).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
