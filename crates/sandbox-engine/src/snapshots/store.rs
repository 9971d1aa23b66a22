//! Snapshots on disk: a directory of the user, with a directory for each snapshot.
//!
//! A snapshot is made under a hidden name and renamed when it is complete, so other processes see all of it or nothing. A
//! process that makes or removes a snapshot locks its directory. A hidden directory without a lock was left by a process
//! that died.

mod images;

use std::env;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use futures_util::{StreamExt as _, stream};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::geteuid;
use sandbox_core::{
    ByteSize, ByteStream, Context, Error, ErrorKind, Result, Retry, SnapshotInfo, random_hex,
    unix_now,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub use self::images::EngineImage;
use super::imports;

/// The variable that names another directory for snapshots. A missing directory is made.
pub const STATE_DIRECTORY_VARIABLE: &str = "CODE_SANDBOXES_STATE_DIR";

/// Maximum size of a snapshot, in bytes on disk.
pub const MAX_SNAPSHOT_SIZE: ByteSize = ByteSize::gib(8);

/// Maximum length of a name.
const MAX_NAME_LENGTH: usize = 64;

const DESCRIPTION: &str = "snapshot.json";

/// The first character of a hidden name; no snapshot name starts with it.
const HIDDEN: &str = ".";

/// Bytes that are read at once.
const CHUNK_SIZE: u64 = 256 << 10;

/// The snapshots of this user.
#[derive(Clone, Debug, Default)]
pub struct SnapshotStore {
    directory: Option<PathBuf>,
}

/// A snapshot on disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredSnapshot {
    /// The description. Interpreters are not on disk, so there are no contexts in it.
    pub info: SnapshotInfo,
    /// The size of each archive, by the name of its file.
    parts: Vec<(String, u64)>,
    /// The manifest.
    #[serde(rename = "notes")]
    pub(super) manifest: Manifest,
    #[serde(skip)]
    directory: PathBuf,
}

/// What is needed to restore the files elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// Set when packages are in the working directory, too.
    pub(super) packages_inside: bool,
    /// Packages that were asked for.
    pub(super) wanted: Vec<String>,
    /// The version of Python of the packages.
    pub(super) python: Option<String>,
    /// Modules that its interpreters had from the start.
    #[serde(default)]
    pub(super) preimport: Vec<String>,
    /// Modules that its interpreters had imported, as they reported.
    #[serde(default)]
    pub(super) imports: Vec<String>,
    /// Contexts whose variables are stored.
    #[serde(default)]
    pub(super) variables: Vec<StoredContext>,
    /// The image of an engine that has changes to files outside of the archives.
    #[serde(default)]
    pub(super) image: Option<String>,
    /// The address of that engine.
    #[serde(default)]
    pub(super) engine: Option<String>,
}

/// A context whose variables are stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredContext {
    /// The id.
    pub id: String,
    /// The working directory.
    pub cwd: Option<String>,
    /// Variables that are missing, and why.
    pub left_out: Vec<String>,
    /// The file of the variables.
    part: String,
}

/// A snapshot that is being made. Removed when it is dropped before it is finished.
#[derive(Debug)]
pub struct SnapshotWriter {
    name: String,
    directory: PathBuf,
    place: PathBuf,
    /// Holds the lock.
    _lock: File,
    parts: Vec<(String, u64)>,
    pub(super) variables: Vec<StoredContext>,
    pub(super) imports: Vec<String>,
    /// The part of the snapshot that an engine has.
    pub(super) image: Option<EngineImage>,
    done: bool,
}

/// Checks the name of a snapshot.
///
/// # Errors
/// `InvalidArgument` with the allowed names.
pub fn check_snapshot_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let fits = name.len() <= MAX_NAME_LENGTH && name.chars().all(allowed);
    if fits && name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME_LENGTH).collect();
    Err(Error::invalid(
        "snapshot",
        format!(
            "names have 1 to {MAX_NAME_LENGTH} letters, digits, dots, dashes and underscores, a letter or a digit first, \
             got {shown:?}"
        ),
    ))
}

