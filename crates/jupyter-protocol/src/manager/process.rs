//! The process of a kernel, with its process group, its end and its standard error.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, process};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, Command};
use tokio::sync::watch;

use crate::zmq::ipc_dir::IpcDir;

/// Maximum size of the standard error that is kept, in bytes.
const MAX_STDERR: usize = 16 * 1024;

/// Limits the wait for the last standard error. Child processes of the kernel may keep the pipe open.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

/// A process that runs or has ended. Dropping it kills the process group.
#[derive(Debug)]
pub(super) struct Process {
    group: Option<Pid>,
    ended: watch::Receiver<Option<Exit>>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
}

/// The exit status of a process. `None` if it is unknown, because this process ignores signals of its children.
pub(super) type Exit = Option<ExitStatus>;

impl Process {
    /// Starts a process. Removes `folder` when it has ended.
    pub(super) fn start(command: process::Command, folder: Arc<IpcDir>) -> io::Result<Self> {
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // IPython's kernels end by themselves when the process with this id is no longer their parent.
        command.env("JPY_PARENT_PID", process::id().to_string());
        let mut child = command.process_group(0).kill_on_drop(true).spawn()?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        let stderr_tail = Arc::default();
        let reading =
            child.stderr.take().map(|stderr| tokio::spawn(read(stderr, Arc::clone(&stderr_tail))));
        let (ended_sender, ended) = watch::channel(None);
        tokio::spawn(async move {
            let status = child.wait().await.ok();
            signal(group, Signal::KILL);
            if let Some(reading) = reading {
                // An unfinished reader continues, so that no child process blocks on a full pipe.
                let _ = tokio::time::timeout(STDERR_TIMEOUT, reading).await;
            }
            ended_sender.send_replace(Some(status));
            drop(folder);
        });
        Ok(Self { group, ended, stderr_tail })
    }

    /// Returns the process id while the process runs.
    pub(super) fn id(&self) -> Option<u32> {
        let group = self.group.filter(|_| self.ended().is_none());
        group.and_then(|group| u32::try_from(group.as_raw_nonzero().get()).ok())
    }

    /// Returns the exit status once the process has ended.
    pub(super) fn ended(&self) -> Option<Exit> {
        *self.ended.borrow()
    }

    /// Waits for the end of the process.
    pub(super) fn wait(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // Without a runtime, the supervising task is gone and the process was killed.
            ended.wait_for(Option::is_some).await.map_or(None, |ended| ended.flatten())
        }
    }

    /// Sends a signal to the process group, unless the process has ended.
    pub(super) fn signal(&self, which: Signal) {
        if self.ended().is_none() {
            signal(self.group, which);
        }
    }

    /// Returns the end of the standard error.
    pub(super) fn stderr(&self) -> String {
        String::from_utf8_lossy(&lock(&self.stderr_tail)).trim().to_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

fn signal(group: Option<Pid>, which: Signal) {
    if let Some(group) = group {
        // The group may have ended.
        let _ = kill_process_group(group, which);
    }
}

/// Reads the pipe to its end, and keeps the last bytes.
async fn read(mut stderr: ChildStderr, stderr_tail: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        let mut stderr_tail = lock(&stderr_tail);
        stderr_tail.extend_from_slice(&chunk[..length]);
        let excess = stderr_tail.len().saturating_sub(MAX_STDERR);
        stderr_tail.drain(..excess);
    }
}

fn lock(stderr_tail: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    stderr_tail.lock().unwrap_or_else(PoisonError::into_inner)
}
