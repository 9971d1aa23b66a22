//! Programs of a sandbox, through its toolbox: scripts as commands that are waited for, commands in sessions, terminals.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use sandbox_cloud::Connections;
use sandbox_core::{ByteStream, Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime::{self, background};
use sandbox_engine::commands::KeptCommand;
use sandbox_engine::host::{Spawn, Spawned};
use sandbox_shell::{
    AttachedProgram, Channel, ChannelSlot, ChannelUse, CommandHost, ScriptOutput, ScriptStream,
    ShellHost, ShellProgram, Uploads, adopt_command, read_input, text,
};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::client_factory::ApiFactory;
use crate::error::lost;
use crate::kept;
use crate::session_log::follow;
use crate::toolbox::{Toolbox, of_sandbox};
use crate::wire::Sandbox;

/// Bytes of input that are sent at once.
pub(crate) const INPUT_SIZE: usize = 256 << 10;

/// Line that ends the input of a command of a session.
const END_OF_INPUT: &str = ".\n";

/// Time for the end of a sandbox to be known, when it has refused a program.
const END_TIMEOUT: Duration = Duration::from_secs(1);

/// The programs of one sandbox. All requests are sent from the background runtime, which outlives that of a caller.
#[derive(Debug)]
pub(crate) struct Programs {
    factory: Arc<ApiFactory>,
    sandbox: Sandbox,
    /// Sessions in which no command runs.
    idle: Mutex<Vec<String>>,
    channel: ChannelSlot,
    over: watch::Sender<bool>,
    own: Weak<Self>,
}

impl Programs {
    pub(crate) fn new(factory: Arc<ApiFactory>, sandbox: Sandbox) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            factory,
            sandbox,
            idle: Mutex::default(),
            channel: ChannelSlot::default(),
            over: watch::Sender::new(false),
            own: Weak::clone(own),
        })
    }

    /// Ends what waits for the sandbox: it has ended.
    pub(crate) fn end(&self) {
        self.over.send_replace(true);
        self.channel.close();
    }

    /// Notes that the sandbox is about to be held, or is no more.
    pub(crate) fn hold(&self, is_held: bool) {
        self.channel.hold(is_held);
    }

    /// Returns the channel where it is open. One is opened in the background when that is worth it.
    fn channel(&self, used: ChannelUse) -> Option<Arc<Channel>> {
        self.channel.get(used, &self.own().ok()?)
    }

    pub(crate) fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Returns the toolbox, for requests from the background runtime.
    pub(crate) fn toolbox(&self, operation: &'static str) -> Result<Toolbox> {
        self.factory.toolbox(operation, &self.sandbox, Connections::Dedicated)
    }

    /// Returns the toolbox, for requests from the runtime of a caller.
    pub(crate) fn callers_toolbox(&self, operation: &'static str) -> Result<Toolbox> {
        self.factory.toolbox(operation, &self.sandbox, Connections::Shared)
    }

    /// Takes back a session whose command has ended.
    pub(crate) fn release(&self, session: String) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }

    pub(crate) fn own(&self) -> Result<Arc<Self>> {
        self.own.upgrade().ok_or_else(|| self.lost("command"))
    }

    /// Runs a script, with files as its input and output where these are named.
    pub(crate) async fn run_script(
        &self,
        operation: &'static str,
        [input, output]: [&str; 2],
        script: &str,
        arguments: &[&str],
    ) -> Result<ScriptOutput> {
        let word = random_hex(16);
        let line = text::run(&word, input, output, script, arguments);
        let toolbox = self.toolbox(operation)?;
        let executed = background(async move { toolbox.execute(operation, &line).await }).await?;
        let executed = executed?;
        text::answer(operation, &word, executed.result.as_deref().unwrap_or_default())
    }

    /// Starts a program in a session that is idle, or a new one.
    async fn start_in_session(self: Arc<Self>, program: ShellProgram) -> Result<AttachedProgram> {
        let line = text::program(&program.env, program.stdin, &program.argv)?;
        let kept = program.kept.as_ref().map(|kept| kept::kept(kept, program.stdin));
        let toolbox = self.toolbox("start_command")?;
        let line = kept.unwrap_or_default() + &line;
        let (session, command) = self.start_line(&toolbox, &line).await?;
        Ok(self.attach_to(toolbox, session, command, program.stdin))
    }

    /// Opens the streams of a command of a session.
    fn attach_to(
        self: Arc<Self>,
        toolbox: Toolbox,
        session: String,
        command: String,
        has_input: bool,
    ) -> AttachedProgram {
        let (input, reader) = duplex(INPUT_SIZE);
        if has_input {
            let feed =
                feed_session(Arc::clone(&self), toolbox, session.clone(), command.clone(), reader);
            tokio::spawn(feed);
        }
        let id = format!("{session}/{command}");
        let output = follow(self, session, command);
        AttachedProgram { id, output, input: Box::pin(input) }
    }

    /// Returns the commands in the background that earlier processes have started and that still run.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached.
    pub(crate) async fn kept(self: &Arc<Self>) -> Result<Vec<(KeptCommand, Spawned)>> {
        let own = Arc::clone(self);
        background(async move { own.find_kept().await }).await?
    }

    async fn find_kept(self: Arc<Self>) -> Result<Vec<(KeptCommand, Spawned)>> {
        let toolbox = self.toolbox("attach")?;
        let shell: Arc<dyn ShellHost> = Arc::<Self>::clone(&self);
        let mut found = Vec::new();
        for session in toolbox.sessions().await? {
            let running = session.commands.unwrap_or_default();
            for command in running.into_iter().filter(|command| command.exit_code.is_none()) {
                let Some((program, has_input)) = kept::find_kept(&command.command) else {
                    continue;
                };
                let Some(kept) = KeptCommand::from_label(&program.label) else { continue };
                let (toolbox, session) = (toolbox.clone(), session.session_id.clone());
                let attached = Arc::clone(&self).attach_to(toolbox, session, command.id, has_input);
                match adopt_command(&shell, attached, &program.word, has_input).await {
                    Ok(spawned) => found.push((kept, spawned)),
                    // It has ended meanwhile, or its log is gone.
                    Err(error) => tracing::debug!(%error, id = kept.id, "a command is not found"),
                }
            }
        }
        Ok(found)
    }

    async fn start_line(&self, toolbox: &Toolbox, line: &str) -> Result<(String, String)> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        if let Some(session) = idle {
            match toolbox.start(&session, line).await {
                Ok(command) => return Ok((session, command)),
                // The session is gone, as after a stop of the sandbox.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let session = format!("code-sandboxes-{}", random_hex(8));
        toolbox.create_session(&session).await?;
        let command = toolbox.start(&session, line).await.map_err(of_sandbox)?;
        Ok((session, command))
    }

    /// Removes a file that was staged, in the background.
    fn unstage(&self, file: String) {
        let Ok(toolbox) = self.toolbox("files") else { return };
        background_runtime::spawn(async move {
            if let Err(error) = toolbox.remove(&file).await {
                tracing::debug!(%error, file, "a temporary file may be left in the sandbox");
            }
        });
    }
}

