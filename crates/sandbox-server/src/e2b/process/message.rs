//! The messages of the service `process.Process`, in the JSON form of protocol buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use sandbox_core::PtySize;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::super::error::{Code, ConnectError};
use super::{End, Happening, Process};

#[derive(Deserialize)]
pub(super) struct StartRequest {
    pub(super) process: Option<Config>,
    pub(super) pty: Option<Pty>,
    pub(super) tag: Option<String>,
    pub(super) stdin: Option<bool>,
}

#[derive(Clone, Deserialize, Serialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) cmd: String,
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub(super) args: Vec<String>,
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub(super) envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cwd: Option<String>,
}

fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

#[derive(Deserialize)]
pub(super) struct Pty {
    size: Option<Size>,
}

#[derive(Deserialize)]
struct Size {
    #[serde(default)]
    cols: u16,
    #[serde(default)]
    rows: u16,
}

impl Pty {
    /// Returns the size; a missing one is that of a common terminal.
    pub(super) fn size(&self) -> PtySize {
        let default = PtySize::default();
        let Some(size) = &self.size else { return default };
        let or = |given, other| if given == 0 { other } else { given };
        PtySize { columns: or(size.cols, default.columns), rows: or(size.rows, default.rows) }
    }
}

/// The process of a call: by its id or by its tag.
#[derive(Clone, Deserialize)]
pub(super) struct Selector {
    pid: Option<u32>,
    tag: Option<String>,
}

impl Selector {
    pub(super) fn find<'a>(
        &self,
        mut processes: impl Iterator<Item = &'a Arc<Process>>,
    ) -> Result<Arc<Process>, ConnectError> {
        let (found, what) = match (self.pid, &self.tag) {
            (Some(pid), _) => (processes.find(|process| process.pid == pid), format!("pid {pid}")),
            (None, Some(tag)) => {
                let found = processes.find(|process| process.tag.as_ref() == Some(tag));
                (found, format!("tag {tag}"))
            }
            (None, None) => {
                let message = "invalid input type: the process is missing";
                return Err(ConnectError::new(Code::InvalidArgument, message));
            }
        };
        found.cloned().ok_or_else(|| {
            ConnectError::new(Code::NotFound, format!("process with {what} not found"))
        })
    }
}

#[derive(Deserialize)]
pub(in super::super) struct ProcessRequest {
    pub(super) process: Option<Selector>,
}

#[derive(Deserialize)]
pub(in super::super) struct UpdateRequest {
    pub(super) process: Option<Selector>,
    pub(super) pty: Option<Pty>,
}

#[derive(Deserialize)]
pub(in super::super) struct InputRequest {
    pub(super) process: Option<Selector>,
    pub(super) input: Option<Input>,
}

/// Input for standard input or for the terminal.
#[derive(Default, Deserialize)]
pub(super) struct Input {
    stdin: Option<Base64>,
    pty: Option<Base64>,
}

impl Input {
    /// Returns the bytes, and whether they are for a terminal.
    ///
    /// # Errors
    /// `invalid_argument` when there are none.
    pub(super) fn bytes(self) -> Result<(Bytes, bool), ConnectError> {
        match (self.stdin, self.pty) {
            (Some(data), _) => Ok((data.0, false)),
            (None, Some(data)) => Ok((data.0, true)),
            (None, None) => {
                Err(ConnectError::new(Code::InvalidArgument, "invalid input type: no input"))
            }
        }
    }
}

/// Bytes as protocol buffers write them in JSON.
struct Base64(Bytes);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        STANDARD.decode(text).map(|bytes| Self(bytes.into())).map_err(serde::de::Error::custom)
    }
}

#[derive(Deserialize)]
pub(in super::super) struct SignalRequest {
    pub(super) process: Option<Selector>,
    #[serde(default)]
    pub(super) signal: Signal,
}

/// A signal by name or number.
#[derive(Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Signal {
    #[default]
    Unset,
    Number(i32),
    Name(String),
}

impl Signal {
    /// Returns the number.
    ///
    /// # Errors
    /// `unimplemented` for signals that envd does not send.
    pub(super) fn number(&self) -> Result<i32, ConnectError> {
        match self {
            Self::Number(number @ (9 | 15)) => Ok(*number),
            Self::Name(name) if name == "SIGNAL_SIGKILL" => Ok(9),
            Self::Name(name) if name == "SIGNAL_SIGTERM" => Ok(15),
            Self::Unset | Self::Number(_) | Self::Name(_) => {
                let message = "invalid signal: SIGNAL_SIGTERM and SIGNAL_SIGKILL can be sent";
                Err(ConnectError::new(Code::Unimplemented, message))
            }
        }
    }
}

/// One message of a client that streams input.
#[derive(Deserialize)]
pub(super) struct StreamInputRequest {
    pub(super) start: Option<ProcessRequest>,
    pub(super) data: Option<InputOnly>,
}

#[derive(Deserialize)]
pub(super) struct InputOnly {
    pub(super) input: Option<Input>,
}

