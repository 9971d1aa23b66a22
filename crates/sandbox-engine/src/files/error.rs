//! Maps errors of the kernel about a file to errors that name the file.

use std::io;

use rustix::io::Errno;
use sandbox_core::{Error, ErrorKind, Retry};

/// Maximum number of bytes of all paths and lines of one answer. Code makes them as long as it likes.
pub const MAX_LISTING_SIZE: usize = 64 << 20;

/// The cause of the error for a program that runs: its file can be replaced and not be written to.
pub const RUNNING: &str = "running";

/// Returns the cause in an error made here.
pub fn cause(error: &Error) -> Option<&str> {
    let mut causes = error.context().iter().filter(|(key, _)| *key == "cause");
    causes.next().map(|(_, cause)| cause.as_str())
}

/// The operation and the path that errors name.
#[derive(Clone, Debug)]
pub struct PathContext {
    /// The operation.
    pub operation: &'static str,
    /// The path as it was given.
    pub path: String,
}

impl PathContext {
    /// Makes the context of an operation on a path.
    pub fn new(operation: &'static str, path: &str) -> Self {
        Self { operation, path: path.to_owned() }
    }

    /// Makes an error about the path. `cause` is for programs, the message for people.
    pub fn error(&self, kind: ErrorKind, cause: &'static str, message: &str) -> Error {
        Error::new(kind, self.operation, format!("{}: {message}", shown(&self.path)))
            .with_context("path", self.path.clone())
            .with_context("cause", cause)
    }

    /// Makes the error for an answer with more than [`MAX_LISTING_SIZE`] bytes.
    pub fn answers_too_much(&self) -> Error {
        let message = "the answer has more than 64 MiB of paths and lines";
        self.error(ErrorKind::ResourceExhausted, "answer", message)
            .with_hint("ask for less at once: in another directory, or with a lower limit")
    }

    /// Makes the error for an invalid request.
    pub fn invalid(&self, cause: &'static str, message: &str) -> Error {
        self.error(ErrorKind::InvalidArgument, cause, message)
    }

    /// Checks that the mode has no bit that gives a program the rights of the file's owner, which could be a user of this
    /// host.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check_mode(&self, mode: u32) -> Result<(), Error> {
        if mode & !0o1777 == 0 {
            return Ok(());
        }
        Err(self
            .invalid("mode", "a mode has the bits of 0o1777, without set-user-id and set-group-id"))
    }

    /// Makes the error of a failed system call.
    pub fn failed(&self, errno: Errno) -> Error {
        use ErrorKind as Kind;
        let (kind, cause, message) = match errno {
            Errno::NOENT => (Kind::NotFound, "not_found", "no such file or directory"),
            Errno::ACCESS | Errno::PERM => {
                (Kind::PermissionDenied, "permission", "permission denied")
            }
            Errno::ROFS => (Kind::PermissionDenied, "read_only", "the file system is read-only"),
            Errno::TXTBSY => (Kind::PermissionDenied, RUNNING, "is a program that runs"),
            Errno::BUSY => (Kind::PermissionDenied, "in_use", "something is mounted there"),
            Errno::EXIST => (Kind::AlreadyExists, "exists", "exists already"),
            Errno::ISDIR => (Kind::InvalidArgument, "is_a_directory", "is a directory"),
            Errno::NOTDIR => (Kind::InvalidArgument, "not_a_directory", "is not a directory"),
            Errno::NOTEMPTY => (Kind::InvalidArgument, "not_empty", "the directory is not empty"),
            Errno::LOOP => (
                Kind::InvalidArgument,
                "link",
                "its links lead in a circle, or through a place that only its process has",
            ),
            Errno::NAMETOOLONG => (Kind::InvalidArgument, "name_too_long", "the name is too long"),
            Errno::INVAL => (Kind::InvalidArgument, "invalid", "this cannot be done with it"),
            Errno::XDEV => {
                (Kind::InvalidArgument, "other_file_system", "is on another file system")
            }
            Errno::NOSPC | Errno::DQUOT => {
                (Kind::ResourceExhausted, "disk_full", "the disk is full")
            }
            Errno::FBIG => (Kind::ResourceExhausted, "too_large", "the file would be too large"),
            Errno::MFILE | Errno::NFILE => (
                Kind::ResourceExhausted,
                "descriptors",
                "this process has too many open files (ulimit -n)",
            ),
            Errno::NOSYS => (
                Kind::Unsupported,
                "no_system_call",
                "this kernel, or a filter in front of it, has no `openat2` (Linux 5.6), and without it no path is safe",
            ),
            Errno::NOMEM => (Kind::ResourceExhausted, "memory", "out of memory"),
            Errno::AGAIN => (
                Kind::Unavailable,
                "changing",
                "directories above it were being renamed all the time",
            ),
            other => return self.unexpected(io::Error::from(other)),
        };
        let error = self.error(kind, cause, message);
        match errno {
            Errno::AGAIN => error.with_retry(Retry::Temporary),
            Errno::XDEV => error.with_hint("copy it, then remove it"),
            Errno::ROFS => error.with_hint(
                "use a path below the working directory, or in `/tmp`; the root of a container and mounts are writable where that was asked for",
            ),
            _ => error,
        }
    }

    /// Makes the error of work that the threads for files could not do, or that was not foreseen.
    pub fn unexpected(&self, error: io::Error) -> Error {
        let kind = match error.kind() {
            io::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => ErrorKind::ResourceExhausted,
            _ => ErrorKind::Unexpected,
        };
        Error::new(kind, self.operation, shown(&self.path))
            .with_context("path", self.path.clone())
            .with_source(error)
    }
}

/// Shows a path in a message of one line.
fn shown(path: &str) -> String {
    if path.chars().any(char::is_control) { format!("{path:?}") } else { path.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_place_says_where_to_write() {
        let error = PathContext::new("write_file", "/remote/file.txt").failed(Errno::ROFS);
        assert_eq!(error.message(), "/remote/file.txt: the file system is read-only");
        assert!(error.hint().is_some_and(|hint| hint.contains("below the working directory")));
    }
}