/// Returns a name for a temporary file.
pub(crate) fn staging() -> String {
    format!("/tmp/.sandbox-{}", random_hex(8))
}

/// Sends the input of a command of a session, and its end. A handle that goes leaves the input open for a later one.
async fn feed_session(
    programs: Arc<Programs>,
    toolbox: Toolbox,
    session: String,
    command: String,
    mut from: DuplexStream,
) {
    let mut buffer = vec![0; INPUT_SIZE];
    let mut sent = Ok(());
    while sent.is_ok() {
        match from.read(&mut buffer).await {
            Ok(count) if count > 0 => {
                let line = text::input_piece(&buffer[..count]) + "\n";
                sent = toolbox.input(&session, &command, &line).await;
            }
            _ => break,
        }
    }
    if programs.is_over() {
        return;
    }
    // Without it the session would wait for input for ever.
    if let Err(error) = sent.and(toolbox.input(&session, &command, END_OF_INPUT).await) {
        tracing::debug!(%error, "the input of a command has ended early");
    }
}

#[async_trait]
impl ShellHost for Programs {
    async fn start(
        &self,
        _operation: &'static str,
        program: ShellProgram,
    ) -> Result<AttachedProgram> {
        let own = self.own()?;
        let started = background(async move {
            match program.terminal {
                None => own.start_in_session(program).await,
                Some(size) => own.start_on_terminal(program, size).await,
            }
        });
        match started.await? {
            // The refusal of a sandbox that is being ended comes before its end is known.
            Err(_) if timeout(END_TIMEOUT, self.closed()).await.is_ok() => {
                Err(self.lost("start_command"))
            }
            started => started,
        }
    }

    /// Returns nothing: the toolbox knows the status of the shell around a program.
    async fn status(&self, _id: &str) -> Option<i64> {
        None
    }

