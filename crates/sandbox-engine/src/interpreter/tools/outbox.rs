//! The writing side of a worker's control stream: whole messages, one after the other.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use tokio::sync::{Mutex, MutexGuard};

use crate::host::{Process, Writable};
use crate::message::Request;

/// Writes all messages to a worker, so that messages do not mix.
#[derive(Debug)]
pub struct Outbox {
    control: Arc<dyn Writable>,
    process: Arc<dyn Process>,
    /// First in, first out.
    turn: Mutex<()>,
}

impl Outbox {
    /// Writes to `control` while `process` lives.
    pub fn new(control: Arc<dyn Writable>, process: Arc<dyn Process>) -> Arc<Self> {
        Arc::new(Self { control, process, turn: Mutex::default() })
    }

    /// Waits until no message is written in part.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Writes a message, which is made when its turn comes, if there is one by then. Failures are ignored: the worker
    /// is dead then.
    pub(crate) async fn send(&self, message: impl FnOnce() -> Option<Request>) {
        let _turn = self.turn().await;
        let mut frame = Vec::new();
        if message().is_some_and(|message| message.encode(&mut frame).is_ok()) {
            drop(self.write(&frame).await);
        }
    }

    async fn write(&self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.control.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the stream is writable. A dead worker may have left its end of the stream to a process that it
    /// started.
    async fn writable(&self) -> io::Result<()> {
        tokio::select! {
            ready = poll_fn(|cx| self.control.poll_writable(cx)) => ready,
            _ = self.process.exit() => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
