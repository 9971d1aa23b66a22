//! What both directions need of the local side.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind};

/// Bytes that are read at once.
pub(super) const PIECE: usize = 256 * 1024;

/// An error of the local side.
pub(super) fn failed(operation: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ErrorKind::PermissionDenied
        }
        io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty => ErrorKind::AlreadyExists,
        io::ErrorKind::StorageFull
        | io::ErrorKind::QuotaExceeded
        | io::ErrorKind::FileTooLarge
        | io::ErrorKind::OutOfMemory => ErrorKind::ResourceExhausted,
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename => ErrorKind::InvalidArgument,
        _ => ErrorKind::Unexpected,
    };
    Error::new(kind, operation, format!("{} on this computer", path.display()))
        .with_context("local", path.to_string_lossy())
        .with_source(error)
}

/// What cannot be transferred.
pub(super) fn refused(operation: &'static str, path: &Path, problem: &str) -> Error {
    let message = format!("{} on this computer {problem}", path.display());
    Error::new(ErrorKind::InvalidArgument, operation, message)
        .with_context("local", path.to_string_lossy())
}

#[cfg(unix)]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o777
}

#[cfg(not(unix))]
pub(super) fn mode(metadata: &Metadata) -> u32 {
    if metadata.is_dir() { 0o755 } else { 0o644 }
}

/// A name of an archive as one of this computer. `None`: it cannot be one.
pub(super) fn name(bytes: &[u8]) -> Option<&OsStr> {
    #[cfg(unix)]
    return Some(std::os::unix::ffi::OsStrExt::from_bytes(bytes));
    #[cfg(not(unix))]
    std::str::from_utf8(bytes).ok().filter(|name| !name.contains(['\\', ':'])).map(OsStr::new)
}

/// A new file that its owner alone can read, or run as well.
pub(super) fn create(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A new directory of its owner alone.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "there is no mode to set"))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a file one that its owner can run.
pub(super) fn make_program(file: &fs::File) -> io::Result<()> {
    #[cfg(unix)]
    return file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    #[cfg(not(unix))]
    file.sync_data()
}

/// Makes a link.
pub(super) fn link(target: &[u8], path: &Path) -> io::Result<()> {
    let target = name(target).ok_or(io::ErrorKind::InvalidInput)?;
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, path);
    #[cfg(not(unix))]
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("{} to {target:?}", path.display())))
}
