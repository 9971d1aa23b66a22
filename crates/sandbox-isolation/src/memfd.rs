//! Files in memory, passed by descriptor.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// A memory file with these contents.
pub(crate) fn with_contents(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    fill(memfd_create(name, flags)?, contents)
}

/// A memory file with these contents that can be executed.
pub(crate) fn executable(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    let fd = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 have no such flag; there every memory file can be executed.
        Err(Errno::INVAL) => memfd_create(name, flags),
        outcome => outcome,
    }?;
    fill(fd, contents)
}

fn fill(fd: OwnedFd, contents: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(fd);
    file.write_all(contents)?;
    Ok(file.into())
}
