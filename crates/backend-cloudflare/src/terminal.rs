//! Terminals of a sandbox: a WebSocket each, of a session's shell or of a program, by the generation of the bridge.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard as StdMutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_cloud::http::terminal::{TerminalText, terminal_input, terminal_output};
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime::background;
use sandbox_shell::text;
use sandbox_shell::{
    AttachedProgram, ChannelHost, ChannelTerminal, ProgramOutput, SHELL, ShellHost as _,
    ShellProgram,
};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::api::{Api, Generation};
use crate::programs::{Input, Programs};
use crate::transfers::staging;
use crate::wire::TerminalMessage;

/// Bytes of input that are sent at once.
const INPUT_SIZE: usize = 32 << 10;

/// Bytes of a program that a command line has.
const MAX_INLINE: usize = 40 << 10;

/// Time for a terminal to be connected. A container may have to start.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(120);

/// The sending half of a terminal.
pub(crate) type Terminal = Arc<Mutex<SocketSender>>;

/// The cursors of the terminals that are channels, behind what was read.
pub(crate) type Cursors = Arc<StdMutex<HashMap<String, String>>>;

impl Programs {
    /// Starts a program on a terminal. In the generation of sessions it replaces the shell of a new one.
    pub(crate) async fn start_on_terminal(
        self: Arc<Self>,
        operation: &'static str,
        program: ShellProgram,
        size: PtySize,
    ) -> Result<AttachedProgram> {
        let api = self.api(operation)?;
        // A terminal would not say that the container was started again.
        self.run(":", &[]).await?;
        let connecting = timeout(TERMINAL_TIMEOUT, self.connect(&api, operation, &program, size));
        let connected = connecting.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, operation, "the terminal was not ready in time"))
        });
        let (sender, receiver, remote) = connected?;
        let sender = Arc::new(Mutex::new(sender));
        let (input, reader) = duplex(INPUT_SIZE);
        let id = format!("pty-{}", random_hex(8));
        self.open_terminals().insert(id.clone(), Arc::clone(&sender));
        let (own, key) = (Arc::clone(&self), id.clone());
        tokio::spawn(async move {
            feed_terminal(&sender, reader).await;
            own.open_terminals().remove(&key);
            sender.lock().await.close().await;
            own.forget_terminal(&remote).await;
        });
        Ok(AttachedProgram { id, output: output(receiver, drop), input: Box::pin(input) })
    }

    /// Starts a program on a terminal. Returns the id that the bridge knows the terminal by, or its session.
    async fn connect(
        &self,
        api: &Api,
        operation: &'static str,
        program: &ShellProgram,
        size: PtySize,
    ) -> Result<(SocketSender, SocketReceiver, String)> {
        let id = self.id();
        let words: Vec<&str> = program.argv.iter().map(String::as_str).collect();
        if api.generation(operation).await? == Generation::Processes {
            let env = program.env.iter().map(|(name, value)| (&**name, &**value));
            let env: BTreeMap<_, _> = env.collect();
            let made = api.create_terminal(id, &words, &env, size).await?;
            let opened = api.connect_terminal(id, &made.id, size, None).await?;
            let (sender, receiver) = opened.split();
            return Ok((sender, receiver, made.id));
        }
        let session = format!("code-sandboxes-{}", random_hex(8));
        let file = self.put_program(operation, text::program_file(&program.env, &words)?).await?;
        api.create_session(id, &session).await?;
        let (mut sender, mut receiver) = api.pty(id, &session, size).await?.split();
        until_ready(&mut receiver).await?;
        sender.binary(Bytes::from(format!(" exec {SHELL} {file}\n"))).await?;
        Ok((sender, receiver, session))
    }

    /// Puts a program into a file that removes itself. A small one is not below the workspace, where it would be seen.
    async fn put_program(&self, operation: &'static str, content: String) -> Result<String> {
        if content.len() > MAX_INLINE {
            let file = staging();
            self.api(operation)?.put(operation, self.id(), &file, content).await?;
            return Ok(file);
        }
        let file = format!("/tmp/.sandbox-{}", random_hex(8));
        let input = Input::Inline(STANDARD.encode(content));
        let (script, arguments) = ("cat >\"$1\"".to_owned(), vec![file.clone()]);
        let written = self.own()?.run_script(operation, input, script, arguments, true).await?;
        match written.status {
            0 => Ok(file),
            _ => Err(Error::new(ErrorKind::ResourceExhausted, operation, written.last_error())),
        }
    }

    fn open_terminals(&self) -> StdMutexGuard<'_, HashMap<String, Terminal>> {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the size of an open terminal.
    pub(crate) async fn resize_terminal(&self, id: &str, size: PtySize) -> Result<()> {
        let found = self.open_terminals().get(id).cloned();
        let Some(sender) = found else { return Err(self.lost("resize")) };
        let message =
            serde_json::json!({"type": "resize", "cols": size.columns, "rows": size.rows});
        background(async move { sender.lock().await.text(message.to_string()).await }).await?
    }
}

