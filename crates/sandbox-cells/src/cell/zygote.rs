//! The warm interpreter that workers are forked from.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use sandbox_core::{Effect, Error, ErrorKind, Result};
use sandbox_isolation::{CellLauncher, LauncherProcess, ProcessSpec};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::streams::{send, watch};
use crate::zygote_message::{Fork, Start, ZygoteReply, ZygoteRequest};
use sandbox_engine::host::Exit;
use sandbox_engine::wire::MAX_PACKET;

/// How long a zygote may take to start and import its modules.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a fork or a reap may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of bytes of standard error in the error of a failed start.
const SHOWN_STDERR: usize = 4096;

/// A warm interpreter. Dropping the last handle ends it and every worker.
#[derive(Debug)]
pub struct Zygote {
    requests: mpsc::UnboundedSender<Request>,
    hello: Hello,
    process: LauncherProcess,
    byte_code: Option<Vec<u8>>,
}

/// The form in which a zygote gets its program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// Text, which every interpreter understands.
    Text,
    /// An archive that is found where the program of a zygote would begin: see [`Start::program`].
    Archive,
    /// The result of [`Zygote::byte_code`] of the same interpreter and the same [`sandbox_python::program_id`].
    /// Starting takes less than half as long.
    ByteCode(Vec<u8>),
}

impl Program {
    fn bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Text => Cow::Owned(sandbox_python::program().into_bytes()),
            Self::Archive => Cow::Owned(sandbox_python::archive()),
            Self::ByteCode(bytes) => Cow::Borrowed(bytes),
        }
    }
}

/// What a zygote reports of its interpreter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The version, such as `3.11.7`.
    pub version: String,
    /// `sys.executable`.
    pub executable: String,
    /// `sys.prefix`.
    pub prefix: String,
    /// `sys.base_prefix`.
    pub base_prefix: String,
    /// `sys.path`.
    pub sys_path: Vec<String>,
}

#[derive(Debug)]
struct Request {
    packet: Vec<u8>,
    descriptors: Vec<OwnedFd>,
    answer: oneshot::Sender<Response>,
}

/// A reply for the caller of a request. A worker whose reply never arrives, as when the caller's runtime has ended, is
/// reaped here: otherwise its cell could not end.
#[derive(Debug)]
struct Response {
    reply: Option<ZygoteReply>,
    requests: mpsc::WeakUnboundedSender<Request>,
}

impl Response {
    fn new(reply: ZygoteReply, requests: &mpsc::WeakUnboundedSender<Request>) -> Self {
        Self { reply: Some(reply), requests: requests.clone() }
    }

    fn arrive(mut self) -> Option<ZygoteReply> {
        self.reply.take()
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if let (Some(ZygoteReply::Forked { pid }), Some(requests)) =
            (&self.reply, self.requests.upgrade())
        {
            drop(ask(&requests, ZygoteRequest::Reap { pid: *pid }, Vec::new()));
        }
    }
}