    async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        self.resize_terminal(id, size).await
    }

    async fn start_own(&self, spec: &Spawn, word: &str) -> Result<Option<AttachedProgram>> {
        // A terminal is the toolbox's, and so is a log that a later process can find.
        if spec.terminal.is_some() || spec.label.is_some() {
            return Ok(None);
        }
        Ok(self.channel(ChannelUse::Command).map(|channel| channel.start(spec, word)))
    }

    async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        if let Some(channel) = self.channel(ChannelUse::Script) {
            return channel.run(script, arguments, None).await;
        }
        self.run_script("tool", ["", ""], script, arguments).await
    }

    async fn run_quiet(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        let operation = "tool";
        if let Some(channel) = self.channel(ChannelUse::QuietScript) {
            return channel.run(script, arguments, None).await;
        }
        let line = text::run_plain(script, arguments);
        let toolbox = self.toolbox(operation)?;
        let executed = background(async move { toolbox.execute(operation, &line).await }).await??;
        let status = executed.exit_code.ok_or_else(|| {
            let message = "the sandbox did not tell how a script has ended";
            Error::new(ErrorKind::Protocol, operation, message)
        })?;
        let stderr = executed.result.unwrap_or_default().into_bytes();
        Ok(ScriptOutput { status, stdout: Vec::new(), stderr })
    }

    async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        content: ByteStream,
    ) -> Result<(ScriptOutput, u64)> {
        let mut content = content;
        if let Some(channel) = self.channel(ChannelUse::Script) {
            content = match read_input(content).await? {
                Ok(input) => {
                    let output = channel.run(script, arguments, Some(&input)).await?;
                    return Ok((output, input.len() as u64));
                }
                Err(longer) => longer,
            };
        }
        let file = staging();
        let staged = Staged { programs: self, file: Some(file.clone()) };
        let size = self.upload(&file, content).await?;
        let output = self.run_script("write_file", [&file, ""], script, arguments).await?;
        staged.done();
        Ok((output, size))
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
        let file = staging();
        let mut staged = Staged { programs: self, file: Some(file.clone()) };
        let output = self.run_script(operation, ["", &file], script, arguments).await?;
        let toolbox = self.toolbox(operation)?;
        let path = file.clone();
        let content = background(async move { toolbox.download(operation, &path).await }).await??;
        staged.file = None;
        Ok(Box::new(StagedOutput { programs: self.own()?, file: Some(file), content, output }))
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

#[async_trait]
impl Uploads for Programs {
    async fn upload(&self, path: &str, content: ByteStream) -> Result<u64> {
        let (toolbox, path) = (self.toolbox("write_file")?, path.to_owned());
        let counted = Arc::new(Mutex::new((0_u64, None)));
        let count = Arc::clone(&counted);
        let content = content.map(move |chunk| {
            let mut counted = count.lock().unwrap_or_else(PoisonError::into_inner);
            match &chunk {
                Ok(chunk) => counted.0 += chunk.len() as u64,
                Err(error) => counted.1 = Some((error.kind(), error.to_string())),
            }
            chunk
        });
        let sent =
            background(async move { toolbox.upload("write_file", &path, Box::pin(content)).await })
                .await?;
        let (size, failed) = counted.lock().map(|counted| counted.clone()).unwrap_or_default();
        if let Some((kind, message)) = failed {
            return Err(Error::new(kind, "write_file", message));
        }
        sent.map(|()| size)
    }
}

/// Removes a staged file when it is dropped, unless that was done.
struct Staged<'a> {
    programs: &'a Programs,
    file: Option<String>,
}

impl Staged<'_> {
    fn done(mut self) {
        self.file = None;
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.programs.unstage(file);
        }
    }
}

/// The output of a script, in a file that is removed afterwards.
struct StagedOutput {
    programs: Arc<Programs>,
    file: Option<String>,
    content: ByteStream,
    output: ScriptOutput,
}

#[async_trait]
impl ScriptStream for StagedOutput {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        self.content.next().await.transpose()
    }

    async fn finish(&mut self) -> Result<ScriptOutput> {
        Ok(std::mem::take(&mut self.output))
    }
}

impl Drop for StagedOutput {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            self.programs.unstage(file);
        }
    }
}

impl CommandHost for Programs {
    /// A service in the internet takes a moment.
    fn start_allowance(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// Code runs in the provider's interpreter.
    fn no_interpreter(&self) -> Error {
        Error::unsupported("start_interpreter", "daytona has its own interpreter")
    }

    /// Ends what waits here. The sandbox itself is ended through the API.
    fn end(&self) {
        Programs::end(self);
    }
}
