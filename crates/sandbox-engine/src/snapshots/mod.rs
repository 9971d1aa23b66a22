//! The files of a sandbox as a snapshot, and a sandbox with the files of a snapshot.
//!
//! The files are the working directory and the installed packages, as archives. Interpreters, and the meaning of the
//! bytes of their variables, belong to the backend.

mod catalog;
mod checkpoints;
mod imports;
mod store;
mod swap;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::host::{FileSystem, Links};
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, SnapshotInfo};

use self::swap::{Layout, StagedFiles, discard};

pub use self::catalog::SnapshotCatalog;
pub use self::checkpoints::Snapshots;
pub(crate) use self::checkpoints::load_variables;
use self::store::Manifest;
pub use self::store::{
    EngineImage, MAX_SNAPSHOT_SIZE, STATE_DIRECTORY_VARIABLE, SnapshotStore, SnapshotWriter,
    StoredContext, StoredSnapshot, check_snapshot_name,
};
use crate::base::SandboxBase;

type Files = Arc<dyn FileSystem>;

const WORKSPACE: &str = "workspace.tar";
const PACKAGES: &str = "packages.tar";
/// The archive of what the user of the sandbox has installed, as `pip install` does: `~/.local`.
const USER: &str = "user.tar";

/// Maximum number of files outside of a snapshot that are named one by one.
const MAX_NAMED_FILES: usize = 8;

/// Bytes of an archive that are kept in memory, so that the sandbox need not wait until they are written.
const READ_AHEAD: usize = 1 << 20;

/// Maximum number of commands that are named one by one.
const NAMED_COMMANDS: usize = 8;

/// Maximum number of characters of a command that is named.
const SHOWN_COMMAND: usize = 60;

/// The files of a sandbox that are about to be stored in a snapshot.
pub(crate) struct SavedFiles {
    /// Archives by the names of their files.
    parts: Vec<(&'static str, ByteStream)>,
    directories: Vec<String>,
    /// Set when all of them have been read, so that later changes in the sandbox do not matter.
    pub(crate) in_memory: bool,
}

impl SavedFiles {
    async fn add(&mut self, part: &'static str, content: ByteStream) -> Result<()> {
        let (content, in_memory) = read_ahead(content).await?;
        self.parts.push((part, content));
        self.in_memory &= in_memory;
        Ok(())
    }

    /// Stores the files, and returns their directories.
    ///
    /// # Errors
    /// `ResourceExhausted` when they are too large, and failures to read or store them.
    pub(crate) async fn store(
        self,
        operation: &'static str,
        writer: &mut SnapshotWriter,
    ) -> Result<Vec<String>> {
        for (part, content) in self.parts {
            writer.write(operation, part, content).await?;
        }
        Ok(self.directories)
    }
}

/// Reads the first part of the content. Returns the content, and whether that was all.
async fn read_ahead(content: ByteStream) -> Result<(ByteStream, bool)> {
    let mut content = content.fuse();
    let (mut pieces, mut size) = (Vec::new(), 0);
    let mut ended = false;
    while size < READ_AHEAD && !ended {
        match content.next().await.transpose()? {
            Some(piece) => {
                size += piece.len();
                pieces.push(Ok(piece));
            }
            None => ended = true,
        }
    }
    Ok((Box::pin(stream::iter(pieces).chain(content)), ended))
}

impl SandboxBase {
    fn layout(&self) -> Layout {
        let work_dir = self.work_dir.trim_end_matches('/').to_owned();
        let site = self.site();
        let home = site.rsplit_once('/').map_or("/", |(home, _)| home).to_owned();
        let packages_inside =
            site.strip_prefix(&work_dir).is_some_and(|rest| rest.starts_with('/'));
        let user = format!("{}/.local", home.trim_end_matches('/'));
        Layout { work_dir, home, beside: [(PACKAGES, site), (USER, user)], packages_inside }
    }

    /// Checks that its files can be those of a snapshot: a snapshot has files of the sandbox, and no files of the host.
    ///
    /// # Errors
    /// `InvalidArgument` when a mount of the host is among them.
    pub fn check_snapshot(&self, operation: &'static str) -> Result<()> {
        self.ensure_running(operation)?;
        let layout = self.layout();
        let [(_, site), (_, user)] = &layout.beside;
        let of_snapshots = [&layout.work_dir, site, user].map(Path::new);
        let meets = |target: &Path| {
            of_snapshots.iter().any(|own| own.starts_with(target) || target.starts_with(own))
        };
        let metadata = self.metadata();
        match metadata.mounts.iter().find(|mount| meets(Path::new(&mount.target))) {
            Some(mount) => Err(Error::new(
                ErrorKind::InvalidArgument,
                operation,
                format!("{} is of the host, and snapshots have the sandbox's own", mount.target),
            )
            .with_context("field", "snapshot")
            .with_hint("create the sandbox with that mount somewhere else, such as /data")),
            None => Ok(()),
        }
    }