impl Zygote {
    /// Starts a zygote and waits until it has imported its modules.
    ///
    /// # Errors
    /// `Unavailable` when it does not start, with its output.
    pub async fn start(
        maker: &CellLauncher,
        executable: &Path,
        start: Start,
        program: Program,
    ) -> Result<Arc<Self>> {
        if !start.program.is_empty() {
            check_home(Path::new(sandbox_python::HOME))?;
        }
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed("could not make a socket", error))?;
        rustix::io::ioctl_fionbio(&ours, true)
            .map_err(|error| failed("could not make a socket", error))?;
        let no_file = |error| failed("could not make a memory file", error);
        let text = memory_file(program.bytes().as_ref()).map_err(no_file)?;
        let stderr = memory_file(&[]).map_err(no_file)?;
        let shown = stderr.try_clone().map_err(no_file)?;
        let byte_code = match program {
            Program::Text => Some(memory_file(&[]).map_err(no_file)?),
            Program::Archive | Program::ByteCode(_) => None,
        };
        let for_byte_code =
            byte_code.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>().map_err(no_file)?;
        let process = maker
            .start_process(spec(executable, &start.program, [theirs, text, stderr]))
            .await
            .map_err(|error| failed(&format!("could not start {}", executable.display()), error))?;
        let socket = watch(ours, Interest::READABLE | Interest::WRITABLE)
            .map_err(|error| failed("could not watch a socket", error))?;
        let (requests, inbox) = mpsc::unbounded_channel();
        let round_trip = RoundTrip {
            socket,
            inbox,
            requests: requests.downgrade(),
            unsent: VecDeque::new(),
            waiting: VecDeque::new(),
        };
        tokio::spawn(round_trip.run());
        let begun = ask(&requests, ZygoteRequest::Start(start), for_byte_code);
        let reply = match timeout(START_TIMEOUT, arrival(begun)).await {
            Ok(Some(reply)) => reply,
            Ok(None) => return Err(died_at_start(executable, &shown)),
            Err(_) => {
                return Err(Error::new(
                    ErrorKind::Timeout,
                    "start_python",
                    format!(
                        "{} was not ready after {} s",
                        executable.display(),
                        START_TIMEOUT.as_secs()
                    ),
                ));
            }
        };
        match reply {
            ZygoteReply::Hello {
                python_version,
                executable,
                prefix,
                base_prefix,
                sys_path,
                ..
            } => {
                let version = python_version;
                let hello = Hello { version, executable, prefix, base_prefix, sys_path };
                let byte_code = byte_code.as_ref().and_then(contents);
                Ok(Arc::new(Self { requests, hello, process, byte_code }))
            }
            ZygoteReply::Error { message } => {
                Err(Error::new(ErrorKind::Unavailable, "start_python", message))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Returns what the zygote reported of its interpreter.
    pub fn hello(&self) -> &Hello {
        &self.hello
    }

    /// Returns the program as this interpreter compiled it, when it was started from text.
    pub fn byte_code(&self) -> Option<&[u8]> {
        self.byte_code.as_deref()
    }

    /// Returns the process id on this host.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns true while it answers requests.
    pub fn is_alive(&self) -> bool {
        !self.requests.is_closed()
    }

    /// Forks a worker, and returns its process id on this host.
    pub(crate) async fn fork(&self, fork: Fork, descriptors: Vec<OwnedFd>) -> Result<u32> {
        match self.ask(ZygoteRequest::Fork(fork), descriptors).await? {
            ZygoteReply::Forked { pid } => Ok(pid),
            ZygoteReply::Error { message } => {
                // What a host forbids is not used up.
                let forbidden = message.starts_with("PermissionError");
                let kind = if forbidden {
                    ErrorKind::IsolationUnavailable
                } else {
                    ErrorKind::ResourceExhausted
                };
                Err(Error::new(kind, "start_interpreter", message))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Reaps a worker, killing it when it still lives, and returns how it ended.
    pub(crate) async fn reap(&self, pid: u32) -> Result<Exit> {
        match self.ask(ZygoteRequest::Reap { pid }, Vec::new()).await? {
            ZygoteReply::Reaped { status, user_micros, system_micros, max_rss_kib, .. } => {
                let signal = status & 0x7f;
                Ok(Exit {
                    code: (signal == 0).then_some((status >> 8) & 0xff),
                    signal: (signal != 0).then_some(signal),
                    user: Duration::from_micros(user_micros),
                    system: Duration::from_micros(system_micros),
                    max_rss: max_rss_kib * 1024,
                })
            }
            ZygoteReply::Error { message } => Err(Error::new(ErrorKind::NotFound, "wait", message)),
            other => Err(unexpected(&other)),
        }
    }

    /// Reaps a worker without waiting for the answer. For destructors.
    pub(crate) fn reap_later(&self, pid: u32) {
        drop(ask(&self.requests, ZygoteRequest::Reap { pid }, Vec::new()));
    }

    async fn ask(&self, request: ZygoteRequest, descriptors: Vec<OwnedFd>) -> Result<ZygoteReply> {
        match timeout(REPLY_TIMEOUT, arrival(ask(&self.requests, request, descriptors))).await {
            Ok(Some(reply)) => Ok(reply),
            Ok(None) => Err(Error::new(
                ErrorKind::Unavailable,
                "start_interpreter",
                "the warm interpreter is gone",
            )
            .with_effect(Effect::Unknown)),
            Err(_) => Err(Error::new(
                ErrorKind::Timeout,
                "start_interpreter",
                "the warm interpreter hangs",
            )),
        }
    }
}

fn ask(
    requests: &mpsc::UnboundedSender<Request>,
    request: ZygoteRequest,
    descriptors: Vec<OwnedFd>,
) -> oneshot::Receiver<Response> {
    let (answer, receiver) = oneshot::channel();
    let mut packet = Vec::new();
    // What does not encode is never sent, and a dropped sender is an answer too.
    if request.encode(&mut packet).is_ok() {
        let _ = requests.send(Request { packet, descriptors, answer });
    }
    receiver
}

async fn arrival(answer: oneshot::Receiver<Response>) -> Option<ZygoteReply> {
    answer.await.ok()?.arrive()
}

/// Sends requests and hands out replies, which come in the order of the requests.
struct RoundTrip {
    socket: AsyncFd<OwnedFd>,
    inbox: mpsc::UnboundedReceiver<Request>,
    requests: mpsc::WeakUnboundedSender<Request>,
    unsent: VecDeque<Request>,
    waiting: VecDeque<oneshot::Sender<Response>>,
}

impl RoundTrip {
    async fn run(mut self) {
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            tokio::select! {
                asked = self.inbox.recv() => match asked {
                    Some(asked) => self.unsent.push_back(asked),
                    None => return,
                },
                guard = self.socket.readable() => {
                    let Ok(mut guard) = guard else { return };
                    let received = guard.try_io(|fd| {
                        Ok(recv(fd, &mut buffer[..], RecvFlags::DONTWAIT)?.1)
                    });
                    match received {
                        Ok(Ok(0) | Err(_)) => return,
                        Ok(Ok(count)) => {
                            let Ok(reply) = ZygoteReply::decode(&buffer[..count]) else { return };
                            let Some(answer) = self.waiting.pop_front() else { return };
                            let _ = answer.send(Response::new(reply, &self.requests));
                        }
                        Err(_would_block) => {}
                    }
                },
                guard = self.socket.writable(), if !self.unsent.is_empty() => {
                    let Ok(mut guard) = guard else { return };
                    let Some(asked) = self.unsent.front() else { continue };
                    let descriptors: Vec<BorrowedFd<'_>> =
                        asked.descriptors.iter().map(AsFd::as_fd).collect();
                    match guard.try_io(|fd| send(fd.as_fd(), &asked.packet, &descriptors)) {
                        Ok(Ok(_)) => {
                            let sent = self.unsent.pop_front();
                            self.waiting.extend(sent.map(|asked| asked.answer));
                        }
                        Ok(Err(_)) => return,
                        Err(_would_block) => {}
                    }
                },
            }
        }
    }
}

fn memory_file(contents: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create("sandbox-agent", MemfdFlags::CLOEXEC)?;
    let mut rest = contents;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file)
}

fn contents(file: &OwnedFd) -> Option<Vec<u8>> {
    let length = rustix::fs::fstat(file).ok()?.st_size;
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    let count = rustix::io::pread(file, &mut bytes[..], 0).ok()?;
    (count > 0 && count == bytes.len()).then_some(bytes)
}

/// Refuses to start where a user of this host has the home that cells have: that user would decide what the interpreter
/// runs outside of a cell.
fn check_home(home: &Path) -> Result<()> {
    match fs::symlink_metadata(home) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Unavailable,
            "start_python",
            format!("{} is a home directory on this host", home.display()),
        )),
    }
}

