//! Calls of the command router.

use std::sync::Arc;

use futures_util::StreamExt as _;
use http::{Request, Response};
use hyper::body::Incoming;
use prost::{Message, Oneof};
use sandbox_core::random_hex;
use tonic::body::Body;
use tonic::{Status, Streaming};

use super::execs::Exec;
use super::router_wire::{
    TaskExecRequest, TaskExecStartRequest, TaskExecStartResponse, TaskExecStdinWriteRequest,
    TaskExecStdinWriteResponse, TaskExecStdioReadRequest, TaskExecWaitResponse,
    TaskSnapshotFilesystemRequest, TaskSnapshotFilesystemResponse,
};
use super::serve::{client_streaming, server_streaming, unary};
use super::{BuiltImage, State};

/// Standard input as a stream, which the provider's client sends for larger data.
#[derive(Clone, PartialEq, Message)]
struct StdinStream {
    #[prost(oneof = "Payload", tags = "1, 2, 3")]
    payload: Option<Payload>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Payload {
    #[prost(message, tag = "1")]
    Start(StdinStart),
    #[prost(bytes = "bytes", tag = "2")]
    Data(bytes::Bytes),
    #[prost(message, tag = "3")]
    End(StdinEnd),
}

#[derive(Clone, PartialEq, Message)]
struct StdinStart {
    #[prost(string, tag = "1")]
    task_id: String,
    #[prost(string, tag = "2")]
    exec_id: String,
    #[prost(uint64, tag = "3")]
    offset: u64,
}

#[derive(Clone, PartialEq, Message)]
struct StdinEnd {}

#[derive(Clone, PartialEq, Message)]
struct StdinStatus {
    #[prost(uint64, tag = "1")]
    written: u64,
    #[prost(bool, tag = "2")]
    closed: bool,
}

pub(super) async fn answer(
    state: Arc<State>,
    method: &str,
    request: Request<Incoming>,
    cut: Option<usize>,
) -> Response<Body> {
    match method {
        "TaskExecStart" => unary(request, |asked| start(state, asked)).await,
        "TaskExecStdioRead" => {
            let read = move |asked: TaskExecStdioReadRequest| async move {
                let exec = find(&state, &asked.task_id, &asked.exec_id)?;
                let output = if asked.file_descriptor == 0 { &exec.stdout } else { &exec.stderr };
                Ok(Arc::clone(output).read(asked.offset, cut))
            };
            server_streaming(request, read).await
        }
        "TaskExecStdinWrite" => {
            let write = move |asked: TaskExecStdinWriteRequest| async move {
                let exec = find(&state, &asked.task_id, &asked.exec_id)?;
                exec.write(asked.offset, asked.data, asked.eof).await?;
                Ok(TaskExecStdinWriteResponse {})
            };
            unary(request, write).await
        }
        "TaskExecStdinWriteStream" => {
            client_streaming(request, |all| write_stream(state, all)).await
        }
        "TaskExecStdinStatus" => {
            let status = move |asked: TaskExecRequest| async move {
                let exec = find(&state, &asked.task_id, &asked.exec_id)?;
                let (written, closed) = exec.input_status().await;
                Ok(StdinStatus { written, closed })
            };
            unary(request, status).await
        }
        "TaskExecWait" | "TaskExecPoll" => {
            let is_poll = method == "TaskExecPoll";
            let wait = move |asked: TaskExecRequest| async move {
                let exec = find(&state, &asked.task_id, &asked.exec_id)?;
                if is_poll && exec.is_running() {
                    return Ok(TaskExecWaitResponse { exit_status: None });
                }
                Ok(TaskExecWaitResponse { exit_status: Some(exec.wait().await?) })
            };
            unary(request, wait).await
        }
        "TaskSnapshotFilesystem" => unary(request, |asked| snapshot(state, asked)).await,
        other => Status::unimplemented(format!("the tests have no {other}")).into_http(),
    }
}

fn find(state: &State, task_id: &str, exec_id: &str) -> Result<Arc<Exec>, Status> {
    let cell = state.task(task_id)?;
    cell.used();
    let execs = cell.execs.lock().unwrap();
    execs.get(exec_id).cloned().ok_or_else(|| Status::not_found(format!("no exec {exec_id}")))
}

/// Starts a program once for each id, however often it is asked for.
async fn start(
    state: Arc<State>,
    asked: TaskExecStartRequest,
) -> Result<TaskExecStartResponse, Status> {
    let cell = state.task(&asked.task_id)?;
    cell.used();
    if cell.execs.lock().unwrap().contains_key(&asked.exec_id) {
        return Ok(TaskExecStartResponse {});
    }
    let exec = Exec::start(&cell, &asked).await?;
    cell.execs.lock().unwrap().insert(asked.exec_id, exec);
    Ok(TaskExecStartResponse {})
}

async fn write_stream(
    state: Arc<State>,
    mut all: Streaming<StdinStream>,
) -> Result<TaskExecStdinWriteResponse, Status> {
    let mut writing: Option<(Arc<Exec>, u64)> = None;
    while let Some(next) = all.next().await {
        match (next?.payload, &mut writing) {
            (Some(Payload::Start(start)), _) => {
                let exec = find(&state, &start.task_id, &start.exec_id)?;
                writing = Some((exec, start.offset));
            }
            (Some(Payload::Data(data)), Some((exec, offset))) => {
                let count = data.len() as u64;
                exec.write(*offset, data, false).await?;
                *offset += count;
            }
            (Some(Payload::End(_)), Some((exec, offset))) => {
                exec.write(*offset, bytes::Bytes::new(), true).await?;
            }
            _ => return Err(Status::invalid_argument("the stream has no start")),
        }
    }
    Ok(TaskExecStdinWriteResponse {})
}

async fn snapshot(
    state: Arc<State>,
    asked: TaskSnapshotFilesystemRequest,
) -> Result<TaskSnapshotFilesystemResponse, Status> {
    let cell = state.task(&asked.task_id)?;
    let image_id = format!("im-{}", random_hex(11));
    let taken = cell.sandbox.create_snapshot(&image_id).await;
    taken.map_err(|error| Status::internal(error.to_string()))?;
    let image = BuiltImage { is_snapshot: true, ..BuiltImage::default() };
    state.images.lock().unwrap().insert(image_id.clone(), image);
    Ok(TaskSnapshotFilesystemResponse { image_id })
}
