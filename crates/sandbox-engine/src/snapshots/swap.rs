//! The files of a sandbox for those of a snapshot, all at once.
//!
//! Those of the snapshot are staged beside the others first. The exchange itself goes on to its end once it has begun,
//! also when nobody waits for it any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::host::{FileSystem, Links};
use futures_util::StreamExt as _;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, random_hex};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};

const RESTORE: &str = "restore_snapshot";

type Files = Arc<dyn FileSystem>;

/// Where files of a snapshot belong in one sandbox.
pub(super) struct Layout {
    pub(super) work_dir: String,
    pub(super) home: String,
    /// Directories beside the working directory: parts of a snapshot, and their directories below the home.
    pub(super) beside: [(&'static str, String); 2],
    /// Whether the packages are in the working directory, which then has them all by itself.
    pub(super) packages_inside: bool,
}

impl Layout {
    /// Where a directory beside the working directory would be in another directory.
    pub(super) fn inside(&self, directory: &str, beside: &str) -> String {
        moved(beside, directory)
    }
}

/// Files beside those that there are. Removed when they do not take their place.
pub(super) struct StagedFiles {
    pub(super) files: Files,
    layout: Layout,
    /// What will be the content of the working directory.
    pub(super) fresh: String,
    mark: String,
    /// An archive that is being unpacked, which ends early when nobody wants it any more.
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

    /// The parts beside the working directory: where each is staged if it is inside of that, and if it is outside.
    pub(super) fn places(&self) -> Vec<(&'static str, String, String)> {
        let place = |(part, path): &(&'static str, String)| {
            (*part, self.layout.inside(&self.fresh, path), self.beside("restored", path))
        };
        self.layout.beside.iter().map(place).collect()
    }

    /// Where something beside the working directory is staged, or put out of the way.
    fn beside(&self, what: &str, path: &str) -> String {
        let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
        format!("{}/.{what}-{}{name}", self.layout.home, self.mark)
    }

    /// Everything that is staged.
    fn all(&self) -> Vec<String> {
        let beside = self.places().into_iter().map(|(_, _, beside)| beside);
        [self.fresh.clone()].into_iter().chain(beside).collect()
    }

    /// Unpacks an archive there.
    pub(super) async fn unpack(&mut self, content: ByteStream, path: String) -> Result<()> {
        let (files, unwanted) = (Arc::clone(&self.files), Arc::clone(&self.unwanted));
        let content = content.map(move |piece| match unwanted.load(Ordering::Acquire) {
            true => Err(Error::new(ErrorKind::Unexpected, RESTORE, "it was given up")),
            false => piece,
        });
        let unpack = async move { files.write_archive(&path, Box::pin(content), Links::Any).await };
        let unpacked = self.unpacking.insert(tokio::spawn(unpack)).await;
        self.unpacking = None;
        unpacked.unwrap_or_else(|error| Err(not_to_the_end(error)))
    }

    /// Removes them now.
    pub(super) async fn give_up(mut self) {
        self.given_up = false;
        remove(&self.files, &self.all()).await;
    }

    /// Puts them in the place of those that are there: all, or none.
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

    /// Moves everything in the working directory out of the way, and what is staged into it.
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

    /// The packages, where those are outside of the working directory, and what was there before.
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
    let message = "the files were not exchanged to the end";
    Error::new(ErrorKind::Unexpected, RESTORE, message).with_source(error)
}

/// The error that counts came before.
async fn remove(files: &Files, paths: &[String]) {
    for path in paths {
        let _ = discard(files, path).await;
    }
}

/// Removes what may not be there.
pub(super) async fn discard(files: &Files, path: &str) -> Result<()> {
    unless_missing(files.remove(path, true).await)
}

fn unless_missing(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The path that something has in another directory.
fn moved(path: &str, directory: &str) -> String {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    format!("{directory}/{name}")
}
