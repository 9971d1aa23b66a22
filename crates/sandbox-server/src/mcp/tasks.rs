//! Calls that take long become tasks of the protocol, for clients that have them: the client asks for the result later, and
//! its own time limits end nothing.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rmcp::model::{
    CallToolResponse, CancelTaskParams, CreateTaskResult, GetTaskParams, GetTaskResult,
    ProtocolVersion, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use rmcp::{ErrorData, RoleServer};
use serde_json::{Map, Value};
use tokio::sync::mpsc::channel;
use tokio::time::sleep;

use super::cut::ceil_boundary;
use super::handler::{AbortOnDrop, Forward, answer, forward};
use super::reply::ToolReply;
use super::toolset::{Progress, Toolset};

/// Tools whose calls may take minutes.
const LONG: [&str; 3] = ["run_code", "run_command", "install_packages"];

/// Tasks that run at one time. Calls beyond that are answered when they end.
const MAX_RUNNING: usize = 64;

/// Time that a task has for itself above the limit of its call, and that its result stays.
const RETENTION: Duration = Duration::from_secs(600);

/// Limit of a call that has none of its own.
const MAX_DURATION: Duration = Duration::from_secs(24 * 3600);

/// Time between two requests for a result that clients are told.
const POLL_INTERVAL_MS: u64 = 1000;

/// Bytes of the latest output in the status of a task.
const MAX_STATUS: usize = 500;

/// The tasks of a server, or of a connection that is one session. Dropping it ends them.
#[derive(Default)]
pub(super) struct Tasks {
    manager: TaskManager,
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.manager.shutdown();
    }
}

/// The work of a call, which goes from the request to the task.
type Work = Pin<Box<dyn Future<Output = ToolReply> + Send>>;

impl Tasks {
    /// Calls a tool. The answer is the result, or a task when the result is not there after the time that the options have.
    ///
    /// # Errors
    /// An error of the protocol when the client cancels the call before it is a task.
    pub(super) async fn call(
        &self,
        tools: &Toolset,
        name: &str,
        arguments: Map<String, Value>,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let (sender, receiver) = channel(4);
        let forwarding = context.meta.get_progress_token().map(|token| {
            let task = tokio::spawn(forward(context.peer.clone(), token, receiver));
            AbortOnDrop(task.abort_handle())
        });
        let task = Arc::new(OnceLock::new());
        let progress = Live { before: Forward(sender), task: Arc::clone(&task) };
        let limit = limit(tools, name, &arguments);
        let (after, name, tools) = (tools.options().task_after, name.to_owned(), tools.clone());
        let mut work: Work = Box::pin(async move { tools.call(&name, arguments, &progress).await });
        let cancelled = || ErrorData::internal_error("the call was cancelled", None);
        tokio::select! {
            biased;
            () = context.ct.cancelled() => return Err(cancelled()),
            reply = &mut work => return Ok(answer(reply).into()),
            () = sleep(after) => {}
        }
        if self.manager.running_task_count() >= MAX_RUNNING {
            return tokio::select! {
                biased;
                () = context.ct.cancelled() => Err(cancelled()),
                reply = work => Ok(answer(reply).into()),
            };
        }
        // The token of the request ends with its answer.
        drop(forwarding);
        let ttl = limit.saturating_add(RETENTION).as_millis();
        let options = TaskOptions::new()
            .with_ttl_ms(u64::try_from(ttl).unwrap_or(u64::MAX))
            .with_poll_interval_ms(POLL_INTERVAL_MS);
        let made = self.manager.spawn(options, |context| {
            // It is empty before.
            drop(task.set(context.clone()));
            Box::pin(async move {
                tokio::select! {
                    biased;
                    () = context.cancelled() => Err(TaskExit::Cancelled),
                    reply = work => Ok(answer(reply)),
                }
            })
        });
        Ok(CallToolResponse::Task(CreateTaskResult::new(made)))
    }

    /// Returns the state of a task, with its result when it has ended.
    ///
    /// # Errors
    /// An error of the protocol for a task that is not known, or no longer.
    pub(super) fn get(&self, request: &GetTaskParams) -> Result<GetTaskResult, ErrorData> {
        self.manager.get_task(&request.task_id).map(GetTaskResult::new)
    }

    /// Takes answers of the client, which no task asks for: the user confirms a call before it begins.
    ///
    /// # Errors
    /// As [`Tasks::get`].
    pub(super) fn update(&self, request: UpdateTaskParams) -> Result<(), ErrorData> {
        self.manager.update_task(&request.task_id, request.input_responses)
    }

    /// Stops a task: code is interrupted, and a command is ended.
    ///
    /// # Errors
    /// As [`Tasks::get`].
    pub(super) fn cancel(&self, request: &CancelTaskParams) -> Result<(), ErrorData> {
        self.manager.cancel_task(&request.task_id)
    }

    /// Ends all tasks.
    pub(super) fn end(&self) {
        self.manager.shutdown();
    }
}

/// Returns true for a call that may become a task: the tool may take long, and the client has tasks.
pub(super) fn may_be(name: &str, context: &RequestContext<RoleServer>) -> bool {
    LONG.contains(&name)
        && context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
        && context.client_capabilities().is_some_and(|client| client.supports_tasks())
}

/// Returns the time after which the call ends by itself.
fn limit(tools: &Toolset, name: &str, arguments: &Map<String, Value>) -> Duration {
    let given = arguments.get("timeout").and_then(Value::as_f64);
    let given = given.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match given {
        Some(given) => given,
        None if name == "install_packages" => MAX_DURATION,
        None => tools.options().timeout,
    }
}

/// Output of a call: progress of its request, and later the status of its task.
struct Live {
    before: Forward,
    task: Arc<OnceLock<TaskContext>>,
}

impl Progress for Live {
    fn output(&self, text: &str) {
        match self.task.get() {
            None => self.before.output(text),
            Some(task) => {
                let from = ceil_boundary(text, text.len().saturating_sub(MAX_STATUS));
                task.set_status_message(&text[from..]);
            }
        }
    }
}