fn spec(executable: &Path, becomes: &[String], descriptors: [OwnedFd; 3]) -> ProcessSpec {
    let [control, program, stderr] = descriptors;
    let mut argv = vec![OsString::from(executable)];
    let mut env = vec![
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("LANG", "C.UTF-8"),
        // Symbols are looked up once, here, and not by every worker again.
        ("LD_BIND_NOW", "1"),
    ];
    if becomes.is_empty() {
        argv.extend(sandbox_python::ARGUMENTS.map(OsString::from));
    } else {
        argv.extend(becomes.iter().map(OsString::from));
        argv.push(sandbox_python::VERSION_FLAG.into());
        env.extend(sandbox_python::PROGRAM_VARIABLES);
    }
    ProcessSpec {
        argv,
        env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: Some("/".into()),
        fds: vec![
            (stderr, 2),
            (control, sandbox_python::CONTROL_FD.unsigned_abs()),
            (program, sandbox_python::PROGRAM_FD.unsigned_abs()),
        ],
    }
}

fn died_at_start(executable: &Path, stderr: &OwnedFd) -> Error {
    let mut text = vec![0; SHOWN_STDERR];
    let count = rustix::io::pread(stderr, &mut text, 0).unwrap_or(0);
    let printed = String::from_utf8_lossy(&text[..count]).trim().to_owned();
    let message = format!("{} did not start: {printed}", executable.display());
    Error::new(ErrorKind::Unavailable, "start_python", message)
        .with_hint("a CPython of version 3.9 or later is needed")
}

fn failed(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, "start_python", what).with_source(error)
}

fn unexpected(reply: &ZygoteReply) -> Error {
    Error::new(ErrorKind::Protocol, "start_interpreter", format!("unexpected reply {reply:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_may_have_the_home_of_cells() {
        let folder = tempfile::tempdir().unwrap();
        let error = check_home(folder.path()).unwrap_err();
        assert!(error.to_string().contains("home directory"), "{error}");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/nowhere", &link).unwrap();
        check_home(&link).unwrap_err();
        check_home(&folder.path().join("none")).unwrap();
    }
}
