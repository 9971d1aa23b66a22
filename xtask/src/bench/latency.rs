//! Times to a first result, and to one more.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command as StdCommand, Stdio};
use std::time::Instant;

use code_sandboxes::{IsolationMode, Registry, Sandbox, SandboxBuilder};
use tokio::process::Command;

use crate::Setup;
use crate::row::{Bar, Row};
use crate::sample::{Measured, alone, compare, compared, milliseconds, program, timed};

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    vec![
        against_bwrap(setup).await,
        against_imports(setup).await,
        without_isolation(setup).await,
        one_more(setup).await,
        against_echo(setup).await,
    ]
}

/// From nothing to the first result. The end of the sandbox is off the clock.
async fn first_result(builder: SandboxBuilder<Registry>, code: &str) -> Measured {
    let began = Instant::now();
    let sandbox = builder.create().await.map_err(|error| error.to_string())?;
    let result = sandbox.run_code(code).await.map_err(|error| error.to_string())?;
    let took = milliseconds(began.elapsed());
    sandbox.terminate().await.map_err(|error| error.to_string())?;
    if result.success() { Ok(took) } else { Err(format!("{:?}", result.code_error)) }
}

async fn against_bwrap(setup: &Setup) -> Row {
    let measured = compare(
        setup.samples(5.0),
        async || first_result(setup.builder(IsolationMode::Strict), "1+1").await,
        async || {
            let mut bwrap = Command::new("bwrap");
            program(bwrap.args(["--unshare-all", "--ro-bind", "/", "/", "true"])).await
        },
    );
    compared("create to first result, in a cell", "bwrap true", measured.await, Bar::Ratio(0.8))
}

async fn against_imports(setup: &Setup) -> Row {
    let builder = || {
        setup.builder(IsolationMode::Strict).provider_option("preimport", vec!["numpy", "pandas"])
    };
    let code = "import numpy, pandas";
    let measured = compare(
        setup.samples(500.0),
        async || first_result(builder(), code).await,
        async || program(Command::new(&setup.python).args(["-c", code])).await,
    );
    let name = "create to first result, numpy and pandas imported before";
    compared(name, "fresh import", measured.await, Bar::Ratio(0.02))
}

async fn without_isolation(setup: &Setup) -> Row {
    let create = async || first_result(setup.builder(IsolationMode::Off), "1+1").await;
    let measured = alone(setup.samples(2.0), create).await;
    Row::plain(
        "create to first result, isolation off (expected < 2 ms)",
        "ms",
        measured,
        Bar::Information,
    )
}

async fn one_more(setup: &Setup) -> Row {
    let measured = async {
        let sandbox = warm(setup).await?;
        alone(setup.samples(0.1), async || timed(async { sandbox.run_code("1+1").await }).await)
            .await
    };
    Row::plain("warm run_code (expected < 0.15 ms)", "ms", measured.await, Bar::Information)
}

async fn against_echo(setup: &Setup) -> Row {
    let measured = async {
        let sandbox = warm(setup).await?;
        let mut echo = Echo::start(setup).map_err(|error| error.to_string())?;
        for _ in 0..100 {
            echo.once()?;
        }
        compare(
            setup.samples(0.1),
            async || timed(async { sandbox.run_code("1+1").await }).await,
            async || echo.once(),
        )
        .await
    };
    compared("warm run_code", "bare echo", measured.await, Bar::Ratio(3.0))
}

/// A sandbox that has run enough for its first-time costs to be over.
async fn warm(setup: &Setup) -> Measured<Sandbox> {
    let sandbox = setup.builder(IsolationMode::Strict).create().await;
    let sandbox = sandbox.map_err(|error| error.to_string())?;
    for _ in 0..100 {
        sandbox.run_code("1+1").await.map_err(|error| error.to_string())?;
    }
    Ok(sandbox)
}

/// The same interpreter, doing nothing but sending back what it gets.
struct Echo {
    stream: UnixStream,
    child: Child,
}

const ECHO: &str = "
import socket
s = socket.socket(fileno=0)
while True:
    d = s.recv(4096)
    if not d: break
    s.sendall(d)
";

impl Echo {
    fn start(setup: &Setup) -> std::io::Result<Self> {
        let (stream, theirs) = UnixStream::pair()?;
        let child = StdCommand::new(&setup.python)
            .args(["-c", ECHO])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()?;
        Ok(Self { stream, child })
    }

    fn once(&mut self) -> Measured {
        let mut answer = [0; 3];
        let began = Instant::now();
        let echoed =
            self.stream.write_all(b"1+1").and_then(|()| self.stream.read_exact(&mut answer));
        echoed.map_err(|error| error.to_string())?;
        Ok(milliseconds(began.elapsed()))
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
