//! The output of a kernel that starts.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::ErrorKind::WouldBlock;
use std::task::Poll;

use sandbox_core::Error;
use sandbox_engine::host::Readable;

use crate::kernel_host::Streams;
use crate::mime::plain;

/// Maximum size of the kept output, in bytes.
const MAX_SIZE: usize = 4096;

/// The end of the output.
#[derive(Default)]
pub(super) struct StartupOutput(Vec<u8>);

impl StartupOutput {
    /// Reads until both streams have ended.
    pub(super) async fn read(&mut self, streams: &Streams) {
        let mut open = [true, true];
        let sources: [&dyn Readable; 2] = [&*streams.stdout, &*streams.stderr];
        poll_fn(|cx| {
            for (source, open) in sources.iter().zip(&mut open) {
                while *open && source.poll_readable(cx).is_ready() {
                    let mut buffer = [0; 1024];
                    match source.try_read(&mut buffer) {
                        Ok(0) => *open = false,
                        Ok(count) => self.take(&buffer[..count]),
                        Err(error) if error.kind() == WouldBlock => {}
                        Err(_) => *open = false,
                    }
                }
            }
            if open.contains(&true) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    pub(super) async fn read_forever(&mut self, streams: &Streams) -> Infallible {
        self.read(streams).await;
        std::future::pending().await
    }

    fn take(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
        let excess = self.0.len().saturating_sub(MAX_SIZE);
        self.0.drain(..excess);
    }

    pub(super) fn add_to(&self, error: Error) -> Error {
        let output = plain(&String::from_utf8_lossy(&self.0));
        match output.trim() {
            "" => error,
            output => error.with_hint(format!("it wrote: {output}")),
        }
    }
}
