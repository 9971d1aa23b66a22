//! Standard input of what runs.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::Stdin;

use crate::host::{Gauge, Writable};

/// How much of a standard input was read by what runs.
#[derive(Debug, Default)]
pub(crate) struct StdinCounter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: u64,
    /// While it is written.
    stream: Option<Weak<dyn Writable>>,
    /// From then on.
    gauge: Option<Box<dyn Gauge>>,
}

impl StdinCounter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that were read. `None`: that cannot be seen.
    pub(crate) fn read(&self) -> Option<u64> {
        let state = self.state();
        let unread = match (&state.gauge, state.stream.as_ref().and_then(Weak::upgrade)) {
            (Some(gauge), _) => gauge.unread(),
            (None, Some(stream)) => stream.unread(),
            (None, None) => None,
        };
        state.written.checked_sub(unread?)
    }

    /// This stream is written from now on.
    fn begin(&self, stream: &Arc<dyn Writable>) {
        self.state().stream = Some(Arc::downgrade(stream));
    }

    /// Nothing more is written to it.
    fn end(&self, stream: &dyn Writable) {
        self.state().gauge = stream.gauge();
    }
}

/// What is counted of what is written. It is written and counted at once, so that both always agree.
struct Counted<'a> {
    stream: &'a dyn Writable,
    taken: &'a StdinCounter,
}

/// Writes standard input to its end, or until nobody reads it any more.
pub(crate) async fn feed(input: Box<dyn Writable>, stdin: Stdin, taken: Arc<StdinCounter>) {
    let stream: Arc<dyn Writable> = Arc::from(input);
    taken.begin(&stream);
    let counted = Counted { stream: &*stream, taken: &taken };
    feed_counted(&counted, stdin).await;
    taken.end(&*stream);
}

/// The same, and what comes after it is for others to write. Returns the last byte.
pub(crate) async fn feed_open(input: &dyn Writable, stdin: Stdin) -> Option<u8> {
    let taken = StdinCounter::default();
    feed_counted(&Counted { stream: input, taken: &taken }, stdin).await
}

async fn feed_counted(input: &Counted<'_>, stdin: Stdin) -> Option<u8> {
    let mut last = None;
    match stdin {
        Stdin::Empty => {}
        Stdin::Bytes(bytes) => {
            last = bytes.last().copied();
            let _ = input.write_all(&bytes).await;
        }
        Stdin::Stream(mut stream) => {
            while let Some(Ok(chunk)) = stream.next().await {
                last = chunk.last().copied().or(last);
                if input.write_all(&chunk).await.is_err() {
                    break;
                }
            }
        }
    }
    last
}

impl Counted<'_> {
    async fn write_all(&self, data: &Bytes) -> io::Result<()> {
        write_all_with(self.stream, data, |rest| {
            let mut state = self.taken.state();
            let written = self.stream.try_write(rest)?;
            state.written += written as u64;
            Ok(written)
        })
        .await
    }
}

/// Writes everything, waiting while the reader does not read.
pub async fn write_all(output: &dyn Writable, data: &Bytes) -> io::Result<()> {
    write_all_with(output, data, |rest| output.try_write(rest)).await
}

async fn write_all_with(
    output: &dyn Writable,
    data: &Bytes,
    try_write: impl Fn(&[u8]) -> io::Result<usize>,
) -> io::Result<()> {
    let mut rest: &[u8] = data;
    while !rest.is_empty() {
        match try_write(rest) {
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
