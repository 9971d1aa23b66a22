//! Standard input, as the code or as the input of the program.

use std::io::{self, IsTerminal as _, Read as _};
use std::os::fd::AsFd as _;

use bytes::Bytes;
use code_sandboxes::{ByteStream, Error, ErrorKind};
use futures_util::stream;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat, major, minor};
use rustix::io::Errno;

use crate::error::CliError;
use crate::readiness;
use crate::shared_stdin::SharedStdin;

/// Maximum size of code, which must fit into one message of 64 MiB with its arguments.
pub(crate) const MAX_CODE_SIZE: u64 = 60 << 20;
/// Maximum number of bytes of one read.
const CHUNK_SIZE: usize = 64 << 10;

/// Returns true when standard input is a terminal.
pub(crate) fn is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Reads standard input to its end, as the code to run.
pub(crate) fn read_code() -> Result<Vec<u8>, CliError> {
    let mut code = Vec::new();
    let read = io::stdin().lock().take(MAX_CODE_SIZE + 1).read_to_end(&mut code);
    read.map_err(|error| CliError::host("reading standard input", error))?;
    check_size(code, "standard input")
}

/// Refuses code larger than [`MAX_CODE_SIZE`].
pub(crate) fn check_size(code: Vec<u8>, from: &str) -> Result<Vec<u8>, CliError> {
    if code.len() as u64 > MAX_CODE_SIZE {
        return Err(CliError::usage(
            format!("{from} has more than {} MiB of code", MAX_CODE_SIZE >> 20),
            "pass data on standard input instead of in the code",
        ));
    }
    Ok(code)
}

/// Makes standard input of the program, which is read on demand; unread input is given back after the run where that is
/// possible. Returns `None` for a terminal, whose keys do not go to the program, and for `/dev/null`.
///
/// # Errors
/// Those of [`check`].
pub(crate) fn for_program() -> Result<Option<ProgramInput>, CliError> {
    if is_terminal() || is_null_device() {
        return Ok(None);
    }
    check()?;
    let shared = SharedStdin::new();
    let stream = shared.as_ref().map_or_else(stream, SharedStdin::stream);
    Ok(Some(ProgramInput { stream, shared }))
}

/// Standard input of a program in a sandbox.
pub(crate) struct ProgramInput {
    pub(crate) stream: ByteStream,
    /// The input to give back unread bytes to.
    pub(crate) shared: Option<SharedStdin>,
}

impl ProgramInput {
    /// Reads all of standard input, and gives nothing back.
    pub(crate) fn all() -> Self {
        Self { stream: stream(), shared: None }
    }
}

impl std::fmt::Debug for ProgramInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProgramInput").field("shared", &self.shared).finish_non_exhaustive()
    }
}

/// Refuses standard input that cannot be read, and would look like empty input to the program.
///
/// # Errors
/// For a directory, and for a descriptor that is open only for writing.
pub(crate) fn check() -> Result<(), CliError> {
    let refuse = |errno: Errno| Err(CliError::host("reading standard input", errno.into()));
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

/// Returns standard input as a stream that is read on demand.
pub(crate) fn stream() -> ByteStream {
    Box::pin(stream::unfold(false, async |ended| {
        if ended {
            return None;
        }
        match read_chunk().await {
            Ok(chunk) if chunk.is_empty() => None,
            Ok(chunk) => Some((Ok(chunk), false)),
            Err(error) => Some((Err(read_error(error)), true)),
        }
    }))
}

/// Makes the error of a failed read of standard input.
pub(crate) fn read_error(error: io::Error) -> Error {
    Error::new(ErrorKind::Unexpected, "stdin", "reading standard input failed").with_source(error)
}

fn is_null_device() -> bool {
    fstat(io::stdin()).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
    })
}

/// Reads some bytes of standard input when there are any; empty at its end.
pub(crate) async fn read_chunk() -> io::Result<Bytes> {
    let stdin = io::stdin();
    readiness::readable(stdin.as_fd()).await?;
    read_now()
}

/// Reads some bytes of standard input, and blocks the thread until there are any.
pub(crate) fn read_now() -> io::Result<Bytes> {
    let stdin = io::stdin();
    let mut chunk = Vec::with_capacity(CHUNK_SIZE);
    rustix::io::read(&stdin, rustix::buffer::spare_capacity(&mut chunk))?;
    Ok(chunk.into())
}
