//! The host side of an agent: processes, files and ports of a container over one stream of bytes in each direction.
//!
//! The agent is the first process of the container. It is sent over the same connection
//! ([`arguments`](sandbox_python::agent::arguments) makes an interpreter that takes it in), needs no port, no network
//! and no file, and ends with the connection, and the container with it. A *resident* agent is a daemon of a sandbox
//! elsewhere ([`AgentConnection::connect_resident`]): it stays when its client goes, with the contexts that are idle.

mod archive;
mod call;
mod checkpoint;
mod connection;
mod error;
mod fd_transfer;
mod files;
mod message;
mod process;
mod python;
mod resident;
mod streams;
mod tunnel;
mod usage;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use futures_util::StreamExt as _;
use sandbox_core::{ByteSize, Error, ErrorKind, PtySize, Result, Secret};
use tokio::io::AsyncWriteExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

use self::call::Call;
pub use self::connection::{AgentReader, AgentWriter};
use self::connection::{Connection, SILENCE_TIMEOUT};
pub use self::fd_transfer::LocateProcess;
pub use self::files::AgentFiles;
use self::message::{AgentReply, AgentRequest, CONTROL, STDERR, STDIN, STDOUT, VERSION, stream};
use self::process::{AgentProcess, AgentTerminal, ProcessState};
pub use self::python::AgentPython;
pub use self::resident::{
    AgentHost, AgentRoute, AgentStreams, ResidentAgent, START_PYTHON, commands_alone,
    is_without_python, parse_environment, without_python,
};
use self::streams::{ControlStream, Reader, Writer};
pub use self::tunnel::{AgentListener, AgentPorts, Listener, PeerProcess, Tunnel};
pub use self::usage::AgentUsage;
use sandbox_engine::commands::{KeptCommand, STOPPED};
use sandbox_engine::host::{
    Endpoint, PendingCheckpoint, Process, ProcessHost, SideChannel, Spawn, Spawned, Terminal,
    WorkerIo, WorkerSpec, Writable,
};
use sandbox_engine::wire::FrameReader;
use sandbox_python::agent::{ByteCode, PycMagic, agent};

/// How long an agent may take to arrive.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of the greeting, with what may come before it.
const MAX_GREETING_SIZE: usize = 64 << 10;

/// A connection to an agent. Dropping it, and everything that came from it, ends the sandbox.
pub struct AgentConnection {
    connection: Arc<Connection>,
    greeting: Greeting,
    memory: Option<ByteSize>,
}

/// What an agent reports when it arrives.
struct Greeting {
    python: String,
    open_files: Option<u32>,
    epoch: i64,
}

/// Options of a connection.
#[derive(Clone, Copy)]
pub struct Connecting<'a> {
    /// Time without any message after which the connection counts as lost: 45 seconds by default.
    pub silence: Duration,
    /// Returns the byte code of the agent, so that the interpreter need not compile it: none by default.
    pub byte_code: ByteCode<'a>,
}

impl Default for Connecting<'_> {
    fn default() -> Self {
        Self { silence: SILENCE_TIMEOUT, byte_code: &|_| None }
    }
}

impl fmt::Debug for Connecting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").field("silence", &self.silence).finish_non_exhaustive()
    }
}

/// The reason why no agent answered.
#[derive(Debug)]
pub struct ConnectError {
    error: Error,
    interpreter_ended: bool,
}

impl ConnectError {
    /// Returns true if the interpreter ended before the agent answered: it is too old, or for another processor.
    pub fn interpreter_ended(&self) -> bool {
        self.interpreter_ended
    }
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self { error, interpreter_ended: false }
    }
}

impl From<ConnectError> for Error {
    fn from(failure: ConnectError) -> Self {
        failure.error
    }
}

impl fmt::Debug for AgentConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentConnection")
            .field("connection", &self.connection)
            .finish_non_exhaustive()
    }
}

impl Drop for AgentConnection {
    fn drop(&mut self) {
        self.connection.close();
    }
}

impl AgentConnection {
    /// Sends the agent to an interpreter that was started with
    /// [`arguments`](sandbox_python::agent::arguments) of that nonce.
    ///
    /// # Errors
    /// `Unavailable` when there is no such interpreter, or one that is too old.
    pub async fn connect(from: AgentReader, into: AgentWriter, nonce: &str) -> Result<Self> {
        Ok(Self::connect_with(from, into, nonce, Connecting::default()).await?)
    }

