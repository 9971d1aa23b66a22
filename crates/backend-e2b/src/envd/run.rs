//! Processes of the daemon: start, connect, input, signals, and small scripts that are run to their end.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use sandbox_core::{Error, ErrorKind, PtySize, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::process::{StartProcess, drain};
use super::{Envd, Messages, typed};

/// Limits the output of a script.
const MAX_OUTPUT: usize = 16 << 20;

/// An event of a process.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ProcessEvent {
    Started(u32),
    /// Output of a stream: 0, or 1 for standard error. A terminal has the first only.
    Output(usize, Bytes),
    Ended(End),
}

/// The end of a process, as the daemon reports it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct End {
    pub(super) exit_code: i32,
    /// False for a process that a signal has ended.
    pub(super) exited: bool,
    pub(super) status: String,
}

impl End {
    /// Returns the status as a shell shows it.
    pub(super) fn shell_status(&self) -> i32 {
        match signal_of(&self.status) {
            Some(signal) if !self.exited => 128 + signal,
            _ => self.exit_code,
        }
    }
}

/// Returns the signal that a status names, in the words of the daemon's language.
fn signal_of(status: &str) -> Option<i32> {
    let name = status.strip_prefix("signal: ")?;
    let name = name.strip_suffix(" (core dumped)").unwrap_or(name);
    let known = [
        ("hangup", 1),
        ("interrupt", 2),
        ("quit", 3),
        ("illegal instruction", 4),
        ("trace/breakpoint trap", 5),
        ("aborted", 6),
        ("bus error", 7),
        ("floating point exception", 8),
        ("killed", 9),
        ("user defined signal 1", 10),
        ("segmentation fault", 11),
        ("user defined signal 2", 12),
        ("broken pipe", 13),
        ("alarm clock", 14),
        ("terminated", 15),
    ];
    let found = known.into_iter().find(|(known, _)| *known == name).map(|(_, signal)| signal);
    found.or_else(|| name.strip_prefix("signal ")?.parse().ok())
}

/// A message of a stream of a process. Fields with the default value are left out by the daemon.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    event: RawEvent,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawEvent {
    start: Option<RawStart>,
    data: Option<RawData>,
    end: Option<End>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawStart {
    pid: u32,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawData {
    stdout: Option<String>,
    stderr: Option<String>,
    pty: Option<String>,
}

impl Message {
    fn event(self, operation: &'static str) -> Option<Result<ProcessEvent>> {
        let RawEvent { start, data, end } = self.event;
        if let Some(RawStart { pid }) = start {
            return Some(Ok(ProcessEvent::Started(pid)));
        }
        if let Some(end) = end {
            return Some(Ok(ProcessEvent::Ended(end)));
        }
        // Whatever else there is keeps the stream alive.
        let RawData { stdout, stderr, pty } = data?;
        let (stream, text) = match (stdout.or(pty), stderr) {
            (Some(text), _) => (0, text),
            (None, text) => (1, text?),
        };
        Some(match STANDARD.decode(text) {
            Ok(bytes) => Ok(ProcessEvent::Output(stream, bytes.into())),
            Err(error) => {
                let message = "output of the sandbox is not encoded as it should be";
                Err(Error::new(ErrorKind::Protocol, operation, message).with_source(error))
            }
        })
    }
}

/// The events of a process.
pub(super) type ProcessEvents = BoxStream<'static, Result<ProcessEvent>>;

fn events(operation: &'static str, messages: Messages) -> ProcessEvents {
    // Its end may be read more than once.
    let all = typed::<Message>(operation, messages).fuse();
    Box::pin(all.filter_map(move |message| {
        std::future::ready(match message {
            Ok(message) => message.event(operation),
            Err(error) => Some(Err(error)),
        })
    }))
}

/// Output and status of a script that has ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Output {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Output {
    /// Returns standard output as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the last line of standard error.
    pub(crate) fn last_error(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        last.trim().chars().take(300).collect()
    }
}

/// A running process, as the daemon lists it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Listed {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    pub(super) config: ListedConfig,
}

/// The command of a running process.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListedConfig {
    pub(super) cmd: String,
    pub(super) args: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Processes {
    processes: Vec<Listed>,
}

/// The kinds of standard input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputKind {
    Pipe,
    Terminal,
}

impl Envd {
    /// Starts a process, and gives its events.
    pub(super) async fn start(
        &self,
        operation: &'static str,
        spec: &StartProcess,
    ) -> Result<ProcessEvents> {
        let messages = self.stream(operation, "process.Process/Start", &spec.message()).await?;
        self.handle.set_answered();
        Ok(events(operation, messages))
    }

