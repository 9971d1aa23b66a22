//! The process of a kernel: a group of its own, its end, and what it stderr_tail last.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, process};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncReadExt as _;
use tokio::process::{ChildStderr, Command};
use tokio::sync::watch;

use crate::zmq::ipc_dir::IpcDir;

/// How much of what it writes to standard error is kept, in bytes: the end.
const MAX_STDERR: usize = 16 * 1024;

/// How long what it wrote before its end may take to be read. Programs that it started may hold its standard error open.
const STDERR_TIMEOUT: Duration = Duration::from_millis(200);

/// A process that runs or has ended. It is killed with all that it started when this is dropped.
#[derive(Debug)]
pub(super) struct Process {
    group: Option<Pid>,
    ended: watch::Receiver<Option<Exit>>,
    stderr_tail: Arc<Mutex<Vec<u8>>>,
}

/// How a process ended. Without a status where nobody can ended_sender, because signals of children are ignored in this process.
pub(super) type Exit = Option<ExitStatus>;

impl Process {
    /// Starts a process. `folder` is removed when it has ended.
    pub(super) fn start(command: process::Command, folder: Arc<IpcDir>) -> io::Result<Self> {
        let mut command = Command::from(command);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        // Kernels of IPython end by themselves when this process is not their parent any more.
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
                // A reader that is not done goes on, so that nobody is stopped by a full pipe.
                let _ = tokio::time::timeout(STDERR_TIMEOUT, reading).await;
            }
            ended_sender.send_replace(Some(status));
            drop(folder);
        });
        Ok(Self { group, ended, stderr_tail })
    }

    /// The id of the process, while it runs.
    pub(super) fn id(&self) -> Option<u32> {
        let group = self.group.filter(|_| self.ended().is_none());
        group.and_then(|group| u32::try_from(group.as_raw_nonzero().get()).ok())
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<Exit> {
        *self.ended.borrow()
    }

    /// What tells when it has ended.
    pub(super) fn wait(&self) -> impl Future<Output = Exit> + Send + 'static {
        let mut ended = self.ended.clone();
        async move {
            // Without a runtime there is nobody who sees to it, and it was killed.
            ended.wait_for(Option::is_some).await.map_or(None, |ended| ended.flatten())
        }
    }

    /// Sends a signal to it and all that it started, unless it has ended.
    pub(super) fn signal(&self, which: Signal) {
        if self.ended().is_none() {
            signal(self.group, which);
        }
    }

    /// The end of what it wrote to standard error.
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
        // It may be gone already.
        let _ = kill_process_group(group, which);
    }
}

/// Reads to the end, and keeps the end.
async fn read(mut stderr: ChildStderr, stderr_tail: Arc<Mutex<Vec<u8>>>) {
    let mut chunk = [0; 4096];
    while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
        let mut stderr_tail = lock(&stderr_tail);
        stderr_tail.extend_from_slice(&chunk[..length]);
        let over = stderr_tail.len().saturating_sub(MAX_STDERR);
        stderr_tail.drain(..over);
    }
}

fn lock(stderr_tail: &Mutex<Vec<u8>>) -> MutexGuard<'_, Vec<u8>> {
    stderr_tail.lock().unwrap_or_else(PoisonError::into_inner)
}
