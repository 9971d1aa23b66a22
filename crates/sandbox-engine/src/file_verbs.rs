//! The files of one sandbox: what every verb about them does alike.

use std::future::Future;
use std::sync::Arc;

use crate::host::{FileSystem, WatchStream};
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::{ByteStream, Result};

use crate::base::{SandboxBase, ended};

impl SandboxBase {
    /// What works with the files.
    pub(crate) async fn files(&self, operation: &'static str) -> Result<Arc<dyn FileSystem>> {
        self.ensure_running(operation)?;
        let Some(files) = &self.files else { return Err(self.unsupported(operation)) };
        files().await
    }

    /// Works with the files: the sandbox is in use meanwhile, and when it ended meanwhile, that is the answer.
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

    /// Content that ends with the sandbox, which is in use while it is taken.
    pub fn content(&self, operation: &'static str, content: ByteStream) -> ByteStream {
        let in_use = self.expiry.in_use();
        let (reason, id) = (Arc::clone(&self.end_reason), self.id.clone());
        let checked = content.map(move |piece| {
            let _ = &in_use;
            ended(operation, &id, &reason).map_or(piece, Err)
        });
        Box::pin(until_error(checked))
    }

    /// Changes until the sandbox ends, which is told as an error.
    pub fn changes(&self, changes: WatchStream) -> WatchStream {
        let (reason, id) = (Arc::clone(&self.end_reason), self.id.clone());
        let told = stream::once(async move { ended("watch_files", &id, &reason).map(Err) });
        let closing = (self.closed)();
        Box::pin(changes.take_until(closing).chain(told.filter_map(std::future::ready)))
    }
}

/// Nothing after the first error.
fn until_error<T: Send, S: Stream<Item = Result<T>> + Send>(
    stream: S,
) -> impl Stream<Item = Result<T>> + Send {
    stream.scan(false, |failed, piece| {
        let next = (!*failed).then_some(piece);
        *failed = matches!(next, Some(Err(_)));
        std::future::ready(next)
    })
}
