//! Commands of a sandbox: processes of the daemon, each below a shell that reports its exit.
//!
//! Three properties of the daemon are met here. Its own time limit ends one process and not what that has started, so limits
//! are ours, and the whole tree of a command is ended. A child that keeps the streams open delays the daemon's report of the
//! exit, so the shell of the command reports the exit on the streams. And processes outlive a connection that was dropped, so
//! a command that its caller drops is ended explicitly.
//!
//! The scripts, their reports and the queues are those of `sandbox_shell`, and its `ShellHost` is not used. The daemon has a
//! process API of its own, with separate streams, input in requests that name a process, an event for the end, and
//! connections to processes that another handle has started; `ShellHost` looks for the end of a silent command by running
//! scripts, which the event makes needless and which each cost a request here.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_cloud::{Backoff, Connections};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime;
use sandbox_engine::host::{
    Exit, Process, ProcessHost, Spawn, Spawned, Terminal, WorkerIo, WorkerSpec, Writable,
};
use sandbox_shell::{
    ByteQueue, COMMAND, ExitState, ProcessIdentity, QueueReader, QueueWriter, SIGNAL,
    SentinelScanner, check_arguments, exit_of, not_started, parse_start,
};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::Envd;
use super::run::{InputKind, ProcessEvent, ProcessEvents};
use crate::error::no_code;
use crate::system::is_starting;

/// The tag of every process of ours begins with this.
pub(super) const TAG: &str = "code-sandboxes.";

/// What follows in the tag of a process that leads to an agent.
pub(super) const AGENT: &str = "agent.";

/// Arguments of the shell before those of the command, with the kind of its streams among them.
pub(super) const BEFORE_COMMAND: usize = 9;
pub(super) const KIND: usize = 5;

/// Limits the start of a command.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Limits the wait for the end of an answer behind the end of its process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits the wait for the reported exit of a command that has no process left.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of one write to a standard input.
const MAX_INPUT: usize = 256 << 10;

const SIGKILL: i32 = 9;
const SIGKILL_STATUS: i32 = 128 + SIGKILL;

/// Returns a tag for a process that leads to an agent.
pub(crate) fn agent_tag(nonce: &str) -> String {
    format!("{TAG}{AGENT}{nonce}")
}

/// A process to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartProcess {
    pub(crate) program: String,
    pub(crate) args: Vec<String>,
    /// Variables in addition to those of the sandbox.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) stdin: bool,
    pub(crate) terminal: Option<PtySize>,
    pub(crate) tag: Option<String>,
}

/// Starts commands in one sandbox.
#[derive(Debug)]
pub(super) struct EnvdProcesses {
    pub(super) envd: Envd,
    /// Secret words of the commands that were started here.
    pub(super) words: Arc<Words>,
    /// The commands outlive this process, where their sandbox does.
    pub(super) outlives: bool,
}

/// Secret words of commands that one handle has started.
pub(super) type Words = std::sync::Mutex<std::collections::HashSet<String>>;

