//! Standard input: is it there, is it the code, and how it reaches the program.

use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;

use bytes::Bytes;
use code_sandboxes::{ByteStream, Error, ErrorKind};
use futures_util::stream;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::Errno;

use crate::borrowed::Borrowed;
use crate::problem::Problem;
use crate::readiness;

/// The most code that is taken: more is a mistake. With its arguments it fits into one message of 64 MiB.
pub(crate) const MOST_CODE: u64 = 60 << 20;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// Whether a person sits at standard input.
pub(crate) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Everything on standard input, as the code to run.
pub(crate) fn read_code() -> Result<Vec<u8>, Problem> {
    let mut code = Vec::new();
    let read = io::stdin().lock().take(MOST_CODE + 1).read_to_end(&mut code);
    read.map_err(|error| Problem::host("reading standard input", error))?;
    check_size(code, "standard input")
}

/// Refuses code that nobody can have written.
pub(crate) fn check_size(code: Vec<u8>, from: &str) -> Result<Vec<u8>, Problem> {
    if code.len() as u64 > MOST_CODE {
        return Err(Problem::usage(
            format!("{from} has more than {} MiB of code", MOST_CODE >> 20),
            "give data on standard input instead of in the code",
        ));
    }
    Ok(code)
}

/// Standard input for the program, read as it asks for more; what it does not read is given back at its end, where that
/// can be. `None` when there is nothing to read: a terminal (its keys are not the program's) or `/dev/null`.
///
/// # Errors
/// As [`check`].
pub(crate) fn for_program() -> Result<Option<ProgramInput>, Problem> {
    if is_terminal() || is_null_device() {
        return Ok(None);
    }
    check()?;
    let loan = Borrowed::new();
    let stream = loan.as_ref().map_or_else(stream, Borrowed::stream);
    Ok(Some(ProgramInput { stream, loan }))
}

/// Standard input of a program in a sandbox.
pub(crate) struct ProgramInput {
    pub(crate) stream: ByteStream,
    /// What is given back.
    pub(crate) loan: Option<Borrowed>,
}

impl ProgramInput {
    /// All of standard input, whatever the program does.
    pub(crate) fn all() -> Self {
        Self { stream: stream(), loan: None }
    }
}

impl std::fmt::Debug for ProgramInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramInput").field("loan", &self.loan).finish_non_exhaustive()
    }
}

/// Refuses what can never be read, which a program would take for an empty input.
///
/// # Errors
/// A directory, or a descriptor that is open for writing alone.
pub(crate) fn check() -> Result<(), Problem> {
    let refuse = |errno: Errno| Err(Problem::host("reading standard input", errno.into()));
    let is_directory = |mode| FileType::from_raw_mode(mode) == FileType::Directory;
    if fstat(io::stdin()).is_ok_and(|stat| is_directory(stat.st_mode)) {
        return refuse(Errno::ISDIR);
    }
    let for_writing = |flags: OFlags| flags & OFlags::RWMODE == OFlags::WRONLY;
    if fcntl_getfl(io::stdin()).is_ok_and(for_writing) {
        return refuse(Errno::BADF);
    }
    Ok(())
}

/// Standard input, whatever it is, read as it is asked for.
pub(crate) fn stream() -> ByteStream {
    Box::pin(stream::unfold(false, async |ended| {
        if ended {
            return None;
        }
        match read_chunk().await {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => Some((Ok(chunk), false)),
            Err(error) => Some((Err(broken(error)), true)),
        }
    }))
}

/// What it means that standard input cannot be read.
pub(crate) fn broken(error: io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "stdin", "reading standard input failed").with_source(error)
}

fn is_null_device() -> bool {
    fstat(io::stdin()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
    })
}

/// Some bytes of standard input, as soon as there are some. None at its end.
pub(crate) async fn read_chunk() -> io::Result<Bytes> {
    let stdin = io::stdin();
    readiness::readable(stdin.as_fd()).await?;
    read_now()
}

/// The same, without leaving the thread to others meanwhile.
pub(crate) fn read_now() -> io::Result<Bytes> {
    let stdin = io::stdin();
    let mut chunk = Vec::with_capacity(CHUNK);
    rustix::io::read(&stdin, rustix::buffer::spare_capacity(&mut chunk))?;
    Ok(chunk.into())
}
