//! The messages between a host and an agent. Their streams carry the messages of workers, and plain bytes.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_engine::host::Exit;
use sandbox_engine::wire::{Fields, Frame, WireError, put_frame};

/// The version of the messages. Both sides must agree exactly, because the host sends the agent itself.
pub(crate) const VERSION: i64 = 1;

/// Maximum number of bytes of one stream that are on their way.
pub(crate) const WINDOW: usize = 1 << 20;

/// The same where many streams may be unread at once. Agents give credit in pieces of that size.
pub(crate) const NARROW_WINDOW: usize = WINDOW / 4;

/// Maximum number of bytes of one message with data.
pub(crate) const CHUNK: usize = 64 << 10;

/// Maximum number of bytes of all streams together that are on their way to this side.
pub(crate) const INCOMING_WINDOW: usize = 32 << 20;

/// The same for the other direction. All of it may have to be kept in the sandbox.
pub(crate) const OUTGOING_WINDOW: usize = 8 << 20;

/// Maximum number of fields of one answer: those of a hundred thousand files, and some more.
const MAX_FIELDS: usize = 2_000_000;

/// The stream number in a credit that is about the connection.
pub(crate) const CONNECTION: i64 = -1;

/// The streams of a process, in the lowest bits of their numbers.
pub(crate) const STDIN: i64 = 0;
pub(crate) const STDOUT: i64 = 1;
pub(crate) const STDERR: i64 = 2;
pub(crate) const CONTROL: i64 = 3;

/// Returns the stream of a process or a request.
pub(crate) fn stream(key: i64, which: i64) -> i64 {
    key << 2 | which
}

const SPAWN: u8 = 1;
const WORKER: u8 = 2;
const DATA: u8 = 3;
const END: u8 = 4;
const CREDIT: u8 = 5;
const DROP: u8 = 6;
const SIGNAL: u8 = 7;
const CALL: u8 = 8;
const CANCEL: u8 = 9;
const PING: u8 = 10;
const FORGET: u8 = 11;
const INPUT: u8 = 12;
const FINISH: u8 = 13;
const CHANNEL: u8 = 14;
const COPY: u8 = 15;
const HELLO: u8 = 16;
const STARTED: u8 = 17;
const NOT_STARTED: u8 = 18;
const ANSWER: u8 = 19;
const EXIT: u8 = 20;
const PONG: u8 = 21;
const BROKEN: u8 = 22;
const FINISHED: u8 = 23;
const KILLED: u8 = 24;

/// A message from the host to an agent.
#[derive(Clone, Debug)]
pub(crate) enum AgentRequest<'a> {
    Spawn {
        key: i64,
        argv: &'a [String],
        env: &'a BTreeMap<String, String>,
        cwd: &'a str,
        stdin: bool,
        /// Rows and columns.
        terminal: Option<(u16, u16)>,
        /// The label by which a resident agent keeps it for the next client; empty for none. Without a program, the kept
        /// one is asked for.
        label: &'a str,
    },
    Worker {
        key: i64,
        env: &'a BTreeMap<String, String>,
        cwd: &'a str,
        /// The name by which a resident agent keeps it for the next client; empty for none.
        context: &'a str,
    },
    Data {
        stream: i64,
        data: &'a [u8],
    },
    /// Data, and a new standard input for the next run.
    Input {
        stream: i64,
        new: i64,
        data: &'a [u8],
    },
    /// Data, and a new channel for bytes in both directions.
    Channel {
        stream: i64,
        new: i64,
        data: &'a [u8],
    },
    /// Data, and the key for which a copy of the worker will report.
    Copy {
        stream: i64,
        copy: i64,
        data: &'a [u8],
    },
    End(i64),
    Credit {
        stream: i64,
        bytes: usize,
    },
    /// The reader of the stream was dropped.
    Drop(i64),
    Signal {
        key: i64,
        signal: i32,
        tree: bool,
    },
    Call {
        token: i64,
        verb: &'a str,
        arguments: &'a [Vec<u8>],
    },
    Cancel(i64),
    Ping,
    Forget {
        key: i64,
        end: bool,
    },
    /// The last message: everything in the sandbox shall end.
    Finish,
}

