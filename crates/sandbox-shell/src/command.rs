//! Commands: programs that the host starts, each below a shell that reports its exit.
//!
//! Most hosts report the exit of a program when the program's streams have ended, which a background child can delay for ever.
//! So the shell reports the exit on both streams, behind all output of the command. Where the host
//! [reports exits](ShellHost::reports_exits), the shell becomes the command instead, and nothing stays above it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{Result, random_hex};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::byte_queue::{ByteQueue, QueueReader, QueueWriter};
use super::exit::{ExitState, ProcessIdentity, exit_of};
use super::process::{ShellProcess, ShellTerminal};
use super::sentinel::SentinelScanner;
use super::start::{check_arguments, not_started, parse_start};
use super::{AttachedProgram, COMMAND, KeptProgram, ProgramOutput, SHELL, ShellHost, ShellProgram};
use sandbox_engine::host::{Spawn, Spawned, Terminal, Writable};

/// Limits the start of a command.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of checks for a command whose output is not read.
const ALIVE_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// First and longest delay between checks for a command without output, and the limit of one check.
const MIN_POLL_DELAY: Duration = Duration::from_secs(1);
const MAX_POLL_DELAY: Duration = Duration::from_secs(16);
const POLL_TIMEOUT: Duration = Duration::from_secs(10);

/// Status of a process that SIGKILL has ended, and the longest delay until the end of its sandbox is known.
const SIGKILL_STATUS: i64 = 137;
const SANDBOX_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a command that has ended may be silent before the rest of its output counts as that of its background children.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);

/// Unread output of a command that has ended, before its reader has to take some.
const MAX_UNREAD_OUTPUT: usize = 16 << 20;

/// Unread output that is kept of a command that has ended and of its background children.
const MAX_KEPT_OUTPUT: usize = 2 << 20;

/// A command that is being started.
struct Starting {
    attached: AttachedProgram,
    /// Standard output and standard error; a terminal has only the first.
    scanners: [SentinelScanner; 2],
    queues: [Arc<ByteQueue>; 2],
    on_terminal: bool,
    /// The exit status that the host reports, where it reports one.
    report: Option<oneshot::Receiver<Option<i64>>>,
    /// Standard output so far: a command can be faster than the report of its start.
    early: Vec<u8>,
    /// The error with which the output has ended.
    broken: Option<std::io::Error>,
}

/// Starts a command. A host does not cancel a start, so an abandoned command is killed when it has started.
///
/// # Errors
/// As [`ProcessHost::spawn`](sandbox_engine::host::ProcessHost::spawn).
pub async fn start_command(shell: &Arc<dyn ShellHost>, spec: Spawn) -> Result<Spawned> {
    check_arguments(&spec)?;
    let (sender, receiver) = oneshot::channel();
    let own = Arc::clone(shell);
    shell.spawn(Box::pin(async move {
        let started = start_now(&own, spec).await;
        if let Err(Ok(abandoned)) = sender.send(started)
            && let Err(error) = abandoned.process.kill_tree().await
        {
            tracing::debug!(%error, "an abandoned command may still run");
        }
    }));
    receiver.await.map_err(|_| shell.lost("start_command"))?
}

async fn start_now(shell: &Arc<dyn ShellHost>, spec: Spawn) -> Result<Spawned> {
    let word = random_hex(16);
    if let Some(attached) = shell.start_own(&spec, &word).await? {
        let mut starting = Starting::new(attached, &word, false, None);
        let identity = starting.expect(&**shell, &spec, "started").await?;
        return Ok(starting.into_spawned(shell, identity, spec.stdin));
    }
    let is_direct = shell.reports_exits() && spec.terminal.is_none();
    let mut kind = match (spec.terminal.is_some(), is_direct, spec.stdin) {
        (true, ..) => "terminal",
        (_, true, true) => "direct-input",
        (_, true, false) => "direct",
        _ => "pipes",
    }
    .to_owned();
    if shell.made_directory() == Some(&spec.cwd) {
        kind.push('+');
    }
    let limits = shell.open_files().map(|(soft, hard)| (soft.to_string(), hard.to_string()));
    let (soft, hard) = limits.unwrap_or_else(|| ("-".to_owned(), "-".to_owned()));
    let (first, second) = word.split_at(word.len() / 2);
    let words = [SHELL, "-c", COMMAND, "sh", first, second, &kind, &spec.cwd, &soft, &hard];
    let mut argv: Vec<String> = words.map(str::to_owned).into();
    argv.extend(spec.argv.iter().cloned());
    let env = spec.env.clone().into_iter().collect();
    let on_terminal = spec.terminal.is_some();
    let has_input = spec.stdin || on_terminal;
    let kept = spec.label.clone().map(|label| KeptProgram { label, word: word.clone() });
    let program = ShellProgram {
        argv,
        env,
        stdin: has_input,
        terminal: spec.terminal,
        limit: spec.limit,
        kept,
    };
    let attached = shell.start("start_command", program).await?;
    let report = is_direct.then(|| report_exit(shell, &attached.id));
    let mut starting = Starting::new(attached, &word, on_terminal, report);
    if let Some(size) = spec.terminal {
        starting.expect(&**shell, &spec, "ready").await?;
        shell.resize(&starting.attached.id, size).await?;
        // The terminal echoes the line, which is left out of the output.
        let written = starting.attached.input.write_all(b"\n").await;
        written.map_err(|error| shell.lost("start_command").with_source(error))?;
    }
    let identity = starting.expect(&**shell, &spec, "started").await?;
    Ok(starting.into_spawned(shell, identity, has_input))
}

