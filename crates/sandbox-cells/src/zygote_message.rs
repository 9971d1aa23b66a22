//! The messages between a host and a zygote, the warm Python parent that workers are forked from.
//!
//! Messages are sent on a packet socket (`SOCK_SEQPACKET`), one message per packet: kind and fields of
//! [`sandbox_engine::wire`] without the length prefix. After `Start` the zygote sends `Hello`; from then on every
//! request gets exactly one reply, in the order of the requests. `Error` may replace any of them. When the host closes
//! its end, the zygote kills its workers and exits.

use sandbox_engine::wire::{Fields, Frame, WireError, Writer, put_packet};

/// A limit of the kernel for a worker (`setrlimit`).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResourceLimit {
    /// The number of the resource, as in `RLIMIT_*` of this architecture.
    pub resource: u32,
    /// Soft limit in the unit of the resource; `None` is unlimited.
    pub soft: Option<u64>,
    /// Hard limit in the unit of the resource; `None` is unlimited.
    pub hard: Option<u64>,
}

/// Prepares a zygote.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Start {
    /// Modules to import before the first fork. One that fails, or leaves a thread running, ends
    /// the zygote with `Error`.
    pub preimports: Vec<String>,
    /// Modules to import after those, as code in a sandbox named them. Only modules of the interpreter itself are
    /// imported; one that cannot be imported is left out. A module that leaves a thread or a process running ends the
    /// zygote with `Error`, and one that takes too long just ends it.
    pub template_imports: Vec<String>,
    /// Load and exercise all of the driver now, so that workers start and answer faster. Not worth it for a single
    /// worker.
    pub warm: bool,
    /// The program that workers become instead of taking requests, as arguments of the interpreter such as `-m
    /// ipykernel_launcher`. The zygote must have been started with them; it stops where the program would begin, and
    /// its workers continue there. Missing modules to import are left out. Empty: workers take requests.
    pub program: Vec<String>,
}

/// Forks one worker.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Fork {
    /// Enter the cell whose pidfd is attached, and give up every privilege there.
    pub isolated: bool,
    /// User id inside the cell; not used without isolation.
    pub uid: u32,
    /// Group id inside the cell; not used without isolation.
    pub gid: u32,
    /// Working directory, as seen inside the cell.
    pub work_dir: String,
    /// The whole environment of the worker. It is not part of the request, because what a zygote has read can be found
    /// in the memory of each worker that it forks later: [`Fork::environment`] goes to the worker itself.
    pub env: Vec<(String, String)>,
    /// Limits to set, in this order.
    pub rlimits: Vec<ResourceLimit>,
    /// Make the worker a child subreaper, so that its descendants stay below it.
    pub subreaper: bool,
    /// Apply the ruleset that is attached last, which limits where code may write.
    pub ruleset: bool,
    /// The filter of system calls to apply, as instructions of the kernel; empty for none.
    pub filter: Vec<u8>,
    /// Further arguments of the program, for a zygote of a [program](Start::program).
    pub arguments: Vec<String>,
}

/// A message from the host to a zygote.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ZygoteRequest {
    /// The first packet. Answer: `Hello`, or `Error` and the end. A descriptor may be attached: a file into which the
    /// zygote writes the program as byte code before the answer.
    ///
    /// Fields: preimports (list), warm, template_imports (list), program (list).
    Start(Start),
    /// Forks a worker. Descriptors are attached in this order: control stream, standard input, output, error, the pidfd
    /// of the cell when `isolated`, and a Landlock ruleset when `ruleset`. Answer: `Forked`; the worker then takes its
    /// [environment](Fork::environment) from its control stream, and sends `Ready` or `Refused` there. A worker that
    /// becomes a program then waits for any byte, closes the stream, and begins.
    ///
    /// Fields: isolated, uid, gid, work_dir, rlimits (list of resource, soft, hard; -1 is unlimited), subreaper, ruleset,
    /// filter, arguments (list).
    Fork(Fork),
    /// Collects a worker that has died, or kills it first. Answer: `Reaped`. Must be sent once for
    /// every `Forked`, or the worker stays a zombie.
    ///
    /// Fields: pid.
    Reap {
        /// As given by `Forked`.
        pid: u32,
    },
}

