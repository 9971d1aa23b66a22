//! Programs of a sandbox, through the bridge: scripts, commands, and their input.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use sandbox_cloud::{Connections, StateStore};
use sandbox_core::{ByteStream, Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime::{self, background};
use sandbox_engine::commands::KeptCommand;
use sandbox_engine::host::{Spawn, Spawned};
use sandbox_shell::text::{self, Form};
use sandbox_shell::{
    AttachedProgram, Channel, ChannelSlot, ChannelUse, CommandHost, ProgramOutput, SHELL,
    ScriptOutput, ScriptStream, ShellHost, ShellProgram, Uploads, adopt_command, read_input,
};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::watch;

use crate::api::{Api, Generation};
use crate::client_factory::ApiFactory;
use crate::container::LOST;
use crate::error::lost;
use crate::kept;
use crate::output::{of_exec, of_process};
use crate::records::{self, SandboxRecord};
use crate::terminal::{Cursors, Terminal};
use crate::transfers::{Staged, staging};

/// How long the start of a program may take beyond its time limit: a container may have to start.
pub(crate) const START_ALLOWANCE: Duration = Duration::from_secs(120);

/// Bytes of input that are sent at once, and of content that a command line has. The whole line of an `exec` is one argument
/// of a shell, of at most 128 KiB.
const INPUT_SIZE: usize = 32 << 10;
const MAX_LINE: usize = 48 << 10;
const MAX_ARGUMENTS: usize = 96 << 10;

/// Largest output of a script.
const MAX_OUTPUT: usize = 96 << 20;

/// Runs a program with that text of base64 as its input.
const INLINE: &str = "data=$1; shift; printf %s \"$data\" | base64 -d | \"$@\"";

/// Writes a line to a FIFO, which is removed with its last line.
const PASS_ON: &str =
    "[ -p \"$1\" ] || exit 3; printf '%s\\n' \"$2\" >\"$1\"; [ -z \"$3\" ] || rm -f \"$1\"";

/// The programs of one sandbox. All requests are sent from the background runtime, which outlives that of a caller.
#[derive(Debug)]
pub(crate) struct Programs {
    factory: ApiFactory,
    pub(crate) id: String,
    /// The working directory.
    pub(crate) cwd: String,
    pub(crate) records: StateStore<SandboxRecord>,
    /// The open terminals, by their ids here.
    pub(crate) terminals: Mutex<HashMap<String, Terminal>>,
    pub(crate) cursors: Cursors,
    pub(crate) channel: ChannelSlot,
    /// The container was started again while this handle had it.
    pub(crate) lost: AtomicBool,
    /// No program has run in the container.
    pub(crate) fresh: AtomicBool,
    over: watch::Sender<bool>,
    own: Weak<Self>,
}

/// The input of a script.
pub(crate) enum Input {
    Nothing,
    Inline(String),
    File(String),
}

impl Programs {
    pub(crate) fn new(factory: &ApiFactory, id: &str, cwd: &str, fresh: bool) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            // Connections belong to one runtime, and these to the background.
            factory: factory.apart(),
            id: id.to_owned(),
            cwd: cwd.to_owned(),
            records: records::sandboxes(&factory.config),
            terminals: Mutex::default(),
            cursors: Cursors::default(),
            channel: ChannelSlot::default(),
            lost: AtomicBool::new(false),
            fresh: AtomicBool::new(fresh),
            over: watch::Sender::new(false),
            own: Weak::clone(own),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Ends what waits for the sandbox: it has ended.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
        self.channel.close();
    }

    /// Returns the channel where it is open. One is opened in the background when that is worth it.
    fn channel(&self, used: ChannelUse) -> Option<Arc<Channel>> {
        self.channel.get(used, &self.own().ok()?)
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Returns the bridge, for requests from the background runtime.
    pub(crate) fn api(&self, operation: &'static str) -> Result<Api> {
        self.factory.api(operation, Connections::Shared)
    }

    pub(crate) fn own(&self) -> Result<Arc<Self>> {
        self.own.upgrade().ok_or_else(|| self.lost("command"))
    }

    /// Mounts a bucket.
    pub(crate) async fn mount(&self, mount: serde_json::Value) -> Result<()> {
        let own = self.own()?;
        background(async move { own.api("create")?.mount(&own.id, &mount).await }).await?
    }

    /// Runs a program without a shell of ours around it.
    async fn output(
        self: &Arc<Self>,
        operation: &'static str,
        argv: &[&str],
        env: &BTreeMap<&str, &str>,
    ) -> Result<(String, ProgramOutput)> {
        let api = self.api(operation)?;
        match api.generation(operation).await? {
            Generation::Exec => {
                let body = api.exec(operation, &self.id, argv).await?.into_bytes();
                Ok((random_hex(8), of_exec(body)))
            }
            Generation::Processes => {
                let process = api.start(operation, &self.id, argv, env).await?;
                Ok((process.id.clone(), of_process(Arc::clone(self), process.id)))
            }
        }
    }

    /// Runs a script in the container. `is_guarded`: one that was started again is an error.
    pub(crate) async fn run_script(
        self: Arc<Self>,
        operation: &'static str,
        input: Input,
        script: String,
        arguments: Vec<String>,
        is_guarded: bool,
    ) -> Result<ScriptOutput> {
        let word = random_hex(16);
        let (data, file) = match &input {
            Input::Nothing => (None, ""),
            Input::Inline(data) => (Some(data.as_str()), "-"),
            Input::File(file) => (None, file.as_str()),
        };
        let mut words =
            if is_guarded { vec![SHELL, "-c", self.guard(), "sh", "-", "-"] } else { Vec::new() };
        if let Some(data) = data {
            words.extend([SHELL, "-c", INLINE, "sh", data]);
        }
        words.extend([SHELL, "-c", text::RUN, "sh", &word, file, "", &script]);
        words.extend(arguments.iter().map(String::as_str));
        let generation = self.api(operation)?.generation(operation).await?;
        let (_, mut output) = self.output(operation, &words, &BTreeMap::new()).await?;
        let mut found = [Vec::new(), Vec::new()];
        while let Some(piece) = output.next().await {
            let (stream, data) = piece
                .map_err(|error| lost(operation, "a program of the sandbox").with_source(error))?;
            if found[stream].len() + data.len() > MAX_OUTPUT {
                let message = "a program of the sandbox has written more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, operation, message));
            }
            found[stream].extend_from_slice(&data);
        }
        let [stdout, stderr] = found;
        if is_guarded && stderr.starts_with(LOST) {
            return Err(self.note_loss(operation).await);
        }
        self.note_mark();
        match generation {
            Generation::Exec if !stdout.is_empty() => {
                text::decoded_answer(operation, &word, &stdout)
            }
            Generation::Exec => text::answer(operation, &word, &String::from_utf8_lossy(&stderr)),
            Generation::Processes => {
                let told = if stdout.is_empty() { &stderr } else { &stdout };
                text::answer(operation, &word, &String::from_utf8_lossy(told))
            }
        }
    }

    /// Runs a script in the background runtime, without input.
    pub(crate) async fn run_in_background(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<ScriptOutput> {
        let own = self.own()?;
        let script = script.to_owned();
        let arguments = owned(arguments);
        background(own.run_script(operation, Input::Nothing, script, arguments, true)).await?
    }

    async fn over_channel(
        &self,
        channel: &Channel,
        script: &str,
        arguments: &[&str],
        input: Option<&[u8]>,
    ) -> Result<ScriptOutput> {
        match channel.run(script, arguments, input).await {
            Err(error) if error.kind() == ErrorKind::ConnectionLost => {
                Err(self.explain_loss(error).await)
            }
            output => output,
        }
    }

    async fn start_program(self: Arc<Self>, program: ShellProgram) -> Result<AttachedProgram> {
        let operation = "start_command";
        let api = self.api(operation)?;
        let form = match api.generation(operation).await? {
            Generation::Exec => Form::Lines,
            Generation::Processes => Form::Exact,
        };
        let fifo = match program.stdin {
            true => format!("/tmp/.sandbox-{}", random_hex(8)),
            false => "-".to_owned(),
        };
        // The outcome of an `exec` is that of its request, so no later process could follow it.
        let kept = program.kept.as_ref().filter(|_| form == Form::Exact);
        let note = kept.map_or_else(|| "-".to_owned(), |kept| kept::note(kept, &fifo));
        let mut argv = vec![SHELL, "-c", self.guard(), "sh", &fifo, &note];
        argv.extend(text::program_words(form, program.stdin, &program.argv));
        let size: usize = argv.iter().map(|word| word.len()).sum();
        // Variables of an `exec` travel in a file: a command line is in the list of processes.
        let (env, in_file, max) = match form {
            Form::Lines => (BTreeMap::new(), &program.env[..], MAX_LINE),
            Form::Exact => {
                let env = program.env.iter().map(|(name, value)| (&**name, &**value));
                (env.collect(), &[][..], MAX_ARGUMENTS)
            }
        };
        let (id, mut output) = if in_file.is_empty() && size <= max {
            self.output(operation, &argv, &env).await?
        } else {
            let file = staging();
            let content = text::program_file(in_file, &argv)?;
            api.put(operation, &self.id, &file, content).await?;
            self.output(operation, &[SHELL, &file, &note], &env).await?
        };
        // The first output is the report of the start, or of a container that was started again.
        let first = output.next().await;
        if let Some(Ok((1, data))) = &first
            && data.starts_with(LOST)
        {
            return Err(self.note_loss(operation).await);
        }
        self.note_mark();
        let output: ProgramOutput = Box::pin(stream::iter(first).chain(output));
        Ok(self.attach_to(id, output, program.stdin.then_some(fifo)))
    }

    /// Opens the input of a program, a FIFO.
    fn attach_to(
        self: Arc<Self>,
        id: String,
        output: ProgramOutput,
        fifo: Option<String>,
    ) -> AttachedProgram {
        let (input, reader) = duplex(INPUT_SIZE);
        if let Some(fifo) = fifo {
            tokio::spawn(feed(self, fifo, reader));
        }
        AttachedProgram { id, output, input: Box::pin(input) }
    }

    /// Returns the commands in the background that earlier processes have started and that still run.
    ///
    /// # Errors
    /// What keeps the bridge from being reached.
    pub(crate) async fn kept(&self) -> Result<Vec<(KeptCommand, Spawned)>> {
        let own = self.own()?;
        background(async move { own.find_kept().await }).await?
    }

    async fn find_kept(self: Arc<Self>) -> Result<Vec<(KeptCommand, Spawned)>> {
        let operation = "attach";
        let api = self.api(operation)?;
        if api.generation(operation).await? == Generation::Exec {
            return Ok(Vec::new());
        }
        let shell: Arc<dyn ShellHost> = Arc::<Self>::clone(&self);
        let mut found = Vec::new();
        for process in api.processes(operation, &self.id).await? {
            let note = process.command.iter().find_map(|word| kept::find_note(word));
            let Some((program, fifo)) = note.filter(|_| process.state == "running") else {
                continue;
            };
            let Some(kept) = KeptCommand::from_label(&program.label) else { continue };
            let output = of_process(Arc::clone(&self), process.id.clone());
            let has_input = fifo.is_some();
            let attached = Arc::clone(&self).attach_to(process.id, output, fifo);
            match adopt_command(&shell, attached, &program.word, has_input).await {
                Ok(spawned) => found.push((kept, spawned)),
                // It has ended meanwhile, or its log is gone.
                Err(error) => tracing::debug!(%error, id = kept.id, "a command is not found"),
            }
        }
        Ok(found)
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Passes the input of a command on, and its end. A handle that goes leaves the input open for a later one.
async fn feed(programs: Arc<Programs>, fifo: String, mut from: DuplexStream) {
    let mut buffer = vec![0; INPUT_SIZE];
    let mut sent = Ok(());
    while sent.is_ok() {
        match from.read(&mut buffer).await {
            Ok(count) if count > 0 => {
                let line = text::input_piece(&buffer[..count]);
                sent = pass_on(&programs, &fifo, &line, "").await;
            }
            _ => break,
        }
    }
    if programs.is_over() {
        return;
    }
    if let Err(error) = sent.and(pass_on(&programs, &fifo, ".", "last").await) {
        tracing::debug!(%error, "the input of a command has ended early");
    }
}

async fn pass_on(programs: &Arc<Programs>, fifo: &str, line: &str, last: &str) -> Result<()> {
    let operation = "write_stdin";
    let argv = [SHELL, "-c", PASS_ON, "sh", fifo, line, last];
    let (_, mut output) = programs.output(operation, &argv, &BTreeMap::new()).await?;
    while let Some(piece) = output.next().await {
        piece.map_err(|error| lost(operation, "a command").with_source(error))?;
    }
    Ok(())
}

#[async_trait]
impl ShellHost for Programs {
    async fn start(
        &self,
        operation: &'static str,
        program: ShellProgram,
    ) -> Result<AttachedProgram> {
        let own = self.own()?;
        background(async move {
            match program.terminal {
                None => own.start_program(program).await,
                Some(size) => own.start_on_terminal(operation, program, size).await,
            }
        })
        .await?
    }

    /// Returns nothing: the bridge knows the status of the shell around a program.
    async fn status(&self, _id: &str) -> Option<i64> {
        None
    }

    async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        self.resize_terminal(id, size).await
    }

    async fn start_own(&self, spec: &Spawn, word: &str) -> Result<Option<AttachedProgram>> {
        // A terminal is the bridge's, and so is a log that a later process can find.
        let is_kept = match &spec.label {
            Some(_) => self.api("start_command")?.generation("start_command").await?,
            None => Generation::Exec,
        } == Generation::Processes;
        if spec.terminal.is_some() || is_kept {
            return Ok(None);
        }
        let Some(channel) = self.channel(ChannelUse::Command) else { return Ok(None) };
        let mut started = channel.start(spec, word);
        let first = started.output.next().await;
        if let Some(Err(error)) = first {
            return Err(self
                .explain_loss(lost("start_command", "a command").with_source(error))
                .await);
        }
        started.output = Box::pin(stream::iter(first).chain(started.output));
        Ok(Some(started))
    }

    async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        match self.channel(ChannelUse::Script) {
            Some(channel) => self.over_channel(&channel, script, arguments, None).await,
            None => self.run_in_background("tool", script, arguments).await,
        }
    }

    async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        mut content: ByteStream,
    ) -> Result<(ScriptOutput, u64)> {
        let operation = "write_file";
        if let Some(channel) = self.channel(ChannelUse::Script) {
            content = match read_input(content).await? {
                Ok(input) => {
                    let output = self.over_channel(&channel, script, arguments, Some(&input));
                    return Ok((output.await?, input.len() as u64));
                }
                Err(longer) => longer,
            };
        }
        let (own, script, arguments) = (self.own()?, script.to_owned(), owned(arguments));
        background(async move {
            let mut first = BytesMut::new();
            while first.len() <= INPUT_SIZE {
                let Some(chunk) = content.next().await.transpose()? else {
                    let (size, data) = (first.len() as u64, Input::Inline(STANDARD.encode(&first)));
                    let output = own.run_script(operation, data, script, arguments, true).await?;
                    return Ok((output, size));
                };
                first.extend_from_slice(&chunk);
            }
            let file = staging();
            let staged = Staged::new(&own, &file);
            let first = stream::iter([Ok(first.freeze())]);
            let size = own.send(operation, &file, Box::pin(first.chain(content))).await?;
            let input = Input::File(file);
            let output = own.run_script(operation, input, script, arguments, true).await?;
            staged.done();
            Ok((output, size))
        })
        .await?
    }

    fn uploads(&self) -> Option<&dyn Uploads> {
        Some(self)
    }

    async fn stream(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Box<dyn ScriptStream>> {
        let (own, script, arguments) = (self.own()?, script.to_owned(), owned(arguments));
        let started = background(async move {
            let form = match own.api(operation)?.generation(operation).await? {
                Generation::Exec => Form::Lines,
                Generation::Processes => Form::Exact,
            };
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let mut argv = vec![SHELL, "-c", own.guard(), "sh", "-", "-"];
            argv.extend(text::stream_words(form, &script, &arguments));
            let (_, output) = own.output(operation, &argv, &BTreeMap::new()).await?;
            let stderr = Vec::new();
            Ok::<_, Error>(StreamedScript { operation, programs: own, output, stderr })
        });
        Ok(Box::new(started.await??))
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) {
        background_runtime::spawn(work);
    }

    fn is_closed(&self) -> bool {
        self.is_over()
    }

    async fn closed(&self) {
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    fn lost(&self, operation: &'static str) -> Error {
        if self.is_over() {
            return Error::new(ErrorKind::Terminated, operation, "the sandbox has ended");
        }
        lost(operation, "the command")
    }
}

/// A script whose output is passed on while it runs.
struct StreamedScript {
    operation: &'static str,
    programs: Arc<Programs>,
    output: ProgramOutput,
    stderr: Vec<u8>,
}

#[async_trait]
impl ScriptStream for StreamedScript {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(piece) = self.output.next().await {
            match piece {
                Ok((0, data)) => return Ok(Some(data)),
                Ok((_, data)) if self.stderr.len() < INPUT_SIZE => {
                    self.stderr.extend_from_slice(&data);
                }
                Ok(_) => {}
                Err(error) => {
                    return Err(lost(self.operation, "the sandbox").with_source(error));
                }
            }
        }
        if self.stderr.starts_with(LOST) {
            let programs = Arc::clone(&self.programs);
            return Err(programs.note_loss(self.operation).await);
        }
        self.programs.note_mark();
        Ok(None)
    }

    async fn finish(&mut self) -> Result<ScriptOutput> {
        text::ended_stream(&self.stderr).ok_or_else(|| {
            let told: String = String::from_utf8_lossy(&self.stderr).chars().take(200).collect();
            let message = format!("the sandbox answered {told:?}");
            Error::new(ErrorKind::Protocol, self.operation, message)
        })
    }
}

impl CommandHost for Programs {
    fn start_allowance(&self) -> Duration {
        START_ALLOWANCE
    }

    fn no_interpreter(&self) -> Error {
        Error::unsupported("start_interpreter", "interpreters belong to contexts")
    }

    /// Ends what waits here. The sandbox itself is ended through the bridge.
    fn end(&self) {
        Programs::end(self);
    }
}
