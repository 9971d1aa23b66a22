//! The messages between a host and a Python worker.
//!
//! They travel on the worker's control stream as the frames of [`crate::wire`]. The host sends a
//! [`Request`] and waits for its last [`Reply`] before the next one. Standard output and standard
//! error are not messages: they are the worker's descriptors 1 and 2.
//!
//! A worker runs hostile code, so each of its messages is a claim. A worker decides what its own result looks like, and
//! nothing else.

mod reply;

pub use reply::{Encoding, MimeData, Reply, WireDisplayKind, WireFailureKind};

use crate::wire::{Fields, Frame, WireError, Writer, put_frame};

/// The version of this vocabulary, sent in [`Reply::Ready`] and the greeting of a zygote. Host and
/// worker must agree exactly, because the host brings the worker's sources along.
pub const PROTOCOL_VERSION: u32 = 1;

/// How code is run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RunMode {
    /// A cell of a session: the value of the last expression is a result, `await` is allowed at
    /// the top level, names stay for the next cell.
    Cell,
    /// A program: a fresh `__main__`, `sys.argv`, `__file__`, no echo.
    Script,
}

/// One piece of code to run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Run {
    /// The id of the run, chosen by the host and repeated in every reply.
    pub id: i64,
    /// How the code is run.
    pub mode: RunMode,
    /// The Python source.
    pub code: String,
    /// The file name in tracebacks. Empty: `<cell-N>`, or `<stdin>` for a script. For a script it is also `__file__`,
    /// and its directory is the first in the import path.
    pub filename: String,
    /// The working directory of this run only. Empty: the worker's own, which code may change.
    pub cwd: String,
    /// Environment variables of this run only; the former values are restored after the run.
    pub env: Vec<(String, String)>,
    /// `sys.argv` of this run. Empty: `[filename]` for a script, `[""]` for a cell.
    pub argv: Vec<String>,
    /// Says that a descriptor is attached to the first bytes of this frame: the standard input of the run. Without a
    /// descriptor the standard input is at its end.
    pub has_stdin: bool,
}

/// A message from the host to a worker.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Request {
    /// Runs code. Answers: any number of `Display`, `ClearOutput`; at most one of `Error`, `Exit`,
    /// `Failed`; then exactly one `Done`, always the last.
    ///
    /// Fields: id, mode (0 cell, 1 script), code, filename, cwd, env (list of key, value), argv
    /// (list), has_stdin.
    Run(Run),
    /// Asks for a variable of `__main__`. Answer: one `Value` or one `Failed`.
    ///
    /// Fields: id, name.
    GetVariable {
        /// The id of the request, repeated in the reply.
        id: i64,
        /// An identifier; anything else fails as invalid and is never evaluated.
        name: String,
    },
    /// Sets variables of `__main__`, all or none. Answer: one `Value` holding `null`, or one
    /// `Failed`.
    ///
    /// Fields: id, json.
    SetVariables {
        /// The id of the request, repeated in the reply.
        id: i64,
        /// A JSON object; its keys must be identifiers.
        json: String,
    },
    /// Names the request that the following SIGINT interrupts. No answer. A worker that has finished the request
    /// ignores the signal; a worker that has not started the request is interrupted as the request starts.
    ///
    /// Fields: id.
    Interrupt {
        /// The id of the request to interrupt.
        id: i64,
    },
    /// Asks for a copy of the worker that waits to be restored. A descriptor is attached to the first bytes of this
    /// frame. On it the copy reports that it is there, and gets its commands. Answer: one `Acknowledged`.
    ///
    /// Fields: id.
    Checkpoint {
        /// The id of the request, repeated in the reply.
        id: i64,
    },
    /// Asks for the variables of `__main__` as bytes. A descriptor is attached to the first bytes of this frame. On it
    /// a copy of the worker sends chunks, each after its length (four bytes, little endian): first a header with
    /// fields, then the bytes, then an empty chunk. Answer: one `Acknowledged`, before the chunks.
    ///
    /// Fields: id. Fields of the header: count, left_out (list), imported (list).
    ExportVariables {
        /// The id of the request, repeated in the reply.
        id: i64,
    },
    /// Loads variables that another worker has exported into `__main__`. A descriptor is attached to the first bytes of
    /// this frame, on which the chunks come. Answer: one `Acknowledged`, when the variables are loaded or loading has
    /// failed.
    ///
    /// Fields: id.
    ImportVariables {
        /// The id of the request, repeated in the reply.
        id: i64,
    },
    /// Answers a `ToolCall` or a `ListTools` of the active run. Answers come in any order. An answer to a call that was
    /// cancelled is ignored.
    ///
    /// Fields: id, call, ok, content.
    ToolResult {
        /// The id of the run.
        id: i64,
        /// The number of the call.
        call: i64,
        /// The result as JSON, or the error for people.
        outcome: Result<String, String>,
    },
}