#[async_trait]
impl ProcessHost for EnvdProcesses {
    /// Starts a command. An abandoned start is ended when it has started.
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        check_arguments(&spec)?;
        let (sender, receiver) = oneshot::channel();
        let (envd, outlives, word) = (self.envd.clone(), self.outlives, random_hex(16));
        self.words.lock().unwrap_or_else(PoisonError::into_inner).insert(word.clone());
        tokio::spawn(async move {
            let started = start(&envd, spec, word, outlives).await;
            if let Err(Ok(abandoned)) = sender.send(started)
                && let Err(error) = abandoned.process.kill_tree().await
            {
                tracing::debug!(%error, "an abandoned command may still run");
            }
        });
        let started = receiver.await.map_err(|_| {
            Error::new(ErrorKind::Terminated, "start_command", "the runtime of the call has ended")
        })?;
        match started {
            Ok(spawned) => Ok(spawned),
            Err(error) => Err(self.envd.explain("start_command", error).await),
        }
    }

    /// A request to another continent, and a sandbox that is busy.
    fn start_allowance(&self) -> Duration {
        Duration::from_secs(10)
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(no_code("run_code"))
    }

    /// Called when a command cannot be ended: the whole sandbox is.
    fn kill(&self) {
        self.envd.handle().end_in_background("kill");
    }

    async fn closed(&self) {
        let handle = self.envd.handle();
        while !handle.has_ended() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn start(envd: &Envd, spec: Spawn, word: String, outlives: bool) -> Result<Spawned> {
    let on_terminal = spec.terminal.is_some();
    let kind = if on_terminal { "sized" } else { "pipes" };
    let (first, second) = word.split_at(word.len() / 2);
    let mut arguments = vec![first, second, kind, &spec.cwd, "-", "-"];
    arguments.extend(spec.argv.iter().map(String::as_str));
    let mut process = StartProcess::shell(COMMAND, arguments);
    process.env.clone_from(&spec.env);
    process.stdin = spec.stdin;
    process.terminal = spec.terminal;
    process.tag = Some(format!("{TAG}{word}"));
    let mut starting = Starting {
        events: start_when_ready(envd, &process).await?,
        pid: 0,
        scanners: [SentinelScanner::new(&word), SentinelScanner::new(&word)],
        queues: Default::default(),
        on_terminal,
        end: None,
        early: Vec::new(),
    };
    let report = timeout(START_TIMEOUT, starting.report(&spec)).await;
    let identity = match report {
        Ok(identity) => identity?,
        Err(_) => {
            let _ = envd.kill("start_command", starting.pid).await;
            return Err(not_started("it has not started in time"));
        }
    };
    let input = (spec.stdin || on_terminal).then_some(if on_terminal {
        InputKind::Terminal
    } else {
        InputKind::Pipe
    });
    Ok(starting.run(envd, identity, input, outlives))
}

/// Starts a process. A sandbox whose daemon has not answered yet may be starting, and is waited for.
async fn start_when_ready(envd: &Envd, process: &StartProcess) -> Result<ProcessEvents> {
    let handle = envd.handle();
    let mut backoff = Backoff::new(handle.clients.config.ready_timeout());
    loop {
        let error = match envd.start("start_command", process).await {
            Err(error) if !handle.has_answered() && is_starting(&error) => error,
            started => return started,
        };
        if error.effect() != Effect::NotSent {
            return Err(error);
        }
        handle.check().await;
        if handle.has_ended() || !backoff.wait(&CallContext::new()).await {
            return Err(error);
        }
    }
}

/// Prints the number of the process of a command and the start of that process: `$1` is the process that the daemon has
/// started, and of commands that were started here (`$2` is `yes`) the shell that reports the exit.
const FIND_COMMAND: &str = r#"number=$1 own=$2
for place in /proc/[0-9]*; do
    [ "$own" = yes ] || break
    { read -r line <"$place/stat"; } 2>/dev/null || continue
    set -- ${line##*) }
    if [ "$2" = "$number" ]; then number=${place#/proc/} own=; fi
done
read -r line </proc/$number/stat && set -- ${line##*) } && echo $number ${20}"#;

/// Connects to a command that another handle has started. `word` is known of commands that were started here.
pub(super) async fn connect(
    envd: &Envd,
    pid: u32,
    word: Option<&str>,
    input: Option<InputKind>,
) -> Result<Spawned> {
    let is_own = if word.is_some() { "yes" } else { "no" };
    let output = envd.run("connect_command", FIND_COMMAND, &[&pid.to_string(), is_own]).await?;
    let text = output.text();
    let (found, since) = text.trim().split_once(' ').unwrap_or_default();
    let identity =
        ProcessIdentity { pid: found.parse().unwrap_or(pid), since: since.to_owned(), leader: pid };
    // Other processes report nothing.
    let word = word.map_or_else(|| random_hex(16), str::to_owned);
    let mut starting = Starting {
        events: envd.connect("connect_command", pid).await?,
        pid,
        scanners: [SentinelScanner::new(&word), SentinelScanner::new(&word)],
        queues: Default::default(),
        on_terminal: input == Some(InputKind::Terminal),
        end: None,
        early: Vec::new(),
    };
    match starting.events.next().await.transpose()? {
        Some(ProcessEvent::Ended(end)) => starting.end = Some(end.shell_status()),
        Some(ProcessEvent::Output(stream, data)) => starting.early.push((stream, data)),
        Some(ProcessEvent::Started(_)) | None => {}
    }
    Ok(starting.run(envd, identity, input, true))
}

/// A command that is being started.
struct Starting {
    events: ProcessEvents,
    /// The process that the daemon has started.
    pid: u32,
    scanners: [SentinelScanner; 2],
    queues: [Arc<ByteQueue>; 2],
    on_terminal: bool,
    /// The status of a process that has ended before its start was reported.
    end: Option<i32>,
    /// Output that came before the report of the start: a command can be faster.
    early: Vec<(usize, bytes::Bytes)>,
}

impl Starting {
    /// Waits for the report of the shell.
    async fn report(&mut self, spec: &Spawn) -> Result<ProcessIdentity> {
        let stream = usize::from(!self.on_terminal);
        let mut said = Vec::new();
        while let Some(event) = self.events.next().await.transpose()? {
            let data = match event {
                ProcessEvent::Started(pid) => {
                    self.pid = pid;
                    continue;
                }
                ProcessEvent::Ended(end) => {
                    self.end = Some(end.shell_status());
                    break;
                }
                ProcessEvent::Output(of, data) if of != stream => {
                    self.early.push((of, data));
                    continue;
                }
                ProcessEvent::Output(_, data) => data,
            };
            let (before, line) = self.scanners[stream].scan(&data);
            said.extend_from_slice(&before);
            let Some(line) = line else { continue };
            return parse_start(spec, &line);
        }
        Err(not_started(&String::from_utf8_lossy(&said)))
    }

    /// Reads output and exit from now on.
    fn run(
        self,
        envd: &Envd,
        identity: ProcessIdentity,
        input: Option<InputKind>,
        outlives: bool,
    ) -> Spawned {
        let exit = Arc::<ExitState>::default();
        let process = EnvdProcess { envd: envd.clone(), identity, exit, outlives };
        let stdin = Arc::new(ByteQueue::default());
        let (pid, queues, on_terminal) = (self.pid, self.queues.clone(), self.on_terminal);
        if let Some(kind) = input {
            tokio::spawn(forward(process.clone(), pid, kind, Arc::clone(&stdin)));
        }
        let pump = Pump { process: process.clone(), starting: self, reported: [None; 2] };
        tokio::spawn(pump.run());
        let [stdout, stderr] = queues.map(QueueReader);
        let terminal = EnvdTerminal { envd: envd.clone(), pid };
        Spawned {
            process: Arc::new(process),
            stdin: input.map(|_| Box::new(QueueWriter(stdin)) as Box<dyn Writable>),
            stdout: Box::new(stdout),
            stderr: if on_terminal { None } else { Some(Box::new(stderr)) },
            terminal: on_terminal.then(|| Box::new(terminal) as Box<dyn Terminal>),
        }
    }
}

/// Sends standard input to a process until it has ended.
async fn forward(process: EnvdProcess, pid: u32, kind: InputKind, queue: Arc<ByteQueue>) {
    let forward = async {
        while let Some(chunk) = queue.next().await {
            for piece in chunk.chunks(MAX_INPUT) {
                if process.envd.send_input(pid, kind, piece).await.is_err() {
                    return;
                }
            }
        }
        if kind == InputKind::Pipe
            && let Err(error) = process.envd.close_input(pid).await
        {
            tracing::debug!(%error, "a standard input is not closed");
        }
        // Reads no more, and was not abandoned: the process may still run.
        process.exit.ended().await;
    };
    tokio::select! {
        () = forward => {}
        _ = process.exit.ended() => {}
    }
    queue.abandon();
}

/// Reads the output of a command, and finds its exit.
struct Pump {
    process: EnvdProcess,
    starting: Starting,
    /// Exit status as reported on each stream.
    reported: [Option<i32>; 2],
}

impl Pump {
    async fn run(mut self) {
        self.read().await;
        // Nothing further is known.
        self.process.exit.set(None);
        self.starting.queues.iter().for_each(|queue| queue.end());
        drain(self.starting.events).await;
    }

    async fn read(&mut self) {
        for (stream, data) in std::mem::take(&mut self.starting.early) {
            self.add_output(&data, stream);
        }
        self.add_output(b"", usize::from(!self.starting.on_terminal));
        let mut end = self.starting.end;
        while end.is_none() {
            match self.starting.events.next().await {
                Some(Ok(ProcessEvent::Started(_))) => {}
                Some(Ok(ProcessEvent::Output(stream, data))) => {
                    self.add_output(&data, stream);
                    self.wait_for_room(stream).await;
                }
                Some(Ok(ProcessEvent::Ended(reported))) => end = Some(reported.shell_status()),
                Some(Err(error)) => {
                    tracing::debug!(%error, "the connection to a command is lost");
                    // The end of the sandbox is a better reason.
                    self.process.envd.handle().check().await;
                    break;
                }
                None => break,
            }
        }
        for (scanner, queue) in self.starting.scanners.iter_mut().zip(&self.starting.queues) {
            queue.push(scanner.rest());
        }
        if let Some(status) = end {
            self.process.exit.set(Some(exit_of(status)));
        }
    }

    /// Passes output to the queue of its stream, and records a reported exit.
    fn add_output(&mut self, data: &[u8], stream: usize) {
        let mut data = data;
        loop {
            let (before, line) = self.starting.scanners[stream].scan(data);
            self.starting.queues[stream].push(before);
            data = &[];
            let Some(line) = line else { break };
            if let Some(status) = line.strip_prefix("exited ") {
                self.reported[stream] = status.parse().ok();
            }
        }
        let second = if self.starting.on_terminal { self.reported[0] } else { self.reported[1] };
        if let (Some(status), Some(_)) = (self.reported[0], second) {
            self.process.exit.set(Some(exit_of(status)));
        }
    }

    /// Waits for the reader, which holds the command back.
    async fn wait_for_room(&mut self, stream: usize) {
        let exit = Arc::clone(&self.process.exit);
        if exit.has_ended() {
            return self.starting.queues[stream].room().await;
        }
        tokio::select! {
            () = self.starting.queues[stream].room() => {}
            _ = exit.ended() => {}
        }
    }
}

/// Reads an answer to its end, so that its connection serves the next request.
pub(super) async fn drain(mut events: ProcessEvents) {
    let rest = async { while let Some(Ok(_)) = events.next().await {} };
    let _ = timeout(DRAIN_TIMEOUT, rest).await;
}

/// A command of the daemon.
#[derive(Clone, Debug)]
struct EnvdProcess {
    envd: Envd,
    identity: ProcessIdentity,
    exit: Arc<ExitState>,
    outlives: bool,
}

impl EnvdProcess {
    /// Sends a signal to `alone`, `tree` or `leader`. Returns true when the command was alive before.
    async fn send(&self, signal: i32, target: &str) -> Result<bool> {
        let ProcessIdentity { pid, since, leader } = &self.identity;
        let (signal, pid, leader) = (signal.to_string(), pid.to_string(), leader.to_string());
        let arguments = [&*signal, target, &pid, since, &leader];
        let output = self.envd.run("signal", SIGNAL, &arguments).await?;
        match output.status {
            0 => Ok(output.stdout.starts_with(b"yes")),
            _ => {
                let message = format!("the command could not be ended: {}", output.last_error());
                Err(Error::new(ErrorKind::Unavailable, "signal", message))
            }
        }
    }
}

#[async_trait]
impl Process for EnvdProcess {
    fn pid(&self) -> u32 {
        self.identity.pid
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.exit.has_ended()
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.exit.poll_ended(cx)
    }

    async fn exit(&self) -> Result<Exit> {
        self.exit.ended().await.ok_or_else(|| {
            let message = "the connection to the command broke; the command may still run";
            Error::new(ErrorKind::ConnectionLost, "command", message)
        })
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if self.exit.has_ended() {
            return Ok(());
        }
        let mut process = self.clone();
        let is_in_use = tokio::runtime::Handle::try_current().is_ok();
        if !is_in_use && self.outlives {
            // The runtime of the caller has ended, and not the sandbox.
            return Ok(());
        }
        if !is_in_use {
            process.envd.connections = Connections::Dedicated;
        }
        let send = async move {
            if let Err(error) = process.send(signal, "alone").await {
                tracing::debug!(%error, "a signal was not sent");
            }
        };
        match is_in_use {
            true => drop(tokio::spawn(send)),
            false => drop(background_runtime::spawn(send)),
        }
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.send(signal, "tree").await.map(drop)
    }

    /// Kills the command with everything that it started, and sets its exit: the report of the exit comes behind output that
    /// may never be read.
    async fn kill_tree(&self) -> Result<()> {
        let handle = self.envd.handle();
        if handle.has_ended() {
            self.exit.set(None);
            return Ok(());
        }
        let sent = self.send(SIGKILL, "tree").await;
        if handle.has_ended() {
            self.exit.set(None);
            return Ok(());
        }
        if sent? {
            self.exit.set(Some(exit_of(SIGKILL_STATUS)));
        } else if timeout(EXIT_REPORT_TIMEOUT, self.exit.ended()).await.is_err() {
            // The shell that reports the exit was killed too, or cannot report it.
            self.send(SIGKILL, "leader").await?;
            self.exit.set(Some(exit_of(SIGKILL_STATUS)));
        }
        Ok(())
    }

    /// The script that kills is started over the network.
    fn kill_timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Returns false: the daemon does not count what a process uses.
    fn is_counted(&self) -> bool {
        false
    }

    async fn end_started(&self, _since: Instant, _former: Option<Instant>) {}

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}

/// The terminal of a command.
#[derive(Debug)]
struct EnvdTerminal {
    envd: Envd,
    pid: u32,
}

#[async_trait]
impl Terminal for EnvdTerminal {
    async fn resize(&self, size: PtySize) -> Result<()> {
        self.envd.resize(self.pid, size).await
    }
}
