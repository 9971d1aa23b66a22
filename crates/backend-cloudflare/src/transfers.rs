//! Files by requests of their own: the bridge takes and gives those below the workspace, up to a size.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sandbox_core::{ByteStream, Error, ErrorKind, Result, random_hex};
use sandbox_engine::background_runtime::{self, background};
use sandbox_shell::Uploads;

use crate::create::WORKSPACE;
use crate::programs::{Input, Programs};

/// Bytes of a file that are sent at once, of the 32 MiB that the bridge takes, and the number of requests that are on their way
/// at a time.
const PART_SIZE: usize = 16 << 20;
const PARTS_AT_ONCE: usize = 3;

/// Puts the parts of a file together. Its arguments: the file, then the parts. The first one need not be copied.
const JOIN: &str = "file=$1; [ \"$2\" = \"$file\" ] || mv -f \"$2\" \"$file\" || exit 1; shift 2; \
    for part; do cat \"$part\" >>\"$file\" && rm -f \"$part\" || exit 1; done";

/// Removes a file and its parts.
const REMOVE: &str = "rm -f \"$1\" \"$1\".*";

/// Returns a name for a temporary file. The bridge takes files below the workspace alone.
pub(crate) fn staging() -> String {
    format!("{WORKSPACE}/.sandbox-{}", random_hex(8))
}

/// Removes a staged file and its parts when it is dropped, unless that was done.
pub(crate) struct Staged {
    programs: Arc<Programs>,
    file: Option<String>,
}

impl Staged {
    pub(crate) fn new(programs: &Arc<Programs>, file: &str) -> Self {
        Self { programs: Arc::clone(programs), file: Some(file.to_owned()) }
    }

    pub(crate) fn done(mut self) {
        self.file = None;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let own = Arc::clone(&self.programs);
        background_runtime::spawn(async move {
            let (script, input) = (REMOVE.to_owned(), Input::Nothing);
            let removed = own.run_script("files", input, script, vec![file], true).await;
            if let Err(error) = removed {
                tracing::debug!(%error, "a temporary file may be left in the sandbox");
            }
        });
    }
}

/// Splits content into parts that the bridge takes. Large chunks are not copied.
fn parts(content: ByteStream) -> impl futures_util::Stream<Item = Result<Bytes>> + Send {
    stream::try_unfold((content.fuse(), Bytes::new()), |(mut content, mut rest)| async move {
        let mut part = BytesMut::new();
        loop {
            if part.is_empty() && rest.len() >= PART_SIZE {
                return Ok(Some((rest.split_to(PART_SIZE), (content, rest))));
            }
            if !rest.is_empty() {
                if part.is_empty() {
                    part.reserve(PART_SIZE);
                }
                let room = PART_SIZE - part.len();
                part.extend_from_slice(&rest.split_to(room.min(rest.len())));
            }
            if part.len() == PART_SIZE {
                return Ok(Some((part.freeze(), (content, rest))));
            }
            match content.next().await.transpose()? {
                Some(chunk) => rest = chunk,
                None if part.is_empty() => return Ok(None),
                None => return Ok(Some((part.freeze(), (content, rest)))),
            }
        }
    })
}

impl Programs {
    /// Sends a new file, in parts that are on their way side by side. Returns its size.
    pub(crate) async fn send(
        self: &Arc<Self>,
        operation: &'static str,
        file: &str,
        content: ByteStream,
    ) -> Result<u64> {
        let is_below = file.starts_with(&format!("{WORKSPACE}/"));
        let staged = if is_below { file.to_owned() } else { staging() };
        let guard = Staged::new(self, &staged);
        let put = |(number, part): (usize, Result<Bytes>)| {
            let name = match number {
                0 => staged.clone(),
                number => format!("{staged}.{number}"),
            };
            async move {
                let (api, part) = (self.api(operation)?, part?);
                let size = part.len() as u64;
                api.put(operation, self.id(), &name, part).await?;
                Ok::<_, Error>((name, size))
            }
        };
        let sent = parts(content).enumerate().map(put).buffered(PARTS_AT_ONCE);
        let sent: Vec<(String, u64)> = sent.try_collect().await?;
        let size = sent.iter().map(|(_, size)| size).sum();
        if sent.len() > 1 || staged != file {
            let mut arguments = vec![file.to_owned()];
            arguments.extend(sent.into_iter().map(|(name, _)| name));
            let own = Arc::clone(self);
            let joined =
                own.run_script(operation, Input::Nothing, JOIN.to_owned(), arguments, true);
            let joined = joined.await?;
            if joined.status != 0 {
                let message = joined.last_error();
                return Err(Error::new(ErrorKind::ResourceExhausted, operation, message));
            }
        }
        guard.done();
        Ok(size)
    }

    /// Reads a file below the workspace, which is removed then.
    pub(crate) async fn download(&self, link: &str) -> Result<ByteStream> {
        let (own, link) = (self.own()?, link.to_owned());
        background(async move {
            let staged = Staged::new(&own, &link);
            let content = own.api("read_file")?.get("read_file", own.id(), &link).await?;
            // The file is removed with the end of the content.
            let content = content.chain(stream::poll_fn(move |_| {
                let _ = &staged;
                std::task::Poll::Ready(None)
            }));
            Ok(Box::pin(content) as ByteStream)
        })
        .await?
    }
}

#[async_trait]
impl Uploads for Programs {
    async fn upload(&self, path: &str, content: ByteStream) -> Result<u64> {
        let (own, path) = (self.own()?, path.to_owned());
        background(async move { own.send("write_file", &path, content).await }).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_are_full_but_the_last_one() {
        for sizes in
            [vec![], vec![5], vec![PART_SIZE], vec![PART_SIZE + 1, 0, 7], vec![1 << 20; 40]]
        {
            let total: usize = sizes.iter().sum();
            let chunks: Vec<_> =
                sizes.into_iter().map(|size| Ok(Bytes::from(vec![7; size]))).collect();
            let found: Vec<Bytes> =
                parts(Box::pin(stream::iter(chunks))).try_collect().await.unwrap();
            assert_eq!(found.len(), total.div_ceil(PART_SIZE));
            assert_eq!(found.iter().map(Bytes::len).sum::<usize>(), total);
            assert!(found.iter().rev().skip(1).all(|part| part.len() == PART_SIZE));
        }
    }
}