    /// Gives the events of a running process from now on.
    pub(super) async fn connect(&self, operation: &'static str, pid: u32) -> Result<ProcessEvents> {
        let body = json!({"process": {"pid": pid}});
        Ok(events(operation, self.stream(operation, "process.Process/Connect", &body).await?))
    }

    /// Lists the running processes.
    pub(super) async fn processes(&self, operation: &'static str) -> Result<Vec<Listed>> {
        let body = json!({});
        let found: Processes = self.call(operation, "process.Process/List", &body, true).await?;
        Ok(found.processes)
    }

    /// Writes to the standard input of a process.
    pub(super) async fn send_input(&self, pid: u32, kind: InputKind, data: &[u8]) -> Result<()> {
        let key = if kind == InputKind::Terminal { "pty" } else { "stdin" };
        let body = json!({"process": {"pid": pid}, "input": {key: STANDARD.encode(data)}});
        self.call::<Value>("write_stdin", "process.Process/SendInput", &body, false).await.map(drop)
    }

    /// Ends the standard input of a process.
    pub(super) async fn close_input(&self, pid: u32) -> Result<()> {
        let body = json!({"process": {"pid": pid}});
        self.call::<Value>("close_stdin", "process.Process/CloseStdin", &body, true).await.map(drop)
    }

    /// Sets the size of a terminal.
    pub(super) async fn resize(&self, pid: u32, size: PtySize) -> Result<()> {
        let size = json!({"cols": size.columns, "rows": size.rows});
        let body = json!({"process": {"pid": pid}, "pty": {"size": size}});
        self.call::<Value>("resize", "process.Process/Update", &body, true).await.map(drop)
    }

    /// Kills a process, and nothing that it has started. A process that is gone is a success.
    pub(super) async fn kill(&self, operation: &'static str, pid: u32) -> Result<()> {
        let body = json!({"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"});
        match self.call::<Value>(operation, "process.Process/SendSignal", &body, true).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Runs a script of the shell to its end.
    pub(crate) async fn run(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Output> {
        let mut spec = StartProcess::shell(script, arguments.iter().copied());
        spec.env.insert("LC_ALL".into(), "C".into());
        self.run_process(operation, &spec).await
    }

    /// Runs a process to its end.
    pub(crate) async fn run_process(
        &self,
        operation: &'static str,
        spec: &StartProcess,
    ) -> Result<Output> {
        collect(operation, self.start(operation, spec).await?).await
    }
}

async fn collect(operation: &'static str, mut events: ProcessEvents) -> Result<Output> {
    let mut output = Output::default();
    while let Some(event) = events.next().await {
        match event? {
            ProcessEvent::Started(_) => {}
            ProcessEvent::Output(stream, data) => {
                let into = if stream == 0 { &mut output.stdout } else { &mut output.stderr };
                if into.len() + data.len() > MAX_OUTPUT {
                    let message = "a script has printed more than 16 MiB in the sandbox";
                    return Err(Error::new(ErrorKind::ResourceExhausted, operation, message));
                }
                into.extend_from_slice(&data);
            }
            ProcessEvent::Ended(end) => {
                output.status = end.shell_status();
                tokio::spawn(drain(events));
                return Ok(output);
            }
        }
    }
    let message = "the sandbox did not tell how a script has ended";
    Err(Error::new(ErrorKind::ConnectionLost, operation, message))
}

/// A process whose streams are a connection. Dropping it ends the connection, and not the process.
pub(crate) struct PipedProcess {
    envd: Envd,
    pid: u32,
    events: ProcessEvents,
    /// The last of standard error, which explains an early end.
    stderr: Vec<u8>,
}

/// The standard input of a [`PipedProcess`].
#[derive(Debug)]
pub(crate) struct PipedInput {
    envd: Envd,
    pid: u32,
}

impl PipedInput {
    /// Writes some bytes, behind those that were written before.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<()> {
        self.envd.send_input(self.pid, InputKind::Pipe, data).await
    }

    /// Ends the input.
    pub(crate) async fn close(&mut self) {
        if let Err(error) = self.envd.close_input(self.pid).await {
            tracing::debug!(%error, "a standard input is not closed");
        }
    }
}

impl PipedProcess {
    /// Returns the standard input.
    pub(crate) fn input(&self) -> PipedInput {
        PipedInput { envd: self.envd.clone(), pid: self.pid }
    }

