//! Standard input of what runs.

use std::future::poll_fn;
use std::io;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::Stdin;

use crate::box_io::Writable;

/// Writes standard input to its end, or until nobody reads it any more.
pub(super) async fn feed(input: Box<dyn Writable>, stdin: Stdin) {
    feed_open(&*input, stdin).await;
}

/// The same, and what comes after it is for others to write. Returns the last byte.
pub(crate) async fn feed_open(input: &dyn Writable, stdin: Stdin) -> Option<u8> {
    let mut last = None;
    match stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => {
            last = bytes.last().copied();
            let _ = write_all(input, &bytes).await;
        }
        Stdin::Stream(mut stream) => {
            while let Some(Ok(chunk)) = stream.next().await {
                last = chunk.last().copied().or(last);
                if write_all(input, &chunk).await.is_err() {
                    break;
                }
            }
        }
    }
    last
}

/// Writes everything, waiting while the reader does not read.
pub(crate) async fn write_all(output: &dyn Writable, data: &Bytes) -> io::Result<()> {
    let mut rest: &[u8] = data;
    while !rest.is_empty() {
        match output.try_write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll_fn(|cx| output.poll_writable(cx)).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
