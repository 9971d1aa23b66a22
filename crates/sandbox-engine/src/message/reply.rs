//! Messages from a worker to its host.

use super::Coded;
use crate::wire::{Fields, Frame, WireError, Writer, put_frame};

/// The encoding of one representation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Encoding {
    /// The data is the content itself.
    Text,
    /// The content is binary; the data is its base64 text on one line.
    Base64,
    /// The data is a JSON document.
    Json,
}

/// One representation of a displayed value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MimeData {
    /// Media type, such as `text/plain`.
    pub mime: String,
    /// How `data` is written.
    pub encoding: Encoding,
    /// The content. Its shape is claimed by the worker and not checked.
    pub data: String,
}

/// The kind of a [`Reply::Display`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WireDisplayKind {
    /// The value of the cell's last expression.
    Result,
    /// A value shown by `display()`, or a figure.
    Display,
    /// A new version of an earlier display with the same `display_id`.
    Update,
}

/// The reason why a request was not carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WireFailureKind {
    /// There is no such variable.
    NotFound,
    /// The value has no strict JSON form.
    NotSerializable,
    /// The request is malformed: not an identifier, not JSON, no such directory.
    Invalid,
    /// The value is too large to send.
    TooLarge,
}

/// A message from a worker to its host.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Reply {
    /// First message of a worker: the self-check has passed, and the worker takes requests.
    ///
    /// Fields: protocol, pid, python_version, self_check.
    Ready {
        /// [`PROTOCOL_VERSION`](crate::PROTOCOL_VERSION) of its sources.
        protocol: u32,
        /// The process id inside the sandbox.
        pid: u32,
        /// The version, such as `3.11.7`.
        python_version: String,
        /// The findings of the self-check, as `name=value` words.
        self_check: String,
    },
    /// Last message of a worker that cannot continue, and exits. As the first message: the worker could not enter its
    /// cell, or its self-check failed, and no code ran. During a run: code has made the worker unable to run code.
    ///
    /// Fields: step, message.
    Refused {
        /// The step that failed.
        step: String,
        /// The reason.
        message: String,
    },
    /// A display, sent as soon as code shows it.
    ///
    /// Fields: id, kind (0 result, 1 display, 2 update), bundle (list of mime, encoding (0 text,
    /// 1 base64, 2 json), data), metadata, display_id.
    Display {
        /// The id of the run.
        id: i64,
        /// The kind of the display.
        kind: WireDisplayKind,
        /// The representations, never empty; `text/plain` first when there is one.
        bundle: Vec<MimeData>,
        /// A JSON object, `{}` without metadata.
        metadata: String,
        /// Names the display for later updates; empty when it has no name.
        display_id: String,
    },
    /// Orders text and displays: text before these marks comes before the next reply, and text after them comes after it.
    /// Sent before each `Display` of code that still runs and before each `ClearOutput`.
    ///
    /// A mark in standard output or error is the bytes `fe 6d 61 72 6b fe`, the id of the run and a number, both of 8
    /// bytes (little-endian).
    ///
    /// With -1 for both marks, sent before `Done`: something is left that may write before the next run. That run, and each
    /// later one, writes the mark 0 first, and text before that mark belongs to no run.
    ///
    /// Fields: id, stdout, stderr.
    Marked {
        /// The id of the run.
        id: i64,
        /// The number of the mark in standard output, more than any before it. 0: there is no mark.
        stdout: i64,
        /// The number of the mark in standard error, likewise.
        stderr: i64,
    },
    /// Clears everything that the run has shown so far.
    ///
    /// Fields: id, wait.
    ClearOutput {
        /// The id of the run.
        id: i64,
        /// Clear only when the next output comes.
        wait: bool,
    },
    /// The code raised.
    ///
    /// Fields: id, name, value, traceback.
    Error {
        /// The id of the run.
        id: i64,
        /// Class name of the exception.
        name: String,
        /// The text of the exception.
        value: String,
        /// The whole traceback as Python prints it, ending in a newline.
        traceback: String,
    },
    /// The code raised `SystemExit`.
    ///
    /// Fields: id, code.
    Exit {
        /// The id of the run.
        id: i64,
        /// The status as given, not cut to 8 bits.
        code: i64,
    },
    /// The run is over; standard output and error have been written out.
    ///
    /// Fields: id, execution_count, interrupted, background_threads.
    Done {
        /// The id of the run.
        id: i64,
        /// The number of runs that this worker has finished, this one included.
        execution_count: i64,
        /// Set when an interrupt reached the code and ended it.
        interrupted: bool,
        /// Threads that the code left running.
        background_threads: u32,
    },
    /// Answers `GetVariable` and `SetVariables`.
    ///
    /// Fields: id, json.
    Value {
        /// The id of the request.
        id: i64,
        /// A JSON document, not checked here.
        json: String,
    },
    /// Code calls a tool of the host. Answer: one `ToolResult`, unless the run ends or `CancelTool` comes first.
    ///
    /// Fields: id, call, name, arguments.
    ToolCall {
        /// The id of the run.
        id: i64,
        /// The number of the call, new for each call of a worker.
        call: i64,
        /// The name of the tool.
        name: String,
        /// A JSON object, not checked here.
        arguments: String,
    },
    /// Code asks for the tools of the host. Answer as for `ToolCall`, with a list of objects that have `name`,
    /// `description` and `parameters`.
    ///
    /// Fields: id, call.
    ListTools {
        /// The id of the run.
        id: i64,
        /// The number of the call, as in `ToolCall`.
        call: i64,
    },
    /// Cancels a call. Its answer may be on its way already.
    ///
    /// Fields: id, call.
    CancelTool {
        /// The id of the run.
        id: i64,
        /// The number of the call.
        call: i64,
    },
    /// Answers `Checkpoint` and `ExportVariables`: a copy will report soon, unless there is a problem. Answers
    /// `ImportVariables`: the variables are loaded, unless there is a problem.
    ///
    /// Fields: id, problem, notes (list).
    Acknowledged {
        /// The id of the request.
        id: i64,
        /// The problem; empty when there is none.
        problem: String,
        /// Parts that the copy lacks, or shares with the worker; each one line for people.
        notes: Vec<String>,
    },
    /// The request was not carried out. After a `Run` a `Done` still follows, and the code did
    /// not start.
    ///
    /// Fields: id, kind (0 not found, 1 not serializable, 2 invalid, 3 too large), message.
    Failed {
        /// The id of the request.
        id: i64,
        /// The reason.
        kind: WireFailureKind,
        /// One line for people.
        message: String,
    },
}

