//! One context: the turn of its runs, its interrupt, and what is asked of it beside them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{Context, Error, ErrorKind, InterpreterState, Result, random_hex};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio::time::timeout;

use super::interpreter::{Execute, Interpreter};
use super::wire::Line;

/// Time for an interrupted interpreter to be free again, before it is started again.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// Output that is kept of code of ours.
const MAX_ANSWER: usize = 64 << 20;

/// Why a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Interrupted,
    /// The context is deleted.
    Deleted,
    /// The interpreter was started again.
    Restarted,
}

/// Stops one run.
#[derive(Debug)]
struct Stopper {
    sender: watch::Sender<Option<Stop>>,
    /// How many times the interpreter had been started again before the run.
    restarts: u64,
}

/// A context of the code interpreter.
#[derive(Debug)]
pub(super) struct CodeContext {
    pub(super) interpreter: Interpreter,
    pub(super) described: Context,
    /// The id at the interpreter. `None`: the default context of the language.
    remote: Mutex<Option<String>>,
    /// One run at a time, first in, first out.
    pub(super) turn: Arc<AsyncMutex<()>>,
    /// Stops the run that has its turn.
    running: Mutex<Option<Stopper>>,
    /// Runs of ours, which the interpreter counts and users do not.
    own_runs: AtomicU64,
    /// A word in the interpreter, by which another one is noticed.
    identity: Mutex<Option<String>>,
    /// The next run has a new interpreter.
    pub(super) is_new: AtomicBool,
    /// How many times the interpreter was started again.
    restarts: AtomicU64,
}

impl CodeContext {
    pub(super) fn new(
        interpreter: Interpreter,
        described: Context,
        remote: Option<String>,
    ) -> Self {
        Self {
            interpreter,
            described,
            remote: Mutex::new(remote),
            turn: Arc::default(),
            running: Mutex::default(),
            own_runs: AtomicU64::new(0),
            identity: Mutex::default(),
            is_new: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
        }
    }