    /// Waits for the next output. Returns `None` when the process has ended.
    pub(crate) async fn output(&mut self) -> Option<Result<Bytes>> {
        const MAX_SAID: usize = 4 << 10;
        loop {
            match self.events.next().await? {
                Ok(ProcessEvent::Output(0, data)) => return Some(Ok(data)),
                Ok(ProcessEvent::Output(_, data)) => {
                    self.stderr.extend_from_slice(&data);
                    let excess = self.stderr.len().saturating_sub(MAX_SAID);
                    self.stderr.drain(..excess);
                }
                Ok(ProcessEvent::Started(_)) => {}
                Ok(ProcessEvent::Ended(_)) => return None,
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Returns the last line of standard error.
    pub(crate) fn last_error(self) -> String {
        Output { stderr: self.stderr, ..Output::default() }.last_error()
    }
}

impl Envd {
    /// Starts a process whose streams are a connection.
    pub(crate) async fn pipe(
        &self,
        operation: &'static str,
        spec: &StartProcess,
    ) -> Result<PipedProcess> {
        let mut events = self.start(operation, spec).await?;
        while let Some(event) = events.next().await.transpose()? {
            if let ProcessEvent::Started(pid) = event {
                return Ok(PipedProcess { envd: self.clone(), pid, events, stderr: Vec::new() });
            }
        }
        let message = "the sandbox did not start a process";
        Err(Error::new(ErrorKind::Unavailable, operation, message))
    }
}

impl StartProcess {
    /// Returns a script for `/bin/sh` with its arguments.
    pub(crate) fn shell<'a>(script: &str, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut args = vec!["-c".to_owned(), script.to_owned(), "sh".to_owned()];
        args.extend(arguments.into_iter().map(str::to_owned));
        Self { program: "/bin/sh".to_owned(), args, ..Self::default() }
    }

    fn message(&self) -> Value {
        let mut process = Map::new();
        process.insert("cmd".into(), json!(self.program));
        process.insert("args".into(), json!(self.args));
        process.insert("envs".into(), json!(self.env));
        let mut message = json!({"process": process, "stdin": self.stdin});
        if let Some(size) = self.terminal {
            message["pty"] = json!({"size": {"cols": size.columns, "rows": size.rows}});
        }
        if let Some(tag) = &self.tag {
            message["tag"] = json!(tag);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn read(text: &str) -> Option<Result<ProcessEvent>> {
        serde_json::from_str::<Message>(text).unwrap().event("test")
    }

    #[test]
    fn events_are_read_with_defaults_left_out() {
        let event = |text| read(text).unwrap().unwrap();
        assert_eq!(event(r#"{"event":{"start":{"pid":6890}}}"#), ProcessEvent::Started(6890));
        let output = event(r#"{"event":{"data":{"stderr":"b3V0Cg=="}}}"#);
        assert_eq!(output, ProcessEvent::Output(1, Bytes::from_static(b"out\n")));
        assert_eq!(
            event(r#"{"event":{"data":{"pty":"AP8="}}}"#),
            ProcessEvent::Output(0, Bytes::from_static(b"\0\xff"))
        );
        let ProcessEvent::Ended(end) =
            event(r#"{"event":{"end":{"exited":true,"status":"exit status 0"}}}"#)
        else {
            panic!("no end")
        };
        assert_eq!(end.shell_status(), 0);
        assert!(read(r#"{"event":{"keepalive":{}}}"#).is_none());
        assert!(read("{}").is_none());
        assert!(read(r#"{"event":{"data":{"stdout":"%%"}}}"#).unwrap().is_err());
    }

    #[test]
    fn ends_by_signals_are_what_a_shell_shows() {
        let status = |code, exited, status: &str| {
            End { exit_code: code, exited, status: status.into() }.shell_status()
        };
        assert_eq!(status(3, true, "exit status 3"), 3);
        assert_eq!(status(-1, false, "signal: killed"), 137);
        assert_eq!(status(-1, false, "signal: segmentation fault (core dumped)"), 139);
        assert_eq!(status(-1, false, "signal: signal 34"), 162);
        assert_eq!(status(-1, false, "signal: new"), -1);
    }

    #[tokio::test]
    async fn the_end_of_events_can_be_read_again() {
        let messages = stream::unfold(Some(()), |state| async move {
            state.map(|()| (Ok(Bytes::from_static(b"{}")), None))
        });
        let mut events = events("test", Box::pin(messages));
        assert!(events.next().await.is_none());
        assert!(events.next().await.is_none());
    }

    #[tokio::test]
    async fn a_script_without_an_end_has_no_status() {
        let events = [Ok(ProcessEvent::Output(0, Bytes::from_static(b"x")))];
        let error = collect("test", Box::pin(stream::iter(events))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost);
    }
}
