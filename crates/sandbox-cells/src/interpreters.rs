//! Fingerprints of interpreters of this host.

use std::env;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Returns true for a script, as a shim is.
///
/// # Errors
/// When the file cannot be read.
pub fn is_script(path: &Path) -> io::Result<bool> {
    let mut start = [0; 2];
    let count = fs::File::open(path)?.read(&mut start)?;
    Ok(start[..count] == *b"#!")
}

/// Tells whether what is known of an interpreter is still true: by the file itself and, for a shim, by what the shim
/// reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fingerprint {
    inode: u64,
    size: u64,
    modified: i64,
    chosen: Vec<String>,
}

impl Fingerprint {
    /// Takes the fingerprint of an interpreter as it is now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn from_path(path: &Path) -> io::Result<Self> {
        let meta = fs::metadata(path)?;
        let chosen = if is_script(path)? { version_choices() } else { venv_choice(path) };
        Ok(Self { inode: meta.ino(), size: meta.size(), modified: meta.mtime(), chosen })
    }
}

/// Returns what pyenv and similar tools choose a version by.
fn version_choices() -> Vec<String> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    let root = env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    let mut choices = vec![
        env::var("PYENV_VERSION").unwrap_or_default(),
        root.map(|root| read(root.join("version"))).unwrap_or_default(),
    ];
    let here = env::current_dir().unwrap_or_default();
    for directory in here.ancestors() {
        for name in [".python-version", ".tool-versions", ".mise.toml"] {
            let text = read(directory.join(name));
            if !text.is_empty() {
                choices.push(text);
            }
        }
    }
    choices
}

/// Returns the configuration of a virtual environment, whose interpreter is a link.
fn venv_choice(path: &Path) -> Vec<String> {
    let config = path.parent().and_then(Path::parent).map(|root| root.join("pyvenv.cfg"));
    config.and_then(|config| fs::read_to_string(config).ok()).into_iter().collect()
}
