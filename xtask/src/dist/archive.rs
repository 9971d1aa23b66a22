//! A folder as an archive that depends on nothing but names, contents and one time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Packs a folder under a name. Every file is of root, and of that time.
pub(super) fn pack(folder: &Path, name: &str, time: u64, archive: &Path) -> Result<(), String> {
    write(folder, name, time, archive).map_err(|error| format!("{}: {error}", archive.display()))
}

fn write(folder: &Path, name: &str, time: u64, archive: &Path) -> io::Result<()> {
    // The header of gzip would have the time of now.
    let gzip = GzBuilder::new().mtime(0).write(File::create(archive)?, Compression::best());
    let mut tar = Builder::new(gzip);
    for path in sorted(folder)? {
        let below = path.strip_prefix(folder).unwrap_or(&path);
        let inside = Path::new(name).join(below);
        let meta = fs::metadata(&path)?;
        let mut header = Header::new_gnu();
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        if meta.is_dir() {
            header.set_entry_type(EntryType::Directory);
            header.set_mode(0o755);
            header.set_size(0);
            tar.append_data(&mut header, &inside, io::empty())?;
        } else {
            let is_program = meta.permissions().mode() & 0o100 != 0;
            header.set_mode(if is_program { 0o755 } else { 0o644 });
            header.set_size(meta.len());
            tar.append_data(&mut header, &inside, File::open(&path)?)?;
        }
    }
    tar.into_inner()?.finish()?.flush()
}

/// The folder and everything below it, folders before what is in them.
fn sorted(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![folder.to_path_buf()];
    let mut index = 0;
    while let Some(path) = found.get(index).cloned() {
        index += 1;
        if path.is_dir() {
            let entries = fs::read_dir(&path)?.map(|entry| entry.map(|entry| entry.path()));
            found.extend(entries.collect::<io::Result<Vec<_>>>()?);
        }
    }
    found.sort();
    Ok(found)
}
