//! Streams that processes hold which a command has left behind.
//!
//! A helper such as the `tee` of `exec > >(tee build.log)` puts out the last lines after the command itself has ended, so
//! what holds the streams has a moment for that. A server in the background holds them for ever: its output is read and
//! dropped from then on, because it would end at a pipe that nothing reads, or wait for room in it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use crate::host::Readable;

/// How long what holds the streams of a command that has ended may be silent before its output counts as later output.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(500);

/// How long it may go on in all, as with Docker.
const MOMENT_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes that it may put out in that time.
const MAX_LATE_BYTES: usize = 8 << 20;

/// Bytes that are still handed out after that time, where there are always more. Each piece counts as a large one, so that
/// a reader that takes its time for each of them hears of the end all the same.
const MAX_OVERTIME_BYTES: usize = 1 << 20;
const MIN_PIECE: usize = 16 << 10;

/// Streams of a box that are read on at one time. One more closes the oldest.
const MAX_STREAMS: usize = 512;

/// How much is dropped at once, and how long the next piece waits then: what floods its output is slowed down, and does
/// not keep this process busy.
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
    /// Begins now.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self { silent: now + SILENCE_TIMEOUT, end: now + MOMENT_TIMEOUT, bytes: 0, overtime: 0 }
    }

    /// When it is over, unless more comes before.
    pub(super) fn deadline(&self) -> Instant {
        self.silent.min(self.end)
    }

    /// Nothing more is handed out, even if there is more.
    pub(super) fn is_over(&self) -> bool {
        self.bytes >= MAX_LATE_BYTES || self.overtime >= MAX_OVERTIME_BYTES
    }

    /// Notes output of that length.
    pub(super) fn heard(&mut self, bytes: usize) {
        let now = Instant::now();
        self.silent = now + SILENCE_TIMEOUT;
        if now < self.end {
            self.bytes += bytes;
        } else {
            self.overtime += bytes.max(MIN_PIECE);
        }
    }
}

/// The streams of a box that are read on. Dropping it closes them.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    reading: Mutex<VecDeque<AbortHandle>>,
}

impl Leftovers {
    /// Reads a stream to its end and drops what comes.
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
                moment.heard(piece);
                advance(Duration::from_millis(100)).await;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{piece}: {:?}", begun.elapsed());
        }
        // The control: many short lines of a helper that is in time.
        let mut moment = Moment::new();
        (0..1000).for_each(|_| moment.heard(1));
        assert!(!moment.is_over());
    }
}
