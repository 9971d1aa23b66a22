//! Content on its way: counted, in part, and staged beside its place until it is complete.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt as _, stream};
use sandbox_cloud::http::{Method, Request, join};
use sandbox_core::{ByteStream, CallContext, Result};
use serde_json::{Value, json};

use super::Envd;

/// Counts the bytes of a content.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted(Arc<AtomicU64>);

impl Counted {
    /// Counts what is taken of a content.
    pub(super) fn through(&self, content: ByteStream) -> ByteStream {
        let count = Arc::clone(&self.0);
        Box::pin(content.inspect(move |chunk| {
            if let Ok(chunk) = chunk {
                count.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
        }))
    }

    /// Returns how many bytes were taken.
    pub(super) fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns a part of a content.
pub(super) fn part(content: ByteStream, offset: u64, length: u64) -> ByteStream {
    Box::pin(stream::unfold(Some((content, offset, length)), |state| async move {
        let (mut content, mut skipped, mut left) = state?;
        while left > 0 {
            let mut chunk = match content.next().await? {
                Ok(chunk) => chunk,
                Err(error) => return Some((Err(error), None)),
            };
            let skip = skipped.min(chunk.len() as u64);
            skipped -= skip;
            // Both fit: they are at most the length of the chunk.
            let _ = chunk.split_to(usize::try_from(skip).unwrap_or_default());
            chunk.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= chunk.len() as u64;
            if !chunk.is_empty() {
                return Some((Ok(chunk), Some((content, skipped, left))));
            }
        }
        None
    }))
}

/// A file that is not complete. Dropping it removes the file in the background.
#[derive(Debug)]
pub(super) struct Staged {
    envd: Envd,
    path: Option<String>,
}

impl Staged {
    pub(super) fn new(envd: Envd, path: String) -> Self {
        Self { envd, path: Some(path) }
    }

    /// Keeps the file, which has its name now.
    pub(super) fn committed(mut self) {
        self.path = None;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let (Some(path), Ok(runtime)) = (self.path.take(), tokio::runtime::Handle::try_current())
        else {
            return;
        };
        let envd = self.envd.clone();
        runtime.spawn(async move {
            let body = json!({"path": path});
            let method = "filesystem.Filesystem/Remove";
            if let Err(error) = envd.call::<Value>("write_file", method, &body, true).await {
                tracing::debug!(%error, path, "a staged file may be left");
            }
        });
    }
}

impl Envd {
    /// Sends content to the HTTP interface.
    pub(super) async fn upload(
        &self,
        operation: &'static str,
        query: &[(&str, &str)],
        body: impl FnOnce(Request) -> Result<Request>,
    ) -> Result<()> {
        let (client, address) = self.client()?;
        let request =
            Request::new(operation, Method::POST, join(&address, &["files"])).accept("*/*");
        let request =
            query.iter().fold(request, |request, (name, value)| request.query(name, value));
        // As long as the content takes.
        let request = body(request)?.timeout(sandbox_core::MAX_DURATION);
        client.send(&CallContext::new(), &request).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[tokio::test]
    async fn a_part_is_what_was_asked_for_however_it_is_cut() {
        for size in 1..=10 {
            let content = b"0123456789";
            let chunks: Vec<_> =
                content.chunks(size).map(|chunk| Ok(Bytes::copy_from_slice(chunk))).collect();
            let counted = Counted::default();
            let content = counted.through(Box::pin(stream::iter(chunks)));
            let pieces: Vec<_> = part(content, 3, 4).map(Result::unwrap).collect().await;
            assert_eq!(pieces.concat(), b"3456", "chunks of {size}");
            assert!(counted.total() >= 7);
        }
    }
}
