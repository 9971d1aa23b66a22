//! Reads standard output or error of a worker, in the right order with its displays.

use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};

use super::sync_markers::{MarkerSplitter, Segment};
use crate::host::Readable;
use crate::process::would_block;

/// More than a stream can hold. After that many bytes, everything that was written before a reply has been read, even
/// when a child process keeps writing.
pub(super) const MAX_DRAINED_BYTES: usize = 1 << 20;

/// The same limit where the stream and the reply may have come on different ways.
const MAX_BYTES_BEFORE_MARKER: usize = 2 * MAX_DRAINED_BYTES;

/// The number of the marker at the start of a run.
const START: i64 = 0;

/// The next part of a stream.
#[derive(Debug)]
enum Next {
    Text(Bytes),
    /// The next part comes after something that was not reported yet.
    Held,
    Nothing,
}

/// One output stream of a worker.
#[derive(Debug)]
pub(super) struct OutputReader {
    open: bool,
    splitter: MarkerSplitter,
    /// The marker that was reached and may not be passed yet.
    reached: Option<i64>,
    /// The marker up to which all displays were reported.
    allowed: i64,
    /// The marker up to which text comes before the next reply, and the number of bytes to look at for it.
    wanted: Option<(i64, usize)>,
    /// Set when a marker did not come. No marker is awaited any more in this run.
    lossy: bool,
    /// Bytes to look for before the next reply is reported.
    pending_output: usize,
    /// Text of nothing, unless the mark at the start of the run does not come. `None`: the run has started.
    before_start: Option<BytesMut>,
}

impl OutputReader {
    pub(super) fn new() -> Self {
        Self {
            open: true,
            splitter: MarkerSplitter::new(),
            reached: None,
            allowed: 0,
            wanted: None,
            lossy: false,
            pending_output: 0,
            before_start: None,
        }
    }

    /// Starts another run. With `has_start` the text of the run begins behind the marker [`START`].
    pub(super) fn begin(&mut self, run: i64, has_start: bool) {
        self.splitter.begin(run);
        self.before_start = has_start.then(BytesMut::new);
        (self.reached, self.allowed, self.wanted, self.lossy) = (None, 0, None, false);
    }

    /// Records that the control stream had something. Text that was written before that comes first.
    pub(super) fn expect_pending(&mut self) {
        self.pending_output = MAX_DRAINED_BYTES;
    }

    /// Has text up to that marker come before the next reply.
    pub(super) fn want(&mut self, mark: i64) {
        self.allowed = self.allowed.max(mark.saturating_sub(1));
        self.wanted = (mark > self.allowed).then_some((mark, MAX_BYTES_BEFORE_MARKER));
    }

    /// Records that the reply was reported.
    pub(super) fn reply_reported(&mut self) {
        if let Some((mark, _)) = self.wanted.take() {
            self.allowed = self.allowed.max(mark);
        }
    }

    /// Returns true while something waits that only more from the worker, or its end, can release.
    pub(super) fn is_held(&self) -> bool {
        self.is_wanted() || self.is_stopped() || self.splitter.is_unsure()
    }

    /// Returns true at a marker that may not be passed yet.
    fn is_stopped(&self) -> bool {
        self.reached.is_some_and(|mark| mark > self.allowed)
    }

    /// Returns true while the next reply waits for a marker.
    fn is_wanted(&self) -> bool {
        let is_here = |mark| self.reached.is_some_and(|reached| reached >= mark);
        self.open
            && !self.lossy
            && self.wanted.is_some_and(|(mark, left)| left > 0 && !is_here(mark))
    }

    /// Releases what waits: what it waits for will not come.
    pub(super) fn release(&mut self) {
        self.lossy |= self.is_wanted();
        self.allowed = self.allowed.max(self.reached.unwrap_or_default());
        self.splitter.release();
    }

    /// Releases what waits, and ignores markers from now on.
    pub(super) fn release_all(&mut self) {
        self.allowed = i64::MAX;
        self.release();
    }

    /// Returns output that may have been written before the last message of the control stream.
    pub(super) fn pending_output(
        &mut self,
        source: &dyn Readable,
        buffer: &mut [u8],
    ) -> Option<Bytes> {
        if self.pending_output == 0 {
            return None;
        }
        match self.next(None, source, buffer) {
            Next::Text(text) => {
                self.pending_output = self.pending_output.saturating_sub(text.len());
                Some(text)
            }
            Next::Held => None,
            Next::Nothing => {
                self.pending_output = 0;
                self.start_unmarked()
            }
        }
    }

