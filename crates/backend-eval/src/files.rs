//! The files of one sandbox: what every verb about them does alike.

use std::future::Future;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use sandbox_agent::box_io::WatchStream;
use sandbox_agent::cell::CellFiles;
use sandbox_core::{ByteStream, Result};

use crate::instance::EvalInstance;

impl EvalInstance {
    /// Works with the files: the sandbox is in use meanwhile, and when it ended meanwhile, that is the answer.
    pub(crate) async fn with_files<T, F: Future<Output = Result<T>>>(
        &self,
        operation: &'static str,
        work: impl FnOnce(CellFiles) -> F,
    ) -> Result<T> {
        self.alive(operation)?;
        let _in_use = self.expiry.in_use();
        let files = CellFiles::new(self.cell.cell(), &self.base.cwd)?;
        let done = work(files).await;
        self.alive(operation)?;
        done
    }

    /// Content that ends with the sandbox, which is in use while it is taken.
    pub(crate) fn content(&self, operation: &'static str, content: ByteStream) -> ByteStream {
        let in_use = self.expiry.in_use();
        let ended = Arc::clone(&self.ended);
        let id = self.id.clone();
        let checked = content.map(move |piece| {
            let _ = &in_use;
            match ended.get() {
                Some(reason) => Err(crate::instance::ended(operation, &id, reason)),
                None => piece,
            }
        });
        Box::pin(until_error(checked))
    }

    /// Changes until the sandbox ends, which is told as an error.
    pub(crate) fn changes(&self, changes: WatchStream) -> WatchStream {
        let (ended, id) = (Arc::clone(&self.ended), self.id.clone());
        let told = stream::once(async move {
            let reason = ended.get()?;
            Some(Err(crate::instance::ended("watch_files", &id, reason)))
        });
        let closing = Box::pin(self.cell.cell().closing());
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
