//! A sandbox that is paused: nothing in it runs, and nothing is asked of it until it goes on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::interpreter::{Contexts, InterpreterContext, SuspendedContext};
use sandbox_core::{Error, ErrorKind, Result, Retry, hint_with_rust};
use tokio::sync::Mutex as Turn;

use crate::expiry::ActivityGuard;

/// Whether a sandbox is paused.
#[derive(Debug, Default)]
pub(crate) struct PauseState {
    /// PauseGuard by whoever pauses or resumes, takes a snapshot or goes back to one.
    pub(crate) turn: Turn<()>,
    paused: Mutex<Option<PauseGuard>>,
}

/// What waits while a sandbox is paused.
#[derive(Debug)]
pub(crate) struct PauseGuard {
    /// Runs that came too late to be refused.
    pub(crate) _contexts: Vec<SuspendedContext>,
    /// Time that passes for nobody is no idle time.
    pub(crate) _in_use: ActivityGuard,
}

impl PauseState {
    fn paused(&self) -> MutexGuard<'_, Option<PauseGuard>> {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused().is_some()
    }

    pub(crate) fn set(&self, paused: Option<PauseGuard>) {
        // What waited may go on when nobody looks here any more.
        let _former = std::mem::replace(&mut *self.paused(), paused);
    }

    /// The error of everything that is asked of it meanwhile.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if !self.is_paused() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unavailable, operation, "the sandbox is paused");
        Err(error.with_hint(hint_with_rust("`sandboxes resume ID` lets it go on", ".resume()")))
    }
}

/// Every context, none of which runs code.
///
/// # Errors
/// `Unavailable` when one does.
pub async fn pause_contexts(
    contexts: &Contexts,
    operation: &'static str,
) -> Result<Vec<SuspendedContext>> {
    let mut paused = Vec::new();
    for context in contexts.all_of_them() {
        paused.push(pause_context(&context, operation).await?);
    }
    Ok(paused)
}

/// One context that runs no code.
///
/// # Errors
/// `Unavailable` when it does.
pub async fn pause_context(
    context: &InterpreterContext,
    operation: &'static str,
) -> Result<SuspendedContext> {
    if let Some(paused) = context.pause().await {
        return Ok(paused);
    }
    let id = context.id();
    let (message, hint) = if context.is_executing() {
        (format!("code runs in context {id}"), "wait for it, or interrupt it")
    } else {
        (format!("context {id} is busy with another snapshot or a variable"), "wait for that")
    };
    let error = Error::new(ErrorKind::Unavailable, operation, message);
    Err(error.with_retry(Retry::Temporary).with_hint(hint))
}
