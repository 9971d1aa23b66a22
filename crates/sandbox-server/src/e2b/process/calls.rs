//! The calls of the service `process.Process`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, stream};
use sandbox_core::{CallContext, CommandSpec, Error, ErrorKind, StartCommand, Stdin};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, sleep, timeout, timeout_at};

use super::super::app::{App, Sandbox};
use super::super::envelope::{Messages, Unary, failed, streamed};
use super::super::error::{Code, ConnectError};
use super::super::log::Level;
use super::super::record::Record;
use super::message::{
    Config, EventMessage, InputRequest, ListResponse, ProcessMessage, ProcessRequest, Selector,
    SignalRequest, StartRequest, StreamInputRequest, UpdateRequest,
};
use super::pump::{self, Trap};
use super::{Happening, Process};

/// Time between signs of life when the client does not say otherwise.
const KEEPALIVE: Duration = Duration::from_secs(90);

/// How long the answer to a kill waits for the end of the process, and the interval of looks.
const END_TIMEOUT: Duration = Duration::from_millis(500);
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

type Answer = Result<Json<Value>, ConnectError>;

fn selected(selector: Option<Selector>) -> Result<Selector, ConnectError> {
    selector.ok_or_else(|| {
        ConnectError::new(Code::InvalidArgument, "invalid input type: the process is missing")
    })
}

/// Starts a process and streams its events.
pub(in super::super) async fn start(
    State(app): State<Arc<App>>,
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    messages: Messages,
) -> Response {
    let started = async {
        let request: StartRequest = messages.only().await?;
        let as_root = record.user.check_command(&headers)?;
        let limit = deadline(&headers)?;
        start_process(&app, &record, request, limit, as_root).await
    };
    match started.await {
        Ok((process, events)) => {
            streamed(events_of(process.pid, events, keepalive(&headers), None))
        }
        Err(error) => failed(error),
    }
}

async fn start_process(
    app: &App,
    record: &Arc<Record>,
    request: StartRequest,
    limit: Option<Duration>,
    as_root: bool,
) -> Result<(Arc<Process>, mpsc::Receiver<Happening>), ConnectError> {
    let Some(config) = request.process.filter(|config| !config.cmd.is_empty()) else {
        return Err(ConnectError::new(Code::InvalidArgument, "the process has no cmd"));
    };
    let traps = app.faults.as_ref().is_some_and(super::super::Faults::has_process_traps);
    let size = request.pty.as_ref().map(super::message::Pty::size);
    let mut argv = vec![config.cmd.clone()];
    argv.extend(config.args.iter().cloned());
    if traps && size.is_none() {
        argv = waits_for_children(argv);
    }
    let mut wanted = StartCommand::new(CommandSpec::Argv(argv));
    let envs = record.envs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
    wanted.env.extend(envs);
    wanted.env.extend(config.envs.clone());
    let directory = record.user.directory(config.cwd.as_deref().unwrap_or_default(), as_root);
    wanted.cwd = Some(directory.clone());
    wanted.as_root = as_root;
    wanted.pty = size;
    wanted.timeout = limit.filter(|_| !traps);
    wanted.stdin = Stdin::Empty;
    // The output of one in the background is kept within bounds, which a client that reads slowly would notice. So only
    // those are that have to outlive this server.
    wanted.background = app.keep;
    wanted.interactive = size.is_none() && request.stdin.unwrap_or(true);
    wanted.validate()?;
    let capabilities = record.instance.capabilities();
    if size.is_some() && !capabilities.command_pty {
        return Err(Error::unsupported("start_command", "terminals are not available here").into());
    }
    let commands = record.instance.commands()?;
    let command = match commands.start_command(&CallContext::new(), wanted).await {
        Ok(command) => command,
        Err(error) => {
            let call = CallContext::new();
            let is_missing = match record.instance.files() {
                Ok(files) => files.stat_file(&call, &directory).await.is_err(),
                Err(_) => false,
            };
            return Err(not_started(&config, &directory, is_missing, error));
        }
    };
    let process = Arc::new(Process {
        pid: command.pid.unwrap_or_else(|| record.processes.number()),
        cmd: config.cmd,
        args: config.args,
        envs: config.envs,
        cwd: config.cwd,
        tag: request.tag,
        on_terminal: size.is_some(),
        control: Arc::clone(&command.control),
        listeners: Mutex::default(),
        task: Mutex::default(),
    });
    let events = process.listen();
    let fields = json!({ "pid": process.pid.to_string(), "cmd": process.line() });
    record.log.add(Level::Info, "Process started", fields);
    record.processes.add(&process);
    pump::spawn(record, &process, command, Trap(limit.filter(|_| traps)));
    Ok((process, events))
}