impl SnapshotStore {
    /// Opens the snapshots in that directory. Without one: the directory that the variable names, `code-sandboxes` in
    /// `XDG_STATE_HOME`, or in `.local/state` of the home directory.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self { directory }
    }

    /// Returns the directory.
    pub fn directory(&self) -> Option<PathBuf> {
        self.root("mounts").ok()
    }

    fn root(&self, operation: &'static str) -> Result<PathBuf> {
        if let Some(directory) = &self.directory {
            return Ok(directory.clone());
        }
        let variable = |name| env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let named = variable(STATE_DIRECTORY_VARIABLE);
        let base = named.or_else(|| {
            let state = variable("XDG_STATE_HOME").filter(|path| path.is_absolute());
            let state = state.or_else(|| Some(variable("HOME")?.join(".local/state")));
            Some(state?.join("code-sandboxes"))
        });
        match base {
            Some(base) if base.is_absolute() => Ok(base.join("snapshots")),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                operation,
                "there is no directory for snapshots",
            )
            .with_hint(format!("set {STATE_DIRECTORY_VARIABLE} to an absolute path, or HOME"))),
        }
    }

    /// Makes and checks the directory of all snapshots. A user who can write there decides what sandboxes begin with.
    fn open(&self, operation: &'static str) -> Result<PathBuf> {
        let root = self.root(operation)?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&root);
        made.map_err(|error| unusable(operation, &root, "cannot be made").with_source(error))?;
        check_directory(operation, &root)?;
        Ok(root)
    }

    /// Returns every snapshot that can be read, the oldest first.
    ///
    /// # Errors
    /// Failures to read the directory; `PermissionDenied` when other users can write to it.
    pub fn list(&self, operation: &'static str) -> Result<Vec<StoredSnapshot>> {
        let root = self.root(operation)?;
        if !root.exists() {
            return Ok(Vec::new());
        }
        check_directory(operation, &root)?;
        let failed = |error| unusable(operation, &root, "cannot be read").with_source(error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str().filter(|name| check_snapshot_name(name).is_ok()) else {
                continue;
            };
            // A snapshot may be removed meanwhile, and a damaged one does not hide the others.
            match read(operation, &root.join(name)) {
                Ok(stored) => all.push(stored),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, name, "a snapshot cannot be read"),
            }
        }
        all.sort_by(|one: &StoredSnapshot, other| {
            one.info.created_at.total_cmp(&other.info.created_at)
        });
        Ok(all)
    }

    /// Finds a snapshot by its name or its id.
    ///
    /// # Errors
    /// `NotFound`, with the existing names; `InvalidArgument` for a malformed name.
    pub fn find(&self, operation: &'static str, wanted: &str) -> Result<StoredSnapshot> {
        check_snapshot_name(wanted)?;
        let root = self.root(operation)?;
        if root.exists() {
            check_directory(operation, &root)?;
            match read(operation, &root.join(wanted)) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
        }
        let all = self.list(operation)?;
        if let Some(found) = all.iter().find(|stored| stored.info.id == wanted) {
            return Ok(found.clone());
        }
        let names: Vec<_> = all.iter().map(|stored| stored.info.name.as_str()).collect();
        let hint = match names[..] {
            [] => "there are no snapshots".to_owned(),
            _ => format!("snapshots: {}", names.join(", ")),
        };
        let message = format!("snapshot {wanted:?} not found");
        Err(Error::new(ErrorKind::NotFound, operation, message).with_hint(hint))
    }

    /// Removes a snapshot, also a damaged one, which has no id any more.
    ///
    /// # Errors
    /// As [`SnapshotStore::find`].
    pub fn delete(&self, operation: &'static str, wanted: &str) -> Result<StoredSnapshot> {
        let stored = self.find(operation, wanted).or_else(|error| match error.kind() {
            ErrorKind::Unexpected => self.damaged(operation, wanted),
            _ => Err(error),
        })?;
        let root = self.open(operation)?;
        let failed = |error: io::Error| {
            unusable(operation, &stored.directory, "cannot be removed").with_source(error)
        };
        let _lock = File::open(&stored.directory)
            .and_then(|file| file.lock().map(|()| file))
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => gone(operation, &stored.info.name),
                _ => failed(error),
            })?;
        let hidden = root.join(format!("{HIDDEN}old-{}", random_hex(8)));
        match fs::rename(&stored.directory, &hidden) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(gone(operation, &stored.info.name));
            }
            renamed => renamed.map_err(failed)?,
        }
        fs::remove_dir_all(&hidden).map_err(failed)?;
        Ok(stored)
    }

    /// Describes a snapshot whose description cannot be read.
    fn damaged(&self, operation: &'static str, name: &str) -> Result<StoredSnapshot> {
        let info = SnapshotInfo { name: name.to_owned(), ..SnapshotInfo::default() };
        let directory = self.root(operation)?.join(name);
        Ok(StoredSnapshot { info, parts: Vec::new(), manifest: Manifest::default(), directory })
    }

    /// Checks that a snapshot with that name can be made.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed name, `AlreadyExists`, and failures to use the directory.
    pub fn check_free(&self, operation: &'static str, name: &str) -> Result<()> {
        self.free_place(operation, name).map(drop)
    }

    /// Returns the directory of all snapshots, and in it the directory of one that does not exist yet.
    fn free_place(&self, operation: &'static str, name: &str) -> Result<(PathBuf, PathBuf)> {
        check_snapshot_name(name)?;
        let root = self.open(operation)?;
        let place = root.join(name);
        if place.exists() {
            return Err(taken(operation, name));
        }
        Ok((root, place))
    }

    /// Starts a snapshot with that name.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::check_free`], and failures to write.
    pub fn begin(&self, operation: &'static str, name: &str) -> Result<SnapshotWriter> {
        let (root, place) = self.free_place(operation, name)?;
        remove_abandoned(&root);
        let directory = root.join(format!("{HIDDEN}new-{}", random_hex(8)));
        let failed = |error| unusable(operation, &directory, "cannot be made").with_source(error);
        DirBuilder::new().mode(0o700).create(&directory).map_err(failed)?;
        let lock = File::open(&directory).and_then(|file| file.lock().map(|()| file));
        let lock = lock.map_err(failed)?;
        let name = name.to_owned();
        Ok(SnapshotWriter {
            name,
            directory,
            place,
            _lock: lock,
            parts: Vec::new(),
            variables: Vec::new(),
            imports: Vec::new(),
            image: None,
            done: false,
        })
    }
}

