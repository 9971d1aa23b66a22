//! Standard input that this process shares with others, such as the list of a shell loop: what the program in the sandbox
//! does not read is left for them.
//!
//! A regular file is read without moving its offset, which is set after the run behind the bytes that the program has read.
//! The content of a pipe is copied first, and consumed after the run. This works up to the capacity of the pipe: when the pipe
//! is full, its writer would block, so from then on the pipe is consumed at once.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use code_sandboxes::ByteStream;
use futures_util::stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, fstat, open, seek};
use rustix::io::{ioctl_fionread, pread};
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, tee,
};
use tokio::time::sleep;

use crate::input::{read_chunk, read_error};
use crate::readiness;

/// Maximum number of bytes of one read.
const CHUNK_SIZE: usize = 64 << 10;

/// Intervals at which a pipe is polled for more content than was copied, which causes no event.
const POLL_INTERVALS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(5), Duration::from_millis(20)];

/// Standard input whose unread bytes are given back.
#[derive(Clone, Debug)]
pub(crate) struct SharedStdin(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    source: Source,
    /// Number of bytes that the program was given.
    given: u64,
}

#[derive(Debug)]
enum Source {
    /// A regular file, and its initial offset.
    File { start: u64 },
    /// A pipe, a second pipe through which its content is copied, and the capacity of both.
    Pipe { copy: [OwnedFd; 2], size: usize },
    /// Input that is consumed when it is read.
    Consumed,
    /// No input: the program has ended, and further input is left for others.
    Returned,
}

impl SharedStdin {
    /// Makes shared input of standard input; `None` where reading always consumes, as with a socket.
    pub(crate) fn new() -> Option<Self> {
        let stdin = io::stdin();
        let source = match FileType::from_raw_mode(fstat(&stdin).ok()?.st_mode) {
            FileType::RegularFile => {
                Source::File { start: seek(&stdin, SeekFrom::Current(0)).ok()? }
            }
            FileType::Fifo => {
                let size = fcntl_getpipe_size(&stdin).ok()?;
                let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
                fcntl_setpipe_size(&write, size).ok()?;
                Source::Pipe { copy: [read, write], size }
            }
            _ => return None,
        };
        Some(Self(Arc::new(Mutex::new(State { source, given: 0 }))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the input as a stream for the program.
    pub(crate) fn stream(&self) -> ByteStream {
        Box::pin(stream::unfold((self.clone(), false), async |(shared, ended)| {
            if ended {
                return None;
            }
            match shared.next().await {
                Ok(chunk) if chunk.is_empty() => None,
                Ok(chunk) => Some((Ok(chunk), (shared, false))),
                Err(error) => Some((Err(read_error(error)), (shared, true))),
            }
        }))
    }

    async fn next(&self) -> io::Result<Bytes> {
        let mut intervals = POLL_INTERVALS.into_iter();
        let mut pause = Duration::ZERO;
        loop {
            match self.state().poll()? {
                Polled::Chunk(chunk) => return Ok(chunk),
                Polled::Empty => {}
                Polled::Unchanged => pause = intervals.next().unwrap_or(pause),
                Polled::Consumed => pause = Duration::MAX,
            }
            match pause {
                Duration::MAX => return read_chunk().await,
                Duration::ZERO => readiness::readable(io::stdin().as_fd()).await?,
                pause => sleep(pause).await,
            }
        }
    }

    /// Gives back what the program has not read, after it has ended. With `None` the number of read bytes is unknown, and all
    /// bytes that the program was given count as read.
    pub(crate) fn give_back(&self, read: Option<u64>) -> io::Result<()> {
        let mut state = self.state();
        let given = state.given;
        let mut read = read.map_or(given, |read| read.min(given));
        match std::mem::replace(&mut state.source, Source::Returned) {
            Source::File { start } => {
                seek(io::stdin(), SeekFrom::Start(start + read))?;
            }
            Source::Pipe { .. } => {
                let mut buffer = vec![0; CHUNK_SIZE];
                while read > 0 {
                    let max = usize::try_from(read).map_or(CHUNK_SIZE, |read| read.min(CHUNK_SIZE));
                    let count = rustix::io::read(io::stdin(), &mut buffer[..max])?;
                    if count == 0 {
                        break;
                    }
                    read -= count as u64;
                }
            }
            Source::Consumed | Source::Returned => {}
        }
        Ok(())
    }
}

enum Polled {
    /// More input, or empty at the end.
    Chunk(Bytes),
    /// An empty pipe.
    Empty,
    /// A pipe whose content has been copied already.
    Unchanged,
    /// The pipe is consumed from now on.
    Consumed,
}

/// Returns true when a writer of the pipe would block, or when that is unknown. The number of bytes does not show it, because
/// pages of the pipe may be partly filled.
fn is_full() -> bool {
    let path = format!("/proc/self/fd/{}", io::stdin().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(writer) = open(path, flags, Mode::empty()) else { return true };
    let mut fds = [PollFd::new(&writer, PollFlags::OUT)];
    !poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl State {
    fn poll(&mut self) -> io::Result<Polled> {
        let stdin = io::stdin();
        match &self.source {
            Source::Consumed => Ok(Polled::Consumed),
            Source::Returned => Ok(Polled::Chunk(Bytes::new())),
            Source::File { start } => {
                let mut chunk = vec![0; CHUNK_SIZE];
                let count = pread(&stdin, &mut chunk[..], start + self.given)?;
                chunk.truncate(count);
                self.given += count as u64;
                Ok(Polled::Chunk(chunk.into()))
            }
            Source::Pipe { copy: [read, write], size } => {
                // In this order, so that content written before the last writer closed the pipe is seen.
                let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default()))?;
                let has_writers = !fds[0].revents().contains(PollFlags::HUP);
                let there = usize::try_from(ioctl_fionread(&stdin)?).unwrap_or(usize::MAX);
                let given = usize::try_from(self.given).unwrap_or(usize::MAX);
                if there <= given {
                    return Ok(if !has_writers {
                        Polled::Chunk(Bytes::new())
                    } else if there == 0 {
                        Polled::Empty
                    } else if is_full() {
                        self.consume(there)?
                    } else {
                        Polled::Unchanged
                    });
                }
                let copied = tee(&stdin, write, *size, SpliceFlags::NONBLOCK)?;
                let mut chunk = vec![0; copied];
                let mut filled = 0;
                while filled < copied {
                    match rustix::io::read(read, &mut chunk[filled..])? {
                        0 => break,
                        count => filled += count,
                    }
                }
                chunk.truncate(filled);
                let chunk = Bytes::from(chunk).slice(given.min(filled)..);
                self.given += chunk.len() as u64;
                Ok(Polled::Chunk(chunk))
            }
        }
    }

    /// Consumes what was copied, because the pipe is full.
    fn consume(&mut self, there: usize) -> io::Result<Polled> {
        let mut buffer = vec![0; there];
        let mut consumed = 0;
        while consumed < there {
            match rustix::io::read(io::stdin(), &mut buffer[consumed..])? {
                0 => break,
                count => consumed += count,
            }
        }
        self.source = Source::Consumed;
        Ok(Polled::Consumed)
    }
}