/// A message from a zygote to its host.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ZygoteReply {
    /// The zygote is ready to fork.
    ///
    /// Fields: protocol, python_version, executable, prefix, base_prefix, sys_path (list),
    /// threads, imported (list).
    Hello {
        /// [`PROTOCOL_VERSION`](sandbox_engine::PROTOCOL_VERSION) of its sources.
        protocol: u32,
        /// The version, such as `3.11.7`.
        python_version: String,
        /// `sys.executable`.
        executable: String,
        /// `sys.prefix`.
        prefix: String,
        /// `sys.base_prefix`.
        base_prefix: String,
        /// `sys.path`.
        sys_path: Vec<String>,
        /// Threads of the process; always 1.
        threads: u32,
        /// The modules imported on request.
        imported: Vec<String>,
    },
    /// A worker was forked.
    ///
    /// Fields: pid.
    Forked {
        /// The process id on the host.
        pid: u32,
    },
    /// A worker has ended, with the kernel's figures.
    ///
    /// Fields: pid, status, user_micros, system_micros, max_rss_kib.
    Reaped {
        /// The process id, as in `Forked`.
        pid: u32,
        /// The wait status, as from `wait4`.
        status: i32,
        /// Processor time in user mode, in microseconds, waited-for children included.
        user_micros: u64,
        /// Processor time in the kernel, in microseconds, waited-for children included.
        system_micros: u64,
        /// Largest resident set, in KiB.
        max_rss_kib: u64,
    },
    /// The request failed.
    ///
    /// Fields: message.
    Error {
        /// The error; may have several lines.
        message: String,
    },
}

const START: u8 = 1;
const FORK: u8 = 2;
const REAP: u8 = 3;

const HELLO: u8 = 16;
const FORKED: u8 = 17;
const REAPED: u8 = 18;
const ERROR: u8 = 19;

impl ZygoteRequest {
    /// Appends this message to `out` as one packet.
    ///
    /// # Errors
    /// [`WireError::TooLong`] over [`sandbox_engine::wire::MAX_PACKET`]; then `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Self::Start(start) => put_packet(out, START, |out| {
                out.list(&start.preimports, |out, name| out.text(name));
                out.flag(start.warm);
                out.list(&start.template_imports, |out, name| out.text(name));
                out.list(&start.program, |out, word| out.text(word));
            }),
            Self::Fork(fork) => put_packet(out, FORK, |out| fork.write(out)),
            Self::Reap { pid } => put_packet(out, REAP, |out| out.int(i64::from(*pid))),
        }
    }

    /// Reads a packet that a host sent.
    ///
    /// # Errors
    /// Every message that does not fit the vocabulary exactly.
    pub fn decode(packet: &[u8]) -> Result<Self, WireError> {
        Frame::from_packet(packet)?.read(Self::read)
    }

    fn read(kind: u8, fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            START => Self::Start(Start {
                preimports: fields.list("preimports", |name| name.text("name"))?,
                warm: fields.flag("warm")?,
                template_imports: fields.list("template_imports", |name| name.text("name"))?,
                program: fields.list("program", |word| word.text("word"))?,
            }),
            FORK => Self::Fork(Fork::read(fields)?),
            REAP => Self::Reap { pid: fields.number("pid")? },
            kind => return Err(WireError::UnknownKind(kind)),
        })
    }
}

impl Fork {
    /// Returns what the worker reads first on its control stream: the environment, as a list of key and value.
    #[must_use]
    pub fn environment(&self) -> Vec<u8> {
        let mut field = Vec::new();
        Writer::new(&mut field).list(&self.env, |out, (key, value)| {
            out.text(key);
            out.text(value);
        });
        field
    }

