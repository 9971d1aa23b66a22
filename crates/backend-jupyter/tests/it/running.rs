//! Kernels that run already, and are left running.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use jupyter_protocol::websocket::KernelModel;
use sandbox_core::{
    ErrorKind, EventKind, FailureKind, InterpreterState, Sandbox, SandboxBuilder, SingleBackend,
};
use tempfile::TempDir;

use super::support::interpreter;
use super::support::server::JupyterServer;
use super::{builder, jupyter, on, rest};

/// Does not end, whatever it is told.
const STUBBORN: &str = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(99)";

async fn started(server: &JupyterServer) -> KernelModel {
    rest(server).start_kernel("python3", None).await.unwrap()
}

fn with(server: &JupyterServer, kernel: &KernelModel) -> SandboxBuilder<SingleBackend> {
    on(server).provider_option("kernel_id", kernel.id.clone())
}

/// A kernel of this computer that is nobody's. It ends with this handle.
pub(crate) struct Kernel {
    child: Child,
    pub(crate) file: PathBuf,
    _folder: TempDir,
}

impl Kernel {
    pub(crate) fn start() -> Option<Self> {
        let python = interpreter()?;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kernel.json");
        let child = Command::new(python)
            .args(["-m", "ipykernel_launcher", "-f"])
            .arg(&file)
            .env("IPYTHONDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        while !file.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no kernel");
            std::thread::sleep(Duration::from_millis(50));
        }
        Some(Self { child, file, _folder: folder })
    }

    fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn at(file: &Path) -> SandboxBuilder<SingleBackend> {
    builder().provider_option("connection_file", file.display().to_string())
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    let result = sandbox.run_code(code).await.unwrap();
    result.text().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_kernel_of_a_server_is_used_as_it_is_and_left() {
    let Some(server) = jupyter() else { return };
    let kernel = started(server).await;
    let sandbox = with(server, &kernel).create().await.unwrap();
    assert_eq!(text(&sandbox, "x = 5; x").await, "5");
    for error in [
        sandbox.get_variable::<serde_json::Value>("x").await.unwrap_err(),
        sandbox.run_code("1").context("other").await.unwrap_err(),
        with(server, &kernel).env("A", "1").create().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
    sandbox.terminate().await.unwrap();
    drop(sandbox);
    let sandbox = with(server, &kernel).create().await.unwrap();
    assert_eq!(text(&sandbox, "x").await, "5");
    // What is of nobody any more does not run on.
    let code = "import time; print(1, flush=True); time.sleep(60)";
    let mut running = sandbox.run_code(code).stream().await.unwrap();
    while let Some(event) = running.next().await {
        if matches!(event.kind, EventKind::Output { .. }) {
            break;
        }
    }
    sandbox.terminate().await.unwrap();
    drop(running);
    let sandbox = with(server, &kernel).create().await.unwrap();
    let begun = Instant::now();
    assert_eq!(text(&sandbox, "x").await, "5");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    drop(sandbox);
    rest(server).delete_kernel(&kernel.id).await.unwrap();
}

#[tokio::test]
async fn a_kernel_of_a_server_that_does_not_hear_is_started_again() {
    let Some(server) = jupyter() else { return };
    let kernel = started(server).await;
    let sandbox = with(server, &kernel).create().await.unwrap();
    text(&sandbox, "x = 5").await;
    let result = sandbox.run_code("while True: pass").timeout(Duration::from_secs(1)).await;
    let result = result.unwrap();
    assert_eq!(result.state, InterpreterState::Kept, "{result:?}");
    assert_eq!(text(&sandbox, "x").await, "5");
    let result = sandbox.run_code(STUBBORN).timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
    let result = sandbox.run_code("'x' in globals()").await.unwrap();
    assert!(result.restarted && result.text() == Some("False"), "{result:?}");
    drop(sandbox);
    // It is there, with the same id.
    rest(server).delete_kernel(&kernel.id).await.unwrap();
}

#[tokio::test]
async fn a_kernel_with_a_connection_file_is_used_as_it_is_and_left() {
    let Some(mut kernel) = Kernel::start() else { return };
    let sandbox = at(&kernel.file).create().await.unwrap();
    assert_eq!(sandbox.info().isolation.unwrap().boundary, "process");
    assert_eq!(text(&sandbox, "x = 5; x").await, "5");
    let result = sandbox.run_code("while True: pass").timeout(Duration::from_secs(1)).await;
    let result = result.unwrap();
    assert_eq!(result.state, InterpreterState::Kept, "{result:?}");
    let error = sandbox.reset().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    sandbox.terminate().await.unwrap();
    assert!(kernel.is_alive());
    let sandbox = at(&kernel.file).create().await.unwrap();
    assert_eq!(text(&sandbox, "x").await, "5");

    // It cannot be ended from here, so the sandbox lets go of it and says so.
    let result = sandbox.run_code(STUBBORN).timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error}");
    assert!(kernel.is_alive());
}

#[tokio::test]
async fn the_death_of_a_kernel_with_a_connection_file_is_told() {
    let Some(mut kernel) = Kernel::start() else { return };
    let sandbox = at(&kernel.file).create().await.unwrap();
    text(&sandbox, "x = 5").await;
    let begun = Instant::now();
    let result = sandbox.run_code("import os; os._exit(3)").await.unwrap();
    assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
    assert_eq!(result.failure.unwrap().kind, FailureKind::KernelDied);
    // Nobody listens any more, which is seen long before a connection is given up.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // A dead kernel is not asked to stop, which would take two seconds.
    let begun = Instant::now();
    sandbox.terminate().await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    let begun = Instant::now();
    while kernel.is_alive() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it lives");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Nobody here can end it, so it is said, and whoever comes next is told what they wait for.
#[tokio::test]
async fn code_that_goes_on_in_a_kernel_with_a_connection_file_is_told() {
    let Some(kernel) = Kernel::start() else { return };
    let sandbox = at(&kernel.file).create().await.unwrap();
    let stubborn = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(15)";
    let result = sandbox.run_code(stubborn).timeout(Duration::from_secs(1)).await.unwrap();
    let failure = result.failure.as_ref().unwrap();
    assert_eq!((failure.kind, result.state), (FailureKind::Timeout, InterpreterState::Lost));
    assert!(failure.message.contains("after 1 second;"), "{failure:?}");
    assert!(failure.message.contains("may still run in the kernel"), "{failure:?}");
    // It did not hear the interrupt, and is not waited for once more.
    let begun = Instant::now();
    sandbox.terminate().await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());

    let sandbox = at(&kernel.file).create().await.unwrap();
    let mut events =
        sandbox.run_code("6 * 7").timeout(Duration::from_secs(60)).stream().await.unwrap();
    let (begun, mut told, mut shown) = (Instant::now(), None, false);
    while let Some(event) = events.next().await {
        match event.kind {
            EventKind::Output { data, .. }
                if String::from_utf8_lossy(&data).contains("waiting") =>
            {
                assert!(!shown, "it is told while it waits");
                told = Some(begun.elapsed());
            }
            EventKind::Display { .. } => shown = true,
            _ => {}
        }
    }
    assert!(told.is_some_and(|told| told < begun.elapsed()) && shown, "{told:?} {shown}");
    // Nobody waits now, and nothing is told.
    let result = sandbox.run_code("1").await.unwrap();
    assert_eq!((result.text(), result.stderr_trimmed()), (Some("1"), String::new()), "{result:?}");
}