    /// Connects with other options.
    ///
    /// # Errors
    /// As [`AgentConnection::connect`].
    pub async fn connect_with(
        mut from: AgentReader,
        mut into: AgentWriter,
        nonce: &str,
        Connecting { silence, byte_code }: Connecting<'_>,
    ) -> std::result::Result<Self, ConnectError> {
        let arrival = async {
            let mut heard = BytesMut::new();
            let magic = await_bootstrap(&mut from, &mut heard, nonce).await?;
            let byte_code = magic.and_then(byte_code);
            send_agent(&mut into, byte_code.as_deref()).await.map_err(|error| {
                refused("the agent could not be sent", &heard).with_source(error)
            })?;
            let greeting = hello(&mut from, &mut heard, nonce).await?;
            Ok::<_, ConnectError>((heard.freeze(), greeting))
        };
        let (rest, greeting) = timeout(ARRIVAL_TIMEOUT, arrival)
            .await
            .map_err(|_| refused("the agent did not arrive in time", &[]))??;
        let connection = Connection::open(from, rest, into, silence, None);
        Ok(Self { connection, greeting, memory: None })
    }

    /// Connects to the resident agent of a sandbox through an interpreter that was started with
    /// [`relay_arguments`](sandbox_python::agent::relay_arguments) of that nonce, and sends the agent where there is none.
    /// Only a client with the token of the first one is taken, and it takes over from the one before.
    ///
    /// Dropping the connection ends nothing but what the agent keeps for no other client: code that runs, and commands.
    ///
    /// # Errors
    /// As [`AgentConnection::connect`]. The interpreter says on its standard error why the agent has refused this client.
    pub async fn connect_resident(
        mut from: AgentReader,
        mut into: AgentWriter,
        nonce: &str,
        token: &Secret,
    ) -> std::result::Result<Self, ConnectError> {
        let arrival = async {
            let mut heard = BytesMut::new();
            let is_new = await_relay(&mut from, &mut heard, nonce).await?;
            let sending = async {
                into.write_all(token.expose().as_bytes()).await?;
                into.write_all(b"\n").await?;
                if is_new { send_agent(&mut into, None).await } else { into.flush().await }
            };
            sending.await.map_err(|error| {
                refused("the agent could not be sent", &heard).with_source(error)
            })?;
            let greeting = hello(&mut from, &mut heard, nonce).await?;
            Ok::<_, ConnectError>((heard.freeze(), greeting))
        };
        let (rest, greeting) = timeout(ARRIVAL_TIMEOUT, arrival)
            .await
            .map_err(|_| refused("the agent did not arrive in time", &[]))??;
        let epoch = Some(greeting.epoch);
        let connection = Connection::open(from, rest, into, SILENCE_TIMEOUT, epoch);
        Ok(Self { connection, greeting, memory: None })
    }