/// Asks the host for the exit status of a program that runs, at once.
fn report_exit(shell: &Arc<dyn ShellHost>, id: &str) -> oneshot::Receiver<Option<i64>> {
    let (mut sender, report) = oneshot::channel();
    let (own, id) = (Arc::clone(shell), id.to_owned());
    shell.spawn(Box::pin(async move {
        let status = tokio::select! {
            status = own.status(&id) => status,
            () = sender.closed() => return,
        };
        // The reader may be gone meanwhile.
        let _ = sender.send(status);
    }));
    report
}

/// Takes over a command without a terminal that an earlier process has started, whose host has kept its output from the
/// beginning.
///
/// # Errors
/// As [`start_command`], for a command that did not start; `Timeout` when its output has no report of a start.
pub async fn adopt_command(
    shell: &Arc<dyn ShellHost>,
    attached: AttachedProgram,
    word: &str,
    has_input: bool,
) -> Result<Spawned> {
    let spec = Spawn {
        argv: Vec::new(),
        env: std::collections::BTreeMap::new(),
        cwd: String::new(),
        stdin: has_input,
        terminal: None,
        label: None,
        as_root: false,
        limit: None,
    };
    let mut starting = Starting::new(attached, word, false, None);
    let identity = starting.expect(&**shell, &spec, "started").await?;
    Ok(starting.into_spawned(shell, identity, has_input))
}

impl Starting {
    fn new(
        attached: AttachedProgram,
        word: &str,
        on_terminal: bool,
        report: Option<oneshot::Receiver<Option<i64>>>,
    ) -> Self {
        let scanners = [SentinelScanner::new(word), SentinelScanner::new(word)];
        let queues = <[Arc<ByteQueue>; 2]>::default();
        Self { attached, scanners, queues, on_terminal, report, early: Vec::new(), broken: None }
    }

    /// Starts to pass input and output on.
    fn into_spawned(
        self,
        shell: &Arc<dyn ShellHost>,
        identity: ProcessIdentity,
        has_input: bool,
    ) -> Spawned {
        let Self { attached, scanners, queues, on_terminal, report, early, broken: _ } = self;
        let process =
            Arc::new(ShellProcess { shell: Arc::clone(shell), identity, exit: Arc::default() });
        let AttachedProgram { id, output, input } = attached;
        let stdin = Arc::new(ByteQueue::default());
        let command_input = if has_input {
            CommandInput::Queue { queue: Arc::clone(&stdin), input, on_terminal }
        } else {
            // The connection has to stay open for the output.
            CommandInput::None(input)
        };
        let pump = Pump {
            process: Arc::clone(&process),
            id: id.clone(),
            output,
            scanners,
            queues: queues.clone(),
            reported: [None; 2],
            on_terminal,
            is_gone: false,
        };
        shell.spawn(Box::pin(pump.run(command_input, early, report)));
        let [stdout, stderr] = queues.map(QueueReader);
        let terminal = on_terminal.then(|| ShellTerminal { shell: Arc::clone(shell), id });
        Spawned {
            process,
            stdin: has_input.then(|| Box::new(QueueWriter(stdin)) as Box<dyn Writable>),
            stdout: Box::new(stdout),
            stderr: if on_terminal { None } else { Some(Box::new(stderr)) },
            terminal: terminal.map(|terminal| Box::new(terminal) as Box<dyn Terminal>),
        }
    }
}