impl SnapshotWriter {
    /// Adds modules that one of its interpreters has imported.
    pub(super) fn note_imports(&mut self, names: &[String]) {
        let all: Vec<_> = self.imports.iter().chain(names).cloned().collect();
        self.imports = imports::checked(&all);
    }

    /// Stores one archive.
    pub(super) async fn write(
        &mut self,
        operation: &'static str,
        part: &str,
        mut content: ByteStream,
    ) -> Result<()> {
        let path = self.directory.join(part);
        let before: u64 = self.parts.iter().map(|(_, size)| size).sum();
        let failed = |error: io::Error| not_written(operation, &path, error);
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut file = tokio::fs::OpenOptions::from(options).open(&path).await.map_err(failed)?;
        let mut size = 0;
        while let Some(piece) = content.next().await {
            let piece = piece?;
            size += piece.len() as u64;
            if before + size > MAX_SNAPSHOT_SIZE.as_u64() {
                let message = format!("a snapshot has at most {MAX_SNAPSHOT_SIZE}");
                return Err(Error::new(ErrorKind::ResourceExhausted, operation, message)
                    .with_hint("remove files that need not be part of it"));
            }
            file.write_all(&piece).await.map_err(failed)?;
        }
        file.flush().await.map_err(failed)?;
        self.parts.push((part.to_owned(), size));
        Ok(())
    }

