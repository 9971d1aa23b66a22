//! A path in a sandbox, checked as far as its text shows.

use sandbox_core::tar::MAX_ENTRIES;
use sandbox_core::{ErrorKind, FileInfo, Result};

use super::{PathContext, names};

/// Maximum length of a path, and of each part of it, in bytes.
const MAX_PATH_LENGTH: usize = 4096;
const MAX_NAME_LENGTH: usize = 255;

/// A path, checked and absolute.
#[derive(Clone, Debug)]
pub struct Target {
    /// The context of errors about the path.
    pub about: PathContext,
    /// The path as it is shown.
    pub shown: String,
    /// The path as the kernel has it.
    pub bytes: Vec<u8>,
}

impl Target {
    /// Checks what can be checked in the text. Relative paths begin at `base`.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn new(base: &str, operation: &'static str, path: &str) -> Result<Self> {
        let about = PathContext::new(operation, path);
        if path.is_empty() || path.contains('\0') {
            return Err(about.invalid("path", "a path must not be empty or contain NUL"));
        }
        let absolute = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", base.trim_end_matches('/'))
        };
        let bytes = names::to_bytes(&absolute);
        if bytes.len() > MAX_PATH_LENGTH {
            return Err(about.invalid("name_too_long", "the path is longer than 4096 bytes"));
        }
        if bytes.split(|byte| *byte == b'/').any(|part| part.len() > MAX_NAME_LENGTH) {
            return Err(about.invalid("name_too_long", "a name in it is longer than 255 bytes"));
        }
        let parts = absolute.split('/').filter(|part| !matches!(*part, "" | "."));
        let shown = parts.fold(String::new(), |path, part| path + "/" + part);
        let shown = if shown.is_empty() { "/".to_owned() } else { shown };
        Ok(Self { about, shown, bytes })
    }

    /// Sets path and name of an entry to those of this path.
    pub fn name_entry(&self, entry: &mut FileInfo) {
        entry.path.clone_from(&self.shown);
        let name = self.shown.rsplit('/').next().unwrap_or_default();
        entry.name = if name.is_empty() { "/" } else { name }.to_owned();
    }

    /// Whether it ends in the name of something that can be made, removed or replaced.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn must_have_name(&self) -> Result<()> {
        let last = self.bytes.split(|byte| *byte == b'/').rfind(|part| !part.is_empty());
        if matches!(last, None | Some(b"." | b"..")) {
            return Err(self.about.invalid("path", "the path does not end in a name"));
        }
        Ok(())
    }

    /// Checks that an archive of the path may have that many entries. An archive with more could not be unpacked here.
    pub fn check_entries(&self, count: usize) -> Result<()> {
        if count <= MAX_ENTRIES {
            return Ok(());
        }
        let message = format!("has more than {MAX_ENTRIES} files, directories and links");
        Err(self.about.error(ErrorKind::ResourceExhausted, "too_many", &message))
    }
}
