//! Exports the variables of an interpreter as bytes, for interpreters of other sandboxes.

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

/// Time limit of writing them. A genuine worker ends before.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(70);

/// Maximum size of an export, in bytes. A genuine worker stops there.
const MAX_EXPORT_SIZE: usize = 2 << 30;

/// Time limit of reading them, which runs user code.
const IMPORT_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of imported modules. A genuine worker stops there.
const MAX_IMPORTED_MODULES: usize = 256;

/// Maximum size of a chunk and of the header, in bytes.
const CHUNK_SIZE: usize = 256 << 10;

/// A copy of an interpreter that is about to export its variables.
#[derive(Debug)]
pub struct VariableExport {
    ours: UnixStream,
    deadline: Instant,
}

impl VariableExport {
    /// Exports the variables of a checkpoint, which stays.
    ///
    /// # Errors
    /// `NotFound` when the checkpoint is dead, `ResourceExhausted` when there are no descriptors left.
    pub fn from_checkpoint(copy: &dyn Checkpoint) -> Result<Self> {
        Ok(Self { ours: copy.export_variables()?, deadline: Instant::now() + EXPORT_TIMEOUT })
    }

    /// Waits until the copy has looked at all variables. The error is the reason why there are none.
    pub async fn into_variables(mut self) -> Result<ExportedVariables, String> {
        match timeout_at(self.deadline, head(&mut self.ours)).await.ok().flatten() {
            None => Err("the exporting copy of the interpreter ended".to_owned()),
            Some(ExportHeader { count, left_out, imported }) => {
                let content = pieces(self.ours, self.deadline);
                Ok(ExportedVariables { count, left_out, imported, content })
            }
        }
    }
}

/// Variables that an interpreter exports.
pub struct ExportedVariables {
    /// The number of variables.
    pub count: u64,
    /// The variables that are missing, and why.
    pub left_out: Vec<String>,
    /// Modules that the interpreter has imported, as it reports. The list may be made up.
    pub imported: Vec<String>,
    /// The variables, for [`SuspendedContext::import_variables`]. The stream ends with an error when the exporting copy
    /// dies.
    pub content: ByteStream,
}

impl fmt::Debug for ExportedVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedVariables")
            .field("left_out", &self.left_out)
            .finish_non_exhaustive()
    }
}

/// The header before the variables.
struct ExportHeader {
    count: u64,
    left_out: Vec<String>,
    imported: Vec<String>,
}

impl SuspendedContext {
    /// Exports its variables as they are now. A copy writes them, so the interpreter is free again when this returns. The
    /// inner error is the reason why there are none.
    ///
    /// # Errors
    /// When the interpreter breaks the protocol or dies. It is gone then.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the next run starts after that.
    pub async fn export_variables(&mut self) -> Result<Result<VariableExport, String>> {
        let Some((ours, channel)) = self.context.inner.host.open_channel()? else {
            return Ok(Err("this isolation cannot export variables".to_owned()));
        };
        let deadline = Instant::now() + EXPORT_TIMEOUT;
        let slot = self.slot.take().ok_or_else(gone)?;
        let task = tokio::spawn(forked(slot, channel));
        let (slot, answer) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        Ok(answer?.map(|()| VariableExport { ours, deadline }))
    }

    /// Imports variables that another interpreter has exported. A missing interpreter is started.
    ///
    /// # Errors
    /// `InvalidArgument` when they cannot be read here, with the message of the interpreter; errors of the stream;
    /// failures to start an interpreter.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the next run starts after that.
    pub async fn import_variables(&mut self, content: ByteStream) -> Result<()> {
        let Some((ours, channel)) = self.context.inner.host.open_channel()? else {
            return Err(Error::unsupported(OPERATION, "this isolation cannot import variables"));
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
        // Processes of the interpreter may keep the channel open when it has answered.
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

/// Reads the header; `None` when it is malformed.
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

/// Reads the chunks, each after its length, up to the empty one that is the end, until the deadline.
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

/// Reads one chunk after its length; `None` when it is incomplete or too long.
async fn piece(ours: &mut UnixStream) -> Option<Vec<u8>> {
    let length = ours.read_u32_le().await.ok()? as usize;
    if length > CHUNK_SIZE {
        return None;
    }
    let mut piece = vec![0; length];
    ours.read_exact(&mut piece).await.ok()?;
    Some(piece)
}

/// Writes all of the content. A reader that has closed the stream explains that in its answer.
async fn feed(mut ours: UnixStream, mut content: ByteStream) -> Result<()> {
    while let Some(piece) = content.next().await {
        if ours.write_all(&piece?).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}
