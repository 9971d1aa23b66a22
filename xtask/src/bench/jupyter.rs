//! Kernels: their start, a run, and a run through a Jupyter Server.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use code_sandboxes::{IsolationMode, Registry, Sandbox, SandboxBuilder};
use tempfile::TempDir;

use crate::interleaved::InterleavedBaseline;
use crate::row::{Bar, Row, Yardstick};
use crate::sample::{Measured, alone, compare, text};
use crate::sandboxes;
use crate::setup::Setup;

const TOKEN: &str = "a-token-for-the-table";
/// How long a kernel or a server may take to start.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    vec![
        Row::compared(
            "kernel: create to first result, in a cell",
            start(setup).await,
            Bar::Ratio(1.1),
        ),
        Row::information("kernel: warm run_code, in a cell", in_a_cell(setup).await),
        Row::compared(
            "kernel that runs: run_code",
            beside(setup, "kernel").await,
            Bar::Ratio(1.15),
        ),
        Row::compared(
            "kernel that runs: run_code beside jupyter_client",
            beside(setup, "client").await,
            Bar::Ratio(1.0),
        ),
        through_a_server(setup).await,
    ]
}

fn builder(isolation: IsolationMode) -> SandboxBuilder<Registry> {
    Sandbox::builder().variant("local-jupyter").isolation(isolation)
}

/// From nothing to a first result, against a kernel and two sockets.
async fn start(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let mut bare = InterleavedBaseline::start(&setup.jupyter_python, &["start"])?;
    let python = setup.jupyter_python.to_string_lossy().into_owned();
    let ours = async || {
        let builder = builder(IsolationMode::Strict).provider_option("python", python.as_str());
        sandboxes::first_result(builder, "1+1", "2").await
    };
    compare(setup.slow_samples(), "ipykernel and bare sockets", ours, async || bare.sample()).await
}

async fn in_a_cell(setup: &Setup) -> Measured {
    let python = setup.jupyter_python.to_string_lossy().into_owned();
    let sandbox = builder(IsolationMode::Strict).provider_option("python", python);
    let sandbox = sandbox.create().await.map_err(text)?;
    alone(setup.samples(), async || sandboxes::run(&sandbox).await).await
}

/// In a kernel that both talk to.
async fn beside(setup: &Setup, who: &'static str) -> Measured<(f64, Yardstick)> {
    let kernel = Kernel::start(setup)?;
    let file = kernel.file.to_string_lossy().into_owned();
    let mut other = InterleavedBaseline::start(&setup.jupyter_python, &[who, &file])?;
    let sandbox = builder(IsolationMode::Off).provider_option("connection_file", file.as_str());
    let sandbox = sandbox.create().await.map_err(text)?;
    let name = if who == "kernel" { "blocking sockets of libzmq" } else { "execute_interactive" };
    let ours = async || sandboxes::run(&sandbox).await;
    compare(setup.samples(), name, ours, async || other.sample()).await
}

/// Beside the Python library before this one, where that is there.
async fn through_a_server(setup: &Setup) -> Row {
    let name = "Jupyter Server: run_code";
    if setup.datalayer_python.exists() {
        return Row::compared(name, beside_python(setup).await, Bar::Ratio(0.3));
    }
    let measured = async {
        let server = Server::start(setup)?;
        let sandbox = server.sandbox().await?;
        alone(setup.samples(), async || sandboxes::run(&sandbox).await).await
    };
    Row::information(name, measured.await)
}

/// Each in a kernel of its own.
async fn beside_python(setup: &Setup) -> Measured<(f64, Yardstick)> {
    let server = Server::start(setup)?;
    let mut other =
        InterleavedBaseline::start(&setup.datalayer_python, &["server", &server.url, TOKEN])?;
    let sandbox = server.sandbox().await?;
    let ours = async || sandboxes::run(&sandbox).await;
    compare(setup.samples(), "code-sandboxes from PyPI", ours, async || other.sample()).await
}

/// A kernel that any reader of its connection file may talk to.
#[derive(Debug)]
struct Kernel {
    file: PathBuf,
    _process: Process,
}

impl Kernel {
    fn start(setup: &Setup) -> Measured<Self> {
        let folder = tempfile::tempdir().map_err(text)?;
        let file = folder.path().join("kernel.json");
        let mut command = Command::new(&setup.jupyter_python);
        command.args(["-m", "ipykernel_launcher", "-f"]).arg(&file);
        // It is written at once, and a moment before the kernel answers.
        let is_written = || std::fs::read(&file).is_ok_and(|text| text.ends_with(b"}"));
        let process = Process::start(&mut command, folder, is_written)?;
        Ok(Self { file, _process: process })
    }
}

/// A Jupyter Server.
#[derive(Debug)]
struct Server {
    url: String,
    _process: Process,
}

impl Server {
    fn start(setup: &Setup) -> Measured<Self> {
        let folder = tempfile::tempdir().map_err(text)?;
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
        let port = port.map_err(text)?.port();
        let options = [
            format!("--ServerApp.port={port}"),
            "--ServerApp.port_retries=0".to_owned(),
            format!("--ServerApp.root_dir={}", folder.path().display()),
            "--ServerApp.allow_root=True".to_owned(),
            "--ServerApp.open_browser=False".to_owned(),
            format!("--IdentityProvider.token={TOKEN}"),
        ];
        let mut command = Command::new(&setup.jupyter_python);
        command.args(["-m", "jupyter_server"]).args(options).env("JUPYTER_NO_CONFIG", "1");
        let listens = || TcpStream::connect(("127.0.0.1", port)).is_ok();
        let process = Process::start(&mut command, folder, listens)?;
        Ok(Self { url: format!("http://127.0.0.1:{port}"), _process: process })
    }

    async fn sandbox(&self) -> Measured<Sandbox> {
        let builder = builder(IsolationMode::Off).provider_option("token", TOKEN);
        builder.provider_option("server_url", self.url.as_str()).create().await.map_err(text)
    }
}

/// A program and the folder it works in. Both end with this.
#[derive(Debug)]
struct Process {
    child: Child,
    _folder: TempDir,
}

impl Process {
    /// Starts it, and waits until it is ready.
    fn start(
        command: &mut Command,
        folder: TempDir,
        is_ready: impl Fn() -> bool,
    ) -> Measured<Self> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|_| "not installed".to_owned())?;
        let mut process = Self { child, _folder: folder };
        let begun = Instant::now();
        while !is_ready() {
            if process.child.try_wait().map_err(text)?.is_some() {
                return Err("not installed, or it does not start".to_owned());
            }
            if begun.elapsed() > WAIT_TIMEOUT {
                return Err("it did not start in time".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
