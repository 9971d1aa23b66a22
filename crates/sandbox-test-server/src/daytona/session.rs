//! Sessions: a shell that reads commands, with the output of each in a log.
//!
//! As the toolbox has it: the output is read line by line, each line is written to the log behind three bytes that name its
//! stream (so the last line gets a line end, and NUL is lost), a command that ends the shell never gets a status, and the input
//! of a command is a FIFO to which text is written with a line end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{ByteRange, CommandControl, CommandEvent, OutputStream, Sandbox, random_hex};
use serde_json::{Value, json};

use super::api::error;
use super::toolbox::{Shared, no_content, started};
use crate::cells::script;
use crate::faults::{Fault, Faults};

/// Bytes before a line of standard output, and of standard error.
const MARKS: [&[u8]; 2] = [&[1, 1, 1], &[2, 2, 2]];

/// Pause between looks into a log that is followed.
const LOOK: Duration = Duration::from_millis(3);

/// The sessions of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Arc<Session>>>);

#[derive(Debug)]
pub(crate) struct Session {
    id: String,
    shell: Arc<dyn CommandControl>,
    commands: Mutex<Vec<SessionCommand>>,
}

#[derive(Clone, Debug)]
struct SessionCommand {
    id: String,
    line: String,
    exit_code: Option<i32>,
    echoes: bool,
}

impl Sessions {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    fn find(&self, id: &str) -> Result<Arc<Session>, Response> {
        self.all().get(id).cloned().ok_or_else(|| error(404, "session not found"))
    }
}

impl Session {
    fn commands(&self) -> MutexGuard<'_, Vec<SessionCommand>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, id: &str) -> Result<SessionCommand, Response> {
        let found = self.commands().iter().find(|command| command.id == id).cloned();
        found.ok_or_else(|| error(404, "command not found"))
    }

    fn directory(&self, command: &str) -> String {
        format!("/tmp/.daytona/{}/{command}", self.id)
    }

    fn object(&self) -> Value {
        let commands = self.commands();
        let commands: Vec<_> = commands.iter().map(SessionCommand::object).collect();
        json!({"sessionId": self.id, "commands": commands})
    }
}

impl SessionCommand {
    fn object(&self) -> Value {
        let mut object = json!({"id": self.id, "command": self.line});
        if let Some(code) = self.exit_code {
            object["exitCode"] = json!(code);
        }
        object
    }
}

/// What the shell reads for one command.
fn wrapped(directory: &str, id: &str, line: &str) -> String {
    format!(
        r#"{{
d='{directory}'
mkdir -p "$d"; : >>"$d/log"; mkfifo "$d/out" "$d/err" "$d/in"
( while IFS= read -r text || [ -n "$text" ]; do printf '\001\001\001%s\n' "$text"; done <"$d/out" ) >>"$d/log" & out=$!
( while IFS= read -r text || [ -n "$text" ]; do printf '\002\002\002%s\n' "$text"; done <"$d/err" ) >>"$d/log" & err=$!
sleep infinity >"$d/in" & hold=$!
{{
{line}
}} <"$d/in" >"$d/out" 2>"$d/err"
status=$?
kill $hold 2>/dev/null
wait $out $err
rm -f "$d/out" "$d/err" "$d/in"
echo "{id} $status"
}}
"#
    )
}

pub(crate) async fn create(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (entry, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let session_id = body["sessionId"].as_str().unwrap_or_default().to_owned();
    if entry.sessions.all().contains_key(&session_id) {
        return error(409, "session already exists");
    }
    let shell = cell.commands().run(["/bin/sh"]).interactive().background().start().await;
    let mut shell = match shell {
        Ok(shell) => shell,
        Err(failed) => return error(400, &failed.to_string()),
    };
    let control = Arc::clone(&shell.control);
    let session =
        Arc::new(Session { id: session_id.clone(), shell: control, commands: Mutex::default() });
    entry.sessions.all().insert(session_id, Arc::clone(&session));
    let own = Arc::downgrade(&session);
    tokio::spawn(async move {
        let mut rest = Vec::new();
        while let Some(event) = shell.events.next().await {
            let CommandEvent::Output { stream: OutputStream::Stdout, data } = event else {
                continue;
            };
            rest.extend_from_slice(&data);
            while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = rest.drain(..=at).collect();
                let line = String::from_utf8_lossy(&line).trim().to_owned();
                let Some((id, status)) = line.rsplit_once(' ') else { continue };
                let Some(session) = own.upgrade() else { return };
                for command in session.commands().iter_mut().filter(|command| command.id == id) {
                    command.exit_code = status.parse().ok();
                }
            }
        }
    });
    StatusCode::CREATED.into_response()
}

