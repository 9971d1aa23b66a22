//! Namespaces of a process, as the kernel reports them, independent of the flags passed to `clone`.

use core::ffi::CStr;

use crate::fmt;
use crate::protocol::NAMESPACES;
use crate::sys::{self, AT_FDCWD, EINVAL, O_DIRECTORY, O_PATH, Result};

/// Returns the inode number of each namespace, in the order of [`NAMESPACES`].
pub fn own() -> Result<[u64; NAMESPACES.len()]> {
    let directory = sys::open(AT_FDCWD, c"/proc/self/ns", O_PATH | O_DIRECTORY, 0)?;
    let mut numbers = [0; NAMESPACES.len()];
    for (number, kind) in numbers.iter_mut().zip(NAMESPACES) {
        *number = number_of(directory, kind)?;
    }
    sys::close(directory);
    Ok(numbers)
}

/// Parses a link such as `net:[4026531840]`.
fn number_of(directory: i32, kind: &CStr) -> Result<u64> {
    let mut link = [0; 64];
    let length = sys::readlink(directory, kind, &mut link)?;
    let link = &link[..length];
    let number = link.split(|byte| *byte == b'[').nth(1).ok_or(EINVAL)?;
    number.strip_suffix(b"]").and_then(fmt::number).ok_or(EINVAL)
}
