//! Commands: programs that the engine starts, each below a shell that says how it ended.
//!
//! An engine tells of the end of a program when its streams have ended, which a child that was left behind can put off for
//! ever. So the shell says it on both streams, behind everything that the command itself has put out.

use std::sync::Arc;
use std::time::Duration;

use bollard::container::LogOutput;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use sandbox_engine::host::{Spawn, Spawned, Terminal, Writable};
use sandbox_python::agent::OpenFiles;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::SHELL;
use super::byte_queue::{ByteQueue, Reader, Writer};
use super::exec::{Attached, ExecSpec, Execs};
use super::process::{ExecProcess, ExecTerminal, ExitState, ProcessIdentity, exit_of};
use super::sentinel::SentinelScanner;

/// What starts a command.
const COMMAND: &str = include_str!("command.sh");

/// How long a command may take to begin.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// How often it is looked whether a command still is there whose output nobody reads.
const ALIVE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The same of a command that puts out nothing: first, and at most from then on.
const MIN_POLL_DELAY: Duration = Duration::from_secs(1);
const MAX_POLL_DELAY: Duration = Duration::from_secs(16);
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// The status of what SIGKILL has ended, and how long the news of the end of its container may take.
const SIGKILL_STATUS: i32 = 137;
const CONTAINER_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// What is kept for who reads it later of a command that has ended, and of what it has left behind.
const MAX_KEPT_OUTPUT: usize = 2 << 20;

/// What the kernel takes for one argument, and for all of them with the environment.
const MAX_ARGUMENT: usize = (128 << 10) - 1;
const MAX_ARGUMENTS: usize = (2 << 20) - (128 << 10);

/// A command that is being started.
struct Starting {
    attached: Attached,
    /// Of standard output and standard error; a terminal has the first alone.
    marks: [SentinelScanner; 2],
    flows: [Arc<ByteQueue>; 2],
    on_terminal: bool,
    /// What has come on standard output meanwhile: a command can be faster than the news of it.
    early: Vec<u8>,
}

/// What a piece of output is of.
fn which(output: &LogOutput) -> usize {
    usize::from(matches!(output, LogOutput::StdErr { .. }))
}

/// Starts a command. An engine goes on with what it was asked for, so one that nobody waits for any more is ended when it
/// has started.
///
/// # Errors
/// As [`ProcessHost::spawn`](sandbox_engine::host::ProcessHost::spawn).
pub(super) async fn start(execs: &Execs, spec: Spawn) -> Result<Spawned> {
    check_size(&spec)?;
    let (tell, told) = oneshot::channel();
    let own = execs.clone();
    execs.runtime.spawn(async move {
        let started = start_now(&own, spec).await;
        if let Err(Ok(unwanted)) = tell.send(started)
            && let Err(error) = unwanted.process.kill_tree().await
        {
            tracing::debug!(%error, "a command that nobody waits for may run on");
        }
    });
    told.await.map_err(|_| execs.lost("start_command"))?
}

async fn start_now(execs: &Execs, spec: Spawn) -> Result<Spawned> {
    let word = random_hex(16);
    let kind = if spec.terminal.is_some() { "terminal" } else { "pipes" };
    let OpenFiles { default, max } = execs.open_files;
    let (default, max) = (default.to_string(), max.to_string());
    let mut argv: Vec<String> =
        [SHELL, "-c", COMMAND, "sh", &word, kind, &spec.cwd, &default, &max]
            .map(str::to_owned)
            .into();
    argv.extend(spec.argv.iter().cloned());
    let env = spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let on_terminal = spec.terminal.is_some();
    let has_input = spec.stdin || on_terminal;
    let wanted = ExecSpec { argv, env, stdin: has_input, terminal: on_terminal };
    let attached = execs.start("start_command", wanted).await?;
    let marks = [SentinelScanner::new(&word), SentinelScanner::new(&word)];
    let flows = <[Arc<ByteQueue>; 2]>::default();
    let mut starting = Starting { attached, marks, flows, on_terminal, early: Vec::new() };
    if let Some(size) = spec.terminal {
        starting.expect(execs, &spec, "ready").await?;
        execs.resize(&starting.attached.id, size).await?;
        // It is shown on the terminal, as everything that is typed, and left out here.
        let written = starting.attached.input.write_all(b"\n").await;
        written.map_err(|error| execs.lost("start_command").with_source(error))?;
    }
    let named = starting.expect(execs, &spec, "started").await?;
    let life = Arc::new(ExitState::default());
    let Starting { attached, marks, flows, early, .. } = starting;
    let process = Arc::new(ExecProcess { execs: execs.clone(), named, life: Arc::clone(&life) });
    let Attached { id, output, input, .. } = attached;
    let typed = Arc::new(ByteQueue::default());
    let given = if has_input {
        CommandInput::Queue { flow: Arc::clone(&typed), input, on_terminal }
    } else {
        // The connection is open for as long as there is output.
        CommandInput::Nothing(input)
    };
    let pump = Pump {
        process: Arc::clone(&process),
        id: id.clone(),
        output,
        marks,
        flows: flows.clone(),
        over: [None; 2],
        on_terminal,
        gone: false,
    };
    execs.runtime.spawn(pump.run(given, early));
    let [stdout, stderr] = flows.map(Reader);
    let terminal = on_terminal.then(|| ExecTerminal { execs: execs.clone(), id });
    Ok(Spawned {
        process,
        stdin: has_input.then(|| Box::new(Writer(typed)) as Box<dyn Writable>),
        stdout: Box::new(stdout),
        stderr: if on_terminal { None } else { Some(Box::new(stderr)) },
        terminal: terminal.map(|terminal| Box::new(terminal) as Box<dyn Terminal>),
    })
}