/// One message of a stream of events.
#[derive(Serialize)]
pub(super) struct EventMessage {
    event: Event,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Event {
    Start { pid: u32 },
    Data(Data),
    End(EndMessage),
    Keepalive {},
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Data {
    #[serde(serialize_with = "base64")]
    Stdout(Bytes),
    #[serde(serialize_with = "base64")]
    Stderr(Bytes),
    #[serde(serialize_with = "base64")]
    Pty(Bytes),
}

fn base64<S: Serializer>(data: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&base64::display::Base64Display::new(data, &STANDARD))
}

/// The end. What has its default value is left out, as in protocol buffers.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EndMessage {
    #[serde(skip_serializing_if = "is_zero")]
    exit_code: i32,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    exited: bool,
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &i32) -> bool {
    *number == 0
}

impl EventMessage {
    pub(super) fn start(pid: u32) -> Self {
        Self { event: Event::Start { pid } }
    }

    pub(super) fn keepalive() -> Self {
        Self { event: Event::Keepalive {} }
    }

    /// Returns the message about what has happened to a process.
    ///
    /// # Errors
    /// The error with which a process ended.
    pub(super) fn from_happening(happening: Happening) -> Result<Self, ConnectError> {
        let event = match happening {
            Happening::Stdout(data) => Event::Data(Data::Stdout(data)),
            Happening::Stderr(data) => Event::Data(Data::Stderr(data)),
            Happening::Terminal(data) => Event::Data(Data::Pty(data)),
            Happening::End(End::Exited(outcome)) => {
                Event::End(EndMessage::new(outcome.exit_code, outcome.signal))
            }
            Happening::End(End::Failed(error)) => return Err(error),
        };
        Ok(Self { event })
    }
}

impl EndMessage {
    fn new(exit_code: i32, signal: Option<i32>) -> Self {
        if let Some(signal) = signal {
            let status = format!("signal: {}", signal_name(signal));
            return Self { exit_code: -1, exited: false, error: Some(status.clone()), status };
        }
        let status = format!("exit status {exit_code}");
        let error = (exit_code != 0).then(|| status.clone());
        Self { exit_code, exited: true, status, error }
    }
}

/// Returns the name of a signal as Go prints it.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[derive(Serialize)]
pub(super) struct ListResponse {
    pub(super) processes: Vec<ProcessMessage>,
}

#[derive(Serialize)]
pub(super) struct ProcessMessage {
    config: Config,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

impl ProcessMessage {
    pub(super) fn from_process(process: &Process) -> Self {
        let config = Config {
            cmd: process.cmd.clone(),
            args: process.args.clone(),
            envs: process.envs.clone(),
            cwd: process.cwd.clone(),
        };
        Self { config, pid: process.pid, tag: process.tag.clone() }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::CommandOutcome;
    use serde_json::{json, to_value};

    use super::*;

    #[test]
    fn events_have_the_form_of_protocol_buffers() {
        let shown = |happening| to_value(EventMessage::from_happening(happening).unwrap()).unwrap();
        let ended = |exit_code, signal| {
            let outcome = CommandOutcome { exit_code, signal, ..CommandOutcome::default() };
            shown(Happening::End(End::Exited(outcome)))
        };
        assert_eq!(
            to_value(EventMessage::start(7)).unwrap(),
            json!({"event": {"start": {"pid": 7}}})
        );
        assert_eq!(
            to_value(EventMessage::keepalive()).unwrap(),
            json!({"event": {"keepalive": {}}})
        );
        let stdout = shown(Happening::Stdout(Bytes::from_static(b"out\n")));
        assert_eq!(stdout, json!({"event": {"data": {"stdout": "b3V0Cg=="}}}));
        let zero = json!({"event": {"end": {"exited": true, "status": "exit status 0"}}});
        assert_eq!(ended(0, None), zero, "defaults are left out");
        let three = json!({"event": {"end": {
            "exitCode": 3, "exited": true, "status": "exit status 3", "error": "exit status 3"
        }}});
        assert_eq!(ended(3, None), three);
        let killed = json!({"event": {"end": {
            "exitCode": -1, "status": "signal: killed", "error": "signal: killed"
        }}});
        assert_eq!(ended(137, Some(9)), killed);
    }

    #[test]
    fn nulls_are_defaults() {
        let text =
            r#"{"process": {"cmd": "ls", "args": null, "envs": null, "cwd": null}, "pty": null}"#;
        let request: StartRequest = serde_json::from_str(text).unwrap();
        let config = request.process.unwrap();
        assert!(config.args.is_empty() && config.envs.is_empty() && config.cwd.is_none());
        let signal: SignalRequest =
            serde_json::from_str(r#"{"signal": "SIGNAL_SIGKILL"}"#).unwrap();
        assert_eq!(signal.signal.number().unwrap(), 9);
        let signal: SignalRequest = serde_json::from_str(r#"{"signal": 15}"#).unwrap();
        assert_eq!(signal.signal.number().unwrap(), 15);
        let signal: SignalRequest = serde_json::from_str("{}").unwrap();
        signal.signal.number().unwrap_err();
    }
}
