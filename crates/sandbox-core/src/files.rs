//! The files of a sandbox from a handle.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};

use crate::call::CallContext;
use crate::error::{Error, ErrorKind, Result};
use crate::model::FileInfo;
use crate::request::{ByteRange, ByteStream, WriteOptions};
use crate::sandbox::Sandbox;
use crate::units::ByteSize;

/// The most that [`Files::read`] takes into memory; larger files are streamed.
pub const MOST_IN_MEMORY: ByteSize = ByteSize::mib(64);

/// The files of a sandbox. Paths are absolute inside it, or relative to its working directory.
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
    pub async fn read(&self, path: &str) -> Result<Bytes> {
        let mut content = self.stream(path, ByteRange::default()).await?;
        let mut all = BytesMut::new();
        while let Some(chunk) = content.next().await {
            all.extend_from_slice(&chunk?);
            if all.len() as u64 > MOST_IN_MEMORY.as_u64() {
                let message = format!("{path} is larger than {MOST_IN_MEMORY}");
                return Err(Error::new(ErrorKind::ResourceExhausted, "read_file", message)
                    .with_hint("read it as a stream"));
            }
        }
        Ok(all.freeze())
    }

    /// The whole content as text.
    ///
    /// # Errors
    /// `InvalidArgument` when it is not UTF-8. Otherwise as [`Files::read`].
    pub async fn read_text(&self, path: &str) -> Result<String> {
        let content = self.read(path).await?;
        String::from_utf8(content.into()).map_err(|_| {
            Error::invalid("path", format!("{path} is not UTF-8 text; read it as bytes"))
        })
    }

    /// The content as it is read, from any place in the file.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for a directory; `NotStarted`, `Terminated`, `Unsupported`. The stream may end with an error too.
    pub async fn stream(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        self.sandbox.instance("read_file")?.read_file(&CallContext::new(), path, range).await
    }

    /// Writes text or bytes, atomically; makes missing parents.
    ///
    /// # Errors
    /// As [`Files::write_stream`].
    pub async fn write(&self, path: &str, content: impl Into<Bytes>) -> Result<()> {
        let content = Box::pin(stream::iter([Ok(content.into())]));
        self.write_stream(path, content, WriteOptions::default()).await?;
        Ok(())
    }

    /// Writes what comes. Returns the bytes written.
    ///
    /// # Errors
    /// `PermissionDenied`, `ResourceExhausted` when the disk is full, any error of `content`; `NotStarted`, `Terminated`, `Unsupported`.
    /// The old content is then still there, unless something was to be added to it.
    pub async fn write_stream(
        &self,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let instance = self.sandbox.instance("write_file")?;
        instance.write_file(&CallContext::new(), path, content, options).await
    }

    /// Entries of a directory, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for what is no directory; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.sandbox.instance("list_files")?.list_files(&CallContext::new(), path).await
    }

    /// One file; a link as a link.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.sandbox.instance("stat_file")?.stat_file(&CallContext::new(), path).await
    }

    /// Whether something is there, a dangling link included.
    ///
    /// # Errors
    /// As [`Files::stat`], except `NotFound`.
    pub async fn exists(&self, path: &str) -> Result<bool> {
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
    pub async fn mkdir(&self, path: &str) -> Result<()> {
        let instance = self.sandbox.instance("create_directory")?;
        instance.create_directory(&CallContext::new(), path, true).await
    }

    /// Removes a file, a link or, with `recursive`, a tree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidArgument` for a directory without `recursive`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let instance = self.sandbox.instance("remove_file")?;
        instance.remove_file(&CallContext::new(), path, recursive).await
    }

    /// Renames.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.sandbox.instance("rename_file")?.rename_file(&CallContext::new(), from, to).await
    }

    /// Copies a file or a tree.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `ResourceExhausted` when the disk is full; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.sandbox.instance("copy_file")?.copy_file(&CallContext::new(), from, to).await
    }
}
