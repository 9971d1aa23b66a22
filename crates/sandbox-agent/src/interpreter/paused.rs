//! A context between two runs: its interpreter can be copied, ended, and replaced by a copy.

use std::sync::Arc;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::sync::OwnedMutexGuard;

use super::context::{InterpreterContext, Slot, VARIABLE_BOUND};
use super::run::unexpected;
use super::watchdog::Limits;
use super::worker::{Happening, Worker};
use crate::box_io::{Channel, Expected, Held};
use crate::message::{Reply, Request};

const OPERATION: &str = "copy_interpreter";

/// Notes of an interpreter about its copy, which says itself how many more there would be.
const MOST_NOTES: usize = 16;

/// Bytes of one of them.
const LONGEST_NOTE: usize = 4 << 10;

/// A context whose queue waits for as long as this lives.
#[derive(Debug)]
pub struct Paused {
    context: InterpreterContext,
    /// `None` while a task has it.
    slot: Option<OwnedMutexGuard<Slot>>,
}

/// What came of copying an interpreter.
#[derive(Debug)]
pub enum Copied {
    /// A copy, and what it does not have or not for itself alone.
    Copy(Arc<dyn Held>, Vec<String>),
    /// None, and why.
    None(String),
}

impl Paused {
    pub(super) fn new(context: InterpreterContext, slot: OwnedMutexGuard<Slot>) -> Self {
        Self { context, slot: Some(slot) }
    }

    /// The id of the context.
    pub fn id(&self) -> &str {
        self.context.id()
    }

    /// Whether it has an interpreter that can answer.
    pub fn has_interpreter(&self) -> bool {
        let slot = self.slot.as_ref();
        slot.and_then(|slot| slot.worker.as_ref()).is_some_and(Worker::is_fit)
    }

    /// Ends its interpreter and whatever that started. The next run starts a new one.
    pub async fn end(&mut self) {
        self.context.watchdog_slot().take();
        let Some(slot) = &mut self.slot else { return };
        slot.lost = false;
        if let Some(worker) = slot.worker.take() {
            worker.bury().await;
        }
    }

    /// Makes a copy of its interpreter that waits.
    ///
    /// # Errors
    /// When the interpreter breaks the protocol or dies. It has ended then.
    ///
    /// # Cancellation
    /// The interpreter finishes what it does, and the queue goes on after that.
    pub async fn copy(&mut self) -> Result<Copied> {
        let expected = match self.context.inner.box_io.expect_copy().await {
            Ok(Some(expected)) => expected,
            Ok(None) => return Ok(Copied::None("this isolation has no copies of it".to_owned())),
            Err(error) => return Ok(Copied::None(error.to_string())),
        };
        let Some(slot) = self.slot.take() else { return Err(gone()) };
        let task = tokio::spawn(copy(slot, expected.0, expected.1));
        let (slot, copied) = task.await.map_err(|_| gone())?;
        self.slot = Some(slot);
        copied
    }

    /// Ends its interpreter and has that copy in its place.
    ///
    /// # Errors
    /// `NotFound` when the copy is dead; whatever keeps it from being an interpreter. There is none then.
    pub async fn wake(&mut self, held: &dyn Held) -> Result<()> {
        self.end().await;
        let inner = &self.context.inner;
        let io = held.wake().await?;
        let worker = Worker::begin(io, &inner.box_io, &inner.ended, &inner.spec.cwd).await?;
        *self.context.watchdog_slot() = Some(Arc::clone(&worker.watchdog));
        let Some(slot) = &mut self.slot else { return Err(gone()) };
        slot.worker = Some(worker);
        Ok(())
    }
}

fn is_long(note: &str) -> bool {
    note.len() > LONGEST_NOTE
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, OPERATION, "the interpreter is gone")
}

async fn copy(
    mut slot: OwnedMutexGuard<Slot>,
    expected: Box<dyn Expected>,
    channel: Channel,
) -> (OwnedMutexGuard<Slot>, Result<Copied>) {
    let Some(worker) = slot.worker.as_mut() else { return (slot, Err(gone())) };
    let id = worker.next_id();
    worker.watchdog.begin(id, Limits { wall: Some(VARIABLE_BOUND), cpu: None }, None);
    match ask(worker, id, channel).await {
        Ok(Ok(notes)) => {
            worker.watchdog.end(id);
            let copied = match expected.made().await {
                Ok(copy) => Copied::Copy(copy, notes),
                Err(error) => Copied::None(error.to_string()),
            };
            (slot, Ok(copied))
        }
        Ok(Err(problem)) => {
            worker.watchdog.end(id);
            (slot, Ok(Copied::None(problem)))
        }
        Err(problem) => {
            worker.watchdog.end(id);
            // Nothing can be killed while a copy is expected.
            drop(expected);
            slot.lost = true;
            if let Some(worker) = slot.worker.take() {
                worker.bury().await;
            }
            (slot, Err(Error::new(ErrorKind::Protocol, OPERATION, problem)))
        }
    }
}

/// What the worker notes about its copy, or why there is none; and otherwise why it cannot go on.
async fn ask(
    worker: &mut Worker,
    id: i64,
    channel: Channel,
) -> Result<Result<Vec<String>, String>, String> {
    let sent = worker.send_with_channel(&Request::Hold { id }, channel).await;
    sent.map_err(|error| error.to_string())?;
    loop {
        match worker.next().await {
            Happening::Output(..) => {}
            Happening::Reply(Reply::Held { id: answered, problem, notes }) if answered == id => {
                if notes.len() > MOST_NOTES
                    || notes.iter().chain([&problem]).any(|note| is_long(note))
                {
                    return Err("it says more of its copy than there is to say".to_owned());
                }
                return Ok(if problem.is_empty() { Ok(notes) } else { Err(problem) });
            }
            Happening::Reply(other) => return Err(unexpected(&other)),
            Happening::Broken(problem) => return Err(problem),
            Happening::Dead => return Err("the interpreter died".to_owned()),
        }
    }
}