impl Starting {
    /// Waits for a report of the shell.
    async fn expect(
        &mut self,
        shell: &dyn ShellHost,
        spec: &Spawn,
        expected: &str,
    ) -> Result<ProcessIdentity> {
        let report = timeout(START_TIMEOUT, self.read_report(expected)).await;
        let report = report.map_err(|_| not_started("it has not started in time"))?;
        let Some(line) = report else {
            // The output of a command ends with its sandbox, too, and may do so before the end of the sandbox is known.
            if timeout(SANDBOX_EXIT_TIMEOUT, shell.closed()).await.is_ok() || shell.is_closed() {
                return Err(shell.lost("start_command"));
            }
            if let Some(error) = self.broken.take() {
                return Err(shell.lost("start_command").with_source(error));
            }
            let rest = self.scanners.each_mut().map(SentinelScanner::rest);
            let words = rest.iter().map(|rest| String::from_utf8_lossy(rest).into_owned());
            return Err(not_started(&words.collect::<String>()));
        };
        if line.split(' ').next() == Some("ready") {
            return Ok(ProcessIdentity { pid: 0, since: String::new(), leader: 0 });
        }
        parse_start(spec, &line)
    }

    async fn read_report(&mut self, expected: &str) -> Option<String> {
        let stream = usize::from(!self.on_terminal);
        let (mut before, mut found) = self.scanners[stream].scan(b"");
        loop {
            if let Some(line) = found {
                // On a terminal the output before the start comes from the shell.
                if !self.on_terminal {
                    self.queues[stream].push(before);
                }
                if line.starts_with(expected) || line.starts_with("cannot") {
                    return Some(line);
                }
                (before, found) = self.scanners[stream].scan(b"");
                continue;
            }
            if !self.on_terminal {
                self.queues[stream].push(before);
            }
            let (of, chunk) = match self.attached.output.next().await? {
                Ok(piece) => piece,
                Err(error) => {
                    self.broken = Some(error);
                    return None;
                }
            };
            if of != stream {
                self.early.extend_from_slice(&chunk);
                (before, found) = (Bytes::new(), None);
                continue;
            }
            (before, found) = self.scanners[stream].scan(&chunk);
        }
    }
}

/// Standard input of a command.
enum CommandInput {
    Queue {
        queue: Arc<ByteQueue>,
        input: std::pin::Pin<Box<dyn AsyncWrite + Send>>,
        on_terminal: bool,
    },
    None(std::pin::Pin<Box<dyn AsyncWrite + Send>>),
}

impl CommandInput {
    /// Forwards the input until the command has ended.
    async fn forward(self, exit: &ExitState) {
        let (queue, mut input, on_terminal) = match self {
            Self::Queue { queue, input, on_terminal } => (queue, input, on_terminal),
            Self::None(_input) => {
                exit.ended().await;
                return;
            }
        };
        let forward = async {
            while let Some(chunk) = queue.next().await {
                if input.write_all(&chunk).await.is_err() || input.flush().await.is_err() {
                    break;
                }
            }
            // On a terminal a host may detach the output at the end of the input.
            if !on_terminal {
                let _ = input.shutdown().await;
            }
            exit.ended().await;
        };
        tokio::select! {
            () = forward => {}
            _ = exit.ended() => {}
        }
        queue.abandon();
    }
}

/// Reads the output of a command, and finds its exit.
struct Pump {
    process: Arc<ShellProcess>,
    id: String,
    output: ProgramOutput,
    scanners: [SentinelScanner; 2],
    queues: [Arc<ByteQueue>; 2],
    /// Exit status as reported on each stream.
    reported: [Option<i32>; 2],
    on_terminal: bool,
    /// A check found no process of the command.
    is_gone: bool,
}

