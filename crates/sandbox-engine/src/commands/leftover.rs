//! Streams of a command that has ended, while its helpers still hold them open.
//!
//! A helper such as the `tee` of `exec > >(tee build.log)` prints the last lines after the command itself has ended, so
//! helpers have a moment for that. A server in the background holds the streams forever: from then on, its output is read
//! and dropped, because the server would end at a pipe that nothing reads, or wait for room in the pipe.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::host::Readable;

/// How long the helpers of a command that has ended may be silent before their output counts as later output.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the moment may last in all, as with Docker.
const MOMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of bytes that helpers may print in that time.
const MAX_LATE_BYTES: usize = 8 << 20;

/// Bytes that are still handed out after that time, where there is always more. Each chunk counts as a large one, so that
/// a slow reader gets the end all the same.
const MAX_OVERTIME_BYTES: usize = 1 << 20;
const MIN_PIECE: usize = 16 << 10;

/// Maximum number of streams of one sandbox that are drained. One more closes the oldest.
const MAX_STREAMS: usize = 512;

/// Bytes that are dropped at once. The next ones wait for an interval, which slows a process down that floods its output,
/// and keeps this process free.
const BURST: usize = 256 << 10;
const QUIET_INTERVAL: Duration = Duration::from_millis(20);

const BUFFER: usize = 16 << 10;

/// The moment that helpers of a command have after its end.
#[derive(Debug)]
pub(super) struct Moment {
    silent: Instant,
    end: Instant,
    bytes: usize,
    overtime: usize,
}

impl Moment {
    /// Starts the moment.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { silent: now + SILENCE_TIMEOUT, end: now + MOMENT_TIMEOUT, bytes: 0, overtime: 0 }
    }

    /// Returns the end of the moment, unless more output comes before.
    pub(super) fn deadline(&self) -> Instant {
        self.silent.min(self.end)
    }

    /// Returns true when nothing more is handed out, even if there is more.
    pub(super) fn is_over(&self) -> bool {
        self.bytes >= MAX_LATE_BYTES || self.overtime >= MAX_OVERTIME_BYTES
    }

    /// Counts output of that length.
    pub(super) fn count(&mut self, bytes: usize) {
        let now = Instant::now();
        self.silent = now + SILENCE_TIMEOUT;
        if now < self.end {
            self.bytes += bytes;
        } else {
            self.overtime += bytes.max(MIN_PIECE);
        }
    }
}

/// The streams of a sandbox that are drained. Dropping this closes them.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    reading: Mutex<VecDeque<AbortHandle>>,
}

impl Leftovers {
    /// Reads a stream to its end and drops the output.
    pub(super) fn drain(&self, stream: Box<dyn Readable>) {
        // Without a runtime no event could have been read either.
        let Ok(runtime) = Handle::try_current() else { return };
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        reading.retain(|task| !task.is_finished());
        if reading.len() >= MAX_STREAMS
            && let Some(oldest) = reading.pop_front()
        {
            oldest.abort();
        }
        reading.push_back(runtime.spawn(drain(stream)).abort_handle());
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        let reading = self.reading.get_mut().unwrap_or_else(PoisonError::into_inner);
        reading.drain(..).for_each(|task| task.abort());
    }
}

async fn drain(stream: Box<dyn Readable>) {
    let mut buffer = vec![0; BUFFER];
    while poll_fn(|cx| stream.poll_readable(cx)).await.is_ok() {
        let mut taken = 0;
        while taken < BURST {
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(count) => taken += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return,
            }
        }
        if taken >= BURST {
            sleep(QUIET_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_moment_of_a_flood_is_over_for_slow_readers_too() {
        for piece in [1, 64 << 10] {
            let mut moment = Moment::new();
            let begun = Instant::now();
            while !moment.is_over() {
                moment.count(piece);
                advance(Duration::from_millis(100)).await;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{piece}: {:?}", begun.elapsed());
        }
        // The control of this test: many short lines of a helper that is in time.
        let mut moment = Moment::new();
        (0..1000).for_each(|_| moment.count(1));
        assert!(!moment.is_over());
    }
}
