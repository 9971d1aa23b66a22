//! A context between two runs: its interpreter can be checkpointed, killed, and replaced by a checkpoint.

use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::sync::OwnedMutexGuard;

use super::context::{InterpreterContext, Slot, VARIABLE_TIMEOUT};
use super::inbox::FinalReply;
use super::run::unexpected;
use super::watchdog::Limits;
use super::worker::{Worker, WorkerEvent};
use crate::host::{Checkpoint, PendingCheckpoint, SideChannel};
use crate::message::{Reply, Request};

pub(super) const OPERATION: &str = "checkpoint_interpreter";

/// Maximum number of notes of an interpreter about its checkpoint. The last one counts those beyond.
pub(super) const MAX_NOTES: usize = 16;

/// Maximum length of one note, in bytes.
const MAX_NOTE_LENGTH: usize = 4 << 10;

/// A context whose queue waits for as long as this lives.
#[derive(Debug)]
pub struct SuspendedContext {
    pub(super) context: InterpreterContext,
    /// `None` while a task has the slot.
    pub(super) slot: Option<OwnedMutexGuard<Slot>>,
}

/// The result of a checkpoint request.
#[derive(Debug)]
pub enum CheckpointOutcome {
    /// A checkpoint that will arrive, and notes about what it lacks or shares. The interpreter may continue meanwhile.
    Pending(Box<dyn PendingCheckpoint>, Vec<String>),
    /// There is no checkpoint, for this reason.
    None(String),
}

impl SuspendedContext {
    pub(super) fn new(context: InterpreterContext, slot: OwnedMutexGuard<Slot>) -> Self {
        Self { context, slot: Some(slot) }
    }

    /// Returns the id of the context.
    pub fn id(&self) -> &str {
        self.context.id()
    }

    /// Returns true when it has an interpreter that can answer.
    pub fn has_interpreter(&self) -> bool {
        let slot = self.slot.as_ref();
        slot.and_then(|slot| slot.worker.as_ref()).is_some_and(Worker::is_fit)
    }

    /// Kills its interpreter and everything that the interpreter started. The next run starts a new one.
    pub async fn end(&mut self) {
        let Some(slot) = &mut self.slot else { return };
        if self.context.is_current(slot) {
            self.context.watchdog_slot().take();
        }
        slot.state_lost = false;
        if let Some(worker) = slot.worker.take() {
            worker.reap().await;
        }
    }

    /// Makes a checkpoint of its interpreter.
    ///
    /// # Errors
    /// When the interpreter breaks the protocol or dies. It is gone then.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the next run starts after that.
    pub async fn checkpoint(&mut self) -> Result<CheckpointOutcome> {
        let expected = match self.context.inner.host.begin_checkpoint().await {
            Ok(Some(expected)) => expected,
            Ok(None) => {
                return Ok(CheckpointOutcome::None("this isolation has no checkpoints".to_owned()));
            }
            Err(error) => return Ok(CheckpointOutcome::None(error.to_string())),
        };
        let Some(slot) = self.slot.take() else { return Err(gone()) };
        let task = tokio::spawn(copy(slot, expected.0, expected.1));
        let (slot, copied) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        copied
    }

    /// Kills its interpreter and restores a checkpoint in its place.
    ///
    /// # Errors
    /// `NotFound` when the checkpoint is dead; failures to start it as an interpreter. There is no interpreter then.
    pub async fn restore(&mut self, checkpoint: &dyn Checkpoint) -> Result<()> {
        self.end().await;
        let inner = &self.context.inner;
        let io = checkpoint.restore().await?;
        let worker = Worker::begin(io, &inner.host, &inner.ended, &inner.spec.cwd).await?;
        let Some(slot) = &mut self.slot else { return Err(gone()) };
        self.context.put(slot, worker);
        Ok(())
    }
}

pub(super) fn is_long(note: &str) -> bool {
    note.len() > MAX_NOTE_LENGTH
}

pub(super) fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "the interpreter is gone")
}

async fn copy(
    mut slot: OwnedMutexGuard<Slot>,
    expected: Box<dyn PendingCheckpoint>,
    channel: SideChannel,
) -> (OwnedMutexGuard<Slot>, Result<CheckpointOutcome>) {
    let hold = |id| Request::Checkpoint { id };
    let copied = match ask(&mut slot, hold, VARIABLE_TIMEOUT, channel).await {
        Ok(Ok(notes)) => Ok(CheckpointOutcome::Pending(expected, notes)),
        Ok(Err(problem)) => Ok(CheckpointOutcome::None(problem)),
        Err(problem) => {
            // Nothing can be killed while a checkpoint is expected.
            drop(expected);
            Err(give_up(&mut slot, problem).await)
        }
    };
    (slot, copied)
}

/// Kills an interpreter that cannot continue.
pub(super) async fn give_up(slot: &mut Slot, problem: String) -> Error {
    slot.state_lost = true;
    if let Some(worker) = slot.worker.take() {
        worker.reap().await;
    }
    Error::new(ErrorKind::Protocol, OPERATION, problem)
}

/// Sends a request about the interpreter. Returns its notes, or the reason why it did nothing; the outer error is the
/// reason why it cannot continue.
pub(super) async fn ask(
    slot: &mut Slot,
    request: fn(i64) -> Request,
    bound: Duration,
    channel: SideChannel,
) -> Result<Result<Vec<String>, String>, String> {
    let Some(worker) = slot.worker.as_mut() else { return Err("it has ended".to_owned()) };
    let id = worker.next_id();
    worker.watchdog.begin(
        id,
        FinalReply::Acknowledged,
        Limits { wall: Some(bound), cpu: None, memory: None },
        None,
    );
    let answer = match worker.send_with_channel(&request(id), channel).await {
        Ok(()) => answer(worker, id).await,
        Err(error) => Err(error.to_string()),
    };
    worker.answered(id);
    answer
}

async fn answer(worker: &mut Worker, id: i64) -> Result<Result<Vec<String>, String>, String> {
    loop {
        match worker.next().await {
            WorkerEvent::Output(..) => {}
            WorkerEvent::Reply(Reply::Acknowledged { id: answered, problem, notes })
                if answered == id =>
            {
                if notes.len() > MAX_NOTES
                    || notes.iter().chain([&problem]).any(|note| is_long(note))
                {
                    return Err("the interpreter sent too many notes".to_owned());
                }
                return Ok(if problem.is_empty() { Ok(notes) } else { Err(problem) });
            }
            WorkerEvent::Reply(other) => return Err(unexpected(&other)),
            WorkerEvent::Broken(problem) => return Err(problem),
            WorkerEvent::Dead => return Err("the interpreter died".to_owned()),
        }
    }
}