#[async_trait]
impl ChannelHost for Programs {
    async fn open_terminal(&self, argv: Vec<String>) -> Result<ChannelTerminal> {
        let operation = "connect";
        let api = self.api(operation)?;
        let program = ShellProgram { argv, ..ShellProgram::default() };
        let size = PtySize::default();
        let (sender, receiver, id) = self.connect(&api, operation, &program, size).await?;
        Ok(self.channel_terminal(id, sender, receiver))
    }

    /// The next generation gives the output of a terminal from a cursor on; the stable one has no way back to a terminal.
    async fn reopen_terminal(&self, id: &str) -> Result<Option<ChannelTerminal>> {
        let operation = "connect";
        let api = self.api(operation)?;
        if api.generation(operation).await? == Generation::Exec {
            return Ok(None);
        }
        let cursor = self.cursors().get(id).cloned();
        let opened = api.connect_terminal(self.id(), id, PtySize::default(), cursor.as_deref());
        let (sender, receiver) = opened.await?.split();
        Ok(Some(self.channel_terminal(id.to_owned(), sender, receiver)))
    }

    async fn forget_terminal(&self, id: &str) {
        self.cursors().remove(id);
        if self.is_over() {
            return;
        }
        let removed = async {
            let api = self.api("command")?;
            match api.generation("command").await? {
                Generation::Exec => api.delete_session(self.id(), id).await,
                Generation::Processes => api.end_terminal(self.id(), id).await,
            }
        };
        if let Err(error) = removed.await {
            tracing::debug!(%error, "a terminal may be left in the sandbox");
        }
    }
}

impl Programs {
    fn cursors(&self) -> StdMutexGuard<'_, HashMap<String, String>> {
        self.cursors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn channel_terminal(
        &self,
        id: String,
        sender: SocketSender,
        receiver: SocketReceiver,
    ) -> ChannelTerminal {
        let (cursors, key) = (Arc::clone(&self.cursors), id.clone());
        let mark = move |cursor| {
            let mut cursors = cursors.lock().unwrap_or_else(PoisonError::into_inner);
            cursors.insert(key.clone(), cursor);
        };
        ChannelTerminal { id, output: output(receiver, mark), input: terminal_input(sender) }
    }
}

async fn feed_terminal(into: &Terminal, mut from: DuplexStream) {
    let mut buffer = vec![0; INPUT_SIZE];
    while let Ok(count) = from.read(&mut buffer).await {
        let data = Bytes::copy_from_slice(&buffer[..count]);
        if count == 0 || into.lock().await.binary(data).await.is_err() {
            break;
        }
    }
}

fn kind_of(text: &str) -> String {
    serde_json::from_str::<TerminalMessage>(text).unwrap_or_default().kind
}

async fn until_ready(receiver: &mut SocketReceiver) -> Result<()> {
    let failed = |why: String| {
        let message = format!("no terminal could be opened: {why}");
        Error::new(ErrorKind::Unavailable, "start_command", message)
    };
    loop {
        match receiver.next().await {
            Some(SocketMessage::Text(text)) => match kind_of(&text).as_str() {
                "ready" => return Ok(()),
                "error" | "exit" => return Err(failed(text)),
                _ => {}
            },
            Some(SocketMessage::Binary(_)) => {}
            Some(SocketMessage::Closed { reason, .. }) => return Err(failed(reason)),
            None => return Err(failed("the connection broke".to_owned())),
        }
    }
}

/// Returns what a terminal prints. `mark` takes the cursors of its pieces.
fn output(
    receiver: SocketReceiver,
    mut mark: impl FnMut(String) + Send + 'static,
) -> ProgramOutput {
    let meaning = move |text: String| {
        let message: TerminalMessage = serde_json::from_str(&text).unwrap_or_default();
        message.cursor.into_iter().for_each(&mut mark);
        match message.kind.as_str() {
            // Output that was dropped cannot be made good: the terminal counts as lost.
            "exit" | "truncated" => TerminalText::End,
            _ => TerminalText::Nothing,
        }
    };
    Box::pin(terminal_output(receiver, meaning).map(|data| Ok((0, data))))
}