impl Coded for Encoding {
    const ALL: &'static [Self] = &[Self::Text, Self::Base64, Self::Json];
}

impl Coded for WireDisplayKind {
    const ALL: &'static [Self] = &[Self::Result, Self::Display, Self::Update];
}

impl Coded for WireFailureKind {
    const ALL: &'static [Self] =
        &[Self::NotFound, Self::NotSerializable, Self::Invalid, Self::TooLarge];
}

const READY: u8 = 16;
const REFUSED: u8 = 17;
const DISPLAY: u8 = 18;
const CLEAR_OUTPUT: u8 = 19;
const ERROR: u8 = 20;
const EXIT: u8 = 21;
const DONE: u8 = 22;
const VALUE: u8 = 23;
const FAILED: u8 = 24;
const TOOL_CALL: u8 = 25;
const LIST_TOOLS: u8 = 26;
const CANCEL_TOOL: u8 = 27;
const ACKNOWLEDGED: u8 = 28;
const MARKED: u8 = 29;

impl MimeData {
    fn write(&self, out: &mut Writer<'_>) {
        out.text(&self.mime);
        self.encoding.write(out);
        out.text(&self.data);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            mime: fields.text("mime")?,
            encoding: Encoding::read(fields, "encoding")?,
            data: fields.text("data")?,
        })
    }
}

