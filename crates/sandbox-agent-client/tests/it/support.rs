//! An agent as a child process.

use std::collections::BTreeMap;
use std::future::pending;
use std::process::Stdio;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::unfold;
use futures_util::{StreamExt as _, stream};
use sandbox_agent_client::{AgentConnection, Connecting};
use sandbox_core::{ByteStream, Result};
use sandbox_engine::host::{Readable, Spawn};
use sandbox_python::agent::{ByteCode, OpenFiles, arguments};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

/// An agent in a directory of its own.
pub(crate) struct TestBox {
    pub(crate) pipe: Arc<AgentConnection>,
    pub(crate) agent: Child,
    pub(crate) home: tempfile::TempDir,
}

impl TestBox {
    pub(crate) async fn start() -> Self {
        Self::start_that(true).await
    }

    /// Starts an agent whose connection stays when the agent has ended, as an engine may keep it for a while.
    pub(crate) async fn start_with_connection_that_stays() -> Self {
        Self::start_that(false).await
    }

    /// Starts an agent from byte code.
    pub(crate) async fn start_from(byte_code: ByteCode<'_>) -> Self {
        Self::start_program(Command::new("python3"), true, None, Some(byte_code)).await
    }

    async fn start_that(closes: bool) -> Self {
        Self::start_program(Command::new("python3"), closes, None, None).await
    }

    /// Starts an agent whose own limit of open files is `there`.
    pub(crate) async fn start_with_open_files(there: u32, asked: OpenFiles) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -n {there}; exec python3 \"$@\""), "sh"]);
        Self::start_program(shell, true, Some(asked), None).await
    }

    async fn start_program(
        mut program: Command,
        closes: bool,
        open_files: Option<OpenFiles>,
        byte_code: Option<ByteCode<'_>>,
    ) -> Self {
        let nonce = "0123456789abcdef";
        let mut agent = program
            .args(arguments(nonce, open_files))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("python3 starts");
        let into = agent.stdin.take().expect("a pipe");
        let from = unfold(agent.stdout.take().expect("a pipe"), move |mut from| async move {
            let mut buffer = vec![0; 64 << 10];
            match from.read(&mut buffer).await {
                Ok(0) if closes => None,
                Ok(0) => pending().await,
                Ok(count) => Some((Ok(Bytes::copy_from_slice(&buffer[..count])), from)),
                Err(error) => Some((Err(error), from)),
            }
        });
        let ready_made = |magic| byte_code.as_ref().and_then(|byte_code| byte_code(magic));
        let connecting = Connecting { byte_code: &ready_made, ..Connecting::default() };
        let pipe = AgentConnection::connect_with(Box::pin(from), Box::pin(into), nonce, connecting)
            .await
            .expect("the agent arrives");
        let home = tempfile::tempdir().expect("a directory");
        Self { pipe: Arc::new(pipe), agent, home }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.home.path().join(name).to_string_lossy().into_owned()
    }

    pub(crate) fn files(&self) -> sandbox_agent_client::AgentFiles {
        self.pipe.files(&self.home.path().to_string_lossy())
    }

    pub(crate) fn shell(&self, script: &str) -> Spawn {
        Spawn {
            argv: ["sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())]),
            cwd: self.home.path().to_string_lossy().into_owned(),
            stdin: false,
            terminal: None,
            label: None,
            as_root: false,
            limit: None,
        }
    }
}

/// Returns true when this process may access an agent, which is not dumpable.
pub(crate) fn may_look() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reads everything up to the end of a stream.
pub(crate) async fn read_all(stream: &dyn Readable) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        std::future::poll_fn(|cx| stream.poll_readable(cx)).await.expect("a stream");
        match stream.try_read(&mut buffer) {
            Ok(0) => return all,
            Ok(count) => all.extend_from_slice(&buffer[..count]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
}

pub(crate) fn bytes(pieces: &[&[u8]]) -> ByteStream {
    let pieces: Vec<Result<Bytes>> =
        pieces.iter().map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
    Box::pin(stream::iter(pieces))
}

pub(crate) async fn collect(content: ByteStream) -> Result<Vec<u8>> {
    let pieces: Vec<Result<Bytes>> = content.collect().await;
    pieces.into_iter().collect::<Result<Vec<Bytes>>>().map(|pieces| pieces.concat())
}
