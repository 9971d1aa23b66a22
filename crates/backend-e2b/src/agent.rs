//! The agent in a sandbox, on the streams of a process of the daemon.
//!
//! The agent for files does what the daemon has no requests for. It is started when it is first needed, is shared by the
//! verbs of a handle, and ends with its standard input, or when nothing is heard of this end for half a minute.
//!
//! Where the template has no code interpreter, code runs in the workers of a second agent, which is resident: see
//! [`code_agent`](crate::code_agent). The image has to have Python 3.9 or later for both.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use sandbox_agent_client::{
    AgentConnection, AgentFiles, AgentReader, AgentRoute, AgentStreams, START_PYTHON,
    without_python,
};
use sandbox_core::{ErrorKind, FailureKind, Result, random_hex};
use sandbox_python::agent::arguments;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::envd::{Envd, PipedProcess, StartProcess, agent_tag};

/// Bytes of one request to the agent's standard input.
const CHUNK_SIZE: usize = 256 << 10;

/// Pieces of output that wait for their reader.
const QUEUE_CAPACITY: usize = 16;

/// Hint for a sandbox whose template has no interpreter.
pub(crate) const NEEDS_PYTHON: &str =
    "use a template with Python 3.9 or later, such as code-interpreter-v1";

/// The agent for files of one sandbox.
#[derive(Debug)]
pub(crate) struct FileAgent {
    envd: Envd,
    live: Mutex<Option<Arc<AgentConnection>>>,
}

impl FileAgent {
    pub(crate) fn new(envd: Envd) -> Self {
        Self { envd, live: Mutex::default() }
    }

    /// Returns the files of the sandbox. Relative paths begin at `base`.
    ///
    /// # Errors
    /// `Unsupported` without Python, and what kept the agent from starting.
    pub(crate) async fn files(&self, operation: &'static str, base: &str) -> Result<AgentFiles> {
        let mut live = self.live.lock().await;
        if let Some(agent) = live.as_ref().filter(|agent| agent.is_open()) {
            return Ok(agent.files(base));
        }
        let agent = Arc::new(start(&self.envd, operation).await?);
        let files = agent.files(base);
        *live = Some(agent);
        Ok(files)
    }
}

async fn start(envd: &Envd, operation: &'static str) -> Result<AgentConnection> {
    let nonce = random_hex(16);
    let streams = open(envd, operation, arguments(&nonce, None)).await?;
    let connected = AgentConnection::connect(streams.output, streams.input, &nonce).await;
    match connected {
        Err(error) if error.kind() == ErrorKind::Unavailable => {
            let said = streams.errors.await;
            Err(without_python(operation, &said, NEEDS_PYTHON).with_source(error))
        }
        connected => connected,
    }
}

/// Starts the Python interpreter of a sandbox with those arguments.
async fn open(
    envd: &Envd,
    operation: &'static str,
    arguments: Vec<String>,
) -> Result<AgentStreams> {
    let process = StartProcess {
        stdin: true,
        tag: Some(agent_tag(&random_hex(8))),
        ..StartProcess::shell(START_PYTHON, arguments.iter().map(String::as_str))
    };
    let process = envd.pipe(operation, &process).await?;
    let (near, far) = duplex(CHUNK_SIZE);
    let (send, receive) = mpsc::channel(QUEUE_CAPACITY);
    let (say, said) = oneshot::channel();
    tokio::spawn(async move {
        let process = carry(process, far, send).await;
        // Without a reader nothing has to be explained.
        let _ = say.send(process.last_error());
    });
    let output: AgentReader = Box::pin(stream::unfold(receive, |mut receive| async move {
        let piece: io::Result<Bytes> = receive.recv().await?;
        Some((piece, receive))
    }));
    let errors = Box::pin(async move { said.await.unwrap_or_default() });
    Ok(AgentStreams { output, input: Box::pin(near), errors })
}

/// Carries bytes between the streams of a process and the ends of a connection. The process ends with its input.
async fn carry(
    mut process: PipedProcess,
    mut from: DuplexStream,
    to: mpsc::Sender<io::Result<Bytes>>,
) -> PipedProcess {
    let mut input = process.input();
    let write = async {
        let input = &mut input;
        let mut buffer = vec![0; CHUNK_SIZE];
        loop {
            match from.read(&mut buffer).await {
                Ok(count @ 1..) => {
                    if let Err(error) = input.write(&buffer[..count]).await {
                        tracing::debug!(%error, "the agent takes no more");
                        return;
                    }
                }
                _ => return,
            }
        }
    };
    let read = async {
        while let Some(piece) = process.output().await {
            if to.send(piece.map_err(io::Error::other)).await.is_err() {
                return false;
            }
        }
        true
    };
    // The connection is over when either direction is.
    let has_ended = tokio::select! {
        () = write => false,
        has_ended = read => has_ended,
    };
    if !has_ended {
        input.close().await;
    }
    process
}

/// The way to the resident agent of one sandbox.
#[derive(Debug)]
pub(crate) struct E2bRoute {
    envd: Envd,
    environment: BTreeMap<String, String>,
}

impl E2bRoute {
    /// Creates the way to a sandbox whose programs start with that environment, and connects to nothing yet.
    pub(crate) fn new(envd: Envd, environment: BTreeMap<String, String>) -> Self {
        Self { envd, environment }
    }
}

#[async_trait]
impl AgentRoute for E2bRoute {
    async fn environment(&self) -> Result<BTreeMap<String, String>> {
        Ok(self.environment.clone())
    }

    async fn start(&self, arguments: Vec<String>) -> Result<AgentStreams> {
        open(&self.envd, "connect", arguments).await
    }

    fn python_hint(&self) -> &'static str {
        NEEDS_PYTHON
    }

    /// A request to another continent, and a sandbox that is busy.
    fn start_allowance(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Ends the whole sandbox where a process in it cannot be ended. A reason is that of a handle, which ends the sandbox
    /// itself, or leaves it to the next one.
    fn end_sandbox(&self, reason: Option<FailureKind>) {
        if reason.is_none() {
            self.envd.handle().end_in_background("kill");
        }
    }
}