    /// Stores the variables of a context; `left_out` names those that are missing. A failure leaves the snapshot as it
    /// was.
    ///
    /// # Errors
    /// Errors of the stream, and failures to write.
    pub async fn write_variables(
        &mut self,
        operation: &'static str,
        context: &Context,
        left_out: Vec<String>,
        content: ByteStream,
    ) -> Result<()> {
        let part = format!("variables-{}", self.variables.len());
        if let Err(error) = self.write(operation, &part, content).await {
            let _ = fs::remove_file(self.directory.join(&part));
            return Err(error);
        }
        let (id, cwd) = (context.id.clone(), context.cwd.clone());
        self.variables.push(StoredContext { id, cwd, left_out, part });
        Ok(())
    }

    /// Gives the snapshot its name. Its description is `info`, with the id, the time and the size that it has now.
    pub(super) fn finish(
        mut self,
        operation: &'static str,
        info: SnapshotInfo,
        manifest: Manifest,
    ) -> Result<StoredSnapshot> {
        let info = SnapshotInfo {
            id: random_hex(8),
            name: self.name.clone(),
            created_at: unix_now(),
            size: self.parts.iter().map(|(_, size)| size).sum(),
            ..info
        };
        let parts = std::mem::take(&mut self.parts);
        let stored = StoredSnapshot { info, parts, manifest, directory: self.place.clone() };
        let path = self.directory.join(DESCRIPTION);
        let text = serde_json::to_vec_pretty(&stored).map_err(io::Error::other);
        text.and_then(|text| fs::write(&path, text))
            .map_err(|error| not_written(operation, &path, error))?;
        match renameat_with(CWD, &self.directory, CWD, &self.place, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => Err(taken(operation, &self.name)),
            Err(error) => Err(not_written(operation, &self.place, error.into())),
            Ok(()) => {
                self.done = true;
                Ok(stored)
            }
        }
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.done {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl StoredSnapshot {
    /// Returns the modules that its interpreters had from the start.
    pub fn preimport(&self) -> &[String] {
        &self.manifest.preimport
    }

    /// Returns the modules that its interpreters had imported, as they reported: only names, few, and none whose import
    /// has other effects than it should. The importing process finds out whether there are such modules.
    pub fn imports(&self) -> Vec<String> {
        imports::checked(&self.manifest.imports)
    }

    /// Returns the image of an engine that has changes to files outside of the archives.
    pub fn image(&self) -> Option<&str> {
        self.manifest.image.as_deref()
    }

    /// Checks that all of it is on this disk.
    ///
    /// # Errors
    /// `InvalidArgument` when an engine has a part of it.
    pub fn check_whole(&self) -> Result<()> {
        let Some(image) = self.image() else { return Ok(()) };
        let name = &self.info.name;
        let message = format!("{name:?} is of a container, and some of it is the image {image}");
        Err(Error::invalid("snapshot", message).with_hint("name the variant: `-p local-docker`"))
    }

    /// Returns the contexts whose variables it has.
    pub fn variables(&self) -> &[StoredContext] {
        &self.manifest.variables
    }

    /// Returns the variables of a context, which are read while they are taken.
    ///
    /// # Errors
    /// `NotFound` when it was deleted, `Unexpected` when it is damaged.
    pub async fn read_variables(
        &self,
        operation: &'static str,
        context: &StoredContext,
    ) -> Result<ByteStream> {
        self.read(operation, &context.part).await
    }

    /// Returns true when it has that archive.
    pub(super) fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|(name, _)| name == part)
    }

    /// Returns an archive, which is read while it is taken.
    pub(super) async fn read(&self, operation: &'static str, part: &str) -> Result<ByteStream> {
        let path = self.directory.join(part);
        let expected = self.parts.iter().find(|(name, _)| name == part).map(|(_, size)| *size);
        let file = tokio::fs::File::open(&path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => gone(operation, &self.info.name),
            _ => unusable(operation, &path, "cannot be read").with_source(error),
        })?;
        let length = file.metadata().await.map(|meta| meta.len()).ok();
        if length != expected {
            let message =
                format!("snapshot {:?} is damaged: {part} has another size", self.info.name);
            return Err(Error::new(ErrorKind::Unexpected, operation, message)
                .with_hint("delete it and take another"));
        }
        Ok(Box::pin(stream::unfold(Some(file), move |file| {
            let path = path.clone();
            async move {
                let mut file = file?;
                let mut piece = Vec::with_capacity(CHUNK_SIZE as usize);
                match (&mut file).take(CHUNK_SIZE).read_to_end(&mut piece).await {
                    Ok(0) => None,
                    Ok(_) => Some((Ok(piece.into()), Some(file))),
                    Err(error) => {
                        let error = unusable(operation, &path, "cannot be read").with_source(error);
                        Some((Err(error), None))
                    }
                }
            }
        })))
    }
}

