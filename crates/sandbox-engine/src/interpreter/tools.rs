//! Functions of the host, and the calls of one run to them.
//!
//! Every byte of a call is a claim of code that nobody trusts. What one run may have going on at once is bounded in
//! number, in bytes and in values, and the future of a call is dropped as soon as nothing waits for its answer.

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

/// Calls of one run that may wait for their answers at once. A worker holds more of them back by itself.
const MAX_PENDING_CALLS: usize = 64;

/// Bytes of arguments of one call, and of one result: 16 MiB.
const MAX_JSON_BYTES: usize = 16 << 20;

/// Bytes of arguments that the open calls of one run may have together. A worker holds more back by itself.
const MAX_PENDING_BYTES: usize = 2 * MAX_JSON_BYTES;

/// JSON values in the arguments of all calls of one run that work at the same time. Parsed they take many times the
/// bytes of their text. Calls wait for each other; one with more alone is refused.
const MAX_JSON_VALUES: usize = 2_000_000;

/// Tasks of one run, those of calls that are gone and not yet cleared away included.
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
    /// Where the tools work. Runs are interrupted from elsewhere too.
    runtime: Handle,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    /// Calls whose answers have not begun to be written.
    open: HashMap<i64, PendingCall>,
    bytes: usize,
    begun: u64,
}

#[derive(Debug)]
struct PendingCall {
    bytes: usize,
    /// Tells it from an earlier call to which the worker gave the same number.
    serial: u64,
    /// The tool at work; `None` once there is an answer.
    task: Option<AbortHandle>,
    /// Kept here, so that it goes when nobody waits for it any more.
    answer: Option<Outcome>,
}

/// The JSON of a result, or why there is none.
type Outcome = Result<String, String>;

impl State {
    fn remove(&mut self, call: i64) -> Option<PendingCall> {
        let open = self.open.remove(&call)?;
        self.bytes -= open.bytes;
        Some(open)
    }

    /// The call, unless the worker has given its number to another one since.
    fn find(&mut self, call: i64, serial: u64) -> Option<&mut PendingCall> {
        self.open.get_mut(&call).filter(|open| open.serial == serial)
    }
}

impl ToolCalls {
    /// Calls of a run of this runtime, whose answers go to `outbox` as [`Request::ToolResult`].
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

    /// Begins a call with its number, the name of the tool and its arguments as JSON.
    ///
    /// # Errors
    /// What no worker of ours would ask.
    pub fn call(
        self: &Arc<Self>,
        call: i64,
        name: String,
        arguments: String,
        permit: OwnedSemaphorePermit,
    ) -> Result<(), String> {
        let bytes = arguments.len();
        let mut state = self.state();
        if state.over {
            return Ok(());
        }
        if state.open.contains_key(&call) {
            return Err(format!("a second tool call {call}"));
        }
        if state.open.len() >= MAX_PENDING_CALLS
            || state.bytes + bytes > MAX_PENDING_BYTES
            || bytes > MAX_JSON_BYTES
        {
            return Err("more tool calls at once than there may be".to_owned());
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

    /// Answers which tools there are.
    ///
    /// # Errors
    /// As [`ToolCalls::call`].
    pub fn list(self: &Arc<Self>, call: i64, permit: OwnedSemaphorePermit) -> Result<(), String> {
        let mut state = self.state();
        if state.over {
            return Ok(());
        }
        if state.open.len() >= MAX_PENDING_CALLS || state.open.contains_key(&call) {
            return Err("more tool calls at once than there may be".to_owned());
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

    /// Nobody waits for the answer any more. One that is over is no error.
    pub fn cancel(&self, call: i64) {
        let open = self.state().remove(call);
        if let Some(task) = open.and_then(|open| open.task) {
            task.abort();
        }
    }

    /// Cancels what works now, and says so to whoever waits for it. The run may go on, and call again.
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

    /// The run is over, or about to be: cancels everything, for good.
    pub fn end(&self) {
        let mut state = self.state();
        state.over = true;
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
        // One that was interrupted at the same time has its answer already.
        let Some(open) = state.find(call, serial).filter(|open| open.task.is_some()) else {
            return;
        };
        (open.task, open.answer) = (None, Some(outcome));
        drop(state);
        self.deliver(call, serial, Some(permit));
    }

    /// Sends an answer in its turn, unless nobody waits for it by then. A task of its own, which nothing aborts: half a
    /// message must never be left.
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