impl AgentRequest<'_> {
    /// Encodes the message as one frame.
    ///
    /// # Errors
    /// When the message is too long.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut out = Vec::new();
        let frame = &mut out;
        match self {
            Self::Spawn { key, argv, env, cwd, stdin, terminal, label } => {
                put_frame(frame, SPAWN, |out| {
                    out.int(*key);
                    out.list(*argv, |out, word| out.text(word));
                    out.list(*env, |out, (name, value)| {
                        out.text(name);
                        out.text(value);
                    });
                    out.text(cwd);
                    out.flag(*stdin);
                    out.flag(terminal.is_some());
                    let (rows, columns) = terminal.unwrap_or_default();
                    out.int(rows.into());
                    out.int(columns.into());
                    out.text(label);
                })
            }
            Self::Worker { key, env, cwd, context } => put_frame(frame, WORKER, |out| {
                out.int(*key);
                out.list(*env, |out, (name, value)| {
                    out.text(name);
                    out.text(value);
                });
                out.text(cwd);
                out.text(context);
            }),
            Self::Data { stream, data } => put_frame(frame, DATA, |out| {
                out.int(*stream);
                out.bytes(data);
            }),
            Self::Input { stream, new, data } => put_frame(frame, INPUT, |out| {
                out.int(*stream);
                out.int(*new);
                out.bytes(data);
            }),
            Self::Channel { stream, new, data } => put_frame(frame, CHANNEL, |out| {
                out.int(*stream);
                out.int(*new);
                out.bytes(data);
            }),
            Self::Copy { stream, copy, data } => put_frame(frame, COPY, |out| {
                out.int(*stream);
                out.int(*copy);
                out.bytes(data);
            }),
            Self::End(stream) => put_frame(frame, END, |out| out.int(*stream)),
            Self::Credit { stream, bytes } => put_frame(frame, CREDIT, |out| {
                out.int(*stream);
                out.int(i64::try_from(*bytes).unwrap_or(i64::MAX));
            }),
            Self::Drop(stream) => put_frame(frame, DROP, |out| out.int(*stream)),
            Self::Signal { key, signal, tree } => put_frame(frame, SIGNAL, |out| {
                out.int(*key);
                out.int((*signal).into());
                out.flag(*tree);
            }),
            Self::Call { token, verb, arguments } => put_frame(frame, CALL, |out| {
                out.int(*token);
                out.text(verb);
                out.list(*arguments, |out, argument| out.bytes(argument));
            }),
            Self::Cancel(token) => put_frame(frame, CANCEL, |out| out.int(*token)),
            Self::Ping => put_frame(frame, PING, |_| {}),
            Self::Finish => put_frame(frame, FINISH, |_| {}),
            Self::Forget { key, end } => put_frame(frame, FORGET, |out| {
                out.int(*key);
                out.flag(*end);
            }),
        }?;
        Ok(out)
    }
}

/// An error of an agent: an error number as a negative, one of ours as a positive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentError {
    pub(crate) code: i64,
    pub(crate) detail: Vec<u8>,
}

/// A message from an agent to the host. All of it is a claim of a hostile sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AgentReply<'a> {
    Hello {
        version: i64,
        nonce: String,
        python: String,
        /// The maximum for each process; a negative number for no limit.
        open_files: i64,
        /// The number of this client among those of a resident agent; 0 for an agent that has one client alone.
        epoch: i64,
    },
    Started {
        key: i64,
        pid: u32,
    },
    NotStarted {
        key: i64,
        stage: u8,
        errno: i32,
    },
    Answer {
        token: i64,
        result: Result<Vec<Vec<u8>>, AgentError>,
    },
    Exit {
        key: i64,
        exit: Exit,
        out_of_memory: bool,
        /// Bytes of its standard input that the process has read, where it had one.
        stdin_read: Option<u64>,
    },
    Data {
        stream: i64,
        data: &'a [u8],
    },
    End {
        stream: i64,
        error: Option<AgentError>,
    },
    Credit {
        stream: i64,
        bytes: usize,
    },
    Broken(i64),
    Pong,
    /// The number of processes that the kernel has killed for memory.
    Killed(u64),
    /// The last message: nothing runs there any more.
    Finished,
}

