//! The files of a cell, accessed from outside through the descriptor of its root.
//!
//! Code in the cell may change every file and link meanwhile, and may do so to trick this process. [`path`] says what
//! keeps the work inside, and [`pool`] with whose rights it is done.

mod attributes;
mod copy;
mod find;
mod pack;
mod path;
mod read;
mod sink;
mod tree;
mod unpack;
mod walk;
mod watch;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use sandbox_core::{
    ByteRange, ByteStream, ErrorKind, FileInfo, FindFiles, FoundFile, Result, WriteOptions,
};
use sandbox_isolation::{Cell, CellKind};

use self::error::PathContext;
use self::path::CellPath;
use self::path::RootDir;
use self::pool::User;
use sandbox_engine::files::{chunks, error, names, pool};
use sandbox_engine::host::{FileSystem, Links, WatchStream};

/// The files of a cell.
///
/// In an isolated cell every permission is checked as for code in the cell, and new files belong to its user. Without
/// isolation absolute paths are the host's, and the rights are those of this process.
#[derive(Clone, Debug)]
pub struct CellFiles {
    tree: Arc<RootDir>,
}

impl CellFiles {
    /// Opens the files of `cell`. Relative paths begin at `base`, an absolute path in the cell.
    ///
    /// # Errors
    /// `ResourceExhausted` when this process has no descriptor left.
    pub fn new(cell: &Cell, base: &str) -> Result<Self> {
        let root = cell.root().try_clone_to_owned().map_err(super::no_descriptors)?;
        let user = cell.file_owner().map(|(uid, gid)| User { uid, gid });
        let inside = (cell.kind() == CellKind::Strict).then(|| cell.identity());
        Ok(Self { tree: Arc::new(RootDir { root, base: base.to_owned(), user, inside }) })
    }

    fn target(&self, operation: &'static str, path: &str) -> Result<CellPath> {
        CellPath::new(&self.tree.base, operation, path)
    }

    /// Works on one path on a thread for files.
    async fn with<T: Send + 'static>(
        &self,
        operation: &'static str,
        path: &str,
        work: impl FnOnce(&RootDir, &CellPath, &Stop) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let target = self.target(operation, path)?;
        let (about, tree) = (target.about.clone(), Arc::clone(&self.tree));
        let stop = Stop::default();
        let _stops_when_dropped = StopOnDrop(stop.clone());
        pool::run(self.tree.user, move || work(&tree, &target, &stop))
            .await
            .map_err(|error| about.unexpected(error))?
    }
}

/// Signals long work that its caller was cancelled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub(crate) fn check(&self, about: &PathContext) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            return Err(about.error(ErrorKind::Cancelled, "cancelled", "the caller gave up"));
        }
        Ok(())
    }
}

struct StopOnDrop(Stop);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

#[async_trait]
impl FileSystem for CellFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        let target = self.target("read_file", path)?;
        read::stream(Arc::clone(&self.tree), target, range).await
    }

    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64> {
        let target = self.target("write_file", path)?;
        write::write(Arc::clone(&self.tree), target, content, options).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.with("list_files", path, tree::list).await
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.with("stat_file", path, |tree, target, _| tree::stat(tree, target)).await
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        self.with("create_directory", path, move |tree, target, _| {
            tree::make_directory(tree, target, parents)
        })
        .await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        self.with("remove_file", path, move |tree, target, stop| {
            tree::remove(tree, target, recursive, stop)
        })
        .await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let to = self.target("rename_file", to)?;
        self.with("rename_file", from, move |tree, from, _| tree::rename(tree, from, &to)).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        self.with("set_file_mode", path, move |tree, target, _| tree::set_mode(tree, target, mode))
            .await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        let to = self.target("copy_file", to)?;
        self.with("copy_file", from, move |tree, from, stop| copy::copy(tree, from, &to, stop))
            .await
    }

    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        let root = query.root.clone();
        self.with("find_files", &root, move |tree, root, stop| find::find(tree, root, &query, stop))
            .await
    }

    async fn read_archive(&self, path: &str) -> Result<ByteStream> {
        pack::pack(Arc::clone(&self.tree), self.target("read_archive", path)?).await
    }

    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()> {
        unpack::unpack(Arc::clone(&self.tree), self.target("write_archive", path)?, tar, links)
            .await
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream> {
        watch::watch(Arc::clone(&self.tree), self.target("watch_files", path)?, recursive).await
    }
}