impl Pump {
    async fn run(
        mut self,
        input: CommandInput,
        early: Vec<u8>,
        report: Option<oneshot::Receiver<Option<i64>>>,
    ) {
        let exit = Arc::clone(&self.process.exit);
        let (shell, queues) = (Arc::clone(&self.process.shell), self.queues.clone());
        let output = async {
            self.add_output(&early, 0);
            self.add_output(b"", 1);
            match report {
                Some(report) => self.read_with_exit(report).await,
                None => self.read_all().await,
            }
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(output, input.forward(&exit)) } => {}
            () = shell.closed() => {}
        }
        exit.set(None);
        queues.iter().for_each(|queue| queue.end());
    }

    /// Waits for the next chunk of output. Without output it checks, less and less often, for a command that has ended after
    /// it stopped the shell that reports its exit: the check resumes that shell.
    async fn next_output(&mut self) -> Option<std::io::Result<(usize, Bytes)>> {
        let mut delay = MIN_POLL_DELAY;
        loop {
            if self.process.exit.has_ended() {
                return self.output.next().await;
            }
            let process = Arc::clone(&self.process);
            let check = async {
                sleep(delay).await;
                timeout(POLL_TIMEOUT, process.is_alive()).await
            };
            tokio::select! {
                biased;
                chunk = self.output.next() => return chunk,
                found = check => if !matches!(found, Ok(Ok(_))) {
                    tracing::debug!(?found, "it is not known whether a command still runs");
                }
            }
            delay = (delay * 2).min(MAX_POLL_DELAY);
        }
    }

    /// Reads the output of a command whose exit the host reports. The exit is set behind the output of the command.
    async fn read_with_exit(&mut self, mut report: oneshot::Receiver<Option<i64>>) {
        let exit = Arc::clone(&self.process.exit);
        let mut reported: Option<Option<i64>> = None;
        loop {
            tokio::select! {
                biased;
                chunk = self.output.next() => {
                    let Some(Ok((stream, chunk))) = chunk else { break };
                    self.add_output(&chunk, stream);
                    let queue = Arc::clone(&self.queues[stream]);
                    // The reader of a command that has ended may wait for the exit alone.
                    while reported.is_none() || queue.waiting() > MAX_UNREAD_OUTPUT {
                        tokio::select! {
                            biased;
                            () = queue.room() => break,
                            _ = exit.ended() => break,
                            status = &mut report, if reported.is_none() => {
                                reported = Some(status.ok().flatten());
                            }
                        }
                    }
                }
                status = &mut report, if reported.is_none() => {
                    reported = Some(status.ok().flatten());
                }
                () = sleep(SILENCE_TIMEOUT), if reported.is_some() && !exit.has_ended() => {
                    self.set_exit(reported.flatten());
                }
            }
        }
        self.end_output();
        if !exit.has_ended() {
            let status = match reported {
                Some(status) => status,
                None => report.await.ok().flatten(),
            };
            self.set_exit(status);
        }
    }

    async fn read_all(&mut self) {
        while let Some(Ok((stream, chunk))) = self.next_output().await {
            self.add_output(&chunk, stream);
            self.wait_for_room(stream).await;
        }
        self.end_output();
        if !self.process.exit.has_ended() {
            let status = self.process.shell.status(&self.id).await;
            // The command may have been killed with its sandbox.
            let shell = Arc::clone(&self.process.shell);
            if status == Some(SIGKILL_STATUS)
                && timeout(SANDBOX_EXIT_TIMEOUT, shell.closed()).await.is_ok()
            {
                return self.process.exit.set(None);
            }
            self.set_exit(status);
        }
    }

    fn end_output(&mut self) {
        for (scanner, queue) in self.scanners.iter_mut().zip(&self.queues) {
            queue.push(scanner.rest());
            queue.end();
        }
    }

    /// Sets the exit by the status that the host reports.
    fn set_exit(&self, status: Option<i64>) {
        let status = status.and_then(|status| i32::try_from(status).ok());
        let exit = status.map(exit_of).or_else(|| self.process.exit.unreported());
        self.process.exit.set(exit);
    }

    /// Passes output to the queue of its stream, and records a reported exit.
    fn add_output(&mut self, data: &[u8], stream: usize) {
        let mut data = data;
        loop {
            let (before, line) = self.scanners[stream].scan(data);
            // Unread output may delay the host's reports about all other commands.
            if !self.process.exit.has_ended() || self.queues[stream].waiting() < MAX_KEPT_OUTPUT {
                self.queues[stream].push(before);
            }
            data = &[];
            let Some(line) = line else { break };
            if let Some(status) = line.strip_prefix("exited ") {
                self.reported[stream] = status.parse().ok();
            }
        }
        let second = if self.on_terminal { self.reported[0] } else { self.reported[1] };
        if let (Some(status), Some(_)) = (self.reported[0], second) {
            self.process.exit.set(Some(exit_of(status)));
        }
    }

    /// Waits for the reader. Does not wait after the end of the command: little output follows, and then the report of its
    /// exit.
    async fn wait_for_room(&mut self, stream: usize) {
        while !self.is_gone && !self.process.exit.has_ended() {
            let exit = Arc::clone(&self.process.exit);
            tokio::select! {
                biased;
                () = self.queues[stream].room() => return,
                _ = exit.ended() => return,
                () = sleep(ALIVE_POLL_INTERVAL) => {}
            }
            self.is_gone = !self.process.is_alive().await.unwrap_or(true);
        }
    }
}
