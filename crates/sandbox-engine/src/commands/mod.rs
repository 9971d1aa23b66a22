//! Commands of one sandbox: programs that run beside the interpreters.
//!
//! A command in the foreground belongs to its caller: its output waits for the caller, and it ends when the caller drops
//! it. A command in the background belongs to the sandbox: its output is read at once and kept within bounds, and any
//! number of listeners may connect to it.

mod input;
mod leftover;
mod output_buffer;
mod running;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::unfold;
use sandbox_core::{
    Command, CommandControl, CommandEvent, CommandInfo, Error, ErrorKind, OutputStream, PtySize,
    Result, StartCommand, Stdin, format_duration, random_hex, resolve_directory, unix_now,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;

use self::input::{Input, Pipe, give, give_first};
use self::leftover::Leftovers;
use self::output_buffer::OutputBuffer;
use self::running::{CommandEnd, Limits, ProcessTree, Progress, Running, watch};
use crate::host::{Process, ProcessHost, Spawn, Spawned, Terminal};
use crate::process::{EndReason, StdinCounter, feed};

/// An object that lives as long as a command is used.
pub type Guard = Box<dyn Any + Send + Sync>;

const STREAMS: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];

/// Maximum number of commands whose trees [`Commands::end_all`] ends. A sandbox can tell only so many trees apart.
const MAX_REMEMBERED: usize = 256;

/// Maximum number of background commands that have ended and can still be connected to.
const MAX_ENDED: usize = 64;

/// Maximum number of characters of a command in listings.
const MAX_SHOWN: usize = 1000;

/// The commands of one sandbox.
#[derive(Debug)]
pub struct Commands {
    host: Arc<dyn ProcessHost>,
    ended: Arc<EndReason>,
    /// In the order of their start.
    entries: Mutex<VecDeque<Arc<Entry>>>,
    leftovers: Arc<Leftovers>,
}

/// What the next process has to know of a command in the background.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptCommand {
    /// The id.
    pub id: String,
    /// The command line, for listings.
    pub line: String,
    /// Unix seconds.
    pub started_at: f64,
    /// True for a command on a terminal.
    pub on_terminal: bool,
}

impl KeptCommand {
    fn new(request: &StartCommand) -> Self {
        Self {
            id: random_hex(4),
            line: request.command.to_string().chars().take(MAX_SHOWN).collect(),
            started_at: unix_now(),
            on_terminal: request.pty.is_some(),
        }
    }

    /// Writes the label by which a host keeps the command.
    pub fn label(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads a label. `None`: the label is of another kind.
    pub fn from_label(label: &str) -> Option<Self> {
        serde_json::from_str(label).ok()
    }
}

/// One command that runs or is remembered.
#[derive(Debug)]
struct Entry {
    id: String,
    line: String,
    started_at: f64,
    ended_at: OnceLock<f64>,
    process: Arc<dyn Process>,
    end: Arc<CommandEnd>,
    background: Option<Background>,
}

#[derive(Debug)]
struct Background {
    output: Arc<OutputBuffer>,
    control: Arc<Control>,
}

impl Commands {
    /// Starts without commands. `ended` is the end reason of the sandbox.
    pub fn new(host: Arc<dyn ProcessHost>, ended: Arc<EndReason>) -> Self {
        Self { host, ended, entries: Mutex::default(), leftovers: Arc::default() }
    }