/// Returns a command line that does not end before everything has closed its output.
fn waits_for_children(argv: Vec<String>) -> Vec<String> {
    const LINE: &str = "set -o pipefail; \"$@\" 2> >(cat >&2) | cat";
    let mut line: Vec<String> = ["/bin/bash", "-c", LINE, "bash"].map(String::from).to_vec();
    line.extend(argv);
    line
}

/// Returns the error that envd has for a process that did not start.
fn not_started(config: &Config, directory: &str, is_missing: bool, error: Error) -> ConnectError {
    match error.kind() {
        ErrorKind::NotFound if is_missing => {
            let message = format!("cwd '{directory}' does not exist");
            ConnectError::new(Code::InvalidArgument, message)
        }
        ErrorKind::NotFound => {
            let message = format!("fork/exec {}: no such file or directory", config.cmd);
            ConnectError::new(Code::InvalidArgument, message)
        }
        ErrorKind::PermissionDenied => {
            let message = format!("fork/exec {}: permission denied", config.cmd);
            ConnectError::new(Code::InvalidArgument, message)
        }
        _ => error.into(),
    }
}

/// Streams the events of a process from now on.
pub(in super::super) async fn connect(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    messages: Messages,
) -> Response {
    let found = async {
        let request: ProcessRequest = messages.only().await?;
        let limit = deadline(&headers)?;
        let process = record.processes.find_any(&selected(request.process)?)?;
        Ok::<_, ConnectError>((process, limit))
    };
    match found.await {
        Ok((process, limit)) => {
            let end = limit.map(|limit| Instant::now() + limit);
            streamed(events_of(process.pid, process.listen(), keepalive(&headers), end))
        }
        Err(error) => failed(error),
    }
}

/// Lists the processes that run.
pub(in super::super) async fn list(
    Sandbox(record): Sandbox,
    Unary(_): Unary<Value>,
) -> Json<Value> {
    let processes = record.processes.running();
    let processes = processes.iter().map(|process| ProcessMessage::from_process(process)).collect();
    Json(serde_json::to_value(ListResponse { processes }).unwrap_or_default())
}

/// Tells a process the size of its terminal.
pub(in super::super) async fn update(
    Sandbox(record): Sandbox,
    Unary(request): Unary<UpdateRequest>,
) -> Answer {
    let process = record.processes.find(&selected(request.process)?)?;
    if let Some(pty) = request.pty {
        if !process.on_terminal {
            let message = "tty not assigned to process";
            return Err(ConnectError::new(Code::InvalidArgument, message));
        }
        process.control.resize(pty.size()).await?;
    }
    Ok(Json(json!({})))
}

/// Writes to the standard input or the terminal of a process.
pub(in super::super) async fn send_input(
    Sandbox(record): Sandbox,
    Unary(request): Unary<InputRequest>,
) -> Answer {
    let process = record.processes.find(&selected(request.process)?)?;
    let (data, for_terminal) = request.input.unwrap_or_default().bytes()?;
    write(&process, data, for_terminal).await?;
    Ok(Json(json!({})))
}

async fn write(process: &Process, data: Bytes, for_terminal: bool) -> Result<(), ConnectError> {
    if for_terminal != process.on_terminal {
        let message = if for_terminal {
            "tty not assigned to process"
        } else {
            "process has a terminal: send the input as `pty`"
        };
        return Err(ConnectError::new(Code::InvalidArgument, message));
    }
    process.control.write_stdin(data).await.map_err(|error| match error.kind() {
        ErrorKind::Unsupported | ErrorKind::NotFound => {
            let message = "stdin not enabled or closed";
            ConnectError::new(Code::FailedPrecondition, message)
        }
        ErrorKind::ConnectionLost => {
            ConnectError::new(Code::Internal, "error writing to stdin: broken pipe")
        }
        _ => error.into(),
    })
}

/// Writes what a client streams to one process.
pub(in super::super) async fn stream_input(
    Sandbox(record): Sandbox,
    mut messages: Messages,
) -> Response {
    let fed = async {
        let mut process = None;
        while let Some(message) = messages.next::<StreamInputRequest>().await? {
            if let Some(start) = message.start {
                process = Some(record.processes.find(&selected(start.process)?)?);
            } else if let Some(data) = message.data {
                let process = process.as_ref().ok_or_else(|| {
                    let message = "the first message names no process";
                    ConnectError::new(Code::InvalidArgument, message)
                })?;
                let (bytes, for_terminal) = data.input.unwrap_or_default().bytes()?;
                write(process, bytes, for_terminal).await?;
            }
        }
        Ok::<_, ConnectError>(json!({}))
    };
    match fed.await {
        Ok(answer) => streamed(stream::iter([Ok(answer)])),
        Err(error) => failed(error),
    }
}