impl<'a> AgentReply<'a> {
    /// Decodes a frame.
    ///
    /// # Errors
    /// Every message that does not fit the vocabulary exactly.
    pub(crate) fn decode(frame: Frame<'a>) -> Result<Self, WireError> {
        let mut fields = Fields::new(frame.body);
        let said = match frame.kind {
            HELLO => Self::Hello {
                version: fields.int("version")?,
                nonce: fields.text("nonce")?,
                python: fields.text("python")?,
                open_files: fields.int("open files")?,
                epoch: fields.int("epoch")?,
            },
            STARTED => Self::Started { key: fields.int("key")?, pid: fields.number("pid")? },
            NOT_STARTED => Self::NotStarted {
                key: fields.int("key")?,
                stage: fields.number("stage")?,
                errno: fields.number("errno")?,
            },
            ANSWER => {
                let token = fields.int("token")?;
                let (code, detail) = (fields.int("code")?, fields.bytes("detail")?.to_vec());
                let field = |field: &mut Fields<'_>| Ok(field.bytes("field")?.to_vec());
                let answer = fields.list_of("fields", MAX_FIELDS, field)?;
                let result = if code == 0 { Ok(answer) } else { Err(AgentError { code, detail }) };
                Self::Answer { token, result }
            }
            EXIT => {
                let key = fields.int("key")?;
                let (exit, out_of_memory) = exit_of(&mut fields)?;
                let stdin_read = u64::try_from(fields.int("stdin")?).ok();
                Self::Exit { key, exit, out_of_memory, stdin_read }
            }
            DATA => {
                let (stream, data) = (fields.int("stream")?, fields.bytes("data")?);
                if data.len() > CHUNK {
                    return Err(WireError::Invalid("data"));
                }
                Self::Data { stream, data }
            }
            END => {
                let (stream, code) = (fields.int("stream")?, fields.int("code")?);
                let error = match code {
                    0 => None,
                    code => Some(AgentError { code, detail: fields.bytes("detail")?.to_vec() }),
                };
                Self::End { stream, error }
            }
            CREDIT => {
                Self::Credit { stream: fields.int("stream")?, bytes: fields.number("bytes")? }
            }
            BROKEN => Self::Broken(fields.int("stream")?),
            PONG => Self::Pong,
            KILLED => Self::Killed(fields.number("killed")?),
            FINISHED => Self::Finished,
            kind => return Err(WireError::UnknownKind(kind)),
        };
        fields.finish()?;
        Ok(said)
    }
}

/// Decodes the end of a process: its status as `wait` has it, whether it was killed for memory, times in microseconds,
/// and memory in bytes.
fn exit_of(fields: &mut Fields<'_>) -> Result<(Exit, bool), WireError> {
    let status: i32 = fields.number("status")?;
    let out_of_memory = fields.flag("out of memory")?;
    let user = Duration::from_micros(fields.number("user")?);
    let system = Duration::from_micros(fields.number("system")?);
    let max_rss = fields.number("memory")?;
    let signal = Some(status & 0x7f).filter(|signal| *signal != 0);
    let code = signal.is_none().then_some(status >> 8 & 0xff);
    Ok((Exit { code, signal, user, system, max_rss }, out_of_memory))
}

/// Decodes the end of a process from the fields of an answer. `None`: it is not known to be dead.
pub(crate) fn exit_in(answer: &[Vec<u8>]) -> Option<(Exit, bool)> {
    let mut body = Vec::new();
    for field in answer {
        body.extend(u32::try_from(field.len()).ok()?.to_le_bytes());
        body.extend(field);
    }
    exit_of(&mut Fields::new(&body)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use sandbox_python::agent::{AGENT_PARTS, MAIN};
    use sandbox_python::numbers;

    #[test]
    fn agents_have_the_same_numbers() {
        let spoken = ["pipes", "children", "requests"];
        let parts = AGENT_PARTS.iter().filter(|(name, _)| spoken.contains(name));
        let main = [("agent", MAIN)];
        let window = i128::try_from(INCOMING_WINDOW).unwrap();
        let connection = ("CONNECTION", CONNECTION.into());
        numbers::agree(&main, &[("CONNECTION_WINDOW", window), connection]);
        // Credit is given in pieces that a narrow window has room for.
        let quarter = "self.taken >= WINDOW // 4";
        assert_eq!(NARROW_WINDOW, WINDOW / 4);
        assert!(AGENT_PARTS.iter().any(|(name, text)| *name == "pipes" && text.contains(quarter)));
        numbers::agree(
            parts.chain(&main),
            &numbers::named!(
                SPAWN WORKER DATA END CREDIT DROP SIGNAL CALL CANCEL PING FORGET INPUT FINISH CHANNEL COPY HELLO
                STARTED NOT_STARTED ANSWER EXIT PONG BROKEN FINISHED KILLED STDIN STDOUT STDERR CONTROL VERSION WINDOW
                CHUNK
            ),
        );
    }

    proptest! {
        #[test]
        fn nonsense_is_an_error_and_nothing_else(kind: u8, body: Vec<u8>) {
            let _ = AgentReply::decode(Frame { kind, body: &body });
        }
    }

    #[test]
    fn more_data_than_a_chunk_is_refused() {
        let mut out = Vec::new();
        put_frame(&mut out, DATA, |out| {
            out.int(4);
            out.bytes(&vec![0; CHUNK + 1]);
        })
        .unwrap();
        let frame = Frame { kind: out[4], body: &out[5..] };
        assert_eq!(AgentReply::decode(frame), Err(WireError::Invalid("data")));
    }
}
