//! Memory files, passed by descriptor.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// Makes a memory file with these contents.
pub(crate) fn with_contents(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    fill(memfd_create(name, flags)?, contents)
}

/// Makes an executable memory file with these contents.
pub(crate) fn executable(name: &str, contents: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC;
    let fd = match memfd_create(name, flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 have no such flag; there every memory file is executable.
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
