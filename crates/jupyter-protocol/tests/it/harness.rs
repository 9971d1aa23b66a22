//! Real kernels, started from their specifications.

use std::future::Future;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use jupyter_protocol::client::Client;
use jupyter_protocol::content::StreamName;
use jupyter_protocol::execution::{Event, Outcome};
use jupyter_protocol::kernelspec::{
    Environment, InstalledKernel, Launch, PythonEnvironment, Search,
};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ConnectionInfo, ExecuteRequest, ReservedPorts};

/// The variable with the path of the interpreter.
pub(crate) const VARIABLE: &str = "SANDBOX_TEST_JUPYTER_PYTHON";

/// Limits the start of a kernel on a busy machine.
pub(crate) const READY: Duration = Duration::from_secs(60);

/// Returns the interpreter, if the variable is set.
pub(crate) fn python() -> Option<PathBuf> {
    std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Runs a test with a timeout.
pub(crate) fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let limited = async { tokio::time::timeout(Duration::from_secs(180), test).await };
    runtime.unwrap().block_on(limited).expect("the test ends in time");
}

/// A kernel that ends with the test.
pub(crate) struct Kernel {
    pub(crate) info: ConnectionInfo,
    pub(crate) process: Child,
    installed: InstalledKernel,
    file: PathBuf,
    _folder: tempfile::TempDir,
}

/// Returns the specification of a kernel.
pub(crate) fn installed(name: &str) -> InstalledKernel {
    let python = PythonEnvironment::from_executable(python().unwrap());
    Search::new(&Environment::current(), python).find(name).unwrap()
}

impl Kernel {
    /// Starts a kernel over Unix sockets.
    pub(crate) fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let info = ConnectionInfo::ipc(folder.path().join("k"));
        Self::launch(name, info, folder)
    }

    /// Starts a kernel over TCP.
    pub(crate) fn start_tcp(name: &str) -> Self {
        let reserved = ReservedPorts::reserve("127.0.0.1").unwrap();
        let info = reserved.connection().unwrap();
        drop(reserved);
        Self::launch(name, info, tempfile::tempdir().unwrap())
    }

    pub(crate) fn launch(name: &str, info: ConnectionInfo, folder: tempfile::TempDir) -> Self {
        let file = folder.path().join(ConnectionInfo::new_file_name());
        info.write_new(&file).unwrap();
        let installed = installed(name);
        let process = spawn(&installed, &file);
        Self { info, process, installed, file, _folder: folder }
    }

    /// Kills the process and starts another one with the same connection file.
    pub(crate) fn replace(&mut self) {
        self.kill();
        self.process = spawn(&self.installed, &self.file);
    }

    pub(crate) fn connection_file(&self) -> &std::path::Path {
        &self.file
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &id]).status().unwrap().success());
    }

    pub(crate) async fn client(&self) -> Client {
        let client = connect(&self.info, Options::default()).await.unwrap();
        client.ready(READY).await.unwrap();
        client
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(installed: &InstalledKernel, file: &std::path::Path) -> Child {
    let mut command = installed.command(&Launch::new(file)).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// The output of an execution.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) events: Vec<Event>,
    pub(crate) outcome: Outcome,
}

impl Ran {
    /// Returns the value as plain text.
    pub(crate) fn value(&self) -> Option<String> {
        self.events.iter().find_map(|event| match event {
            Event::Result { result, .. } => result.data.plain(),
            _ => None,
        })
    }
}

/// Runs code to its end.
pub(crate) async fn execute(client: &Client, code: &str) -> Ran {
    collect(client.execute(ExecuteRequest::new(code)).await.unwrap()).await
}

pub(crate) async fn collect(mut running: jupyter_protocol::client::ExecutionStream) -> Ran {
    let (mut stdout, mut stderr, mut events) = (String::new(), String::new(), Vec::new());
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) if stream.name == StreamName::Stdout => {
                stdout.push_str(&stream.text)
            }
            Event::Stream(stream) => stderr.push_str(&stream.text),
            Event::Finished(outcome) => return Ran { stdout, stderr, events, outcome: *outcome },
            other => events.push(other),
        }
    }
    panic!("no end after {events:?}");
}
