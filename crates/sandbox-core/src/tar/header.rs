//! Headers of entries, and what is checked about names in both directions.

use tar::{EntryType, Header};

use super::{BLOCK, Entry, EntryKind};
use crate::error::{Error, Result};

/// The end of an archive.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Zeros that follow that many bytes of content, up to the next block.
pub fn padding(size: u64) -> usize {
    let block = BLOCK as u64;
    ((block - size % block) % block) as usize
}

/// The header of an entry. The content of a file follows, then its [`padding`].
pub fn encode(entry: &Entry) -> Vec<u8> {
    let (kind, size, link) = match &entry.kind {
        EntryKind::File(size) => (EntryType::Regular, *size, None),
        EntryKind::Directory => (EntryType::Directory, 0, None),
        EntryKind::Symlink(target) => (EntryType::Symlink, 0, Some(target)),
        EntryKind::HardLink(target) => (EntryType::Link, 0, Some(target)),
    };
    let mut out = Vec::with_capacity(BLOCK);
    let mut path = entry.path.clone();
    if kind == EntryType::Directory {
        path.push(b'/');
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(entry.mode & 0o777);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(entry.modified);
    if let Some(gnu) = header.as_gnu_mut() {
        fill(&mut out, &mut gnu.name, &path, EntryType::GNULongName);
        if let Some(target) = link {
            fill(&mut out, &mut gnu.linkname, target, EntryType::GNULongLink);
        }
    }
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out
}

/// Puts a name into its field; what does not fit goes before, as an entry of its own.
fn fill(out: &mut Vec<u8>, field: &mut [u8; 100], name: &[u8], long: EntryType) {
    let kept = name.len().min(field.len());
    field[..kept].copy_from_slice(&name[..kept]);
    if kept == name.len() {
        return;
    }
    let mut header = Header::new_gnu();
    header.set_entry_type(long);
    header.set_size(name.len() as u64 + 1);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    if let Some(gnu) = header.as_gnu_mut() {
        gnu.name[..13].copy_from_slice(b"././@LongLink");
    }
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(name);
    out.push(0);
    out.resize(out.len() + padding(name.len() as u64 + 1), 0);
}

/// Returns true when a link at `path` to `target` stays inside of the archive, by the text of both.
///
/// Other links on the way can still lead out; only resolving tells.
pub fn is_inside(path: &[u8], target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let mut depth = path.split(|byte| *byte == b'/').count() - 1;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match depth.checked_sub(1) {
                Some(above) => depth = above,
                None => return false,
            },
            _ => depth += 1,
        }
    }
    true
}

/// A name in an archive, without what says nothing. `None`: the directory itself.
pub(super) fn checked_path(name: &[u8]) -> Result<Option<Vec<u8>>> {
    let refuse = |problem: &str| {
        let name = String::from_utf8_lossy(name);
        Err(refused(format!("has the name {name:?}, which {problem}")))
    };
    if name.starts_with(b"/") {
        return refuse("is absolute");
    }
    if name.contains(&0) {
        return refuse("contains NUL");
    }
    let parts = name.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b"."));
    let parts: Vec<&[u8]> = parts.collect();
    if parts.iter().any(|part| *part == b"..") {
        return refuse("leads out of it");
    }
    if parts.len() > super::MAX_DEPTH {
        return refuse("is more than 64 levels deep");
    }
    if name.len() > 4096 || parts.iter().any(|part| part.len() > 255) {
        return refuse("is too long");
    }
    Ok((!parts.is_empty()).then(|| parts.join(&b'/')))
}

/// An archive that is not taken.
pub(super) fn refused(problem: impl std::fmt::Display) -> Error {
    Error::invalid("archive", problem).with_context("cause", "archive")
}
