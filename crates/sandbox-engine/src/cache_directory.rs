//! The directory of what this library would otherwise have to find out again.

use std::env;
use std::path::{Path, PathBuf};

/// Returns `code-sandboxes` in the user's cache directory. Programs of this library that run outside of sandboxes are
/// kept there.
pub fn cache_directory() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|path| Path::new(path).is_absolute())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("code-sandboxes"))
}