pub(crate) async fn list(State(registry): Shared, Path(id): Path<String>) -> Response {
    match started(&registry, &id) {
        Ok((entry, _)) => {
            let all: Vec<_> =
                entry.sessions.all().values().map(|session| session.object()).collect();
            Json(all).into_response()
        }
        Err(refused) => refused,
    }
}

pub(crate) async fn one(
    State(registry): Shared,
    Path((id, session)): Path<(String, String)>,
) -> Response {
    match started(&registry, &id).and_then(|(entry, _)| entry.sessions.find(&session)) {
        Ok(session) => Json(session.object()).into_response(),
        Err(refused) => refused,
    }
}

pub(crate) async fn remove(
    State(registry): Shared,
    Path((id, session)): Path<(String, String)>,
) -> Response {
    let found = started(&registry, &id).and_then(|(entry, _)| {
        let found = entry.sessions.find(&session)?;
        entry.sessions.all().remove(&session);
        Ok(found)
    });
    match found {
        Ok(found) => {
            let _ = found.shell.signal(9, true).await;
            no_content()
        }
        Err(refused) => refused,
    }
}

/// Returns true for a client that keeps the streams apart: of version 0.27 or later, or that asks for it.
fn splits(headers: &HeaderMap) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let version = header("x-daytona-sdk-version").unwrap_or_default();
    let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    header("x-daytona-split-output") == Some("true") || version >= (0, 27)
}

/// Both streams of a log.
fn demux(log: &[u8]) -> [Vec<u8>; 2] {
    let mut streams = [Vec::new(), Vec::new()];
    let mut current = 0;
    let mut at = 0;
    while at < log.len() {
        match MARKS.iter().position(|mark| log[at..].starts_with(mark)) {
            Some(stream) => {
                current = stream;
                at += 3;
            }
            None => {
                streams[current].push(log[at]);
                at += 1;
            }
        }
    }
    streams
}

fn logged(log: &[u8], headers: &HeaderMap) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let [stdout, stderr] = demux(log);
    if !splits(headers) {
        return json!({"output": text(&[stdout, stderr].concat())});
    }
    json!({"output": text(log), "stdout": text(&stdout), "stderr": text(&stderr)})
}