    /// Returns the contexts whose interpreters a resident agent has kept for this client.
    ///
    /// # Errors
    /// `Unavailable` when the agent does not answer, `Terminated` when the sandbox has ended.
    pub async fn kept_contexts(&self) -> Result<Vec<String>> {
        let answer = Call::begin(&self.connection, "contexts", &[])?.answer().await;
        let answer = answer.map_err(|_| self.connection.lost())?;
        Ok(answer.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    /// Returns the commands in the background that a resident agent has kept for this client: what identifies each, and how
    /// its streams are taken.
    ///
    /// # Errors
    /// As [`AgentConnection::kept_contexts`].
    pub async fn kept_commands(&self) -> Result<Vec<(KeptCommand, Spawn)>> {
        let answer = Call::begin(&self.connection, "commands", &[])?.answer().await;
        let answer = answer.map_err(|_| self.connection.lost())?;
        let (entries, _) = answer.as_chunks::<3>();
        let is_set = |field: &[u8]| field.iter().any(|byte| *byte != 0);
        let spawn = |[label, stdin, terminal]: &[Vec<u8>; 3]| {
            let label = String::from_utf8(label.clone()).ok()?;
            let kept = KeptCommand::from_label(&label)?;
            let spawn = Spawn {
                argv: Vec::new(),
                env: BTreeMap::new(),
                cwd: String::new(),
                stdin: is_set(stdin),
                terminal: is_set(terminal).then(PtySize::default),
                label: Some(label),
                as_root: false,
                limit: None,
            };
            Some((kept, spawn))
        };
        Ok(entries.iter().filter_map(spawn).collect())
    }

    /// Starts the interpreter of a context, or takes the one that a resident agent has kept, with its variables.
    ///
    /// # Errors
    /// As [`ProcessHost::start_worker`].
    pub async fn start_context(&self, context: &str, spec: WorkerSpec) -> Result<WorkerIo> {
        let key = self.connection.new_key();
        let request = AgentRequest::Worker { key, env: &spec.env, cwd: &spec.cwd, context };
        let reader = |which| Reader::new(&self.connection, stream(key, which));
        let (stdout, stderr, control) = (reader(STDOUT), reader(STDERR), reader(CONTROL));
        let writer = Writer::new(&self.connection, stream(key, STDIN), true);
        let process = self.start(key, true, &request).await?.map_err(|(_, errno)| {
            Error::new(ErrorKind::ResourceExhausted, "start_interpreter", "no process could start")
                .with_source(std::io::Error::from_raw_os_error(errno))
        })?;
        Ok(WorkerIo {
            process,
            control: Arc::new(ControlStream { reader: control, writer }),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
        })
    }

    /// Sets the memory limit that errors name when the kernel kills a process for memory.
    #[must_use]
    pub fn with_memory(mut self, limit: ByteSize) -> Self {
        self.memory = Some(limit);
        self
    }

    /// Returns the version of the interpreter in the sandbox.
    pub fn python(&self) -> &str {
        &self.greeting.python
    }

    /// Returns how many files each process may have open: the number that was asked for, or the maximum. `None`: no
    /// limit.
    pub fn open_files(&self) -> Option<u32> {
        self.greeting.open_files
    }

    /// Returns the files. Relative paths begin at `base`. They do not keep the sandbox alive.
    pub fn files(&self, base: &str) -> AgentFiles {
        AgentFiles::new(Arc::clone(&self.connection), base)
    }

    /// Returns the servers.
    pub fn ports(&self) -> AgentPorts {
        AgentPorts::new(Arc::clone(&self.connection))
    }

    /// Returns the usage.
    pub fn usage(&self) -> AgentUsage {
        AgentUsage::new(Arc::clone(&self.connection))
    }

    /// Returns the handle that pauses the sandbox. It does not keep the sandbox alive.
    pub fn pauser(&self) -> Pauser {
        Pauser(Arc::downgrade(&self.connection))
    }

    /// Returns the reason of a broken connection, when it was not closed here and its end was not announced.
    pub fn lost_reason(&self) -> Option<String> {
        self.connection.lost_reason()
    }

    /// Returns true while the agent can be reached.
    pub fn is_open(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Starts a process, and waits until it has started.
    async fn start(
        &self,
        key: i64,
        is_worker: bool,
        request: &AgentRequest<'_>,
    ) -> Result<std::result::Result<Arc<dyn Process>, (u8, i32)>> {
        let state = Arc::new(ProcessState::default());
        let started = self.connection.expect_start(key);
        self.connection.add_process(key, &state);
        // From here on the process is killed when the caller is cancelled.
        let (connection, memory) = (Arc::clone(&self.connection), self.memory);
        let mut process = AgentProcess { connection, key, pid: 0, state, is_worker: true, memory };
        self.connection.send_first(request)?;
        match started.await.map_err(|_| self.connection.lost())? {
            Ok(pid) => {
                (process.pid, process.is_worker) = (pid, is_worker);
                Ok(Ok(Arc::new(process)))
            }
            Err(reason) => Ok(Err(reason)),
        }
    }
}

/// Pauses a sandbox, and records when another program pauses it: it cannot answer then, and is not lost.
#[derive(Clone, Debug)]
pub struct Pauser(Weak<Connection>);

impl Pauser {
    /// Call this before another program pauses the sandbox. It may answer again when the guard is dropped.
    pub fn mark_paused(&self) -> PauseGuard {
        if let Some(connection) = self.0.upgrade() {
            connection.mark_paused();
        }
        PauseGuard(Weak::clone(&self.0))
    }

    /// Has the agent stop all other processes. The agent itself runs, and ends all of them with its connection.
    ///
    /// # Errors
    /// `Unavailable` when they cannot be stopped, `Terminated` when the sandbox has ended.
    pub async fn pause(&self) -> Result<()> {
        self.ask("pause", "pause").await
    }

    /// Has the agent continue the processes, but for those that had been stopped before.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended.
    pub async fn resume(&self) -> Result<()> {
        self.ask("resume", "resume").await
    }

    async fn ask(&self, verb: &str, operation: &'static str) -> Result<()> {
        let connection = self.0.upgrade().ok_or_else(|| connection::lost(operation, None))?;
        let answer = Call::begin(&connection, verb, &[])?.answer().await;
        answer.map(drop).map_err(|_| match connection.is_closed() {
            true => connection.lost(),
            false => Error::new(
                ErrorKind::Unavailable,
                operation,
                "its processes cannot be stopped or continued",
            ),
        })
    }
}

/// Records that a sandbox is paused while this lives. There may be further guards.
#[derive(Debug)]
#[must_use]
pub struct PauseGuard(Weak<Connection>);

impl Drop for PauseGuard {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.mark_resumed();
        }
    }
}

#[async_trait]
impl ProcessHost for AgentConnection {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        let key = self.connection.new_key();
        let request = AgentRequest::Spawn {
            key,
            argv: &spec.argv,
            env: &spec.env,
            cwd: &spec.cwd,
            stdin: spec.stdin,
            terminal: spec.terminal.map(|size| (size.rows, size.columns)),
            label: spec.label.as_deref().unwrap_or_default(),
        };
        let reader = |which| Reader::new(&self.connection, stream(key, which));
        let (stdout, stderr) = (reader(STDOUT), reader(STDERR));
        let has_input = spec.stdin || spec.terminal.is_some();
        let stdin = has_input.then(|| Writer::new(&self.connection, stream(key, STDIN), false));
        let process = self
            .start(key, false, &request)
            .await?
            .map_err(|(stage, errno)| not_started(&spec, stage, errno))?;
        let terminal = AgentTerminal { connection: Arc::clone(&self.connection), key };
        let on_terminal = spec.terminal.is_some();
        Ok(Spawned {
            process,
            stdin: stdin.map(|stdin| Box::new(stdin) as Box<dyn Writable>),
            stdout: Box::new(stdout),
            stderr: if on_terminal { None } else { Some(Box::new(stderr)) },
            terminal: on_terminal.then(|| Box::new(terminal) as Box<dyn Terminal>),
        })
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        self.start_context("", spec).await
    }

    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        Ok(Some(self.begin_copy()))
    }

    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        let made = std::os::unix::net::UnixStream::pair().and_then(|(ours, theirs)| {
            ours.set_nonblocking(true)?;
            Ok((UnixStream::from_std(ours)?, SideChannel(Endpoint::File(theirs.into()))))
        });
        made.map(Some).map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, "start", "no descriptors are left")
                .with_source(error)
        })
    }

    fn kill(&self) {
        self.connection.close();
    }

    async fn closed(&self) {
        self.connection.gone().await;
    }
}