/// The engine would only say that it has not worked.
fn check_size(spec: &Spawn) -> Result<()> {
    let variables = spec.env.iter().map(|(name, value)| name.len() + 1 + value.len());
    let sizes: Vec<usize> = spec.argv.iter().map(String::len).chain(variables).collect();
    let all: usize = sizes.iter().map(|size| size + 9).sum();
    if sizes.iter().all(|size| *size <= MAX_ARGUMENT) && all <= MAX_ARGUMENTS {
        return Ok(());
    }
    let program: String = spec.argv.first().map_or("", String::as_str).chars().take(100).collect();
    let message = format!("{program}: the arguments and the environment are too long");
    Err(Error::new(ErrorKind::InvalidArgument, "start_command", message))
}

impl Starting {
    /// Waits until the shell says that.
    async fn expect(
        &mut self,
        execs: &Execs,
        spec: &Spawn,
        wanted: &str,
    ) -> Result<ProcessIdentity> {
        let said = timeout(START_TIMEOUT, self.read_output(wanted)).await;
        let said = said.map_err(|_| not_begun("it has not begun in time"))?;
        let Some(line) = said else {
            if execs.is_closed() {
                return Err(execs.lost("start_command"));
            }
            let rest = self.marks.each_mut().map(SentinelScanner::rest);
            let words = rest.iter().map(|said| String::from_utf8_lossy(said).into_owned());
            return Err(not_begun(words.collect::<String>().trim()));
        };
        let mut words = line.split(' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("ready"), ..) => Ok(ProcessIdentity { pid: 0, since: String::new(), leader: 0 }),
            (Some("started"), Some(pid), Some(since), leader) => {
                let number = |text: &str| text.parse().unwrap_or_default();
                let leader = leader.map_or(0, number);
                Ok(ProcessIdentity { pid: number(pid), since: since.to_owned(), leader })
            }
            (_, why, what, _) => Err(refusal(spec, why, what)),
        }
    }

    async fn read_output(&mut self, wanted: &str) -> Option<String> {
        let stream = usize::from(!self.on_terminal);
        let (mut before, mut found) = self.marks[stream].take(b"");
        loop {
            if let Some(line) = found {
                // What a terminal shows of the beginning is of nobody's program.
                if !self.on_terminal {
                    self.flows[stream].push(before);
                }
                if line.starts_with(wanted) || line.starts_with("cannot") {
                    return Some(line);
                }
                (before, found) = self.marks[stream].take(b"");
                continue;
            }
            if !self.on_terminal {
                self.flows[stream].push(before);
            }
            let piece = self.attached.output.next().await?.ok()?;
            if which(&piece) != stream {
                self.early.extend_from_slice(&piece.into_bytes());
                (before, found) = (Bytes::new(), None);
                continue;
            }
            (before, found) = self.marks[stream].take(&piece.into_bytes());
        }
    }
}

fn not_begun(why: &str) -> Error {
    let why: String = why.chars().take(500).collect();
    let message = format!("no process could start: {why}");
    Error::new(ErrorKind::ResourceExhausted, "start_command", message)
}

/// Why the shell has not started it.
fn refusal(spec: &Spawn, why: Option<&str>, what: Option<&str>) -> Error {
    let program = spec.argv.first().map_or("", String::as_str);
    let make = |kind, message: String| Error::new(kind, "start_command", message);
    match (why, what) {
        (Some("find"), Some("directory")) => {
            let message = format!("working directory {}: no such directory", spec.cwd);
            make(ErrorKind::NotFound, message).with_context("directory", spec.cwd.as_str())
        }
        (Some("find"), _) => make(ErrorKind::NotFound, format!("{program}: command not found")),
        _ => make(ErrorKind::PermissionDenied, format!("{program}: not executable")),
    }
}

/// What a command reads.
enum CommandInput {
    Queue {
        flow: Arc<ByteQueue>,
        input: std::pin::Pin<Box<dyn AsyncWrite + Send>>,
        on_terminal: bool,
    },
    Nothing(std::pin::Pin<Box<dyn AsyncWrite + Send>>),
}

