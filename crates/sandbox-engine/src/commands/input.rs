//! Standard input of a command.

use std::sync::Arc;

use bytes::Bytes;
use sandbox_core::{Effect, Error, ErrorKind, Result, Stdin};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::running::CommandEnd;
use crate::host::Writable;
use crate::process::{feed_open, write_all};

/// The character that ends the input of a program that reads lines from a terminal.
const END_OF_FILE: &[u8] = b"\x04";

/// Standard input of a command, as its callers may use it.
#[derive(Debug)]
pub(super) enum Input {
    /// The request gave all of the input.
    Given,
    /// The input is open until a caller closes it.
    Open(Arc<Mutex<Pipe>>),
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Pipe {
    /// `None` once the stream is closed.
    stream: Option<Box<dyn Writable>>,
    is_terminal: bool,
    /// Set while the last line on the terminal is not complete.
    in_line: bool,
}

impl Pipe {
    pub(super) fn new(stream: Box<dyn Writable>, is_terminal: bool) -> Self {
        Self { stream: Some(stream), is_terminal, in_line: false }
    }

    async fn write(&mut self, data: &Bytes) -> Result<()> {
        let Some(stream) = &self.stream else {
            let message = "the standard input of the command is closed";
            return Err(Error::new(ErrorKind::NotFound, "write_stdin", message));
        };
        if let Some(last) = data.last() {
            self.in_line = *last != b'\n';
        }
        write_all(&**stream, data).await.map_err(|error| {
            not_read("the command has closed its standard input").with_source(error)
        })
    }

    async fn close(&mut self) {
        let Some(stream) = &self.stream else { return };
        if self.is_terminal {
            // The first one only ends a line that is not complete.
            let count = if self.in_line { 2 } else { 1 };
            let _ = write_all(&**stream, &Bytes::from(END_OF_FILE.repeat(count))).await;
            self.in_line = false;
        } else {
            self.stream = None;
        }
    }

    async fn feed(&mut self, stdin: Stdin) {
        if let Some(stream) = &self.stream {
            self.in_line = feed_open(&**stream, stdin).await.is_some_and(|last| last != b'\n');
        }
    }
}

/// Writes the input of the request and closes the stream.
pub(super) async fn give(mut pipe: Pipe, stdin: Stdin) {
    pipe.feed(stdin).await;
    pipe.close().await;
}

/// Writes the input of the request before any caller may write.
pub(super) async fn give_first(mut pipe: OwnedMutexGuard<Pipe>, stdin: Stdin) {
    pipe.feed(stdin).await;
}

impl Input {
    pub(super) async fn write(&self, data: &Bytes, end: &CommandEnd) -> Result<()> {
        let pipe = self.open("write_stdin")?;
        let write = async { pipe.lock().await.write(data).await };
        tokio::select! {
            biased;
            () = end.finished() => Err(not_read("the command has ended")),
            written = write => written,
        }
    }

    pub(super) async fn close(&self, end: &CommandEnd) -> Result<()> {
        let pipe = self.open("close_stdin")?;
        let close = async { pipe.lock().await.close().await };
        tokio::select! {
            biased;
            () = end.finished() => {}
            () = close => {}
        }
        Ok(())
    }

    fn open(&self, operation: &'static str) -> Result<&Arc<Mutex<Pipe>>> {
        match self {
            Self::Open(pipe) => Ok(pipe),
            Self::Given => {
                let message = "the standard input of this command was given with its request";
                Err(Error::unsupported(operation, message)
                    .with_hint("make the command interactive, or give it a stream as its input"))
            }
        }
    }
}

fn not_read(message: &'static str) -> Error {
    Error::new(ErrorKind::ConnectionLost, "write_stdin", message).with_effect(Effect::Unknown)
}
