//! Processes of a sandbox as envd has them: started once, listened to by any number of clients, and outliving them.

mod calls;
mod message;
mod pump;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sandbox_core::{CommandControl, CommandOutcome};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

pub(super) use self::calls::{
    close_stdin, connect, keepalive, list, send_input, send_signal, start, stream_input, update,
};
use self::message::Selector;
use super::error::{Code, ConnectError};
use super::log::Level;

/// Most pieces of output that wait for one listener. A listener that reads slowly holds the process back.
const QUEUE: usize = 16;

/// Processes that have ended and can still be asked for their end.
const MAX_ENDED: usize = 64;

/// Most bytes of a command line in the log.
const MAX_SHOWN: usize = 1024;

/// The first of the numbers that stand for process ids which the backend does not know.
const OWN_PIDS: u32 = 1_000_000;

/// The processes of one sandbox.
#[derive(Debug, Default)]
pub(super) struct ProcessTable {
    state: Mutex<State>,
    unnumbered: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    running: HashMap<u32, Arc<Process>>,
    ended: VecDeque<Arc<Process>>,
}

/// One process.
#[derive(Debug)]
pub(super) struct Process {
    pid: u32,
    cmd: String,
    args: Vec<String>,
    envs: BTreeMap<String, String>,
    cwd: Option<String>,
    tag: Option<String>,
    on_terminal: bool,
    control: Arc<dyn CommandControl>,
    listeners: Mutex<Listeners>,
    /// The task that reads the output. The process ends with it.
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Debug, Default)]
struct Listeners {
    senders: Vec<mpsc::Sender<Happening>>,
    end: Option<End>,
}

/// What happens to a process.
#[derive(Clone, Debug)]
enum Happening {
    Stdout(Bytes),
    Stderr(Bytes),
    Terminal(Bytes),
    End(End),
}

impl End {
    /// Returns the level, the message and the fields of the end in the log.
    fn entry(&self, pid: u32) -> (Level, &'static str, Value) {
        let pid = pid.to_string();
        match self {
            Self::Exited(CommandOutcome { signal: Some(signal), .. }) => {
                (Level::Warn, "Process killed", json!({ "pid": pid, "signal": signal.to_string() }))
            }
            Self::Exited(outcome) => {
                let status = outcome.exit_code.to_string();
                (Level::Info, "Process ended", json!({ "pid": pid, "exitCode": status }))
            }
            Self::Failed(error) => {
                (Level::Error, "Process failed", json!({ "pid": pid, "error": error.message }))
            }
        }
    }
}

/// The end of a process.
#[derive(Clone, Debug)]
enum End {
    /// By itself, or by a signal.
    Exited(CommandOutcome),
    /// With an error for its listeners.
    Failed(ConnectError),
}

impl ProcessTable {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a number for a process whose id the backend does not know.
    fn number(&self) -> u32 {
        OWN_PIDS + self.unnumbered.fetch_add(1, Ordering::Relaxed)
    }

    fn add(&self, process: &Arc<Process>) {
        self.state().running.insert(process.pid, Arc::clone(process));
    }

    /// Moves a process to those that have ended.
    fn end(&self, process: &Arc<Process>) {
        let mut state = self.state();
        if state.running.get(&process.pid).is_some_and(|other| Arc::ptr_eq(other, process)) {
            state.running.remove(&process.pid);
        }
        state.ended.retain(|other| other.pid != process.pid);
        state.ended.push_back(Arc::clone(process));
        if state.ended.len() > MAX_ENDED {
            state.ended.pop_front();
        }
    }

    fn running(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.state().running.values().cloned().collect();
        all.sort_by_key(|process| process.pid);
        all
    }

    /// Returns a running process.
    ///
    /// # Errors
    /// `not_found`; `invalid_argument` for a selector that selects nothing.
    fn find(&self, selector: &Selector) -> Result<Arc<Process>, ConnectError> {
        let state = self.state();
        selector.find(state.running.values())
    }

    /// Returns a process that runs, or that has ended a short time ago.
    ///
    /// # Errors
    /// As [`ProcessTable::find`].
    fn find_any(&self, selector: &Selector) -> Result<Arc<Process>, ConnectError> {
        let state = self.state();
        selector.find(state.running.values()).or_else(|_| selector.find(state.ended.iter().rev()))
    }

    /// Ends every process and what its listeners wait for.
    pub(super) fn close(&self) {
        let state = std::mem::take(&mut *self.state());
        for process in state.running.into_values() {
            process.stop();
        }
    }
}

impl Drop for ProcessTable {
    fn drop(&mut self) {
        self.close();
    }
}

impl Process {
    fn listeners(&self) -> MutexGuard<'_, Listeners> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the command line, for the log.
    fn line(&self) -> String {
        let mut line = self.cmd.clone();
        for argument in &self.args {
            line.push(' ');
            line.push_str(argument);
        }
        line.truncate(line.floor_char_boundary(MAX_SHOWN));
        line
    }

    /// Begins to listen. What came before is not repeated; the end is.
    fn listen(&self) -> mpsc::Receiver<Happening> {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut listeners = self.listeners();
        match &listeners.end {
            Some(end) => drop(sender.try_send(Happening::End(end.clone()))),
            None => listeners.senders.push(sender),
        }
        receiver
    }

    /// Tells every listener, and waits for those that are slow.
    async fn tell(&self, happening: Happening) {
        let senders = self.listeners().senders.clone();
        let mut gone = false;
        for sender in senders {
            gone |= sender.send(happening.clone()).await.is_err();
        }
        if gone {
            self.listeners().senders.retain(|sender| !sender.is_closed());
        }
    }

    /// Tells every listener the end, which is kept for later ones.
    async fn finish(&self, end: End) {
        let senders = {
            let mut listeners = self.listeners();
            listeners.end = Some(end.clone());
            std::mem::take(&mut listeners.senders)
        };
        for sender in senders {
            // A listener that is gone needs no end.
            let _ = sender.send(Happening::End(end.clone())).await;
        }
    }

    /// Ends the process with its sandbox.
    fn stop(&self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            task.abort();
        }
        let message = "the connection to the sandbox ended before the stream completed";
        let end = End::Failed(ConnectError::new(Code::Unavailable, message));
        let senders = {
            let mut listeners = self.listeners();
            listeners.end.get_or_insert(end.clone());
            std::mem::take(&mut listeners.senders)
        };
        for sender in senders {
            // One whose queue is full sees the stream end without an end.
            let _ = sender.try_send(Happening::End(end.clone()));
        }
    }
}
