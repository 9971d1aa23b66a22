//! Files of a sandbox: content through the toolbox's own transfers, everything else through scripts in the image's shell.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{ByteRange, ByteStream, FileInfo, FindFiles, FoundFile, Result, WriteOptions};
use sandbox_engine::host::{FileSystem, Links, WatchStream};
use sandbox_shell::{ShellFiles, ShellHost};

use crate::programs::Programs;

const NO_WATCH: &str = "list the directory again; daytona reports no changes of files";

/// Bytes of a file that is read by one script.
const SMALL: u64 = 64 << 10;

/// The files of a sandbox.
#[derive(Debug)]
pub(crate) struct DaytonaFiles {
    programs: Arc<Programs>,
    shell: ShellFiles,
}

impl DaytonaFiles {
    /// Creates the files. Relative paths are below `base`.
    pub(crate) fn new(programs: Arc<Programs>, base: &str) -> Self {
        let shell: Arc<dyn ShellHost> = Arc::<Programs>::clone(&programs);
        Self { programs, shell: ShellFiles::new(shell, base, NO_WATCH) }
    }
}

/// Returns a part of a stream.
fn cut(content: ByteStream, range: ByteRange) -> ByteStream {
    let state = (content, range.offset, range.length);
    Box::pin(stream::unfold(state, |(mut content, mut skip, mut left)| async move {
        loop {
            if left == Some(0) {
                return None;
            }
            let mut chunk = match content.next().await? {
                Ok(chunk) => chunk,
                Err(error) => return Some((Err(error), (content, skip, Some(0)))),
            };
            let passed = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
            skip -= passed as u64;
            drop(chunk.split_to(passed));
            if let Some(left) = &mut left {
                chunk.truncate(usize::try_from(*left).unwrap_or(usize::MAX).min(chunk.len()));
                *left -= chunk.len() as u64;
            }
            if !chunk.is_empty() {
                return Some((Ok(chunk), (content, skip, left)));
            }
        }
    }))
}

#[async_trait]
impl FileSystem for DaytonaFiles {
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream> {
        // The toolbox would wait for a writer of a FIFO, and tells failures apart by their text alone. So a script comes
        // first, which has all of a small file.
        let target = match self.shell.read_small(path, range, SMALL).await? {
            Ok(content) if content.is_empty() => return Ok(Box::pin(stream::empty())),
            Ok(content) => return Ok(Box::pin(stream::iter([Ok(content)]))),
            Err(target) => target,
        };
        let Ok(name) = String::from_utf8(target.bytes) else {
            // A query of the toolbox is text.
            return self.shell.read(path, range).await;
        };
        // Content that came on another runtime would be handed over piece by piece.
        let toolbox = self.programs.callers_toolbox("read_file")?;
        Ok(cut(toolbox.download("read_file", &name).await?, range))
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
        self.shell.watch(path, recursive).await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn ranges_are_cut_wherever_chunks_end() {
        for (offset, length, expected) in [
            (0, None, "abcdef"),
            (2, Some(3), "cde"),
            (5, Some(9), "f"),
            (9, None, ""),
            (1, Some(0), ""),
        ] {
            let chunks = ["ab", "", "cde", "f"].map(|text| Ok(Bytes::from_static(text.as_bytes())));
            let content: ByteStream = Box::pin(stream::iter(chunks));
            let found: Vec<Bytes> =
                cut(content, ByteRange { offset, length }).map(Result::unwrap).collect().await;
            assert_eq!(found.concat(), expected.as_bytes(), "{offset} {length:?}");
        }
    }
}