/// Enums that are sent as a number: the position in `ALL`.
trait Coded: Copy + PartialEq + 'static {
    const ALL: &'static [Self];

    fn write(self, out: &mut Writer<'_>) {
        let code = Self::ALL.iter().position(|known| *known == self).unwrap_or_default();
        out.int(code as i64);
    }

    fn read(fields: &mut Fields<'_>, name: &'static str) -> Result<Self, WireError> {
        let code: usize = fields.number(name)?;
        Self::ALL.get(code).copied().ok_or(WireError::Invalid(name))
    }
}

impl Coded for RunMode {
    const ALL: &'static [Self] = &[Self::Cell, Self::Script];
}

const RUN: u8 = 1;
const GET_VARIABLE: u8 = 2;
const SET_VARIABLES: u8 = 3;
const INTERRUPT: u8 = 4;
const TOOL_RESULT: u8 = 5;
const CHECKPOINT: u8 = 6;
const EXPORT_VARIABLES: u8 = 7;
const IMPORT_VARIABLES: u8 = 8;

impl Request {
    /// Appends this message to `out` as one frame.
    ///
    /// # Errors
    /// [`WireError::TooLong`] over [`crate::wire::MAX_FRAME`]; then `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Self::Run(run) => put_frame(out, RUN, |out| run.write(out)),
            Self::GetVariable { id, name } => put_frame(out, GET_VARIABLE, |out| {
                out.int(*id);
                out.text(name);
            }),
            Self::SetVariables { id, json } => put_frame(out, SET_VARIABLES, |out| {
                out.int(*id);
                out.text(json);
            }),
            Self::Interrupt { id } => put_frame(out, INTERRUPT, |out| out.int(*id)),
            Self::Checkpoint { id } => put_frame(out, CHECKPOINT, |out| out.int(*id)),
            Self::ExportVariables { id } => put_frame(out, EXPORT_VARIABLES, |out| out.int(*id)),
            Self::ImportVariables { id } => put_frame(out, IMPORT_VARIABLES, |out| out.int(*id)),
            Self::ToolResult { id, call, outcome } => put_frame(out, TOOL_RESULT, |out| {
                out.int(*id);
                out.int(*call);
                out.flag(outcome.is_ok());
                let (Ok(content) | Err(content)) = outcome;
                out.text(content);
            }),
        }
    }

    /// Reads a frame that a host sent.
    ///
    /// # Errors
    /// Every message that does not fit the vocabulary exactly.
    pub fn decode(frame: Frame<'_>) -> Result<Self, WireError> {
        frame.read(Self::read)
    }

    fn read(kind: u8, fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            RUN => Self::Run(Run::read(fields)?),
            GET_VARIABLE => Self::GetVariable { id: fields.int("id")?, name: fields.text("name")? },
            SET_VARIABLES => {
                Self::SetVariables { id: fields.int("id")?, json: fields.text("json")? }
            }
            INTERRUPT => Self::Interrupt { id: fields.int("id")? },
            CHECKPOINT => Self::Checkpoint { id: fields.int("id")? },
            EXPORT_VARIABLES => Self::ExportVariables { id: fields.int("id")? },
            IMPORT_VARIABLES => Self::ImportVariables { id: fields.int("id")? },
            TOOL_RESULT => {
                let (id, call) = (fields.int("id")?, fields.int("call")?);
                let ok = fields.flag("ok")?;
                let content = fields.text("content")?;
                let outcome = if ok { Ok(content) } else { Err(content) };
                Self::ToolResult { id, call, outcome }
            }
            kind => return Err(WireError::UnknownKind(kind)),
        })
    }
}

impl Run {
    fn write(&self, out: &mut Writer<'_>) {
        out.int(self.id);
        self.mode.write(out);
        out.text(&self.code);
        out.text(&self.filename);
        out.text(&self.cwd);
        out.list(&self.env, |out, (key, value)| {
            out.text(key);
            out.text(value);
        });
        out.list(&self.argv, |out, word| out.text(word));
        out.flag(self.has_stdin);
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: fields.int("id")?,
            mode: RunMode::read(fields, "mode")?,
            code: fields.text("code")?,
            filename: fields.text("filename")?,
            cwd: fields.text("cwd")?,
            env: fields.list("env", |pair| Ok((pair.text("key")?, pair.text("value")?)))?,
            argv: fields.list("argv", |word| word.text("word"))?,
            has_stdin: fields.flag("has_stdin")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_python::{PARTS, numbers};

    #[test]
    fn workers_are_asked_with_the_same_numbers() {
        let spoken = ["driver", "tools", "warm"];
        numbers::agree(
            PARTS.iter().filter(|(name, _)| spoken.contains(name)),
            &numbers::named!(
                RUN GET_VARIABLE SET_VARIABLES INTERRUPT TOOL_RESULT CHECKPOINT EXPORT_VARIABLES IMPORT_VARIABLES
            ),
        );
    }
}