/// Sends a signal to a process alone, and SIGKILL to everything that it has started.
pub(in super::super) async fn send_signal(
    State(app): State<Arc<App>>,
    Sandbox(record): Sandbox,
    Unary(request): Unary<SignalRequest>,
) -> Answer {
    let selector = selected(request.process)?;
    let process = record.processes.find(&selector)?;
    let signal = request.signal.number()?;
    let traps = app.faults.as_ref().is_some_and(super::super::Faults::has_process_traps);
    let is_kill = signal == 9 && !traps;
    process.control.signal(signal, is_kill).await?;
    if is_kill {
        // A client that kills it once more is to hear that there is none.
        let is_there = || record.processes.find(&selector).is_ok();
        let gone = async {
            while is_there() {
                sleep(END_POLL_INTERVAL).await;
            }
        };
        let _ = timeout(END_TIMEOUT, gone).await;
    }
    Ok(Json(json!({})))
}

/// Ends the standard input of a process.
pub(in super::super) async fn close_stdin(
    Sandbox(record): Sandbox,
    Unary(request): Unary<ProcessRequest>,
) -> Answer {
    let process = record.processes.find(&selected(request.process)?)?;
    if process.on_terminal {
        let message = "cannot close stdin of a process on a terminal: send Ctrl+D (0x04) instead";
        return Err(ConnectError::new(Code::FailedPrecondition, message));
    }
    process.control.close_stdin().await?;
    Ok(Json(json!({})))
}

/// Returns the time limit of a call. Zero is none.
fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, ConnectError> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let milliseconds = value.to_str().ok().and_then(|text| text.parse::<u64>().ok());
    let milliseconds = milliseconds.ok_or_else(|| {
        let message = format!("protocol error: invalid Connect-Timeout-Ms {value:?}");
        ConnectError::new(Code::InvalidArgument, message)
    })?;
    let limit = Duration::from_millis(milliseconds).min(sandbox_core::MAX_DURATION);
    Ok((milliseconds > 0).then_some(limit))
}

/// Returns the time between signs of life that a client wants.
pub(in super::super) fn keepalive(headers: &HeaderMap) -> Duration {
    let given = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok());
    let seconds = given.and_then(|text| text.parse().ok()).filter(|seconds| *seconds > 0);
    seconds.map_or(KEEPALIVE, Duration::from_secs)
}

/// The events of a process for one client, until the process or the time of the client ends.
fn events_of(
    pid: u32,
    happenings: mpsc::Receiver<Happening>,
    pause: Duration,
    end: Option<Instant>,
) -> impl Stream<Item = Result<EventMessage, ConnectError>> + Send {
    let ticks = interval_at(Instant::now() + pause, pause);
    let first = stream::iter([Ok(EventMessage::start(pid))]);
    let rest = stream::unfold(Some((happenings, ticks)), move |state| async move {
        let (mut happenings, mut ticks) = state?;
        let next = async {
            tokio::select! {
                happening = happenings.recv() => happening.map(Some),
                _ = ticks.tick() => Some(None),
            }
        };
        let next = match end {
            Some(end) => match timeout_at(end, next).await {
                Ok(next) => next,
                Err(_) => {
                    let message = "context deadline exceeded";
                    let error = ConnectError::new(Code::DeadlineExceeded, message);
                    return Some((Err(error), None));
                }
            },
            None => next.await,
        };
        match next? {
            None => Some((Ok(EventMessage::keepalive()), Some((happenings, ticks)))),
            Some(happening @ Happening::End(_)) => {
                Some((EventMessage::from_happening(happening), None))
            }
            Some(happening) => {
                ticks.reset();
                Some((EventMessage::from_happening(happening), Some((happenings, ticks))))
            }
        }
    });
    futures_util::StreamExt::chain(first, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_numbers_and_zero_is_none() {
        let of = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("connect-timeout-ms", text.parse().unwrap());
            deadline(&headers)
        };
        assert_eq!(deadline(&HeaderMap::new()).unwrap(), None);
        assert_eq!(of("0").unwrap(), None);
        assert_eq!(of("1500").unwrap(), Some(Duration::from_millis(1500)));
        assert_eq!(of("99999999999999999").unwrap(), Some(sandbox_core::MAX_DURATION));
        assert_eq!(of("soon").unwrap_err().code, Code::InvalidArgument);
    }
}
