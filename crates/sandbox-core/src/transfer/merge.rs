//! Moves an unpacked archive into a local directory.
//!
//! Nothing is written through a link: one that is in the way is replaced, as a file is, and never followed. Whether all of
//! it can be moved is found out before anything is.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::local::{failed, refused};
use crate::error::Result;

const DOWNLOAD: &str = "download";

/// Moves everything in `from` into `into`, both directories. Files replace files and links; directories are merged.
pub(super) fn merge(from: &Path, into: &Path) -> Result<()> {
    check(from, into)?;
    carry_out(from, into)
}

fn names(directory: &Path) -> Result<Vec<(OsString, bool)>> {
    let io = |error| failed(DOWNLOAD, directory, error);
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(io)? {
        let entry = entry.map_err(io)?;
        names.push((entry.file_name(), entry.file_type().map_err(io)?.is_dir()));
    }
    Ok(names)
}

/// Whether there is a directory, not reached through a link. `None`: there is nothing.
fn is_directory(place: &Path) -> Option<bool> {
    fs::symlink_metadata(place).ok().map(|found| found.is_dir())
}

fn check(from: &Path, into: &Path) -> Result<()> {
    for (name, comes_as_directory) in names(from)? {
        let place = into.join(&name);
        match (comes_as_directory, is_directory(&place)) {
            (true, Some(true)) => check(&from.join(&name), &place)?,
            (true, Some(false)) => {
                return Err(refused(DOWNLOAD, &place, "is in the way of a directory"));
            }
            (false, Some(true)) => {
                return Err(refused(DOWNLOAD, &place, "is a directory in the way of a file"));
            }
            (_, None) | (false, Some(false)) => {}
        }
    }
    Ok(())
}

fn carry_out(from: &Path, into: &Path) -> Result<()> {
    for (name, comes_as_directory) in names(from)? {
        let (source, place) = (from.join(&name), into.join(&name));
        if comes_as_directory && is_directory(&place) == Some(true) {
            carry_out(&source, &place)?;
        } else {
            fs::rename(&source, &place).map_err(|error| failed(DOWNLOAD, &place, error))?;
        }
    }
    Ok(())
}
