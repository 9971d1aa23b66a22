//! The files of a sandbox from a handle.
//!
//! Every error about a path has it in its context, with a `cause` for programs where the kind alone does not tell:
//! `is_a_directory`, `not_a_directory`, `is_a_link`, `not_a_regular_file`, `not_empty`, `disk_full`, `name_too_long` and
//! more.

use std::path::Path;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::{StreamExt as _, stream};

use crate::call::CallContext;
use crate::error::{Error, ErrorKind, Result};
use crate::model::{FileInfo, WatchEvent};
use crate::path::sandbox_path;
use crate::request::{ByteRange, ByteStream, FindFiles, FoundFile, WriteOptions};
use crate::sandbox::Sandbox;
use crate::units::ByteSize;

/// The most that [`Files::read`] takes into memory; larger files are streamed.
pub const MAX_READ_SIZE: ByteSize = ByteSize::mib(64);

/// The files of a sandbox. Paths are absolute inside it, or relative to its working directory.
///
/// They work while code runs, without its help, and with the rights of the user that code is. Links above the last part of
/// a path are followed and never lead out of the sandbox. A last part that is a link is followed for reading and listing;
/// what changes something acts on the link itself (remove, rename, copy) or refuses it (write, append, chmod). FIFOs,
/// devices, sockets and what shows the kernel, such as `/proc`, are refused with an error and never waited for.
///
/// A name that is not UTF-8 is shown with one private character for each byte that does not fit, U+10FE00 plus its value,
/// and is found again by that text.
#[derive(Clone, Copy, Debug)]
pub struct Files<'a> {
    sandbox: &'a Sandbox,
}