impl CommandInput {
    /// Passes on what is written, until the command has ended.
    async fn pass(self, life: &ExitState) {
        let (flow, mut input, on_terminal) = match self {
            Self::Queue { flow, input, on_terminal } => (flow, input, on_terminal),
            Self::Nothing(_input) => {
                life.over().await;
                return;
            }
        };
        let pass = async {
            while let Some(piece) = flow.next().await {
                if input.write_all(&piece).await.is_err() || input.flush().await.is_err() {
                    break;
                }
            }
            // The engine takes the end of what is typed for the end of who looks.
            if !on_terminal {
                let _ = input.shutdown().await;
            }
            life.over().await;
        };
        tokio::select! {
            () = pass => {}
            _ = life.over() => {}
        }
        flow.abandon();
    }
}

/// Takes what a command puts out from the engine, and finds out how it ends.
struct Pump {
    process: Arc<ExecProcess>,
    id: String,
    output: std::pin::Pin<Box<dyn futures_util::Stream<Item = std::io::Result<LogOutput>> + Send>>,
    marks: [SentinelScanner; 2],
    flows: [Arc<ByteQueue>; 2],
    /// What was said of the end on each stream.
    over: [Option<i32>; 2],
    on_terminal: bool,
    /// It was looked for and is not there any more.
    gone: bool,
}

impl Pump {
    async fn run(mut self, given: CommandInput, early: Vec<u8>) {
        let life = Arc::clone(&self.process.life);
        let (first, flows) = (Arc::clone(&self.process.execs.first), self.flows.clone());
        let all = async {
            self.output(&early, 0);
            self.output(b"", 1);
            self.all().await;
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(all, given.pass(&life)) } => {}
            () = first.closed() => {}
        }
        life.end(None);
        flows.iter().for_each(|flow| flow.end());
    }

    /// The next piece of output. While none comes it is looked, less and less often, whether the command has ended and has
    /// kept who started it from saying so: to look sets that one going again.
    async fn next_output(&mut self) -> Option<std::io::Result<LogOutput>> {
        let mut silence = MIN_POLL_DELAY;
        loop {
            let life = Arc::clone(&self.process.life);
            if life.is_over() {
                return self.output.next().await;
            }
            let process = Arc::clone(&self.process);
            let look = async {
                sleep(silence).await;
                timeout(POLL_TIMEOUT, process.is_there()).await
            };
            tokio::select! {
                biased;
                piece = self.output.next() => return piece,
                found = look => if !matches!(found, Ok(Ok(_))) {
                    tracing::debug!(?found, "it is not known whether a command still runs");
                }
            }
            silence = (silence * 2).min(MAX_POLL_DELAY);
        }
    }

    async fn all(&mut self) {
        while let Some(Ok(piece)) = self.next_output().await {
            let stream = which(&piece);
            self.output(&piece.into_bytes(), stream);
            self.room(stream).await;
        }
        for (marks, flow) in self.marks.iter_mut().zip(&self.flows) {
            flow.push(marks.rest());
            flow.end();
        }
        if !self.process.life.is_over() {
            let status = self.process.execs.status(&self.id).await;
            let status = status.and_then(|status| i32::try_from(status).ok());
            // Perhaps it was killed with all of its container.
            let first = Arc::clone(&self.process.execs.first);
            if status == Some(SIGKILL_STATUS)
                && timeout(CONTAINER_EXIT_TIMEOUT, first.closed()).await.is_ok()
            {
                return self.process.life.end(None);
            }
            self.process.life.end(status.map(exit_of));
        }
    }

    /// Passes on what was put out, and notes what was said of the end.
    fn output(&mut self, data: &[u8], stream: usize) {
        let mut data = data;
        loop {
            let (before, line) = self.marks[stream].take(data);
            // What nobody takes holds back news of everything else that the engine has started in there.
            if !self.process.life.is_over() || self.flows[stream].waiting() < MAX_KEPT_OUTPUT {
                self.flows[stream].push(before);
            }
            data = &[];
            let Some(line) = line else { break };
            if let Some(status) = line.strip_prefix("over ") {
                self.over[stream] = status.parse().ok();
            }
        }
        let all = [self.over[0], if self.on_terminal { self.over[0] } else { self.over[1] }];
        if let [Some(status), Some(_)] = all {
            self.process.life.end(Some(exit_of(status)));
        }
    }

    /// Waits for who reads. Of a command that has ended there is not much more, and how it ended is behind that.
    async fn room(&mut self, stream: usize) {
        while !self.gone && !self.process.life.is_over() {
            let life = Arc::clone(&self.process.life);
            tokio::select! {
                biased;
                () = self.flows[stream].room() => return,
                _ = life.over() => return,
                () = sleep(ALIVE_POLL_INTERVAL) => {}
            }
            self.gone = !self.process.is_there().await.unwrap_or(true);
        }
    }
}
