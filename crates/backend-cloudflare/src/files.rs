//! Files of a sandbox: scripts in the shell of the image, content of large ones by requests of their own, and changes of files by
//! the agent.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{ByteRange, ByteStream, FileInfo, FindFiles, FoundFile, Result, WriteOptions};
use sandbox_engine::host::{FileSystem, Links, WatchStream};
use sandbox_shell::{ReadOrLink, ShellFiles, ShellHost};

use crate::agent::AgentLink;
use crate::programs::Programs;
use crate::transfers::staging;

const NO_WATCH: &str = "list the directory again; the agent, which needs Python, reports changes";

/// Size from which a file is read by a request of its own, and not from the output of a program.
const LARGE_SIZE: usize = 1 << 20;

/// The files of a sandbox.
#[derive(Debug)]
pub(crate) struct CloudflareFiles {
    programs: Arc<Programs>,
    shell: ShellFiles,
    link: Arc<AgentLink>,
    base: String,
}

impl CloudflareFiles {
    /// Creates the files. Relative paths are below `base`.
    pub(crate) fn new(programs: &Arc<Programs>, link: &Arc<AgentLink>, base: &str) -> Self {
        let shell: Arc<dyn ShellHost> = Arc::<Programs>::clone(programs);
        let shell = ShellFiles::new(shell, base, NO_WATCH);
        let (programs, link) = (Arc::clone(programs), Arc::clone(link));
        Self { programs, shell, link, base: base.to_owned() }
    }
}

#[async_trait]
impl FileSystem for CloudflareFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        if range != ByteRange::default() {
            return self.shell.read(path, range).await;
        }
        let link = staging();
        match self.shell.read_or_link(path, LARGE_SIZE, &link).await? {
            ReadOrLink::Content(content) => Ok(content),
            ReadOrLink::Linked => match self.programs.download(&link).await {
                Ok(content) => Ok(content),
                Err(error) => {
                    tracing::debug!(%error, "a file is read by a program");
                    self.shell.read(path, range).await
                }
            },
        }
    }

    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64> {
        self.shell.write(path, content, options).await
    }

    async fn list(&self, path: &str) -> Result<Vec<FileInfo>> {
        self.shell.list(path).await
    }

    async fn stat(&self, path: &str) -> Result<FileInfo> {
        self.shell.stat(path).await
    }

    async fn make_directory(&self, path: &str, parents: bool) -> Result<()> {
        self.shell.make_directory(path, parents).await
    }

    async fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        self.shell.remove(path, recursive).await
    }

    async fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.shell.rename(from, to).await
    }

    async fn set_mode(&self, path: &str, mode: u32) -> Result<()> {
        self.shell.set_mode(path, mode).await
    }

    async fn copy(&self, from: &str, to: &str) -> Result<()> {
        self.shell.copy(from, to).await
    }

    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.shell.find(query).await
    }

    async fn read_archive(&self, path: &str) -> Result<ByteStream> {
        self.shell.read_archive(path).await
    }

    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()> {
        self.shell.write_archive(path, tar, links).await
    }

    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream> {
        self.link.connection().await?.files(&self.base).watch(path, recursive).await
    }
}
