//! Local files, for both directions.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::path::Path;

use crate::error::{Error, ErrorKind};

/// Bytes that are read at once.
pub(super) const CHUNK_SIZE: usize = 256 * 1024;

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

/// The error for a file that cannot be transferred.
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

/// Permission bits of new files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Its owner alone.
    Owner,
    /// As where it comes from, as far as new files of this process may be used by others.
    Kept,
}

/// Gives what is new the permissions that it has elsewhere, within that access, and those that its owner needs.
pub(super) fn set_mode(file: &fs::File, mode: u32, access: Access, owner: u32) -> io::Result<()> {
    #[cfg(unix)]
    {
        let within = match access {
            Access::Owner => 0o700,
            Access::Kept => 0o777 & !umask(),
        };
        let mode = (mode & within) | owner;
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(mode))
    }
    #[cfg(not(unix))]
    file.metadata().map(|_| drop((mode, access, owner)))
}

/// What new files of this process do not have. Asking the kernel for it would change it for a moment.
#[cfg(unix)]
fn umask() -> u32 {
    static UMASK: std::sync::OnceLock<u32> = std::sync::OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.and_then(|text| u32::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o077)
    })
}

/// Sets when something was changed last, unix seconds. A time that the file system cannot have is no reason to refuse it.
pub(super) fn set_modified(file: &fs::File, seconds: f64) {
    if let Ok(since) = std::time::Duration::try_from_secs_f64(seconds)
        && let Some(time) = std::time::UNIX_EPOCH.checked_add(since)
    {
        let _ = file.set_modified(time);
    }
}

/// Time of the last change, unix seconds.
pub(super) fn modified(metadata: &Metadata) -> Option<u64> {
    let since = metadata.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(since.as_secs())
}

/// Makes a link.
pub(super) fn link(target: &[u8], path: &Path) -> io::Result<()> {
    let target = name(target).ok_or(io::ErrorKind::InvalidInput)?;
    #[cfg(unix)]
    return std::os::unix::fs::symlink(target, path);
    #[cfg(not(unix))]
    Err(io::Error::new(io::ErrorKind::Unsupported, format!("{} to {target:?}", path.display())))
}
