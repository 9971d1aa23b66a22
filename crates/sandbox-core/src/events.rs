//! The events of a run as callers hold them: one at a time, as lines, or as a stream for the combinators of other crates.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use futures_util::StreamExt as _;

use crate::collect::ResultCollector;
use crate::command::{CommandEvent, CommandEvents};
use crate::instance::EventStream;
use crate::model::{Event, EventKind, ExecutionResult, OutputMessage, OutputStream};
use crate::time::unix_now;

/// The events of a run, lossless and in order; the code is held back while they are not read.
///
/// It needs no other crate: [`next_event`](Self::next_event) gives one event after the other, and [`lines`](Self::lines) the
/// output. It is a [`Stream`] too. Dropping it interrupts the code.
pub struct RunEvents(EventStream);

impl RunEvents {
    /// Waits for the next event. `None` after the last one, which is [`EventKind::Finished`].
    pub async fn next_event(&mut self) -> Option<Event> {
        self.0.next().await
    }

    /// Gives the output of both streams line by line, as it comes. The lines end with the run.
    pub fn lines(self) -> Lines {
        Lines::of_run(self.0)
    }

    /// Reads what is left, and gives the result of it.
    pub async fn collect_result(mut self) -> ExecutionResult {
        let mut collector = ResultCollector::new();
        while let Some(event) = self.0.next().await {
            collector.push(event);
        }
        collector.finish()
    }
}

impl Stream for RunEvents {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        self.0.as_mut().poll_next(cx)
    }
}

impl From<EventStream> for RunEvents {
    fn from(events: EventStream) -> Self {
        Self(events)
    }
}

impl From<RunEvents> for EventStream {
    fn from(events: RunEvents) -> Self {
        events.0
    }
}

impl fmt::Debug for RunEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunEvents").finish_non_exhaustive()
    }
}

/// Bytes of one stream, with the time at which they came.
type Chunk = (OutputStream, f64, bytes::Bytes);

/// The output of a run or of a command, line by line. Lines of one stream are in their order; of both, in the order of
/// arrival.
///
/// A last line without a newline comes when the stream ends. A line has at most 64 KiB: a longer one comes in parts, with
/// `terminated` false.
pub struct Lines {
    chunks: Pin<Box<dyn Stream<Item = Chunk> + Send>>,
    ready: VecDeque<OutputMessage>,
    open: [LineBuffer; 2],
    is_over: bool,
}

/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 64 << 10;

/// The line of one stream that has no newline yet.
#[derive(Default)]
struct LineBuffer {
    bytes: Vec<u8>,
    timestamp: f64,
}

impl LineBuffer {
    fn take(&mut self, error: bool, terminated: bool) -> OutputMessage {
        let line = String::from_utf8_lossy(&self.bytes).into_owned();
        self.bytes.clear();
        OutputMessage { line, timestamp: self.timestamp, error, terminated }
    }
}

impl Lines {
    fn new(chunks: impl Stream<Item = Chunk> + Send + 'static) -> Self {
        Self {
            chunks: Box::pin(chunks),
            ready: VecDeque::new(),
            open: Default::default(),
            is_over: false,
        }
    }

    fn of_run(events: EventStream) -> Self {
        Self::new(events.filter_map(async |event| match event.kind {
            EventKind::Output { stream, data } => Some((stream, event.timestamp, data)),
            _ => None,
        }))
    }

    pub(crate) fn of_command(events: CommandEvents) -> Self {
        Self::new(events.filter_map(async |event| match event {
            CommandEvent::Output { stream, data } => Some((stream, unix_now(), data)),
            _ => None,
        }))
    }

    /// Waits for the next line. `None` at the end.
    pub async fn next_line(&mut self) -> Option<OutputMessage> {
        self.next().await
    }

    fn push(&mut self, (stream, timestamp, data): Chunk) {
        let error = stream == OutputStream::Stderr;
        let open = &mut self.open[usize::from(error)];
        open.timestamp = timestamp;
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            let (text, terminated) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            for part in text.chunks(MAX_LINE) {
                if open.bytes.len() + part.len() > MAX_LINE {
                    self.ready.push_back(open.take(error, false));
                }
                open.bytes.extend_from_slice(part);
            }
            if terminated {
                self.ready.push_back(open.take(error, true));
            }
        }
    }

    fn finish(&mut self) {
        self.is_over = true;
        for (index, open) in self.open.iter_mut().enumerate() {
            if !open.bytes.is_empty() {
                self.ready.push_back(open.take(index == 1, false));
            }
        }
    }
}

impl Stream for Lines {
    type Item = OutputMessage;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<OutputMessage>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Poll::Ready(Some(line));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match self.chunks.as_mut().poll_next(cx) {
                Poll::Ready(Some(chunk)) => self.push(chunk),
                Poll::Ready(None) => self.finish(),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    fn lines(chunks: &[(OutputStream, &'static [u8])]) -> Vec<(String, bool, bool)> {
        let chunks: Vec<Chunk> = chunks
            .iter()
            .map(|(stream, data)| (*stream, 1.0, bytes::Bytes::from_static(data)))
            .collect();
        let collected: Vec<_> =
            futures_util::FutureExt::now_or_never(Lines::new(stream::iter(chunks)).collect())
                .unwrap();
        collected.into_iter().map(|m: OutputMessage| (m.line, m.error, m.terminated)).collect()
    }

    #[test]
    fn lines_are_put_together_by_stream() {
        use OutputStream::{Stderr, Stdout};
        let found = lines(&[
            (Stdout, b"a"),
            (Stderr, b"oops\n"),
            (Stdout, b"b\n\nc\xc3"),
            (Stdout, b"\xa9"),
        ]);
        let line = |text: &str, error, terminated| (text.to_owned(), error, terminated);
        assert_eq!(
            found,
            [
                line("oops", true, true),
                line("ab", false, true),
                line("", false, true),
                line("c\u{e9}", false, false),
            ]
        );
    }

    #[test]
    fn long_lines_come_in_parts() {
        let long: &'static [u8] = Vec::leak(vec![b'x'; MAX_LINE + 3]);
        let found = lines(&[(OutputStream::Stdout, long), (OutputStream::Stdout, b"\n")]);
        let lengths: Vec<_> = found.iter().map(|line| (line.0.len(), line.2)).collect();
        assert_eq!(lengths, [(MAX_LINE, false), (3, true)]);
    }
}