/// Waits for the line that only the bootstrap can know. Whatever comes before it is dropped. Returns the kind of byte
/// code that it takes.
async fn await_bootstrap(
    from: &mut AgentReader,
    heard: &mut BytesMut,
    nonce: &str,
) -> std::result::Result<Option<PycMagic>, ConnectError> {
    let greeting = format!("code-sandboxes-agent {VERSION} {nonce} ");
    loop {
        let text = String::from_utf8_lossy(heard).into_owned();
        if let Some((_, rest)) = text.split_once(&greeting)
            && let Some((magic, _)) = rest.split_once('\n')
        {
            let end = heard.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
            drop(heard.split_to(end + 1));
            return Ok(magic.parse().ok());
        }
        if heard.len() > MAX_GREETING_SIZE {
            return Err(refused("something else than the agent has answered", heard).into());
        }
        more(from, heard).await?;
    }
}

/// Waits for the line of a relay, and returns true when it is to be sent the agent. Whatever comes before the line is
/// dropped.
async fn await_relay(
    from: &mut AgentReader,
    heard: &mut BytesMut,
    nonce: &str,
) -> std::result::Result<bool, ConnectError> {
    let greeting = format!("code-sandboxes-relay {VERSION} {nonce} ");
    loop {
        let text = String::from_utf8_lossy(heard).into_owned();
        if let Some((_, rest)) = text.split_once(&greeting)
            && let Some((line, _)) = rest.split_once('\n')
        {
            let end = heard.iter().rposition(|byte| *byte == b'\n').unwrap_or_default();
            drop(heard.split_to(end + 1));
            return Ok(line.starts_with("new "));
        }
        if heard.len() > MAX_GREETING_SIZE {
            return Err(refused("something else than the agent has answered", heard).into());
        }
        more(from, heard).await?;
    }
}

