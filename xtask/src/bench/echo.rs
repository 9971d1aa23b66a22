//! A bare echo over a socket pair: what any exchange with this interpreter costs at least.
//!
//! Our side waits as the API does, in the event loop of this process.

use std::time::{Duration, Instant};

use code_sandboxes::Sandbox;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::sample::{Measured, since, text};

/// Bytes of a request to run `1+1`.
const PING: [u8; 64] = [b'x'; 64];

/// Exchanges of which the last one counts: both processes are awake then, as they are in a series of runs.
pub(crate) const SERIES: usize = 3;

const CONNECT: &str = "
import socket
stream = socket.socket(socket.AF_UNIX)
stream.connect(PATH)
def echo(count):
    for _ in range(count):
        stream.send(stream.recv(65536))
";

/// The interpreter of a sandbox, doing nothing but send back what it gets.
///
/// It is the process that the runs beside it are measured in, so both meet the same scheduler.
#[derive(Debug)]
pub(crate) struct Echo {
    sandbox: Sandbox,
    stream: UnixStream,
}

impl Echo {
    /// Connects with an interpreter that shares the host's file system.
    pub(crate) async fn connect(sandbox: &Sandbox) -> Measured<Self> {
        let path = std::env::temp_dir().join(format!("bench-echo-{}", std::process::id()));
        let listener = UnixListener::bind(&path).map_err(text)?;
        let connected = sandbox.run_code(format!("PATH = {path:?}\n{CONNECT}")).await;
        let stream = listener.accept().await.map_err(text);
        std::fs::remove_file(&path).map_err(text)?;
        match connected.map_err(text)?.code_error {
            None => Ok(Self { sandbox: sandbox.clone(), stream: stream?.0 }),
            Some(error) => Err(format!("no echo: {error:?}")),
        }
    }

    /// Milliseconds of the last exchange of a series.
    pub(crate) async fn last_of_series(&mut self) -> Measured {
        let run = tokio::spawn({
            let sandbox = self.sandbox.clone();
            let code = format!("echo({SERIES})");
            async move { sandbox.run_code(code).await.map(drop) }
        });
        // The request is on its way when this returns, and the interpreter waits for us.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut last = Err("no exchange".to_owned());
        for _ in 0..SERIES {
            last = self.once().await;
        }
        run.await.map_err(text)?.map_err(text)?;
        last
    }

    async fn once(&mut self) -> Measured {
        let mut answer = [0; PING.len()];
        let began = Instant::now();
        self.stream.write_all(&PING).await.map_err(text)?;
        self.stream.read_exact(&mut answer).await.map_err(text)?;
        Ok(since(began))
    }
}
