//! Standard input of code and commands.

use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::Stdin;

use crate::host::{Gauge, Writable};

/// Counts how much of a standard input was read.
#[derive(Debug, Default)]
pub(crate) struct StdinCounter(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    written: u64,
    /// Set once the count was read: it must not change any more.
    is_final: bool,
    /// The stream, while it is written.
    stream: Option<Weak<dyn Writable>>,
    /// The gauge, after the stream was written.
    gauge: Option<Box<dyn Gauge>>,
}

impl StdinCounter {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of bytes that were read, at the end of the process: nothing more is written from now on.
    /// `None`: unknown.
    pub(crate) fn read(&self) -> Option<u64> {
        let mut state = self.state();
        state.is_final = true;
        // A program may end before its first byte is sent.
        if state.written == 0 {
            return Some(0);
        }
        let unread = match (&state.gauge, state.stream.as_ref().and_then(Weak::upgrade)) {
            (Some(gauge), _) => gauge.unread(),
            (None, Some(stream)) => stream.unread(),
            (None, None) => None,
        };
        state.written.checked_sub(unread?)
    }

    /// Sets the stream that is written from now on.
    fn begin(&self, stream: &Arc<dyn Writable>) {
        self.state().stream = Some(Arc::downgrade(stream));
    }

    /// Ends the writing.
    fn end(&self, stream: &dyn Writable) {
        self.state().gauge = stream.gauge();
    }
}

/// A stream with its counter. Bytes are written and counted under one lock, so that both always agree.
struct Counted<'a> {
    stream: &'a dyn Writable,
    taken: &'a StdinCounter,
}

/// Writes standard input to its end, or until the reader has closed it.
pub(crate) async fn feed(input: Box<dyn Writable>, stdin: Stdin, taken: Arc<StdinCounter>) {
    let stream: Arc<dyn Writable> = Arc::from(input);
    taken.begin(&stream);
    let counted = Counted { stream: &*stream, taken: &taken };
    feed_counted(&counted, stdin).await;
    taken.end(&*stream);
}

/// Writes standard input and keeps the stream open. Returns the last byte.
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
            if state.is_final {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            let written = self.stream.try_write(rest)?;
            state.written += written as u64;
            Ok(written)
        })
        .await
    }
}

/// Writes all of the data, and waits while the reader does not read.
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

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    /// A stream whose reader has read all but the last byte.
    #[derive(Debug, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>);

    impl Writable for Pipe {
        fn poll_writable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn try_write(&self, data: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(data);
            Ok(data.len())
        }

        fn unread(&self) -> Option<u64> {
            Some(1)
        }

        fn gauge(&self) -> Option<Box<dyn Gauge>> {
            Some(Box::new(Last))
        }
    }

    #[derive(Debug)]
    struct Last;

    impl Gauge for Last {
        fn unread(&self) -> Option<u64> {
            Some(1)
        }
    }

    async fn fed(counter: &Arc<StdinCounter>) -> Vec<u8> {
        let pipe = Pipe::default();
        let content = Arc::clone(&pipe.0);
        let stdin = Stdin::Bytes(Bytes::from_static(b"line"));
        feed(Box::new(pipe), stdin, Arc::clone(counter)).await;
        std::mem::take(&mut *content.lock().unwrap())
    }

    #[tokio::test]
    async fn a_program_that_ends_before_its_input_begins_has_read_nothing() {
        let counter = Arc::<StdinCounter>::default();
        assert_eq!(counter.read(), Some(0));
        assert_eq!(fed(&counter).await, b"", "what is written later is in no count");
        assert_eq!(counter.read(), Some(0));
        // The control of this test.
        let counter = Arc::<StdinCounter>::default();
        assert_eq!(fed(&counter).await, b"line");
        assert_eq!(counter.read(), Some(3));
    }
}