impl Reply {
    /// Appends this message to `out` as one frame.
    ///
    /// # Errors
    /// [`WireError::TooLong`] over [`crate::wire::MAX_FRAME`]; then `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        put_frame(out, self.kind(), |out| self.write(out))
    }

    /// Reads a frame that a worker sent.
    ///
    /// # Errors
    /// Every message that does not fit the vocabulary exactly.
    pub fn decode(frame: Frame<'_>) -> Result<Self, WireError> {
        frame.read(Self::read)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Ready { .. } => READY,
            Self::Refused { .. } => REFUSED,
            Self::Display { .. } => DISPLAY,
            Self::Marked { .. } => MARKED,
            Self::ClearOutput { .. } => CLEAR_OUTPUT,
            Self::Error { .. } => ERROR,
            Self::Exit { .. } => EXIT,
            Self::Done { .. } => DONE,
            Self::Value { .. } => VALUE,
            Self::Failed { .. } => FAILED,
            Self::ToolCall { .. } => TOOL_CALL,
            Self::ListTools { .. } => LIST_TOOLS,
            Self::CancelTool { .. } => CANCEL_TOOL,
            Self::Acknowledged { .. } => ACKNOWLEDGED,
        }
    }

    fn write(&self, out: &mut Writer<'_>) {
        match self {
            Self::Ready { protocol, pid, python_version, self_check } => {
                out.int(i64::from(*protocol));
                out.int(i64::from(*pid));
                out.text(python_version);
                out.text(self_check);
            }
            Self::Refused { step, message } => {
                out.text(step);
                out.text(message);
            }
            Self::Display { id, kind, bundle, metadata, display_id } => {
                out.int(*id);
                kind.write(out);
                out.list(bundle, |out, data| data.write(out));
                out.text(metadata);
                out.text(display_id);
            }
            Self::Marked { id, stdout, stderr } => {
                out.int(*id);
                out.int(*stdout);
                out.int(*stderr);
            }
            Self::ClearOutput { id, wait } => {
                out.int(*id);
                out.flag(*wait);
            }
            Self::Error { id, name, value, traceback } => {
                out.int(*id);
                out.text(name);
                out.text(value);
                out.text(traceback);
            }
            Self::Exit { id, code } => {
                out.int(*id);
                out.int(*code);
            }
            Self::Done { id, execution_count, interrupted, background_threads } => {
                out.int(*id);
                out.int(*execution_count);
                out.flag(*interrupted);
                out.int(i64::from(*background_threads));
            }
            Self::Value { id, json } => {
                out.int(*id);
                out.text(json);
            }
            Self::Acknowledged { id, problem, notes } => {
                out.int(*id);
                out.text(problem);
                out.list(notes, |out, note| out.text(note));
            }
            Self::Failed { id, kind, message } => {
                out.int(*id);
                kind.write(out);
                out.text(message);
            }
            Self::ToolCall { id, call, name, arguments } => {
                out.int(*id);
                out.int(*call);
                out.text(name);
                out.text(arguments);
            }
            Self::ListTools { id, call } | Self::CancelTool { id, call } => {
                out.int(*id);
                out.int(*call);
            }
        }
    }

    fn read(kind: u8, fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            READY => Self::Ready {
                protocol: fields.number("protocol")?,
                pid: fields.number("pid")?,
                python_version: fields.text("python_version")?,
                self_check: fields.text("self_check")?,
            },
            REFUSED => {
                Self::Refused { step: fields.text("step")?, message: fields.text("message")? }
            }
            DISPLAY => Self::Display {
                id: fields.int("id")?,
                kind: WireDisplayKind::read(fields, "kind")?,
                bundle: fields.list("bundle", MimeData::read)?,
                metadata: fields.text("metadata")?,
                display_id: fields.text("display_id")?,
            },
            MARKED => Self::Marked {
                id: fields.int("id")?,
                stdout: fields.int("stdout")?,
                stderr: fields.int("stderr")?,
            },
            CLEAR_OUTPUT => Self::ClearOutput { id: fields.int("id")?, wait: fields.flag("wait")? },
            ERROR => Self::Error {
                id: fields.int("id")?,
                name: fields.text("name")?,
                value: fields.text("value")?,
                traceback: fields.text("traceback")?,
            },
            EXIT => Self::Exit { id: fields.int("id")?, code: fields.int("code")? },
            DONE => Self::Done {
                id: fields.int("id")?,
                execution_count: fields.int("execution_count")?,
                interrupted: fields.flag("interrupted")?,
                background_threads: fields.number("background_threads")?,
            },
            VALUE => Self::Value { id: fields.int("id")?, json: fields.text("json")? },
            FAILED => Self::Failed {
                id: fields.int("id")?,
                kind: WireFailureKind::read(fields, "kind")?,
                message: fields.text("message")?,
            },
            TOOL_CALL => Self::ToolCall {
                id: fields.int("id")?,
                call: fields.int("call")?,
                name: fields.text("name")?,
                arguments: fields.text("arguments")?,
            },
            LIST_TOOLS => Self::ListTools { id: fields.int("id")?, call: fields.int("call")? },
            CANCEL_TOOL => Self::CancelTool { id: fields.int("id")?, call: fields.int("call")? },
            ACKNOWLEDGED => Self::Acknowledged {
                id: fields.int("id")?,
                problem: fields.text("problem")?,
                notes: fields.list("notes", |note| note.text("note"))?,
            },
            kind => return Err(WireError::UnknownKind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_python::{PARTS, numbers};

    #[test]
    fn workers_answer_with_the_same_numbers() {
        let spoken = ["driver", "cell", "codec", "holder", "state", "tools", "worker"];
        numbers::agree(
            PARTS.iter().filter(|(name, _)| spoken.contains(name)),
            &numbers::named!(
                READY REFUSED DISPLAY CLEAR_OUTPUT ERROR EXIT DONE VALUE FAILED TOOL_CALL LIST_TOOLS
                CANCEL_TOOL ACKNOWLEDGED MARKED
            ),
        );
    }
}
