//! Programs in a sandbox of the service, with their streams.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{Command, CommandControl, CommandEvent, ErrorKind, OutputStream, PtySize};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tonic::Status;

use super::cells::Cell;
use super::output::Output;
use super::router_wire::{ExitStatus, TaskExecStartRequest};

/// Status of a program that does not exist, and of one that cannot be executed.
const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;

/// A program.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) argv: Vec<String>,
    pub(super) stdout: Arc<Output>,
    pub(super) stderr: Arc<Output>,
    /// Dropped with the end of the program, whose process is kept by it.
    control: Mutex<Option<Arc<dyn CommandControl>>>,
    /// Bytes of standard input that were written so far.
    written: AsyncMutex<u64>,
    input_closed: Mutex<bool>,
    /// `Some(None)`: the sandbox has ended, and the status is not known.
    exit: watch::Sender<Option<Option<ExitStatus>>>,
}

impl Exec {
    /// Starts a program in a sandbox. A program that does not start ends with the status that a shell has for that.
    pub(super) async fn start(
        cell: &Cell,
        request: &TaskExecStartRequest,
    ) -> Result<Arc<Self>, Status> {
        let size: usize = request.command_args.iter().map(String::len).sum();
        if request.command_args.is_empty() || size > 64 << 10 {
            return Err(Status::invalid_argument("the arguments are too long"));
        }
        let commands = cell.sandbox.commands();
        let mut command = commands.run(request.command_args.clone()).interactive();
        for (name, value) in &request.env {
            command = command.env(name, value);
        }
        if let Some(directory) = &request.workdir {
            command = command.cwd(directory);
        }
        if let Some(seconds) = request.timeout_secs.filter(|seconds| *seconds > 0) {
            command = command.timeout(std::time::Duration::from_secs(seconds.into()));
        }
        if let Some(pty) = request.pty_info.as_ref().filter(|pty| pty.enabled) {
            let size = |asked: u32, otherwise| {
                u16::try_from(asked).ok().filter(|n| *n > 0).unwrap_or(otherwise)
            };
            command =
                command.pty(PtySize { columns: size(pty.columns, 80), rows: size(pty.rows, 24) });
        }
        let started = command.start().await;
        let make = |control| Self {
            argv: request.command_args.clone(),
            stdout: Arc::default(),
            stderr: Arc::default(),
            control: Mutex::new(control),
            written: AsyncMutex::new(0),
            input_closed: Mutex::new(false),
            exit: watch::Sender::new(None),
        };
        match started {
            Ok(started) => {
                let exec = Arc::new(make(Some(Arc::clone(&started.control))));
                tokio::spawn(Arc::clone(&exec).pump(started));
                Ok(exec)
            }
            Err(error) => {
                let code = match error.kind() {
                    ErrorKind::NotFound => NOT_FOUND,
                    ErrorKind::PermissionDenied => NOT_EXECUTABLE,
                    _ => return Err(Status::failed_precondition(error.to_string())),
                };
                let exec = Arc::new(make(None));
                exec.stderr.push(Bytes::from(format!("{error}\n"))).await;
                exec.finish(Some(ExitStatus::Code(code)));
                Ok(exec)
            }
        }
    }

    async fn pump(self: Arc<Self>, mut command: Command) {
        let mut exit = None;
        while let Some(event) = command.events.next().await {
            match event {
                CommandEvent::Output { stream: OutputStream::Stdout, data } => {
                    self.stdout.push(data).await;
                }
                CommandEvent::Output { data, .. } => self.stderr.push(data).await,
                CommandEvent::Finished(outcome) => {
                    exit = Some(match outcome.signal {
                        Some(signal) => ExitStatus::Signal(signal),
                        None => ExitStatus::Code(outcome.exit_code),
                    });
                }
                _ => {}
            }
        }
        self.finish(exit);
    }

    fn finish(&self, exit: Option<ExitStatus>) {
        self.stdout.close();
        self.stderr.close();
        self.control.lock().unwrap().take();
        self.exit.send_if_modified(|known| {
            let is_news = known.is_none();
            known.get_or_insert(exit);
            is_news
        });
    }

    /// Marks that the sandbox has ended.
    pub(super) fn lost(&self) {
        self.finish(None);
    }

    pub(super) fn is_running(&self) -> bool {
        self.exit.borrow().is_none()
    }

    /// Waits for the exit status.
    pub(super) async fn wait(&self) -> Result<ExitStatus, Status> {
        let mut exit = self.exit.subscribe();
        let exit = exit.wait_for(Option::is_some).await.map_err(|_| Status::internal("gone"))?;
        exit.flatten().ok_or_else(|| Status::not_found("the sandbox has ended"))
    }

    /// Returns how much standard input was written, and whether it was closed.
    pub(super) async fn input_status(&self) -> (u64, bool) {
        (*self.written.lock().await, *self.input_closed.lock().unwrap())
    }

    /// Writes standard input at a place: what was written before is left out.
    pub(super) async fn write(
        &self,
        offset: u64,
        mut data: Bytes,
        eof: bool,
    ) -> Result<(), Status> {
        let mut written = self.written.lock().await;
        if offset > *written {
            return Err(Status::out_of_range(format!("{offset} is behind {written}")));
        }
        let known = usize::try_from(*written - offset).unwrap().min(data.len());
        data = data.split_off(known);
        let ended = |error: sandbox_core::Error| Status::failed_precondition(error.to_string());
        let control = self.control.lock().unwrap().clone();
        let Some(control) = control else {
            return Err(Status::failed_precondition("the program has ended"));
        };
        let count = data.len() as u64;
        if count > 0 {
            control.write_stdin(data).await.map_err(ended)?;
        }
        *written += count;
        if eof {
            *self.input_closed.lock().unwrap() = true;
            control.close_stdin().await.map_err(ended)?;
        }
        Ok(())
    }
}