    /// Returns the text of a run that has said something, and has marked no start: all of it is its own.
    fn start_unmarked(&mut self) -> Option<Bytes> {
        let before = self.before_start.take()?;
        (!before.is_empty()).then(|| before.freeze())
    }

    /// Polls text before the marker that the next reply waits for. `Ready(None)`: all of it was reported.
    pub(super) fn poll_wanted(
        &mut self,
        cx: &mut Context<'_>,
        source: &dyn Readable,
        buffer: &mut [u8],
    ) -> Poll<Option<Bytes>> {
        if !self.is_wanted() {
            return Poll::Ready(None);
        }
        match self.next(Some(cx), source, buffer) {
            Next::Text(text) => {
                if let Some((_, left)) = &mut self.wanted {
                    *left = left.saturating_sub(text.len());
                }
                Poll::Ready(Some(text))
            }
            Next::Held | Next::Nothing if self.is_wanted() => Poll::Pending,
            Next::Held | Next::Nothing => Poll::Ready(None),
        }
    }

    /// Returns what is there. The task of `cx` is woken when there is more.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &dyn Readable,
        buffer: &mut [u8],
    ) -> Option<Bytes> {
        match self.next(Some(cx), source, buffer) {
            Next::Text(text) => Some(text),
            Next::Held | Next::Nothing => None,
        }
    }

    /// Reads the next part. Without a task to wake, reads whatever is there.
    fn next(
        &mut self,
        mut task: Option<&mut Context<'_>>,
        source: &dyn Readable,
        buffer: &mut [u8],
    ) -> Next {
        loop {
            if self.is_stopped() {
                return Next::Held;
            }
            self.reached = None;
            match self.splitter.next() {
                Some(Segment::Text(text)) => match &mut self.before_start {
                    None => return Next::Text(text),
                    Some(before) if before.len() + text.len() <= MAX_BYTES_BEFORE_MARKER => {
                        before.extend_from_slice(&text);
                        continue;
                    }
                    // A process that writes without end: no output of a run is that far away from its start.
                    Some(before) => {
                        before.clear();
                        continue;
                    }
                },
                Some(Segment::Marker(START)) => {
                    self.before_start = None;
                    continue;
                }
                Some(Segment::Marker(mark)) => {
                    self.reached = Some(mark);
                    continue;
                }
                None if !self.open => {
                    return self.start_unmarked().map_or(Next::Nothing, Next::Text);
                }
                None => {}
            }
            if task.as_mut().is_some_and(|cx| source.poll_readable(cx).is_pending()) {
                return Next::Nothing;
            }
            match source.try_read(buffer) {
                Ok(count) if count > 0 => self.splitter.push(&buffer[..count]),
                Err(error) if would_block(&error) && task.is_some() => {}
                Err(error) if would_block(&error) => return Next::Nothing,
                Ok(_) | Err(_) => {
                    self.open = false;
                    self.release_all();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::sync::Mutex;
    use std::task::Waker;

    use super::*;

    const RUN: i64 = 7;

    /// The output of a worker, in the pieces in which it comes; the rest is still to come.
    #[derive(Debug, Default)]
    struct Written(Mutex<VecDeque<Vec<u8>>>);

    impl Written {
        fn write(&self, data: &[u8]) {
            self.0.lock().unwrap().push_back(data.to_vec());
        }

        fn mark(&self, number: i64) {
            self.write(&[&b"\xfemark\xfe"[..], &RUN.to_le_bytes(), &number.to_le_bytes()].concat());
        }
    }

    impl Readable for Written {
        fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            if self.0.lock().unwrap().is_empty() { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
            let piece = self.0.lock().unwrap().pop_front();
            let piece = piece.ok_or(io::ErrorKind::WouldBlock)?;
            buffer[..piece.len()].copy_from_slice(&piece);
            Ok(piece.len())
        }
    }

    struct Bench {
        text: OutputReader,
        written: Written,
        buffer: Vec<u8>,
    }

    impl Bench {
        fn new() -> Self {
            let mut text = OutputReader::new();
            text.begin(RUN, false);
            Self { text, written: Written::default(), buffer: vec![0; 1000] }
        }

        fn told(&mut self) -> String {
            let mut cx = Context::from_waker(Waker::noop());
            let mut told = Vec::new();
            while let Some(data) = self.text.poll(&mut cx, &self.written, &mut self.buffer) {
                told.extend_from_slice(&data);
            }
            String::from_utf8_lossy(&told).into_owned()
        }

        /// Returns what comes before the next reply; `true` when that is all.
        fn wanted(&mut self) -> (String, bool) {
            let mut cx = Context::from_waker(Waker::noop());
            let mut told = Vec::new();
            loop {
                match self.text.poll_wanted(&mut cx, &self.written, &mut self.buffer) {
                    Poll::Ready(Some(data)) => told.extend_from_slice(&data),
                    end => return (String::from_utf8_lossy(&told).into_owned(), end.is_ready()),
                }
            }
        }
    }

    #[test]
    fn what_is_behind_a_mark_waits_for_its_reply() {
        let mut bench = Bench::new();
        bench.written.write(b"a");
        bench.written.mark(1);
        bench.written.write(b"b");
        assert_eq!(bench.told(), "a");
        assert!(bench.text.is_held());
        bench.text.want(1);
        assert_eq!(bench.wanted(), (String::new(), true));
        assert_eq!(bench.told(), "", "the reply was not told yet");
        bench.text.reply_reported();
        assert_eq!(bench.told(), "b");
        assert!(!bench.text.is_held());
    }

    #[test]
    fn a_reply_waits_for_its_mark() {
        let mut bench = Bench::new();
        bench.text.want(2);
        bench.written.mark(1);
        bench.written.write(b"a");
        assert_eq!(bench.wanted(), ("a".into(), false));
        bench.written.mark(2);
        bench.written.write(b"b");
        assert_eq!(bench.wanted(), (String::new(), true));
        bench.text.reply_reported();
        assert_eq!(bench.told(), "b");
    }

    #[test]
    fn what_is_before_the_start_belongs_to_no_run() {
        let mut bench = Bench::new();
        bench.text.begin(RUN, true);
        bench.written.write(b"late");
        assert_eq!(bench.told(), "");
        bench.written.write(b"r");
        bench.written.mark(START);
        bench.written.write(b"own");
        assert_eq!(bench.told(), "own");
        bench.written.write(b"more");
        assert_eq!(bench.told(), "more");
        // A flood does not end the wait.
        bench.text.begin(RUN, true);
        (0..=2 * MAX_BYTES_BEFORE_MARKER / 1000).for_each(|_| bench.written.write(&[b'x'; 1000]));
        bench.written.mark(START);
        bench.written.write(b"own");
        assert_eq!(bench.told(), "own");
    }

    #[test]
    fn a_run_that_marks_no_start_has_all_of_its_text() {
        let mut bench = Bench::new();
        bench.text.begin(RUN, true);
        bench.written.write(b"own");
        assert_eq!(bench.told(), "");
        bench.text.expect_pending();
        let Bench { text, written, buffer } = &mut bench;
        assert_eq!(text.pending_output(written, buffer).as_deref(), Some(b"own".as_slice()));
        assert_eq!(text.pending_output(written, buffer), None);
        // At the end of the stream, too.
        bench.text.begin(RUN, true);
        bench.written.write(b"own");
        bench.written.write(b"");
        assert_eq!(bench.told(), "own");
    }

    #[test]
    fn nothing_waits_for_ever() {
        // For a reply that was never sent.
        let mut bench = Bench::new();
        bench.written.mark(1);
        bench.written.write(b"a");
        assert_eq!(bench.told(), "");
        bench.text.release();
        assert_eq!(bench.told(), "a");
        // For a marker that was never written: once in a run.
        bench.text.want(5);
        assert!(bench.text.is_held());
        bench.text.release();
        assert_eq!(bench.wanted(), (String::new(), true));
        bench.text.reply_reported();
        bench.text.want(6);
        assert_eq!(bench.wanted(), (String::new(), true));
        // Nor behind a flood.
        bench.text.begin(RUN, false);
        bench.text.want(1);
        (0..=MAX_BYTES_BEFORE_MARKER / 1000).for_each(|_| bench.written.write(&[b'x'; 1000]));
        let (text, is_all) = bench.wanted();
        assert!(is_all && text.len() >= MAX_BYTES_BEFORE_MARKER, "{} bytes", text.len());
    }

    #[test]
    fn at_the_end_of_the_stream_everything_is_told() {
        let mut bench = Bench::new();
        bench.written.mark(3);
        bench.written.write(b"a\xfe");
        bench.written.write(b"");
        assert_eq!(bench.told(), "");
        bench.text.want(4);
        assert_eq!(bench.wanted(), ("a\u{fffd}".into(), true));
        assert!(!bench.text.is_held());
    }
}