async fn send_agent(into: &mut AgentWriter, byte_code: Option<&[u8]>) -> std::io::Result<()> {
    let program = byte_code.unwrap_or(agent().as_bytes());
    let length = u32::try_from(program.len()).unwrap_or(u32::MAX);
    into.write_all(&[byte_code.is_some().into()]).await?;
    into.write_all(&length.to_le_bytes()).await?;
    into.write_all(program).await?;
    into.flush().await
}

/// Waits for the agent's own greeting. Leaves what came after it.
async fn hello(
    from: &mut AgentReader,
    heard: &mut BytesMut,
    expected: &str,
) -> std::result::Result<Greeting, ConnectError> {
    loop {
        let mut frames = FrameReader::new();
        frames.push(heard);
        let found = match frames.next_frame() {
            Ok(Some(frame)) => Some(AgentReply::decode(frame).map_err(|error| error.to_string())),
            Ok(None) => None,
            Err(error) => Some(Err(error.to_string())),
        };
        match found {
            None => more(from, heard).await?,
            Some(Ok(AgentReply::Hello { version: VERSION, nonce, python, open_files, epoch }))
                if nonce == expected =>
            {
                let length = heard.len() - frames.pending();
                drop(heard.split_to(length));
                let open_files = u32::try_from(open_files).ok();
                return Ok(Greeting { python, open_files, epoch });
            }
            Some(_) => return Err(refused("the agent did not answer as expected", heard).into()),
        }
    }
}

async fn more(
    from: &mut AgentReader,
    heard: &mut BytesMut,
) -> std::result::Result<(), ConnectError> {
    match from.next().await {
        Some(Ok(bytes)) => {
            heard.extend_from_slice(&bytes);
            Ok(())
        }
        Some(Err(error)) => Err(refused("the connection broke", heard).with_source(error).into()),
        None => Err(ConnectError {
            error: refused("the interpreter ended before the agent was there", heard),
            interpreter_ended: true,
        }),
    }
}

fn refused(problem: &str, heard: &[u8]) -> Error {
    const MAX_SHOWN: usize = 500;
    let mut message = problem.to_owned();
    let said = String::from_utf8_lossy(&heard[..heard.len().min(MAX_SHOWN)]);
    if !said.trim().is_empty() {
        message += &format!(": {:?}", said.trim());
    }
    Error::new(ErrorKind::Unavailable, "create", message)
}

/// Makes the error of a program that did not start, from the step that failed and its error number.
fn not_started(spec: &Spawn, stage: u8, errno: i32) -> Error {
    const ENOENT: i32 = 2;
    const EACCES: i32 = 13;
    const ENOTDIR: i32 = 20;
    const EISDIR: i32 = 21;
    // The agent reports this for a process that was stopped before it was its program, and was killed.
    const ETIMEDOUT: i32 = 110;
    let program = spec.argv.first().map_or("", String::as_str);
    let source = std::io::Error::from_raw_os_error(errno);
    let make = |kind, message: String| Error::new(kind, "start_command", message);
    match (stage, errno) {
        (b'p', ENOENT | ENOTDIR) => {
            make(ErrorKind::NotFound, format!("{program}: command not found"))
        }
        (b'p', EACCES | EISDIR) => {
            make(ErrorKind::PermissionDenied, format!("{program}: not executable"))
        }
        (b'p', _) => make(ErrorKind::InvalidArgument, format!("{program}: {source}")),
        (b'd', _) => make(ErrorKind::NotFound, format!("working directory {}: {source}", spec.cwd))
            .with_context("directory", spec.cwd.as_str()),
        (_, ETIMEDOUT) => {
            make(ErrorKind::Timeout, "the command was stopped before it began".into())
                .with_hint(STOPPED)
        }
        _ => make(ErrorKind::ResourceExhausted, format!("no process could start: {source}")),
    }
}
