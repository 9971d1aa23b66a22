//! Verifies that a cell is in namespaces of its own, by the kernel's report and not by the request.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::Errno;

use crate::diagnosis;
use crate::error::Error;
use crate::protocol::NAMESPACES;

/// The inode number of each namespace, in the order of [`NAMESPACES`].
pub(crate) type Numbers = [u64; NAMESPACES.len()];

/// Returns the namespaces of this process.
fn own() -> Result<Numbers, Error> {
    let mut numbers = [0; NAMESPACES.len()];
    for (number, kind) in numbers.iter_mut().zip(NAMESPACES) {
        *number = number_of(kind).map_err(Error::io("cannot read /proc/self/ns"))?;
    }
    Ok(numbers)
}

/// Parses a link such as `net:[4026531840]`.
fn number_of(kind: &CStr) -> io::Result<u64> {
    let link = fs::read_link(Path::new("/proc/self/ns").join(OsStr::from_bytes(kind.to_bytes())))?;
    let link = link.to_string_lossy();
    let number = link.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, link.into_owned()))
}

/// Refuses a cell that shares a namespace with this process.
///
/// # Errors
/// `Unavailable`, with the kind of namespace.
pub(crate) fn verify(of_cell: &Numbers) -> Result<(), Error> {
    differ(of_cell, &own()?)
}

fn differ(of_cell: &Numbers, of_host: &Numbers) -> Result<(), Error> {
    let all = NAMESPACES.iter().zip(of_cell.iter().zip(of_host));
    match all.into_iter().find(|(_, (cell, host))| cell == host) {
        None => Ok(()),
        Some((kind, _)) => {
            let step = format!("make a {} namespace", kind.to_string_lossy());
            Err(diagnosis::setup(step, Errno::PERM.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_namespace_is_named() {
        let host = own().unwrap();
        let cell = host.map(|number| number + 1);
        differ(&cell, &host).unwrap();
        for (at, kind) in NAMESPACES.iter().enumerate() {
            let mut cell = cell;
            cell[at] = host[at];
            let error = verify(&cell).unwrap_err();
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            let kind = kind.to_str().unwrap();
            assert!(error.to_string().contains(&format!("a {kind} namespace")), "{error}");
        }
    }
}
