//! Extended attributes of files, of the user: read with the entries of a directory, and set for a file that is written.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    XattrFlags, fsetxattr, getxattr, lgetxattr, listxattr, listxattr_query, llistxattr,
    llistxattr_query,
};
use rustix::io::Errno;
use sandbox_core::{ErrorKind, Result};

use super::path::CellPath;

/// The space of names that ordinary users have.
const PREFIX: &str = "user.";

/// Maximum sizes that the kernel has: of all names of a file, and of one value.
const MAX_NAMES: usize = 64 << 10;
const MAX_VALUE: usize = 64 << 10;

/// Maximum size of the names and values that a file is given. No limit of the sandbox counts their memory.
const MAX_GIVEN: usize = 4 << 10;

/// Reads the attributes of what is open, also where only its path is.
pub(super) fn of_open(file: BorrowedFd<'_>) -> BTreeMap<String, String> {
    // That link is the kernel's own and leads to what is open, so it is followed.
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let Ok(size @ 1..) = listxattr_query(&path) else { return BTreeMap::new() };
    let mut names = vec![0; size.min(MAX_NAMES)];
    let Ok(count) = listxattr(&path, &mut names[..]) else { return BTreeMap::new() };
    read(&names[..count], |name, value| getxattr(&path, name, value))
}

/// Reads the attributes of an entry of a directory. Follows no link of the sandbox.
pub(super) fn of_entry(directory: BorrowedFd<'_>, name: &CStr) -> BTreeMap<String, String> {
    let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string());
    let path = path.join(OsStr::from_bytes(name.to_bytes()));
    // Nearly no file has any.
    let Ok(size @ 1..) = llistxattr_query(&path) else { return BTreeMap::new() };
    let mut names = vec![0; size.min(MAX_NAMES)];
    let Ok(count) = llistxattr(&path, &mut names[..]) else { return BTreeMap::new() };
    read(&names[..count], |name, value| lgetxattr(&path, name, value))
}

/// Reads the values of those names that are the user's. What is no text, or has changed meanwhile, is left out.
fn read(
    names: &[u8],
    get: impl Fn(&CStr, &mut [u8]) -> rustix::io::Result<usize>,
) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut value = vec![0; MAX_VALUE];
    for name in names.split_inclusive(|byte| *byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let Some(own) = name.to_str().ok().and_then(|name| name.strip_prefix(PREFIX)) else {
            continue;
        };
        let Ok(count) = get(name, &mut value) else { continue };
        if let Ok(text) = std::str::from_utf8(&value[..count]) {
            found.insert(own.to_owned(), text.to_owned());
        }
    }
    found
}

/// Gives a file attributes.
pub(super) fn set(
    file: &OwnedFd,
    target: &CellPath,
    attributes: &BTreeMap<String, String>,
) -> Result<()> {
    let sizes = attributes.iter().map(|(name, value)| name.len() + value.len());
    if sizes.sum::<usize>() > MAX_GIVEN {
        let message = "can be given attributes of 4 KiB together at most";
        return Err(target.about.invalid("attributes", message));
    }
    for (name, value) in attributes {
        let invalid = || {
            let message = format!("cannot have an attribute of the name {name:?} with that value");
            target.about.invalid("attributes", &message)
        };
        let full = CString::new(format!("{PREFIX}{name}")).map_err(|_| invalid())?;
        match fsetxattr(file, &full, value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP) => {
                let message = "is on a file system without attributes of users";
                return Err(target.about.error(ErrorKind::Unsupported, "attributes", message));
            }
            Err(Errno::INVAL | Errno::RANGE | Errno::TOOBIG) => return Err(invalid()),
            Err(errno) => return Err(target.about.failed(errno)),
        }
    }
    Ok(())
}