fn read(operation: &'static str, directory: &Path) -> Result<StoredSnapshot> {
    let path = directory.join(DESCRIPTION);
    let text = fs::read(&path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, operation, "no such snapshot"),
        _ => unusable(operation, &path, "cannot be read").with_source(error),
    })?;
    let stored: StoredSnapshot = serde_json::from_slice(&text).map_err(|error| {
        let message = format!("{} is damaged", path.display());
        Error::new(ErrorKind::Unexpected, operation, message)
            .with_source(error)
            .with_hint("delete the snapshot and take another")
    })?;
    Ok(StoredSnapshot { directory: directory.to_owned(), ..stored })
}

/// Removes directories of processes that died while they made or removed a snapshot.
fn remove_abandoned(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    let is_hidden =
        |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().starts_with(HIDDEN.as_bytes());
    // A directory that was just made has no lock for a moment.
    let is_old = |meta: &fs::Metadata| unix_now() - meta.mtime() as f64 > 60.0;
    for entry in entries.flatten().filter(is_hidden) {
        if !entry.metadata().is_ok_and(|meta| meta.is_dir() && is_old(&meta)) {
            continue;
        }
        let Ok(lock) = File::open(entry.path()) else { continue };
        if !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn check_directory(operation: &'static str, directory: &Path) -> Result<()> {
    let meta = fs::symlink_metadata(directory)
        .map_err(|error| unusable(operation, directory, "cannot be read").with_source(error))?;
    let problem = if !meta.is_dir() {
        "is not a directory"
    } else if meta.uid() != geteuid().as_raw() {
        "belongs to another user"
    } else if meta.mode() & 0o077 != 0 {
        "can be entered by other users"
    } else {
        return Ok(());
    };
    let message = format!("{} {problem}", directory.display());
    Err(Error::new(ErrorKind::PermissionDenied, operation, message).with_hint(format!(
        "snapshots are kept in a directory of this user with mode 700; {STATE_DIRECTORY_VARIABLE} names another"
    )))
}

fn unusable(operation: &'static str, path: &Path, problem: &str) -> Error {
    let message = format!("{} {problem}", path.display());
    Error::new(ErrorKind::Unavailable, operation, message).with_retry(Retry::Never)
}

fn not_written(operation: &'static str, path: &Path, error: io::Error) -> Error {
    let full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    let kind = if full { ErrorKind::ResourceExhausted } else { ErrorKind::Unavailable };
    let message = format!("{} cannot be written", path.display());
    Error::new(kind, operation, message).with_source(error)
}

fn taken(operation: &'static str, name: &str) -> Error {
    let message = format!("a snapshot {name:?} exists already");
    Error::new(ErrorKind::AlreadyExists, operation, message)
        .with_hint("choose another name, or delete that one first")
}

fn gone(operation: &'static str, name: &str) -> Error {
    let message = format!("snapshot {name:?} was deleted");
    Error::new(ErrorKind::NotFound, operation, message)
}

#[cfg(test)]
mod tests;
