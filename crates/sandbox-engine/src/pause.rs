//! Pausing a sandbox: while it is paused, nothing in it runs, and verbs are refused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::interpreter::{Contexts, InterpreterContext, SuspendedContext};
use sandbox_core::{Error, ErrorKind, Result, Retry};
use tokio::sync::Mutex as Turn;

use crate::expiry::ActivityGuard;

/// The pause of a sandbox.
#[derive(Debug, Default)]
pub(crate) struct PauseState {
    /// Serializes pausing, resuming, taking snapshots and restoring them.
    pub(crate) turn: Turn<()>,
    paused: Mutex<Option<PauseGuard>>,
}

/// Kept while a sandbox is paused.
#[derive(Debug)]
pub(crate) struct PauseGuard {
    /// Suspended contexts, which hold runs that came too late to be refused.
    pub(crate) _contexts: Vec<SuspendedContext>,
    /// Keeps the paused time from counting as idle time.
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
        // The former guard is dropped outside of the lock: what it suspends may continue then.
        let _former = std::mem::replace(&mut *self.paused(), paused);
    }

    /// Refuses an operation while the sandbox is paused.
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        if !self.is_paused() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Unavailable, operation, "the sandbox is paused");
        Err(error.with_hint("`.resume()` resumes it"))
    }
}

/// Suspends every context. None may run code.
///
/// # Errors
/// `Unavailable` when one runs code.
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

/// Suspends one context, which must not run code.
///
/// # Errors
/// `Unavailable` when it runs code.
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
        (
            format!("context {id} is busy with another snapshot or a variable"),
            "wait until it has ended",
        )
    };
    let error = Error::new(ErrorKind::Unavailable, operation, message);
    Err(error.with_retry(Retry::Temporary).with_hint(hint))
}
