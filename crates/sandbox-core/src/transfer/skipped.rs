//! Entries that archives of a sandbox skip: FIFOs, sockets and devices, which have no content to copy.

use std::fs;
use std::path::Path;

use crate::files::Files;
use crate::model::{FileInfo, FileKind};
use crate::request::FindFiles;

/// The most entries that are looked through.
const MOST: usize = 100_000;

/// The paths, below the directory, of what is there and can be no file here. Looking for them fails no transfer.
pub(super) async fn left_out(files: Files<'_>, directory: &FileInfo, local: &Path) -> Vec<String> {
    let mut query = FindFiles::below(&directory.path);
    query.limit = Some(MOST);
    let mut left_out = Vec::new();
    for found in files.search(query).await.unwrap_or_default() {
        let Some(path) = below(&directory.path, &found.path) else { continue };
        // What came over is no question.
        if fs::symlink_metadata(local.join(path)).is_ok() {
            continue;
        }
        if files.stat(&found.path).await.is_ok_and(|info| info.kind == FileKind::Other) {
            left_out.push(path.to_owned());
        }
    }
    left_out
}

fn below<'a>(directory: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(directory.trim_end_matches('/'))?;
    rest.strip_prefix('/').filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_below_the_directory() {
        assert_eq!(below("/w/d", "/w/d/a/b"), Some("a/b"));
        assert_eq!(below("/", "/a"), Some("a"));
        assert_eq!(below("/w/d", "/w/dd/a"), None);
        assert_eq!(below("/w/d", "/w/d"), None);
    }
}