    /// Returns the id at the interpreter, where one was given.
    pub(super) fn remote(&self) -> Option<String> {
        self.remote.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn running(&self) -> MutexGuard<'_, Option<Stopper>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the context as running, until the guard is dropped, which ends the turn as well.
    pub(super) fn begin(self: &Arc<Self>, turn: OwnedMutexGuard<()>) -> Running {
        let (sender, stop) = watch::channel(None);
        let restarts = self.restarts.load(Ordering::Acquire);
        *self.running() = Some(Stopper { sender, restarts });
        Running { context: Arc::clone(self), stop, restarts, _turn: turn }
    }

    pub(super) fn is_executing(&self) -> bool {
        self.running().is_some()
    }

    /// Stops the run that has its turn. Returns false when there is none.
    pub(super) fn stop(&self, stop: Stop) -> bool {
        let running = self.running();
        let Some(stopper) = running.as_ref() else { return false };
        stopper.sender.send_replace(Some(stop));
        true
    }

    /// Marks the interpreter, so that [`CodeContext::settle`] can tell another one from it. Returns false when the
    /// interpreter is another one than that which was marked before.
    ///
    /// # Errors
    /// What kept the interpreter from answering.
    pub(super) async fn mark(&self) -> Result<bool> {
        let word = random_hex(8);
        let code = match self.described.language.as_str() {
            super::PYTHON => format!(
                "(lambda s: (s.stdout.write(s.__dict__.setdefault('_sandbox_context', '{word}') + chr(10)), None)[1])\
                 (__import__('sys'))"
            ),
            // Nothing is known of others.
            _ => String::new(),
        };
        let printed = self.ask_now("run_code", code).await?;
        let found = printed.trim().to_owned();
        let mut identity = self.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let former = identity.replace(found.clone());
        Ok(former.is_none_or(|former| former == found))
    }

    /// Returns true when the interpreter was marked.
    pub(super) fn is_marked(&self) -> bool {
        self.identity.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Forgets the mark of an interpreter that is gone.
    pub(super) fn unmark(&self) {
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns a request for this context.
    pub(super) fn request(&self, code: String) -> Execute {
        let context = self.remote();
        let is_default = context.is_none();
        let other = self.described.language != super::PYTHON;
        let language = (is_default && other).then(|| self.described.language.clone());
        Execute { code, context, language, env: self.described.env.clone() }
    }

    /// Returns the number of a run of users, from that of the interpreter.
    pub(super) fn count(&self, of_interpreter: u64) -> u64 {
        of_interpreter.saturating_sub(self.own_runs.load(Ordering::Relaxed))
    }

    /// Runs code of ours in its turn, and returns what it prints.
    pub(super) async fn ask(&self, operation: &'static str, code: String) -> Result<String> {
        let _turn = self.turn.lock().await;
        self.ask_now(operation, code).await
    }

    /// Runs code of ours, in the turn of the caller.
    pub(super) async fn ask_now(&self, operation: &'static str, code: String) -> Result<String> {
        let mut lines = self.interpreter.execute(&self.request(code)).await?;
        let mut printed = String::new();
        while let Some(line) = lines.next().await {
            match line? {
                Line::Count(_) => drop(self.own_runs.fetch_add(1, Ordering::Relaxed)),
                Line::Output(0, text) if printed.len() < MAX_ANSWER => printed.push_str(&text),
                Line::Error(error) => {
                    let message = format!("the interpreter could not do it: {error}");
                    return Err(Error::new(ErrorKind::Unavailable, operation, message));
                }
                Line::Failed(_, why) => {
                    self.is_new.store(true, Ordering::Relaxed);
                    return Err(Error::new(ErrorKind::Unavailable, operation, why));
                }
                Line::End => return Ok(printed),
                _ => {}
            }
        }
        let message = "the connection to the code interpreter broke";
        Err(Error::new(ErrorKind::ConnectionLost, operation, message))
    }

    /// Waits until an interrupted interpreter is free. One that is not is started again.
    pub(super) async fn settle(&self) -> InterpreterState {
        match timeout(INTERRUPT_GRACE, self.mark()).await {
            Ok(Ok(true)) => return InterpreterState::Kept,
            Ok(Ok(false)) => return InterpreterState::Lost,
            _ => {}
        }
        if let Err(error) = self.restart("run_code").await {
            tracing::debug!(%error, "a context is not started again");
        }
        InterpreterState::Lost
    }

    /// Ends the interpreter and starts it again, empty.
    pub(super) async fn restart(&self, operation: &'static str) -> Result<()> {
        let remote = match self.remote() {
            Some(remote) => remote,
            None => {
                let there = self.interpreter.contexts(operation).await?;
                let own = |context: &&super::interpreter::RemoteContext| {
                    super::plain_name(&context.language) == self.described.language
                };
                // The interpreter lists its default context first.
                match there.iter().find(own) {
                    Some(found) => found.id.clone(),
                    // It is started with its first run.
                    None => return Ok(()),
                }
            }
        };
        // The end of a run may be reported before the answer, and the next run begins then.
        let restarts = self.restarts.fetch_add(1, Ordering::AcqRel) + 1;
        let own_runs = self.own_runs.swap(0, Ordering::Relaxed);
        if let Err(error) = self.interpreter.restart(operation, &remote).await {
            self.restarts.fetch_sub(1, Ordering::AcqRel);
            self.own_runs.fetch_add(own_runs, Ordering::Relaxed);
            return Err(error);
        }
        self.unmark();
        if let Some(stopper) = self.running().as_ref()
            && stopper.restarts < restarts
        {
            stopper.sender.send_replace(Some(Stop::Restarted));
        }
        Ok(())
    }
}

/// A run that has its turn.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) context: Arc<CodeContext>,
    stop: watch::Receiver<Option<Stop>>,
    /// How many times the interpreter had been started again before the run.
    restarts: u64,
    _turn: OwnedMutexGuard<()>,
}

impl Running {
    /// Returns true when the interpreter was started again since the run began.
    pub(super) fn has_lost_its_interpreter(&self) -> bool {
        self.context.restarts.load(Ordering::Acquire) != self.restarts
    }

    /// Waits until the run is to be stopped.
    pub(super) async fn stopped(&mut self) -> Stop {
        let stopped = self.stop.wait_for(Option::is_some).await.map(|stop| *stop);
        match stopped {
            Ok(stop) => stop.unwrap_or(Stop::Interrupted),
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *self.context.running() = None;
    }
}
