//! Terminals of a sandbox: a WebSocket each, of a session's shell or of a program, by the generation of the bridge.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime::background;
use sandbox_shell::text;
use sandbox_shell::{AttachedProgram, ProgramOutput, SHELL, ShellHost as _, ShellProgram};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, Semaphore, mpsc};
use tokio::time::timeout;

use crate::api::{Api, Generation};
use crate::programs::Programs;
use crate::transfers::staging;
use crate::wire::TerminalMessage;

/// Bytes of input that are sent at once.
const INPUT_SIZE: usize = 32 << 10;

/// Output of a terminal that waits for its reader. The bridge drops output that is not read in time.
const MAX_WAITING: usize = 64 << 20;

/// Time for a terminal to be connected. A container may have to start.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(120);

/// The sending half of a terminal.
pub(crate) type Terminal = Arc<Mutex<SocketSender>>;

/// What the bridge keeps of a terminal, to be removed after its end.
enum Kept {
    Session(String),
    Terminal(String),
}

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
        let (sender, receiver, kept) = connected?;
        let sender = Arc::new(Mutex::new(sender));
        let (input, reader) = duplex(INPUT_SIZE);
        let id = format!("pty-{}", random_hex(8));
        self.open_terminals().insert(id.clone(), Arc::clone(&sender));
        let (own, key) = (Arc::clone(&self), id.clone());
        tokio::spawn(async move {
            feed_terminal(&sender, reader).await;
            own.open_terminals().remove(&key);
            sender.lock().await.close().await;
            own.remove(kept).await;
        });
        Ok(AttachedProgram { id, output: terminal_output(receiver), input: Box::pin(input) })
    }

    async fn connect(
        &self,
        api: &Api,
        operation: &'static str,
        program: &ShellProgram,
        size: PtySize,
    ) -> Result<(SocketSender, SocketReceiver, Kept)> {
        let id = self.id();
        let words: Vec<&str> = program.argv.iter().map(String::as_str).collect();
        if api.generation(operation).await? == Generation::Processes {
            let env = program.env.iter().map(|(name, value)| (&**name, &**value));
            let env: BTreeMap<_, _> = env.collect();
            let made = api.create_terminal(id, &words, &env, size).await?;
            let (sender, receiver) = api.connect_terminal(id, &made.id, size).await?.split();
            return Ok((sender, receiver, Kept::Terminal(made.id)));
        }
        let (file, session) = (staging(), format!("code-sandboxes-{}", random_hex(8)));
        let content = text::program_file(&program.env, &words)?;
        api.put(operation, id, &file, content).await?;
        api.create_session(id, &session).await?;
        let (mut sender, mut receiver) = api.pty(id, &session, size).await?.split();
        until_ready(&mut receiver).await?;
        sender.binary(Bytes::from(format!(" exec {SHELL} {file}\n"))).await?;
        Ok((sender, receiver, Kept::Session(session)))
    }

    fn open_terminals(&self) -> MutexGuard<'_, HashMap<String, Terminal>> {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn remove(&self, kept: Kept) {
        if self.is_over() {
            return;
        }
        let removed = async {
            let api = self.api("command")?;
            match &kept {
                Kept::Session(session) => api.delete_session(self.id(), session).await,
                Kept::Terminal(terminal) => api.end_terminal(self.id(), terminal).await,
            }
        };
        if let Err(error) = removed.await {
            tracing::debug!(%error, "a terminal may be left in the sandbox");
        }
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

/// Reads a terminal as fast as it writes, up to a bound, and passes the output on.
fn terminal_output(mut receiver: SocketReceiver) -> ProgramOutput {
    let (sender, queue) = mpsc::unbounded_channel::<Bytes>();
    let waiting = Arc::new(Semaphore::new(MAX_WAITING));
    let room = Arc::clone(&waiting);
    tokio::spawn(async move {
        while let Some(message) = receiver.next().await {
            let data = match message {
                SocketMessage::Binary(data) => data,
                SocketMessage::Text(text) => match kind_of(&text).as_str() {
                    // Output that was dropped cannot be made good: the terminal counts as lost.
                    "exit" | "truncated" => break,
                    _ => continue,
                },
                SocketMessage::Closed { .. } => break,
            };
            let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let Ok(permit) = room.acquire_many(size).await else { break };
            permit.forget();
            if sender.send(data).is_err() {
                break;
            }
        }
    });
    let output = stream::unfold((queue, waiting), |(mut queue, waiting)| async move {
        let data = queue.recv().await?;
        waiting.add_permits(data.len());
        Some((Ok((0, data)), (queue, waiting)))
    });
    Box::pin(output.fuse())
}
