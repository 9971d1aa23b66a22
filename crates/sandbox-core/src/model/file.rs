//! Files of a sandbox, as seen from outside.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The type of a directory entry. A link is shown as a link, never as its target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    #[default]
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

/// One file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FileInfo {
    /// Last component of the path.
    pub name: String,
    /// Absolute path in the sandbox.
    pub path: String,
    /// The type.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Bytes.
    #[serde(default)]
    pub size: u64,
    /// Last change, unix seconds.
    #[serde(default)]
    pub modified: f64,
    /// Last three octal digits of the mode, such as `644`.
    #[serde(default)]
    pub permissions: String,
    /// The target of a link, unresolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// User id of the owner as the sandbox sees it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Group id as the sandbox sees it, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// Extended attributes of the user, by their names without `user.`. Those that are no text are left out. Present where
    /// `file_attributes` is declared.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

impl FileInfo {
    /// Returns true for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// Returns true for a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// A kind of change of a watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WatchEventKind {
    /// The file appeared.
    Create,
    /// Its content or mode changed.
    Modify,
    /// The file is gone.
    Delete,
    /// The file has a new path.
    Rename,
    /// Events were lost; list the directory again.
    Overflow,
}

/// One change below a watched directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// The kind of change.
    #[serde(rename = "event_type")]
    pub kind: WatchEventKind,
    /// Absolute path in the sandbox.
    pub path: String,
    /// Unix seconds.
    pub timestamp: f64,
    /// The new path of a rename.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_path: Option<String>,
}
