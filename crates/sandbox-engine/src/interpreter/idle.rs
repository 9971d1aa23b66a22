//! Drops the output of an interpreter between requests, which comes from processes and threads that a run has left
//! behind.
//!
//! That output belongs to no run, and a process that writes into a pipe which nothing reads would wait for room in it.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::host::{Readable, WorkerIo};

/// Bytes that are dropped at once. The next ones wait for an interval.
const BURST: usize = 256 << 10;
const BURST_INTERVAL: Duration = Duration::from_millis(20);

/// More than a pipe holds: bytes of each stream that are dropped when a request comes.
const MAX_BURST: usize = 1 << 20;

const BUFFER: usize = 16 << 10;

/// Reads the output of an interpreter while it is idle, until this is dropped.
#[derive(Debug)]
pub(super) struct Idle {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    streams: [Arc<dyn Readable>; 2],
    state: Mutex<State>,
    begun: Notify,
}

#[derive(Debug)]
struct State {
    is_idle: bool,
    open: [bool; 2],
}

/// A stream with two readers that take turns.
#[derive(Debug)]
struct InTurn(Arc<dyn Readable>);

impl Readable for InTurn {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_readable(cx)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }

    fn is_remote(&self) -> bool {
        self.0.is_remote()
    }
}

impl Idle {
    /// Shares the output of an interpreter, which is not idle yet.
    pub(super) fn new(io: &mut WorkerIo) -> Self {
        let streams = [&mut io.stdout, &mut io.stderr].map(|stream| {
            let nothing: Box<dyn Readable> = Box::new(Nothing);
            let shared: Arc<dyn Readable> = Arc::from(std::mem::replace(stream, nothing));
            *stream = Box::new(InTurn(Arc::clone(&shared)));
            shared
        });
        let state = Mutex::new(State { is_idle: false, open: [true; 2] });
        let shared = Arc::new(Shared { streams, state, begun: Notify::new() });
        let task = tokio::spawn(Arc::clone(&shared).read()).abort_handle();
        Self { shared, task }
    }

    /// Marks the interpreter as idle.
    pub(super) fn begin(&self) {
        self.shared.state().is_idle = true;
        self.shared.begun.notify_one();
    }

    /// Marks the interpreter as busy. Output from before does not belong to the request.
    pub(super) fn end(&self) {
        let mut state = self.shared.state();
        if std::mem::take(&mut state.is_idle) {
            let mut buffer = vec![0; BUFFER];
            for index in 0..2 {
                self.shared.drop_some(&mut state, index, &mut buffer, MAX_BURST);
            }
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops what is there of a stream, and returns the number of bytes.
    fn drop_some(&self, state: &mut State, index: usize, buffer: &mut [u8], most: usize) -> usize {
        let mut dropped = 0;
        while state.open[index] && dropped < most {
            match self.streams[index].try_read(buffer) {
                Ok(0) => state.open[index] = false,
                Ok(count) => dropped += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => state.open[index] = false,
            }
        }
        dropped
    }

    /// Polls until there is something to drop. Only while the interpreter is idle: a stream wakes only one reader.
    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let state = self.state();
        if !state.is_idle {
            return Poll::Ready(());
        }
        // Both are polled, so that either wakes.
        let ready = [0, 1]
            .map(|index| state.open[index] && self.streams[index].poll_readable(cx).is_ready());
        if ready.contains(&true) { Poll::Ready(()) } else { Poll::Pending }
    }

    async fn read(self: Arc<Self>) {
        let mut buffer = vec![0; BUFFER];
        loop {
            let is_idle = self.state().is_idle;
            if !is_idle {
                self.begun.notified().await;
                continue;
            }
            // A request in between has replaced the waker.
            tokio::select! {
                () = poll_fn(|cx| self.poll_ready(cx)) => {}
                () = self.begun.notified() => continue,
            }
            let dropped = {
                let mut state = self.state();
                if !state.is_idle {
                    continue;
                }
                [0, 1].map(|index| self.drop_some(&mut state, index, &mut buffer, BURST))
            };
            if dropped.iter().any(|count| *count >= BURST) {
                sleep(BURST_INTERVAL).await;
            }
        }
    }
}

/// Stands in for a stream while that is shared.
#[derive(Debug)]
struct Nothing;

impl Readable for Nothing {
    fn poll_readable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, _buffer: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }
}
