//! The directory of a kernel's sockets and connection file.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use jupyter_protocol::ConnectionInfo;
use sandbox_core::{ByteStream, Result, WriteOptions, random_hex};
use sandbox_engine::host::{FileSystem, Process as _};

use super::failed;
use crate::process::KernelProcess;

pub(super) struct RuntimeDir {
    files: Arc<dyn FileSystem>,
    path: String,
}

impl RuntimeDir {
    /// Chooses an unused name for a directory, and does not create the directory. The name is short, because some
    /// kernels of the xeus family use 23 bytes of the maximum length of a socket's path.
    pub(super) fn new(files: &Arc<dyn FileSystem>, parent: &str) -> Self {
        let path = format!("{parent}/.k-{}", random_hex(6));
        Self { files: Arc::clone(files), path }
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Creates the directory and the connection file, which only the user of the sandbox can read.
    pub(super) async fn write(&self, info: &ConnectionInfo) -> Result<String> {
        self.files.make_directory(&self.path, true).await?;
        self.files.set_mode(&self.path, 0o700).await?;
        let text = serde_json::to_vec(info).map_err(|error| {
            failed("the connection file could not be encoded".into()).with_source(error)
        })?;
        let file = format!("{}/kernel.json", self.path);
        let content: ByteStream = Box::pin(stream::iter([Ok(Bytes::from(text))]));
        let options = WriteOptions { mode: Some(0o600), ..WriteOptions::default() };
        self.files.write(&file, content, options).await?;
        Ok(file)
    }

    /// Removes the directory when the kernel has ended.
    pub(super) fn remove_with(self, process: &Arc<KernelProcess>) {
        let process = Arc::clone(process);
        tokio::spawn(async move {
            drop(process.exit().await);
            // Otherwise it is removed with the sandbox.
            let _ = self.files.remove(&self.path, true).await;
        });
    }
}
