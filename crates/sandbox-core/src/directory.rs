//! Working directories: absolute paths are inside the sandbox, relative ones are below another directory.

use crate::error::{Error, Result};
use crate::spec::check_path;

/// Checks a working directory: a path as in [`check_path`], which does not leave upward when it is relative.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind), naming `field`.
pub fn check_directory(field: &'static str, path: &str) -> Result<()> {
    check_path(field, path)?;
    if path.starts_with('/') || below(path).is_some() {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!(
            "must stay below the working directory of the sandbox, or be absolute, got {path:?}"
        ),
    ))
}

/// A checked working directory as an absolute path. `base` is absolute; a relative path is below it.
///
/// No link is followed: `a/../b` is `b`.
pub fn resolve_directory(base: &str, path: &str) -> String {
    if path.starts_with('/') {
        return path.to_owned();
    }
    match below(path).unwrap_or_default().as_slice() {
        [] => base.to_owned(),
        parts => format!("{}/{}", base.trim_end_matches('/'), parts.join("/")),
    }
}

/// The steps down that a relative path makes in the end. `None`: it leaves upward.
fn below(path: &str) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_directories_are_below_their_base() {
        for (path, resolved) in [
            ("sub", "/workspace/sub"),
            (".", "/workspace"),
            ("./a//b/", "/workspace/a/b"),
            ("a/../b", "/workspace/b"),
            ("...", "/workspace/..."),
            ("~", "/workspace/~"),
            ("/tmp", "/tmp"),
            ("/tmp/..", "/tmp/.."),
        ] {
            check_directory("cwd", path).unwrap();
            assert_eq!(resolve_directory("/workspace", path), resolved, "{path}");
        }
        assert_eq!(resolve_directory("/", "sub"), "/sub");
        assert_eq!(resolve_directory("/", "."), "/");
    }

    #[test]
    fn what_leaves_upward_is_refused() {
        for path in ["..", "../sub", "a/../..", "./..", "a/../../workspace", "", "a\0"] {
            let error = check_directory("cwd", path).unwrap_err();
            assert!(error.to_string().starts_with("`cwd` must "), "{path:?}: {error}");
        }
    }
}
