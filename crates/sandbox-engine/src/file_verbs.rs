//! What all file verbs of a sandbox share.

use std::future::Future;
use std::sync::Arc;

use crate::host::{FileSystem, WatchStream};
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::{ByteStream, Result};

use crate::base::{SandboxBase, ended};

impl SandboxBase {
    /// Returns the files of the sandbox.
    pub(crate) async fn files(&self, operation: &'static str) -> Result<Arc<dyn FileSystem>> {
        self.ensure_running(operation)?;
        let Some(files) = &self.files else { return Err(self.unsupported(operation)) };
        files().await
    }

    /// Calls `work` with the files. The sandbox counts as active meanwhile; when it ended meanwhile, that is the error.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, `Unsupported` when it has no files, and those of `work`.
    pub async fn with_files<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &'static str,
        work: impl FnOnce(Arc<dyn FileSystem>) -> F,
    ) -> Result<T> {
        let _in_use = self.expiry.in_use();
        let done = match self.files(operation).await {
            Ok(files) => work(files).await,
            Err(error) => Err(error),
        };
        self.ensure_running(operation)?;
        done
    }

    /// Ends content with the sandbox, which counts as active while the content is read.
    pub fn content(&self, operation: &'static str, content: ByteStream) -> ByteStream {
        let in_use = self.expiry.in_use();
        let (reason, id) = (Arc::clone(&self.end_reason), self.id.clone());
        let checked = content.map(move |piece| {
            let _ = &in_use;
            ended(operation, &id, &reason).map_or(piece, Err)
        });
        Box::pin(until_error(checked))
    }

    /// Ends a stream of changes with the sandbox. The end of the sandbox is the last item, an error.
    pub fn changes(&self, changes: WatchStream) -> WatchStream {
        let (reason, id) = (Arc::clone(&self.end_reason), self.id.clone());
        let told = stream::once(async move { ended("watch_files", &id, &reason).map(Err) });
        let closing = (self.closed)();
        Box::pin(changes.take_until(closing).chain(told.filter_map(std::future::ready)))
    }
}

/// Ends a stream after its first error.
fn until_error<T: Send, S: Stream<Item = Result<T>> + Send>(
    stream: S,
) -> impl Stream<Item = Result<T>> + Send {
    stream.scan(false, |failed, piece| {
        let next = (!*failed).then_some(piece);
        *failed = matches!(next, Some(Err(_)));
        std::future::ready(next)
    })
}
