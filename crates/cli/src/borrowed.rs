//! Standard input that others have as well, such as the list of a loop: what the program in the sandbox has not read is
//! left to them.
//!
//! A regular file is read without moving its place, which is set in the end behind what the program has read. The content
//! of a pipe is copied first and taken out later, as much as was read. That holds for as much as the pipe holds; a writer
//! with more than that could not go on, so from then on the pipe is simply read.

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

use crate::input::{broken, read_chunk};
use crate::readiness;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// How often it is looked whether a pipe has more than was copied, which nothing tells.
const LOOKS: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(5), Duration::from_millis(20)];

/// Standard input on loan.
#[derive(Clone, Debug)]
pub(crate) struct Borrowed(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    way: Way,
    /// Bytes that the program was given.
    given: u64,
}

#[derive(Debug)]
enum Way {
    /// Where the file stood at first.
    File { start: u64 },
    /// Another pipe that the content is copied through, and how large both are.
    Pipe { copy: [OwnedFd; 2], size: usize },
    /// What was given is taken out already.
    Taken,
    /// The program has ended: what is there now is for others.
    Returned,
}

impl Borrowed {
    /// Standard input as it is. `None` where it can only be taken, such as a socket.
    pub(crate) fn new() -> Option<Self> {
        let stdin = io::stdin();
        let way = match FileType::from_raw_mode(fstat(&stdin).ok()?.st_mode) {
            FileType::RegularFile => Way::File { start: seek(&stdin, SeekFrom::Current(0)).ok()? },
            FileType::Fifo => {
                let size = fcntl_getpipe_size(&stdin).ok()?;
                let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
                fcntl_setpipe_size(&write, size).ok()?;
                Way::Pipe { copy: [read, write], size }
            }
            _ => return None,
        };
        Some(Self(Arc::new(Mutex::new(State { way, given: 0 }))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it has, for the program.
    pub(crate) fn stream(&self) -> ByteStream {
        Box::pin(stream::unfold((self.clone(), false), async |(borrowed, ended)| {
            if ended {
                return None;
            }
            match borrowed.next().await {
                Ok(chunk) if chunk.is_empty() => None,
                Ok(chunk) => Some((Ok(chunk), (borrowed, false))),
                Err(error) => Some((Err(broken(error)), (borrowed, true))),
            }
        }))
    }

    async fn next(&self) -> io::Result<Bytes> {
        let mut looks = LOOKS.into_iter();
        let mut pause = Duration::ZERO;
        loop {
            match self.state().look()? {
                Look::Chunk(chunk) => return Ok(chunk),
                Look::Empty => {}
                Look::Same => pause = looks.next().unwrap_or(pause),
                Look::Taken => pause = Duration::MAX,
            }
            match pause {
                Duration::MAX => return read_chunk().await,
                Duration::ZERO => readiness::readable(io::stdin().as_fd()).await?,
                pause => sleep(pause).await,
            }
        }
    }

    /// Gives back what the program has not read, once it has ended. `None`: how much that was is not known, and all that
    /// it was given counts as read.
    pub(crate) fn give_back(&self, read: Option<u64>) -> io::Result<()> {
        let mut state = self.state();
        let given = state.given;
        let mut read = read.map_or(given, |read| read.min(given));
        match std::mem::replace(&mut state.way, Way::Returned) {
            Way::File { start } => {
                seek(io::stdin(), SeekFrom::Start(start + read))?;
            }
            Way::Pipe { .. } => {
                let mut buffer = vec![0; CHUNK];
                while read > 0 {
                    let most = usize::try_from(read).map_or(CHUNK, |read| read.min(CHUNK));
                    let count = rustix::io::read(io::stdin(), &mut buffer[..most])?;
                    if count == 0 {
                        break;
                    }
                    read -= count as u64;
                }
            }
            Way::Taken | Way::Returned => {}
        }
        Ok(())
    }
}

enum Look {
    /// More of it, or its end.
    Chunk(Bytes),
    /// A pipe with nothing in it.
    Empty,
    /// A pipe with nothing in it that was not copied.
    Same,
    /// From now on it is read as it comes.
    Taken,
}

/// Whether a writer of the pipe would have to wait. Its pages may be full in part only, so bytes do not tell; where it
/// cannot be asked, it counts as full.
fn is_full() -> bool {
    let path = format!("/proc/self/fd/{}", io::stdin().as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(writer) = open(path, flags, Mode::empty()) else { return true };
    let mut asked = [PollFd::new(&writer, PollFlags::OUT)];
    !poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

impl State {
    fn look(&mut self) -> io::Result<Look> {
        let stdin = io::stdin();
        match &self.way {
            Way::Taken => Ok(Look::Taken),
            Way::Returned => Ok(Look::Chunk(Bytes::new())),
            Way::File { start } => {
                let mut chunk = vec![0; CHUNK];
                let count = pread(&stdin, &mut chunk[..], start + self.given)?;
                chunk.truncate(count);
                self.given += count as u64;
                Ok(Look::Chunk(chunk.into()))
            }
            Way::Pipe { copy: [read, write], size } => {
                // In this order: what comes before the end of its writers is there when they have gone.
                let mut asked = [PollFd::new(&stdin, PollFlags::IN)];
                poll(&mut asked, Some(&Timespec::default()))?;
                let has_writers = !asked[0].revents().contains(PollFlags::HUP);
                let there = usize::try_from(ioctl_fionread(&stdin)?).unwrap_or(usize::MAX);
                let given = usize::try_from(self.given).unwrap_or(usize::MAX);
                if there <= given {
                    return Ok(if !has_writers {
                        Look::Chunk(Bytes::new())
                    } else if there == 0 {
                        Look::Empty
                    } else if is_full() {
                        self.take(there)?
                    } else {
                        Look::Same
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
                Ok(Look::Chunk(chunk))
            }
        }
    }

    /// Takes out what was copied, because no more fits into the pipe.
    fn take(&mut self, there: usize) -> io::Result<Look> {
        let mut buffer = vec![0; there];
        let mut taken = 0;
        while taken < there {
            match rustix::io::read(io::stdin(), &mut buffer[taken..])? {
                0 => break,
                count => taken += count,
            }
        }
        self.way = Way::Taken;
        Ok(Look::Taken)
    }
}