    fn entries(&self) -> MutexGuard<'_, VecDeque<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a checked command with that environment beside its own, relative to that directory. The guard is dropped
    /// when the command has ended or its events are dropped.
    ///
    /// # Errors
    /// As [`ProcessHost::spawn`]; `Timeout` when it does not start within its time limit and the
    /// [allowance](ProcessHost::start_allowance).
    pub async fn start(
        &self,
        mut env: BTreeMap<String, String>,
        directory: &str,
        request: StartCommand,
        guard: Guard,
    ) -> Result<Command> {
        if request.as_root {
            let own = [("HOME", "/root"), ("USER", "root"), ("LOGNAME", "root")];
            env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
        }
        env.extend(request.env.clone());
        if request.pty.is_some() {
            env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
        }
        let is_empty = matches!(request.stdin, Stdin::Empty);
        let kept = KeptCommand::new(&request);
        let spec = Spawn {
            argv: request.command.argv(),
            env,
            cwd: resolve_directory(directory, request.cwd.as_deref().unwrap_or(".")),
            stdin: request.interactive || !is_empty,
            terminal: request.pty,
            label: request.background.then(|| kept.label()),
            as_root: request.as_root,
            limit: request.timeout,
        };
        let started = Instant::now();
        let spawning = self.host.spawn(spec);
        let spawned = match request.timeout {
            None => spawning.await?,
            // Code can stop a process that starts beside it, before it is a program that could be killed.
            Some(limit) => {
                let allowance = self.host.start_allowance();
                let bound = limit.saturating_add(allowance);
                let hint = if allowance.is_zero() { STOPPED } else { BUSY };
                timeout(bound, spawning).await.map_err(|_| not_in_time(bound, hint))??
            }
        };
        Ok(self.command(spawned, kept, started, request, guard))
    }

    /// Takes over a background command that the host has kept from an earlier process. The guard is dropped when the command
    /// has ended.
    pub fn adopt(&self, kept: KeptCommand, spawned: Spawned, guard: Guard) {
        let mut request = StartCommand::new(kept.line.as_str());
        (request.background, request.interactive) = (true, true);
        request.pty = kept.on_terminal.then(PtySize::default);
        let age = Duration::try_from_secs_f64(unix_now() - kept.started_at).unwrap_or_default();
        let started = Instant::now().checked_sub(age).unwrap_or_else(Instant::now);
        drop(self.command(spawned, kept, started, request, guard));
    }

    /// Makes a command of a program that was started at that time, and may have ended.
    fn command(
        &self,
        spawned: Spawned,
        kept: KeptCommand,
        started: Instant,
        request: StartCommand,
        guard: Guard,
    ) -> Command {
        let Spawned { process, stdin, stdout, stderr, terminal } = spawned;
        let end = Arc::new(CommandEnd::default());
        let limits = Limits { wall: request.timeout, cpu: request.cpu_time };
        let tree = ProcessTree {
            process: Arc::clone(&process),
            host: Arc::clone(&self.host),
            ended: Arc::clone(&self.ended),
        };
        let watch = watch(tree.clone(), limits, Arc::clone(&end));
        let mut tasks = vec![tokio::spawn(watch).abort_handle()];
        let KeptCommand { id, line, started_at, .. } = kept;
        let pid = process.pid();
        let is_open =
            request.interactive || (request.pty.is_some() && matches!(request.stdin, Stdin::Empty));
        let mut input = Input::Given;
        let mut taken = None;
        if let Some(stream) = stdin {
            let feed = if is_open {
                let pipe = Pipe::new(stream, terminal.is_some());
                let pipe = Arc::new(AsyncMutex::new(pipe));
                let first = Arc::clone(&pipe).try_lock_owned();
                input = Input::Open(pipe);
                first.ok().map(|first| tokio::spawn(give_first(first, request.stdin)))
            } else if terminal.is_some() {
                Some(tokio::spawn(give(Pipe::new(stream, true), request.stdin)))
            } else {
                let given = Arc::<StdinCounter>::default();
                taken = Some(Arc::clone(&given));
                Some(tokio::spawn(feed(stream, request.stdin, given)))
            };
            tasks.extend(feed.map(|feed| feed.abort_handle()));
        }
        let control = Arc::new(Control {
            process: Arc::clone(&process),
            end: Arc::clone(&end),
            input,
            terminal,
        });
        let running = Running {
            tree,
            streams: [Some(stdout), stderr],
            started,
            output_limit: request.output_limit,
            oom_kills: process.oom_kills(),
            end: Arc::clone(&end),
            tasks,
            on_terminal: request.pty.is_some(),
            taken,
            leftovers: Arc::clone(&self.leftovers),
            _guard: guard,
            progress: Progress::default(),
        };
        let background = request
            .background
            .then(|| Background { output: Arc::default(), control: Arc::clone(&control) });
        let entry = Arc::new(Entry {
            id: id.clone(),
            line,
            started_at,
            ended_at: OnceLock::new(),
            process,
            end,
            background,
        });
        self.remember(Arc::clone(&entry));
        match entry.listen(Box::new(())) {
            Some(command) => {
                tokio::spawn(keep(running, entry));
                command
            }
            None => {
                let events = unfold(running, |mut running| async move {
                    let event = running.next_event().await?;
                    Some((event, running))
                });
                Command { id, pid: Some(pid), events: Box::pin(events), control }
            }
        }
    }

