//! Tools of the host, and the calls of one run to them.
//!
//! A call comes from hostile code. The calls of one run are bounded in number, in bytes and in values, and the future
//! of a call is dropped as soon as its answer is not awaited any more.

mod outbox;
mod set;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

pub use outbox::Outbox;
use set::CallPermits;
pub use set::ToolSet;

use crate::message::Request;

/// Maximum number of calls of one run that wait for their answers. A worker delays further calls by itself.
const MAX_PENDING_CALLS: usize = 64;

/// Maximum number of bytes of arguments of one call, and of one result: 16 MiB.
const MAX_JSON_BYTES: usize = 16 << 20;

/// Maximum number of bytes of arguments of all pending calls of one run. A worker delays further calls by itself.
const MAX_PENDING_BYTES: usize = 2 * MAX_JSON_BYTES;

/// Maximum number of JSON values in the arguments of all calls of one run that work at the same time. Parsed values take
/// many times the bytes of their text. Calls wait for each other; a single call with more is refused.
const MAX_JSON_VALUES: usize = 2_000_000;

/// Maximum number of tasks of one run, those of cancelled calls that still end included.
const MAX_TASKS: usize = 2 * MAX_PENDING_CALLS;

const INTERRUPTED: &str = "the call was cancelled, because the run was interrupted";

/// The calls of one run.
#[derive(Debug)]
pub struct ToolCalls {
    run: i64,
    tools: ToolSet,
    outbox: Arc<Outbox>,
    permits: CallPermits,
    tasks: Arc<Semaphore>,
    /// The runtime of the tools. Runs are also interrupted from other runtimes.
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    finished: bool,
    /// Calls whose answers are not being written yet.
    open: HashMap<i64, PendingCall>,
    bytes: usize,
    begun: u64,
}

#[derive(Debug)]
struct PendingCall {
    bytes: usize,
    /// Tells the call from an earlier one to which the worker gave the same number.
    serial: u64,
    /// The task of the tool; `None` once there is an answer.
    task: Option<AbortHandle>,
    /// Kept here, so that it is dropped when the call is cancelled.
    answer: Option<Outcome>,
}

/// The JSON of a result, or the error.
type Outcome = Result<String, String>;

impl State {
    fn remove(&mut self, call: i64) -> Option<PendingCall> {
        let open = self.open.remove(&call)?;
        self.bytes -= open.bytes;
        Some(open)
    }

    /// Finds the call, unless the worker has given its number to another one since.
    fn find(&mut self, call: i64, serial: u64) -> Option<&mut PendingCall> {
        self.open.get_mut(&call).filter(|open| open.serial == serial)
    }
}

impl ToolCalls {
    /// Makes the calls of a run of this runtime. Answers go to `outbox` as [`Request::ToolResult`].
    pub fn new(run: i64, tools: ToolSet, outbox: Arc<Outbox>) -> Arc<Self> {
        let (permits, tasks) = (CallPermits::new(), Arc::new(Semaphore::new(MAX_TASKS)));
        let (runtime, state) = (Handle::current(), Mutex::default());
        Arc::new(Self { run, tools, outbox, permits, tasks, runtime, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for one more task.
    pub async fn acquire_permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.tasks).acquire_owned().await.ok()
    }

    /// Starts a call with its number, the name of the tool and its arguments as JSON.
    ///
    /// # Errors
    /// When the request is one that a genuine worker would not send.
    pub fn call(
        self: &Arc<Self>,
        call: i64,
        name: String,
        arguments: String,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), String> {
        let bytes = arguments.len();
        let mut state = self.state();
        if state.finished {
            return Ok(());
        }
        if state.open.contains_key(&call) {
            return Err(format!("a second tool call {call}"));
        }
        if state.open.len() >= MAX_PENDING_CALLS
            || state.bytes + bytes > MAX_PENDING_BYTES
            || bytes > MAX_JSON_BYTES
        {
            return Err("too many tool calls at once".to_owned());
        }
        state.begun += 1;
        let (calls, serial) = (Arc::clone(self), state.begun);
        let task = self.runtime.spawn(async move {
            let outcome = calls.tools.carry_out(&name, arguments, &calls.permits).await;
            calls.answer(call, serial, outcome, permit);
        });
        state.bytes += bytes;
        state.open.insert(
            call,
            PendingCall { bytes, serial, task: Some(task.abort_handle()), answer: None },
        );
        Ok(())
    }

    /// Answers with the list of tools.
    ///
    /// # Errors
    /// As [`ToolCalls::call`].
    pub fn list(self: &Arc<Self>, call: i64, permit: OwnedSemaphorePermit) -> Result<(), String> {
        let mut state = self.state();
        if state.finished {
            return Ok(());
        }
        if state.open.len() >= MAX_PENDING_CALLS || state.open.contains_key(&call) {
            return Err("too many tool calls at once".to_owned());
        }
        state.begun += 1;
        let serial = state.begun;
        state.open.insert(
            call,
            PendingCall { bytes: 0, serial, task: None, answer: Some(self.tools.listing()) },
        );
        drop(state);
        self.deliver(call, serial, Some(permit));
        Ok(())
    }

    /// Cancels a call. A call that has ended is no error.
    pub fn cancel(&self, call: i64) {
        let open = self.state().remove(call);
        if let Some(task) = open.and_then(|open| open.task) {
            task.abort();
        }
    }

    /// Cancels all pending calls, and answers them with an error. The run may continue, and call again.
    pub fn interrupt(self: &Arc<Self>) {
        let mut cancelled = Vec::new();
        for (call, open) in &mut self.state().open {
            if let Some(task) = open.task.take() {
                task.abort();
                open.answer = Some(Err(INTERRUPTED.to_owned()));
                cancelled.push((*call, open.serial));
            }
        }
        for (call, serial) in cancelled {
            self.deliver(call, serial, None);
        }
    }

    /// Cancels everything for good, at the end of the run.
    pub fn end(&self) {
        let mut state = self.state();
        state.finished = true;
        state.bytes = 0;
        for task in state.open.drain().filter_map(|(_, open)| open.task) {
            task.abort();
        }
    }

    fn answer(
        self: &Arc<Self>,
        call: i64,
        serial: u64,
        outcome: Outcome,
        permit: OwnedSemaphorePermit,
    ) {
        let mut state = self.state();
        // A call that was interrupted at the same time has its answer already.
        let Some(open) = state.find(call, serial).filter(|open| open.task.is_some()) else {
            return;
        };
        (open.task, open.answer) = (None, Some(outcome));
        drop(state);
        self.deliver(call, serial, Some(permit));
    }

    /// Sends an answer in its turn, unless the call was cancelled by then. A task of its own, which nothing aborts: no
    /// message may be written in part.
    fn deliver(self: &Arc<Self>, call: i64, serial: u64, permit: Option<OwnedSemaphorePermit>) {
        let calls = Arc::clone(self);
        self.runtime.spawn(async move {
            let run = calls.run;
            let answer = || {
                let mut state = calls.state();
                state.find(call, serial)?;
                let outcome = state.remove(call)?.answer?;
                Some(Request::ToolResult { id: run, call, outcome })
            };
            calls.outbox.send(answer).await;
            drop(permit);
        });
    }
}
