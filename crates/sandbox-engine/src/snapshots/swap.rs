//! Swaps the files of a sandbox for those of a snapshot, all at once.
//!
//! The files of the snapshot are staged beside the others first. A swap that has started runs to its end, also when the
//! caller is cancelled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::{FileSystem, Links};
use futures_util::StreamExt as _;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, random_hex};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

const RESTORE: &str = "restore_snapshot";

type Files = Arc<dyn FileSystem>;

/// Directories of one sandbox for the files of a snapshot.
pub(super) struct Layout {
    pub(super) work_dir: String,
    pub(super) home: String,
    /// Directories beside the working directory: parts of a snapshot, and their directories below the home.
    pub(super) beside: [(&'static str, String); 2],
    /// Set when the packages are in the working directory, which then has all of them.
    pub(super) packages_inside: bool,
}

impl Layout {
    /// Returns the path of a directory beside the working directory, inside of another directory.
    pub(super) fn inside(&self, directory: &str, beside: &str) -> String {
        moved(beside, directory)
    }
}

/// Files that are staged beside the existing ones. Removed when they are dropped before the swap.
pub(super) struct StagedFiles {
    pub(super) files: Files,
    layout: Layout,
    /// The directory with the new content of the working directory.
    pub(super) fresh: String,
    mark: String,
    /// An archive that is being unpacked. Unpacking ends early when this is dropped.
    unpacking: Option<JoinHandle<Result<()>>>,
    unwanted: Arc<AtomicBool>,
    given_up: bool,
}

impl StagedFiles {
    pub(super) fn new(files: Files, layout: Layout) -> Self {
        let mark = random_hex(4);
        let fresh = format!("{}/.restored-{mark}", layout.work_dir);
        let (unpacking, unwanted) = (None, Arc::default());
        Self { files, layout, fresh, mark, unpacking, unwanted, given_up: true }
    }

    /// Returns the parts beside the working directory, with two paths: staged inside of the working directory, and
    /// outside.
    pub(super) fn places(&self) -> Vec<(&'static str, String, String)> {
        let place = |(part, path): &(&'static str, String)| {
            (*part, self.layout.inside(&self.fresh, path), self.beside("restored", path))
        };
        self.layout.beside.iter().map(place).collect()
    }

    /// Returns the path where something beside the working directory is staged, or moved out of the way.
    fn beside(&self, what: &str, path: &str) -> String {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        format!("{}/.{what}-{}{name}", self.layout.home, self.mark)
    }

    /// Returns all staged paths.
    fn all(&self) -> Vec<String> {
        let beside = self.places().into_iter().map(|(_, _, beside)| beside);
        [self.fresh.clone()].into_iter().chain(beside).collect()
    }

    /// Unpacks an archive to a staged path.
    pub(super) async fn unpack(&mut self, content: ByteStream, path: String) -> Result<()> {
        let (files, unwanted) = (Arc::clone(&self.files), Arc::clone(&self.unwanted));
        let content = content.map(move |piece| match unwanted.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Unexpected, RESTORE, "the restore was cancelled")),
            false => piece,
        });
        let unpack = async move { files.write_archive(&path, Box::pin(content), Links::Any).await };
        let unpacked = self.unpacking.insert(tokio::spawn(unpack)).await;
        self.unpacking = None;
        unpacked.unwrap_or_else(|error| Err(not_to_the_end(error)))
    }

    /// Removes the staged files now.
    pub(super) async fn give_up(mut self) {
        self.given_up = false;
        remove(&self.files, &self.all()).await;
    }

    /// Puts the staged files in the place of the existing ones: all of them, or none.
    pub(super) async fn exchange(mut self) -> Result<()> {
        self.given_up = false;
        let exchanged = tokio::spawn(async move {
            if let Err(error) = self.swap().await {
                remove(&self.files, &self.all()).await;
                return Err(error);
            }
            self.finish().await.map_err(|error| error.with_effect(Effect::Applied))
        });
        exchanged.await.unwrap_or_else(|error| Err(not_to_the_end(error)))
    }

    fn former(&self) -> String {
        format!("{}/.former-{}", self.layout.work_dir, self.mark)
    }

    /// Moves everything in the working directory out of the way, and the staged files into it.
    async fn swap(&self) -> Result<()> {
        let (files, former) = (&self.files, self.former());
        let staged = files.list(&self.fresh).await?;
        let entries = files.list(&self.layout.work_dir).await?;
        files.make_directory(&former, false).await?;
        let old = entries.iter().map(|entry| &entry.path).filter(|path| **path != self.fresh);
        let out = old.map(|path| (path.clone(), moved(path, &former)));
        let back = staged.iter().map(|entry| &entry.path);
        let back = back.map(|path| (path.clone(), moved(path, &self.layout.work_dir)));
        let mut done: Vec<(String, String)> = Vec::new();
        for (from, to) in out.chain(back) {
            if let Err(error) = files.rename(&from, &to).await {
                for (from, to) in done.iter().rev() {
                    files.rename(to, from).await.map_err(|e| e.with_effect(Effect::Applied))?;
                }
                files.remove(&former, true).await?;
                return Err(error);
            }
            done.push((from, to));
        }
        files.remove(&self.fresh, true).await
    }

    /// Swaps the packages, where they are outside of the working directory, and removes the former files.
    async fn finish(&self) -> Result<()> {
        if !self.layout.packages_inside {
            for (_, path) in &self.layout.beside {
                let former = self.beside("former", path);
                unless_missing(self.files.rename(path, &former).await)?;
                unless_missing(self.files.rename(&self.beside("restored", path), path).await)?;
                discard(&self.files, &former).await?;
            }
        }
        discard(&self.files, &self.former()).await
    }
}

impl Drop for StagedFiles {
    fn drop(&mut self) {
        let Some(runtime) = Handle::try_current().ok().filter(|_| self.given_up) else { return };
        self.unwanted.store(true, Ordering::Release);
        let (files, unpacking) = (Arc::clone(&self.files), self.unpacking.take());
        let all = self.all();
        runtime.spawn(async move {
            if let Some(unpacking) = unpacking {
                drop(unpacking.await);
            }
            remove(&files, &all).await;
        });
    }
}

fn not_to_the_end(error: JoinError) -> Error {
    let message = "the files were not swapped completely";
    Error::new(ErrorKind::Unexpected, RESTORE, message).with_source(error)
}

/// Removes paths. Failures are ignored, because an earlier error is reported.
async fn remove(files: &Files, paths: &[String]) {
    for path in paths {
        let _ = discard(files, path).await;
    }
}

/// Removes a path that may be missing.
pub(super) async fn discard(files: &Files, path: &str) -> Result<()> {
    unless_missing(files.remove(path, true).await)
}

fn unless_missing(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns the path of an entry in another directory.
fn moved(path: &str, directory: &str) -> String {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    format!("{directory}/{name}")
}
