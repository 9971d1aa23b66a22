//! Files in the user's cache directory. Losing them costs time and nothing else.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};

use crate::cache_directory;

/// Files kept; more are of interpreters and versions that are gone.
const MOST: usize = 32;

/// A file of ours. What somebody else wrote, or could have written, is not read: it decides what is run.
pub fn read(name: &str) -> Option<Vec<u8>> {
    let file = cache_directory()?.join(name);
    let meta = fs::symlink_metadata(&file).ok()?;
    let own = meta.uid() == rustix::process::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    (own && meta.is_file()).then(|| fs::read(file).ok())?
}

/// Replaces a file, or leaves it as it was.
pub fn write(name: &str, contents: &[u8]) {
    if let Err(error) = try_write(name, contents) {
        tracing::debug!(%error, name, "not cached");
    }
}

fn try_write(name: &str, contents: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let Some(directory) = cache_directory() else { return Ok(()) };
    fs::create_dir_all(&directory)?;
    if fs::read_dir(&directory)?.count() >= MOST {
        for entry in fs::read_dir(&directory)?.flatten() {
            fs::remove_file(entry.path())?;
        }
    }
    let temporary = directory.join(format!(".{name}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)?;
    let written =
        file.write_all(contents).and_then(|()| fs::rename(&temporary, directory.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