    fn write(&self, out: &mut Writer<'_>) {
        out.flag(self.isolated);
        out.int(i64::from(self.uid));
        out.int(i64::from(self.gid));
        out.text(&self.work_dir);
        out.list(&self.rlimits, |out, limit| {
            out.int(i64::from(limit.resource));
            write_limit(out, limit.soft);
            write_limit(out, limit.hard);
        });
        out.flag(self.subreaper);
        out.flag(self.ruleset);
        out.bytes(&self.filter);
        out.list(&self.arguments, |out, word| out.text(word));
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(Self {
            isolated: fields.flag("isolated")?,
            uid: fields.number("uid")?,
            gid: fields.number("gid")?,
            work_dir: fields.text("work_dir")?,
            env: Vec::new(),
            rlimits: fields.list("rlimits", |limit| {
                Ok(ResourceLimit {
                    resource: limit.number("resource")?,
                    soft: read_limit(limit, "soft")?,
                    hard: read_limit(limit, "hard")?,
                })
            })?,
            subreaper: fields.flag("subreaper")?,
            ruleset: fields.flag("ruleset")?,
            filter: fields.bytes("filter")?.to_vec(),
            arguments: fields.list("arguments", |word| word.text("word"))?,
        })
    }
}

/// Writes a limit. A limit beyond `i64` is unlimited.
fn write_limit(out: &mut Writer<'_>, limit: Option<u64>) {
    out.int(limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1));
}

fn read_limit(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<u64>, WireError> {
    match fields.int(name)? {
        -1 => Ok(None),
        limit => u64::try_from(limit).map(Some).map_err(|_| WireError::Invalid(name)),
    }
}

impl ZygoteReply {
    /// Appends this message to `out` as one packet.
    ///
    /// # Errors
    /// [`WireError::TooLong`] over [`sandbox_engine::wire::MAX_PACKET`]; then `out` is as it was.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        put_packet(out, self.kind(), |out| self.write(out))
    }

    /// Reads a packet that a zygote sent.
    ///
    /// # Errors
    /// Every message that does not fit the vocabulary exactly.
    pub fn decode(packet: &[u8]) -> Result<Self, WireError> {
        Frame::from_packet(packet)?.read(Self::read)
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => HELLO,
            Self::Forked { .. } => FORKED,
            Self::Reaped { .. } => REAPED,
            Self::Error { .. } => ERROR,
        }
    }

    fn write(&self, out: &mut Writer<'_>) {
        match self {
            Self::Hello {
                protocol,
                python_version,
                executable,
                prefix,
                base_prefix,
                sys_path,
                threads,
                imported,
            } => {
                out.int(i64::from(*protocol));
                out.text(python_version);
                out.text(executable);
                out.text(prefix);
                out.text(base_prefix);
                out.list(sys_path, |out, path| out.text(path));
                out.int(i64::from(*threads));
                out.list(imported, |out, name| out.text(name));
            }
            Self::Forked { pid } => out.int(i64::from(*pid)),
            Self::Reaped { pid, status, user_micros, system_micros, max_rss_kib } => {
                out.int(i64::from(*pid));
                out.int(i64::from(*status));
                for number in [user_micros, system_micros, max_rss_kib] {
                    out.int(i64::try_from(*number).unwrap_or(i64::MAX));
                }
            }
            Self::Error { message } => out.text(message),
        }
    }

    fn read(kind: u8, fields: &mut Fields<'_>) -> Result<Self, WireError> {
        Ok(match kind {
            HELLO => Self::Hello {
                protocol: fields.number("protocol")?,
                python_version: fields.text("python_version")?,
                executable: fields.text("executable")?,
                prefix: fields.text("prefix")?,
                base_prefix: fields.text("base_prefix")?,
                sys_path: fields.list("sys_path", |path| path.text("path"))?,
                threads: fields.number("threads")?,
                imported: fields.list("imported", |name| name.text("name"))?,
            },
            FORKED => Self::Forked { pid: fields.number("pid")? },
            REAPED => Self::Reaped {
                pid: fields.number("pid")?,
                status: fields.number("status")?,
                user_micros: fields.number("user_micros")?,
                system_micros: fields.number("system_micros")?,
                max_rss_kib: fields.number("max_rss_kib")?,
            },
            ERROR => Self::Error { message: fields.text("message")? },
            kind => return Err(WireError::UnknownKind(kind)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_python::{ZYGOTE, numbers};

    #[test]
    fn the_zygote_has_the_same_numbers() {
        let ours = numbers::named!(START FORK REAP HELLO FORKED REAPED ERROR);
        numbers::agree(&[("zygote", ZYGOTE)], &ours);
    }
}