    /// Starts to read the files.
    ///
    /// # Errors
    /// `PermissionDenied` for a file that the user of the sandbox cannot read, and other failures to read.
    pub(crate) async fn read_files(&self, operation: &'static str) -> Result<SavedFiles> {
        let layout = self.layout();
        let [(_, site), (_, user)] = &layout.beside;
        let (work, site, user) = tokio::join!(
            self.pack(operation, &layout.work_dir),
            self.pack(operation, site),
            self.pack(operation, user)
        );
        let packed = [site, user];
        let directories = vec![layout.work_dir];
        let mut files = SavedFiles { parts: Vec::new(), directories, in_memory: true };
        files.add(WORKSPACE, work?).await?;
        for ((part, path), packed) in layout.beside.into_iter().zip(packed) {
            match packed {
                Ok(content) => {
                    files.add(part, content).await?;
                    if !layout.packages_inside {
                        files.directories.push(path);
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(files)
    }

    /// Gives a snapshot with stored files its name. `info` has what the caller knows of it.
    ///
    /// # Errors
    /// `AlreadyExists` when another process has taken the name meanwhile, and failures to store it.
    pub async fn finish(
        &self,
        operation: &'static str,
        mut writer: SnapshotWriter,
        python: Option<String>,
        preimport: Vec<String>,
        mut info: SnapshotInfo,
    ) -> Result<StoredSnapshot> {
        info.sandbox_id = self.id.to_string();
        let variables = std::mem::take(&mut writer.variables);
        info.variables = variables.iter().map(|context| context.id.clone()).collect();
        info.left_out.extend(self.running_commands());
        info.left_out.extend(self.files_outside(operation).await);
        let (wanted, _) = self.known_packages().await;
        let packages_inside = self.layout().packages_inside;
        let image = writer.image.take().map(|image| (image.name, image.engine));
        let (image, engine) = image.unzip();
        let imports = std::mem::take(&mut writer.imports);
        let manifest = Manifest {
            packages_inside,
            wanted,
            python,
            preimport,
            imports,
            variables,
            image,
            engine,
        };
        writer.finish(operation, info, manifest)
    }

    async fn pack(&self, operation: &'static str, path: &str) -> Result<ByteStream> {
        let pack = |files: Files| async move { files.read_archive(path).await };
        Ok(self.content(operation, self.with_files(operation, pack).await?))
    }

    /// Names what is in the other directories of the sandbox where users keep files.
    async fn files_outside(&self, operation: &'static str) -> Vec<String> {
        let layout = self.layout();
        let mut outside = Vec::new();
        for directory in [layout.home.as_str(), "/data"] {
            let list = |files: Files| async move { files.list(directory).await };
            let Ok(entries) = self.with_files(operation, list).await else { continue };
            let is_kept = |path: &str| {
                path == layout.work_dir || layout.beside.iter().any(|(_, beside)| path == beside)
            };
            // What programs keep can be made again, and our own files are not asked for.
            let is_of_programs = |name: &str| {
                [".cache", ".config"].contains(&name) || name.starts_with(".sandboxes.")
            };
            let mut named: Vec<String> = entries
                .into_iter()
                .filter(|entry| {
                    !layout.packages_inside && !is_kept(&entry.path) && !is_of_programs(&entry.name)
                })
                .map(|entry| format!("{}, which is outside of it", entry.path))
                .collect();
            let more = named.len().saturating_sub(MAX_NAMED_FILES);
            named.truncate(MAX_NAMED_FILES);
            if more > 0 {
                named.push(format!("{more} more files in {directory}"));
            }
            outside.extend(named);
        }
        outside
    }

    fn running_commands(&self) -> Vec<String> {
        let all = self.commands.list();
        let running: Vec<_> = all.iter().filter(|command| command.ended_at.is_none()).collect();
        let name = |text: &str| {
            let shown: String = text.chars().take(SHOWN_COMMAND).collect();
            format!("command `{shown}`, which runs")
        };
        let mut named: Vec<_> =
            running.iter().take(NAMED_COMMANDS).map(|command| name(&command.command)).collect();
        if running.len() > NAMED_COMMANDS {
            named.push(format!("{} more commands, which run", running.len() - NAMED_COMMANDS));
        }
        named
    }

    /// Loads the files of a snapshot into a sandbox that has none yet.
    ///
    /// # Errors
    /// `ResourceExhausted` when there is no room, `InvalidArgument` when its packages are for another Python, `NotFound`
    /// when it was deleted.
    pub async fn load(
        &self,
        operation: &'static str,
        stored: &StoredSnapshot,
        python: Option<&str>,
    ) -> Result<()> {
        self.check_snapshot(operation)?;
        check_python(stored, python)?;
        let layout = self.layout();
        self.unpack(operation, stored, WORKSPACE, &layout.work_dir).await?;
        let both_inside = stored.manifest.packages_inside && layout.packages_inside;
        for (part, path) in &layout.beside {
            if stored.manifest.packages_inside && !layout.packages_inside {
                let inside = layout.inside(&layout.work_dir, path);
                discard(&self.files(operation).await?, &inside).await?;
            }
            if stored.has(part) && !both_inside {
                self.unpack(operation, stored, part, path).await?;
            }
        }
        self.know_packages(stored.manifest.wanted.clone(), stored.has(PACKAGES)).await;
        Ok(())
    }

    /// Replaces the files of a sandbox by those of a snapshot: all of them, or none. `still` ends what could interfere;
    /// it is awaited when it is known that there is room.
    ///
    /// # Errors
    /// As [`SandboxBase::load`]. When former files cannot be removed in the end, the effect of the error is `Applied`.
    ///
    /// # Cancellation
    /// All files are the former ones, or all are those of the snapshot, a moment later.
    pub async fn replace(
        &self,
        operation: &'static str,
        stored: &StoredSnapshot,
        python: Option<&str>,
        still: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        self.check_snapshot(operation)?;
        check_python(stored, python)?;
        let layout = self.layout();
        let outside = !layout.packages_inside;
        let _in_use = self.expiry.in_use();
        let mut staged = StagedFiles::new(self.files(operation).await?, layout);
        let prepared = async {
            let fresh = staged.fresh.clone();
            staged.unpack(stored.read(operation, WORKSPACE).await?, fresh).await?;
            for (part, inside, beside) in staged.places() {
                if stored.manifest.packages_inside && outside {
                    discard(&staged.files, &inside).await?;
                }
                if stored.has(part) && (outside || !stored.manifest.packages_inside) {
                    let path = if outside { beside } else { inside };
                    staged.unpack(stored.read(operation, part).await?, path).await?;
                }
            }
            still.await
        };
        if let Err(error) = prepared.await {
            staged.give_up().await;
            return Err(error);
        }
        // Recorded before, because the caller may be cancelled when the files have been replaced.
        let former = self.known_packages().await;
        self.know_packages(stored.manifest.wanted.clone(), stored.has(PACKAGES)).await;
        let exchanged = staged.exchange().await;
        if exchanged.as_ref().is_err_and(|error| error.effect() != Effect::Applied) {
            self.know_packages(former.0, former.1).await;
        }
        self.ensure_running(operation)?;
        exchanged
    }

    async fn unpack(
        &self,
        operation: &'static str,
        stored: &StoredSnapshot,
        part: &str,
        path: &str,
    ) -> Result<()> {
        let content = stored.read(operation, part).await?;
        let unpack =
            |files: Files| async move { files.write_archive(path, content, Links::Any).await };
        self.with_files(operation, unpack).await
    }

    /// Returns the requirements so far, and whether any package is installed.
    async fn known_packages(&self) -> (Vec<String>, bool) {
        match &self.packages {
            Some(packages) => {
                let any = packages.any.load(Ordering::Acquire);
                (packages.wanted.lock().await.clone(), any)
            }
            None => (Vec::new(), false),
        }
    }

    async fn know_packages(&self, wanted: Vec<String>, any: bool) {
        if let Some(packages) = &self.packages {
            *packages.wanted.lock().await = wanted;
            packages.any.store(any, Ordering::Release);
        }
    }
}

/// Refuses packages for another version of Python, because some are compiled for one version.
fn check_python(stored: &StoredSnapshot, python: Option<&str>) -> Result<()> {
    let minor = |version: &str| version.split('.').take(2).collect::<Vec<_>>().join(".");
    match (&stored.manifest.python, python) {
        (Some(had), Some(has)) if stored.has(PACKAGES) && minor(had) != minor(has) => {
            let name = &stored.info.name;
            let message =
                format!("of {name:?} has packages for Python {had}, and this is Python {has}");
            Err(Error::invalid("snapshot", message))
        }
        _ => Ok(()),
    }
}