impl<'a> Files<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        Self { sandbox }
    }

    /// The whole content.
    ///
    /// # Errors
    /// `ResourceExhausted` above 64 MiB: use [`Files::stream`]. Otherwise as that.
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Bytes> {
        self.collect(path.as_ref(), ByteRange::default()).await
    }

    async fn collect(&self, path: &Path, range: ByteRange) -> Result<Bytes> {
        let mut content = self.stream(path, range).await?;
        let mut all = BytesMut::new();
        let mut only: Option<Bytes> = None;
        while let Some(piece) = content.next().await.transpose()? {
            // A single piece is handed on as it is.
            match only.take() {
                None if all.is_empty() => only = Some(piece),
                before => {
                    all.extend_from_slice(&before.unwrap_or_default());
                    all.extend_from_slice(&piece);
                }
            }
            if all.len() as u64 > MAX_READ_SIZE.as_u64() {
                let message = format!("{} is larger than {MAX_READ_SIZE}", path.display());
                return Err(Error::new(ErrorKind::ResourceExhausted, "read_file", message)
                    .with_context("cause", "too_large")
                    .with_hint("read it as a stream"));
            }
        }
        Ok(only.unwrap_or_else(|| all.freeze()))
    }

    /// Part of the content: `length` bytes from `offset` on, fewer at the end of the file.
    ///
    /// # Errors
    /// As [`Files::read`]; 64 MiB is the most here too.
    pub async fn read_range(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        length: u64,
    ) -> Result<Bytes> {
        self.collect(path.as_ref(), ByteRange { offset, length: Some(length) }).await
    }

    /// The whole content as text.
    ///
    /// # Errors
    /// `InvalidArgument` when it is not UTF-8. Otherwise as [`Files::read`].
    pub async fn read_text(&self, path: impl AsRef<Path>) -> Result<String> {
        let path = path.as_ref();
        let content = self.read(path).await?;
        String::from_utf8(content.into()).map_err(|_| {
            Error::invalid(
                "path",
                format!("{} is not UTF-8 text; read it as bytes", path.display()),
            )
        })
    }

    /// The content as it is read, from any place in the file.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for a directory; `NotStarted`, `Terminated`, `Unsupported`. The stream may end with an error too.
    pub async fn stream(&self, path: impl AsRef<Path>, range: ByteRange) -> Result<ByteStream> {
        let path = sandbox_path("path", path.as_ref())?;
        let instance = self.sandbox.instance("read_file")?;
        instance.files()?.read_file(&CallContext::new(), &path, range).await
    }

    /// Writes text or bytes, atomically; makes missing parents.
    ///
    /// # Errors
    /// As [`Files::write_stream`].
    pub async fn write(&self, path: impl AsRef<Path>, content: impl Into<Bytes>) -> Result<()> {
        let content = Box::pin(stream::iter([Ok(content.into())]));
        self.write_stream(path, content, WriteOptions::default()).await?;
        Ok(())
    }

    /// Writes text or bytes in one of the ways that there are: with a mode, at the end, without making parents.
    ///
    /// # Errors
    /// As [`Files::write_stream`].
    pub async fn write_with(
        &self,
        path: impl AsRef<Path>,
        content: impl Into<Bytes>,
        options: WriteOptions,
    ) -> Result<()> {
        let content = Box::pin(stream::iter([Ok(content.into())]));
        self.write_stream(path, content, options).await?;
        Ok(())
    }

    /// Adds to the end of a file, which is made if it is missing. One call is one write for others that append too, up to
    /// what the content's pieces are.
    ///
    /// # Errors
    /// As [`Files::write_stream`]; part of it may be there after a failure.
    pub async fn append(&self, path: impl AsRef<Path>, content: impl Into<Bytes>) -> Result<()> {
        let options = WriteOptions { append: true, ..WriteOptions::default() };
        self.write_with(path, content, options).await
    }

    /// Writes what comes. Returns the bytes written.
    ///
    /// # Errors
    /// `PermissionDenied`, `ResourceExhausted` when the disk is full, any error of `content`; `NotStarted`, `Terminated`, `Unsupported`.
    /// The old content is then still there, unless something was to be added to it.
    pub async fn write_stream(
        &self,
        path: impl AsRef<Path>,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let instance = self.sandbox.instance("write_file")?;
        let path = sandbox_path("path", path.as_ref())?;
        instance.files()?.write_file(&CallContext::new(), &path, content, options).await
    }

    /// Entries of a directory, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for what is no directory; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<FileInfo>> {
        let path = sandbox_path("path", path.as_ref())?;
        self.sandbox.instance("list_files")?.files()?.list_files(&CallContext::new(), &path).await
    }

    /// One file; a link as a link.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<FileInfo> {
        let path = sandbox_path("path", path.as_ref())?;
        self.sandbox.instance("stat_file")?.files()?.stat_file(&CallContext::new(), &path).await
    }

    /// Returns true when the path exists, a dangling link included.
    ///
    /// # Errors
    /// As [`Files::stat`], except `NotFound`.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.stat(path).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes a directory and its missing parents.
    ///
    /// # Errors
    /// `AlreadyExists` when something else is there, `PermissionDenied`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn mkdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let instance = self.sandbox.instance("create_directory")?;
        let path = sandbox_path("path", path.as_ref())?;
        instance.files()?.create_directory(&CallContext::new(), &path, true).await
    }

    /// Removes a file, a link or, with `recursive`, a tree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for a directory without `recursive`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn remove(&self, path: impl AsRef<Path>, recursive: bool) -> Result<()> {
        let instance = self.sandbox.instance("remove_file")?;
        let path = sandbox_path("path", path.as_ref())?;
        instance.files()?.remove_file(&CallContext::new(), &path, recursive).await
    }

    /// Renames.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (sandbox_path("from", from.as_ref())?, sandbox_path("to", to.as_ref())?);
        let instance = self.sandbox.instance("rename_file")?;
        instance.files()?.rename_file(&CallContext::new(), &from, &to).await
    }

    /// Copies a file or a tree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `ResourceExhausted` when the disk is full; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (sandbox_path("from", from.as_ref())?, sandbox_path("to", to.as_ref())?);
        let instance = self.sandbox.instance("copy_file")?;
        instance.files()?.copy_file(&CallContext::new(), &from, &to).await
    }

    /// Sets the permission bits of a file or a directory, such as `0o644`. A link is refused.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for bits above `0o1777`, such as set-user-id, or for what is
    /// neither; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn chmod(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let instance = self.sandbox.instance("set_file_mode")?;
        let path = sandbox_path("path", path.as_ref())?;
        instance.files()?.set_file_mode(&CallContext::new(), &path, mode).await
    }

    /// Absolute paths below a directory that match a glob: `*.py` for names at any depth, `src/**/*.py` for whole paths.
    /// Links are not followed. At most 10,000; [`Files::search`] has other limits.
    ///
    /// # Errors
    /// As [`Files::search`].
    pub async fn find(&self, root: impl AsRef<Path>, name: &str) -> Result<Vec<String>> {
        let root = sandbox_path("root", root.as_ref())?;
        let query = FindFiles { root, name: Some(name.into()), ..FindFiles::default() };
        Ok(self.search(query).await?.into_iter().map(|found| found.path).collect())
    }

    /// Lines that contain a text, in every regular file below a directory. A line is shown up to 1 KiB. At most 10,000.
    ///
    /// # Errors
    /// As [`Files::search`].
    pub async fn grep(&self, root: impl AsRef<Path>, text: &str) -> Result<Vec<FoundFile>> {
        let (root, contains) = (sandbox_path("root", root.as_ref())?, Some(text.into()));
        self.search(FindFiles { root, contains, ..FindFiles::default() }).await
    }

    /// Finds files by name, lines by content, or both. As many results as the limit may mean that there are more.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied` for the root alone, `InvalidArgument` for a root that is no directory, a limit of 0 or
    /// above 100,000, or a text of more than one line; `ResourceExhausted` below 64 levels, and for more than 64 MiB of paths
    /// and lines; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn search(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.sandbox.instance("find_files")?.files()?.find_files(&CallContext::new(), query).await
    }

    /// Changes below a directory from now on, as they come; with `recursive`, in what is below it too. Ends when the
    /// directory is removed, with `Terminated` when the sandbox ends. Dropping the stream ends the watch.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for what is no directory, `ResourceExhausted` for too many of them;
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn watch(
        &self,
        path: impl AsRef<Path>,
        recursive: bool,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>> {
        let instance = self.sandbox.instance("watch_files")?;
        let path = sandbox_path("path", path.as_ref())?;
        instance.files()?.watch_files(&CallContext::new(), &path, recursive).await
    }

    /// Packs a directory as a tar stream. FIFOs, sockets and devices are left out.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for what is no directory; `NotStarted`, `Terminated`,
    /// `Unsupported`. The stream may end with an error too, such as for a file that cannot be read.
    pub async fn read_archive(&self, path: impl AsRef<Path>) -> Result<ByteStream> {
        let path = sandbox_path("path", path.as_ref())?;
        let instance = self.sandbox.instance("read_archive")?;
        instance.files()?.read_archive(&CallContext::new(), &path).await
    }

    /// Unpacks a tar stream into a directory, which is made if it is missing: all of it or nothing. Files that are there
    /// are replaced. See [`tar`](crate::tar) for what an archive may have.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no tar or may not be in one, `AlreadyExists` for a directory where the archive has
    /// something else, `ResourceExhausted` when the disk is full; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn write_archive(&self, path: impl AsRef<Path>, tar: ByteStream) -> Result<()> {
        let path = sandbox_path("path", path.as_ref())?;
        let instance = self.sandbox.instance("write_archive")?;
        instance.files()?.write_archive(&CallContext::new(), &path, tar).await
    }
}