    /// Remembers a command, and drops old ones that have ended.
    fn remember(&self, entry: Arc<Entry>) {
        let mut entries = self.entries();
        forget_oldest(&mut entries, MAX_ENDED, |entry| entry.background.is_some());
        let others = MAX_REMEMBERED.saturating_sub(MAX_ENDED);
        forget_oldest(&mut entries, others, |entry| entry.background.is_none());
        entries.push_back(entry);
    }

    /// Returns the commands that run, and the last 64 background ones that have ended.
    pub fn list(&self) -> Vec<CommandInfo> {
        let shown = |entry: &&Arc<Entry>| entry.background.is_some() || !entry.end.is_over();
        self.entries().iter().filter(shown).map(|entry| entry.info()).collect()
    }

    /// Listens to a background command: the kept output comes first, then new output. The guard is dropped with the
    /// events.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a command in the foreground.
    pub fn connect(&self, id: &str, guard: Guard) -> Result<Command> {
        let entries = self.entries();
        let found = entries
            .iter()
            .find(|entry| entry.id == id && (entry.background.is_some() || !entry.end.is_over()));
        let Some(entry) = found else {
            let message = format!("command {id:?} not found");
            return Err(Error::new(ErrorKind::NotFound, "connect_command", message));
        };
        entry.listen(guard).ok_or_else(|| {
            Error::invalid("id", format!("{id:?} is a command in the foreground"))
                .with_hint("start it in the background to connect to it")
        })
    }

    /// Kills every command with everything it started, also what an ended command left behind, and drops them all.
    ///
    /// # Errors
    /// As [`Process::kill_tree`].
    pub async fn end_all(&self) -> Result<()> {
        let entries = std::mem::take(&mut *self.entries());
        let mut ended = Ok(());
        for entry in entries {
            ended = ended.and(entry.process.kill_tree().await);
        }
        ended
    }
}

/// The hint for a program that does not start.
pub const STOPPED: &str =
    "code in the sandbox may stop every process that starts in it; end the sandbox";

/// The hint where another program, such as an engine, starts the programs.
const BUSY: &str = "the engine or server that starts it may be busy or out of reach; nothing of the command is left, so try again";

fn not_in_time(bound: Duration, hint: &str) -> Error {
    let message = format!("the command did not start within {}", format_duration(bound));
    Error::new(ErrorKind::Timeout, "start_command", message).with_hint(hint)
}

/// Drops the oldest entries of a kind that have ended, until at most `most` are left.
fn forget_oldest(entries: &mut VecDeque<Arc<Entry>>, most: usize, kind: impl Fn(&Entry) -> bool) {
    let is_over = |entry: &Arc<Entry>| kind(entry) && entry.end.is_over();
    let count = entries.iter().filter(|entry| is_over(entry)).count();
    let mut excess = count.saturating_sub(most);
    if excess > 0 {
        entries.retain(|entry| {
            let forgotten = excess > 0 && is_over(entry);
            excess -= usize::from(forgotten);
            !forgotten
        });
    }
}

/// Reads a background command to its end.
async fn keep(mut running: Running, entry: Arc<Entry>) {
    let Some(Background { output, .. }) = &entry.background else { return };
    while let Some(event) = running.next_event().await {
        match event {
            CommandEvent::Output { stream, data } => {
                output.push(stream, &data);
                output.room().await;
            }
            CommandEvent::Finished(outcome) => {
                let _ = entry.ended_at.set(unix_now());
                output.finish(outcome);
            }
            _ => {}
        }
    }
}

impl Entry {
    fn info(&self) -> CommandInfo {
        let output = self.background.as_ref().map(|background| &background.output);
        let outcome = output.and_then(|output| output.outcome());
        let [stdout, stderr] = output.map(|output| output.totals()).unwrap_or_default();
        CommandInfo {
            id: self.id.clone(),
            pid: Some(self.process.pid()),
            command: self.line.clone(),
            started_at: self.started_at,
            exit_code: outcome.as_ref().map(|outcome| outcome.exit_code),
            signal: outcome.as_ref().and_then(|outcome| outcome.signal),
            failure: outcome.and_then(|outcome| outcome.failure),
            ended_at: self.ended_at.get().copied(),
            background: self.background.is_some(),
            stdout,
            stderr,
        }
    }

