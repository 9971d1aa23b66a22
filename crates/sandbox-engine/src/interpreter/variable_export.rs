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

use super::context::{InterpreterContext, Slot, VARIABLE_TIMEOUT};
use super::suspend::{MAX_NOTES, OPERATION, SuspendedContext, ask, give_up, gone, is_long};
use crate::host::{Checkpoint, SideChannel};
use crate::message::Request;
use crate::wire::{Fields, WireError};

/// How long it may take to write them. A copy that is honest ends before.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(70);

/// The most that a copy may give out, in bytes. An honest one stops there.
const MAX_EXPORT_SIZE: usize = 2 << 30;

/// How long it may take to read them, which runs code of users.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// Modules that one may tell of. An honest one stops there.
const MAX_IMPORTED_MODULES: usize = 256;

/// Bytes of a piece, and of what is said before the first one.
const CHUNK_SIZE: usize = 256 << 10;

/// A copy of an interpreter that looks at its variables and then gives them out.
#[derive(Debug)]
pub struct VariableExport {
    ours: UnixStream,
    deadline: Instant,
}

impl VariableExport {
    /// Of a copy that waits, and goes on to wait.
    ///
    /// # Errors
    /// `NotFound` when it is dead, `ResourceExhausted` when there are no descriptors left.
    pub fn from_checkpoint(copy: &dyn Checkpoint) -> Result<Self> {
        Ok(Self { ours: copy.export_variables()?, deadline: Instant::now() + EXPORT_TIMEOUT })
    }

    /// What it has, once it has looked at all of them. The error says why there is nothing.
    pub async fn into_variables(mut self) -> Result<ExportedVariables, String> {
        match timeout_at(self.deadline, head(&mut self.ours)).await.ok().flatten() {
            None => Err("the copy that was to give them out ended".to_owned()),
            Some(ExportHeader { count, left_out, imported }) => {
                let content = pieces(self.ours, self.deadline);
                Ok(ExportedVariables { count, left_out, imported, content })
            }
        }
    }
}

/// Variables on their way out of an interpreter.
pub struct ExportedVariables {
    /// How many.
    pub count: u64,
    /// What is missing, in words.
    pub left_out: Vec<String>,
    /// Modules that it has imported, as it says. Whatever is done with that has to stand names that are made up.
    pub imported: Vec<String>,
    /// All of them, to be given to [`SuspendedContext::import_variables`] as they are. It ends with an error when whoever writes them dies.
    pub content: ByteStream,
}

impl fmt::Debug for ExportedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedVariables")
            .field("left_out", &self.left_out)
            .finish_non_exhaustive()
    }
}

/// What is said before the variables.
struct ExportHeader {
    count: u64,
    left_out: Vec<String>,
    imported: Vec<String>,
}

impl SuspendedContext {
    /// Its variables as they are now. A copy gives them out, so the interpreter is free again when this returns. The inner
    /// error says why there is none.
    ///
    /// # Errors
    /// When the interpreter breaks the protocol or dies. It has ended then.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the queue goes on after that.
    pub async fn export_variables(&mut self) -> Result<Result<VariableExport, String>> {
        let Some((ours, channel)) = self.context.inner.host.open_channel()? else {
            return Ok(Err("nothing in this isolation gives them out".to_owned()));
        };
        let deadline = Instant::now() + EXPORT_TIMEOUT;
        let slot = self.slot.take().ok_or_else(gone)?;
        let task = tokio::spawn(forked(slot, channel));
        let (slot, answer) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        Ok(answer?.map(|()| VariableExport { ours, deadline }))
    }

    /// Gives it variables that another one had. Without an interpreter one is started.
    ///
    /// # Errors
    /// `InvalidArgument` when they cannot be read here, in the words of the interpreter; what the stream says; whatever keeps
    /// an interpreter from starting.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the queue goes on after that.
    pub async fn import_variables(&mut self, content: ByteStream) -> Result<()> {
        let Some((ours, channel)) = self.context.inner.host.open_channel()? else {
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

async fn forked(
    mut slot: OwnedMutexGuard<Slot>,
    channel: SideChannel,
) -> Answered<Result<(), String>> {
    let answer =
        match ask(&mut slot, |id| Request::ExportVariables { id }, VARIABLE_TIMEOUT, channel).await
        {
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
    channel: SideChannel,
) -> Answered<()> {
    if let Err(error) = context.worker(&mut slot).await {
        return (slot, Err(error));
    }
    let restore = |id| Request::ImportVariables { id };
    let (answer, fed) = {
        let asking = pin!(ask(&mut slot, restore, IMPORT_TIMEOUT, channel));
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
async fn head(ours: &mut UnixStream) -> Option<ExportHeader> {
    ExportHeader::read(&piece(ours).await?).ok().filter(|head| {
        let notes = &head.left_out;
        notes.len() <= MAX_NOTES
            && !notes.iter().any(|note| is_long(note))
            && head.imported.len() <= MAX_IMPORTED_MODULES
    })
}

impl ExportHeader {
    fn read(told: &[u8]) -> Result<Self, WireError> {
        let mut fields = Fields::new(told);
        let head = Self {
            count: fields.number("count")?,
            left_out: fields.list("left_out", |note| note.text("note"))?,
            imported: fields.list("imported", |name| name.text("name"))?,
        };
        fields.finish()?;
        Ok(head)
    }
}

/// The pieces that come until then, each behind its length, up to the empty one that is the end.
fn pieces(ours: UnixStream, deadline: Instant) -> ByteStream {
    Box::pin(stream::unfold((Some(ours), 0), move |(ours, before)| async move {
        let mut ours = ours?;
        let piece = timeout_at(deadline, piece(&mut ours)).await.ok().flatten();
        let Some(piece) = piece.filter(|piece| before + piece.len() <= MAX_EXPORT_SIZE) else {
            let message = "the copy of the interpreter ended before all variables were stored";
            let error = Error::new(ErrorKind::Unavailable, OPERATION, message);
            return Some((Err(error), (None, before)));
        };
        let so_far = before + piece.len();
        (!piece.is_empty()).then(|| (Ok(Bytes::from(piece)), (Some(ours), so_far)))
    }))
}

/// What comes behind its length; `None` when it does not, or is longer than it may be.
async fn piece(ours: &mut UnixStream) -> Option<Vec<u8>> {
    let length = ours.read_u32_le().await.ok()? as usize;
    if length > CHUNK_SIZE {
        return None;
    }
    let mut piece = vec![0; length];
    ours.read_exact(&mut piece).await.ok()?;
    Some(piece)
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
