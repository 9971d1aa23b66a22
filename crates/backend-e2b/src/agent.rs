//! The agent for files: a process of the sandbox that does what the daemon has no requests for, on the streams of that
//! process.
//!
//! It is started when it is first needed, is shared by all verbs, and ends with its standard input, or when nothing is heard
//! of this end for half a minute. The image has to have Python 3.9 or later.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use sandbox_agent_client::{AgentConnection, AgentFiles, AgentReader};
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use sandbox_python::agent::arguments;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::{Mutex, mpsc};

use crate::envd::{Envd, PipedProcess, StartProcess};

/// Bytes of one request to the agent's standard input.
const CHUNK_SIZE: usize = 256 << 10;

/// Pieces of output that wait for their reader.
const QUEUE_CAPACITY: usize = 16;

/// The tag of the agent's process.
const TAG: &str = "code-sandboxes.agent";

/// The agent of one sandbox.
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
    let process = StartProcess {
        program: "python3".to_owned(),
        args: arguments(&nonce, None),
        stdin: true,
        tag: Some(format!("{TAG}.{nonce}")),
        ..StartProcess::default()
    };
    let missing = |error: Error| {
        let message = format!("{operation} needs Python 3.9 or later in the sandbox: {error}");
        Error::unsupported(operation, message)
            .with_hint("use a template with `python3`, such as code-interpreter-v1")
    };
    let process = match envd.pipe(operation, &process).await {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::InvalidArgument | ErrorKind::PermissionDenied
            ) =>
        {
            return Err(missing(error));
        }
        process => process?,
    };
    let (near, far) = duplex(CHUNK_SIZE);
    let (send, receive) = mpsc::channel(QUEUE_CAPACITY);
    tokio::spawn(carry(process, far, send));
    let from: AgentReader = Box::pin(stream::unfold(receive, |mut receive| async move {
        let piece: io::Result<Bytes> = receive.recv().await?;
        Some((piece, receive))
    }));
    AgentConnection::connect(from, Box::pin(near), &nonce).await.map_err(|error| {
        match error.kind() {
            ErrorKind::Unavailable => missing(error),
            _ => error,
        }
    })
}

/// Carries bytes between the streams of a process and the ends of a connection.
async fn carry(
    mut process: PipedProcess,
    mut from: DuplexStream,
    to: mpsc::Sender<io::Result<Bytes>>,
) {
    let mut input = process.input();
    let write = async {
        let input = &mut input;
        let mut buffer = vec![0; CHUNK_SIZE];
        loop {
            match from.read(&mut buffer).await {
                Ok(count @ 1..) => {
                    if let Err(error) = input.write(&buffer[..count]).await {
                        tracing::debug!(%error, "the agent for files takes no more");
                        return;
                    }
                }
                _ => return input.close().await,
            }
        }
    };
    let read = async {
        while let Some(piece) = process.output().await {
            if to.send(piece.map_err(io::Error::other)).await.is_err() {
                return;
            }
        }
    };
    // The connection is over when either direction is.
    tokio::select! {
        () = write => {}
        () = read => {}
    }
    input.kill().await;
}