pub(crate) async fn exec(
    State(registry): Shared,
    Path((id, session)): Path<(String, String)>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let found = started(&registry, &id)
        .and_then(|(entry, cell)| Ok((entry.sessions.find(&session)?, cell)));
    let (session, cell) = match found {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let Some(line) = body["command"].as_str().filter(|text| !text.trim().is_empty()) else {
        return error(400, "command cannot be empty");
    };
    let command = SessionCommand {
        id: random_hex(16),
        line: line.to_owned(),
        exit_code: None,
        echoes: body["suppressInputEcho"] != json!(true),
    };
    session.commands().push(command.clone());
    let directory = session.directory(&command.id);
    // The log is there before anything follows it.
    let made = script(&cell, "mkdir -p \"$1\" && : >\"$1/log\"", &[&directory], "").await;
    let text = wrapped(&directory, &command.id, line);
    let sent = session.shell.write_stdin(Bytes::from(text)).await;
    if made.is_err() || sent.is_err() {
        return error(400, "failed to write command");
    }
    let is_async = body["runAsync"] == json!(true) || body["async"] == json!(true);
    if is_async {
        let body = json!({"cmdId": command.id});
        return (StatusCode::ACCEPTED, Json(body)).into_response();
    }
    loop {
        match session.command(&command.id) {
            Ok(SessionCommand { exit_code: Some(code), .. }) => {
                let mut answer = logged(&read_log(&cell, &directory, 0).await, &headers);
                answer["cmdId"] = json!(command.id);
                answer["exitCode"] = json!(code);
                return Json(answer).into_response();
            }
            Ok(_) => tokio::time::sleep(LOOK).await,
            Err(refused) => return refused,
        }
    }
}

async fn read_log(cell: &Sandbox, directory: &str, offset: u64) -> Vec<u8> {
    let range = ByteRange { offset, length: None };
    let Ok(mut content) = cell.files().stream(&format!("{directory}/log"), range).await else {
        return Vec::new();
    };
    let mut all = Vec::new();
    while let Some(Ok(chunk)) = content.next().await {
        all.extend_from_slice(&chunk);
    }
    all
}

pub(crate) async fn command(
    State(registry): Shared,
    Path((id, session, command)): Path<(String, String, String)>,
) -> Response {
    let found = started(&registry, &id)
        .and_then(|(entry, _)| entry.sessions.find(&session)?.command(&command));
    match found {
        Ok(command) => Json(command.object()).into_response(),
        Err(refused) => refused,
    }
}

pub(crate) async fn logs(
    State(registry): Shared,
    Path((id, session, command)): Path<(String, String, String)>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Response {
    let found = started(&registry, &id).and_then(|(entry, cell)| {
        let session = entry.sessions.find(&session)?;
        session.command(&command)?;
        Ok((session, cell))
    });
    let (session, cell) = match found {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    match upgrade {
        Ok(upgrade) => {
            let faults = registry.faults.clone();
            upgrade.on_upgrade(move |socket| follow(socket, session, command, cell, faults))
        }
        Err(_) => {
            let log = read_log(&cell, &session.directory(&command), 0).await;
            Json(logged(&log, &headers)).into_response()
        }
    }
}

/// Sends the log as it is written, until the command has ended.
async fn follow(
    mut socket: WebSocket,
    session: Arc<Session>,
    command: String,
    cell: Sandbox,
    faults: Faults,
) {
    let cut = faults.take("", "logs", |fault| matches!(fault, Fault::Cut(_)));
    let mut left = match cut {
        Some(Fault::Cut(bytes)) => Some(bytes),
        _ => None,
    };
    let directory = session.directory(&command);
    let mut offset = 0;
    loop {
        let is_over = session.command(&command).is_ok_and(|found| found.exit_code.is_some());
        let mut new = read_log(&cell, &directory, offset).await;
        if new.is_empty() {
            if is_over {
                let frame = CloseFrame { code: 1000, reason: "".into() };
                let _ = socket.send(Message::Close(Some(frame))).await;
                return;
            }
            tokio::time::sleep(LOOK).await;
            continue;
        }
        offset += new.len() as u64;
        if let Some(left) = &mut left {
            new.truncate(*left);
            *left -= new.len();
        }
        if socket.send(Message::Binary(new.into())).await.is_err() || left == Some(0) {
            return;
        }
    }
}

pub(crate) async fn input(
    State(registry): Shared,
    Path((id, session, command)): Path<(String, String, String)>,
    Json(body): Json<Value>,
) -> Response {
    let found = started(&registry, &id).and_then(|(entry, cell)| {
        let session = entry.sessions.find(&session)?;
        Ok((session.command(&command)?, session, cell))
    });
    let (command, session, cell) = match found {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    if command.exit_code.is_some() {
        return error(410, "command has already completed");
    }
    let mut data = body["data"].as_str().unwrap_or_default().to_owned();
    if !data.ends_with('\n') {
        data.push('\n');
    }
    let directory = session.directory(&command.id);
    let write = r#"n=0
until [ -p "$1/in" ]; do n=$((n + 1)); [ $n -gt 200 ] && exit 3; sleep 0.01; done
cat >"$1/in"
[ "$2" ] || exit 0
printf '\001\001\001%s' "$2" >>"$1/log""#;
    let echo = if command.echoes { data.clone() } else { String::new() };
    match script(&cell, write, &[&directory, &echo], data).await {
        Ok(done) if done.outcome.exit_code == 0 => no_content(),
        Ok(_) => error(500, "failed to open input pipe"),
        Err(failed) => error(500, &failed.to_string()),
    }
}
