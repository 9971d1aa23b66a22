//! Where this library keeps what it would otherwise find out again.

use std::env;
use std::path::{Path, PathBuf};

/// `code-sandboxes` in the user's cache directory, where programs of this library are kept that run outside of sandboxes.
pub fn cache_directory() -> Option<PathBuf> {
    let base = env::var_os("XDG_CACHE_HOME")
        .filter(|path| Path::new(path).is_absolute())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cache")))?;
    Some(base.join("code-sandboxes"))
}