    /// Makes a new listener of a background command, from the beginning.
    fn listen(&self, guard: Guard) -> Option<Command> {
        static LISTENERS: AtomicU64 = AtomicU64::new(0);
        let Background { output, control } = self.background.as_ref()?;
        let number = LISTENERS.fetch_add(1, Ordering::Relaxed);
        output.expect(number);
        let listener = Listener { output: Arc::clone(output), number, done: false, _guard: guard };
        let events = unfold(listener, |mut listener| async move {
            let event = listener.next().await?;
            Some((event, listener))
        });
        Some(Command {
            id: self.id.clone(),
            pid: Some(self.process.pid()),
            events: Box::pin(events),
            control: Arc::<Control>::clone(control),
        })
    }
}

/// A listener of a background command.
struct Listener {
    output: Arc<OutputBuffer>,
    number: u64,
    done: bool,
    _guard: Guard,
}

impl Listener {
    async fn next(&mut self) -> Option<CommandEvent> {
        if self.done {
            return None;
        }
        let event = self.output.next(self.number).await;
        self.done = matches!(event, CommandEvent::Finished(_));
        Some(event)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.output.forget(self.number);
    }
}

struct Control {
    process: Arc<dyn Process>,
    end: Arc<CommandEnd>,
    input: Input,
    terminal: Option<Box<dyn Terminal>>,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("process", &self.process).finish_non_exhaustive()
    }
}

#[async_trait]
impl CommandControl for Control {
    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        self.input.write(&data, &self.end).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.input.close(&self.end).await
    }

    async fn resize(&self, size: PtySize) -> Result<()> {
        let Some(terminal) = &self.terminal else {
            return Err(Error::unsupported("resize", "the command has no terminal"));
        };
        if size.columns == 0 || size.rows == 0 {
            return Err(Error::invalid("size", "must have at least one column and one row"));
        }
        terminal.resize(size).await
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        const SIGKILL: i32 = 9;
        if !(1..=64).contains(&signal) {
            return Err(Error::invalid("signal", format!("must be from 1 to 64, got {signal}")));
        }
        match (tree, signal) {
            (true, SIGKILL) => self.process.kill_tree().await,
            (true, _) => self.process.signal_tree(signal).await,
            (false, _) => self.process.signal(signal),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::host::{WorkerIo, WorkerSpec};

    /// A host that takes two seconds to find that there is no such program.
    #[derive(Debug)]
    struct Slow {
        allowance: Duration,
    }

    #[async_trait]
    impl ProcessHost for Slow {
        async fn spawn(&self, _spec: Spawn) -> Result<Spawned> {
            sleep(Duration::from_secs(2)).await;
            Err(Error::new(ErrorKind::NotFound, "start_command", "no such program"))
        }

        fn start_allowance(&self) -> Duration {
            self.allowance
        }

        async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
            Err(Error::unsupported("start_interpreter", "there are none"))
        }

        fn kill(&self) {}

        async fn closed(&self) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_has_its_limit_and_what_the_box_allows() {
        for (limit, allowance, expected) in [
            (Some(1), 0, ErrorKind::Timeout),
            (Some(1), 5, ErrorKind::NotFound),
            (Some(3), 0, ErrorKind::NotFound),
            (None, 0, ErrorKind::NotFound),
        ] {
            let slow = Slow { allowance: Duration::from_secs(allowance) };
            let commands = Commands::new(Arc::new(slow), Arc::default());
            let mut request = StartCommand::new("x");
            request.timeout = limit.map(Duration::from_secs);
            let started = commands.start(BTreeMap::new(), "/", request, Box::new(())).await;
            assert_eq!(started.unwrap_err().kind(), expected, "{limit:?} {allowance}");
        }
    }
}
