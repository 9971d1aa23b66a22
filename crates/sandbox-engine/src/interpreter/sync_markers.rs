//! Markers in the text of a worker, which synchronize the text with displays.
//!
//! Text comes on pipes and displays on the control stream, so that neither shows when the other was written. A worker
//! therefore writes a marker into both pipes before it displays something, and names the markers on the control stream
//! ([`Reply::Marked`](crate::Reply::Marked)). A marker holds the id of the run, which code cannot guess.

use bytes::{Buf as _, Bytes, BytesMut};

/// The first bytes of each marker. No UTF-8 has the first byte.
const START: &[u8; 6] = b"\xfemark\xfe";

/// Length of the first bytes and the id of the run.
const KEY_LENGTH: usize = START.len() + size_of::<i64>();

/// Length of a whole marker, with its number at the end.
const MARKER_LENGTH: usize = KEY_LENGTH + size_of::<i64>();

/// A part of the output of a worker.
#[derive(Debug, PartialEq)]
pub(super) enum Segment {
    Text(Bytes),
    Marker(i64),
}

/// Splits the output of a worker into text and markers, as it is read.
#[derive(Debug)]
pub(super) struct MarkerSplitter {
    key: [u8; KEY_LENGTH],
    /// Bytes that were read and not split yet. Once all are split, at most the beginning of a marker.
    rest: Bytes,
    /// Set when the beginning that is left will not be completed.
    released: bool,
}

impl MarkerSplitter {
    pub(super) fn new() -> Self {
        Self { key: key(0), rest: Bytes::new(), released: false }
    }

    /// Starts a run, whose markers have its id.
    pub(super) fn begin(&mut self, run: i64) {
        self.key = key(run);
    }

    /// Adds bytes that were read.
    pub(super) fn push(&mut self, data: &[u8]) {
        self.released = false;
        if self.rest.is_empty() {
            self.rest = Bytes::copy_from_slice(data);
        } else {
            let mut joined = BytesMut::with_capacity(self.rest.len() + data.len());
            joined.extend_from_slice(&self.rest);
            joined.extend_from_slice(data);
            self.rest = joined.freeze();
        }
    }

    /// Returns the next segment of what is there.
    pub(super) fn next(&mut self) -> Option<Segment> {
        match self.find() {
            0 if self.rest.len() >= MARKER_LENGTH => {
                let number =
                    self.rest[KEY_LENGTH..MARKER_LENGTH].first_chunk().copied().unwrap_or_default();
                self.rest.advance(MARKER_LENGTH);
                Some(Segment::Marker(i64::from_le_bytes(number)))
            }
            // The beginning of a marker, and the rest is still to come.
            0 if !self.released => None,
            0 => self.take(self.rest.len()),
            text => self.take(text),
        }
    }

    fn take(&mut self, length: usize) -> Option<Segment> {
        (length > 0).then(|| Segment::Text(self.rest.split_to(length)))
    }

    /// Returns the position where the next marker is, or may begin; otherwise the end.
    fn find(&self) -> usize {
        let may_begin = |at: &usize| {
            let found = &self.rest[*at..];
            let length = found.len().min(KEY_LENGTH);
            found[..length] == self.key[..length]
        };
        memchr::memchr_iter(START[0], &self.rest).find(may_begin).unwrap_or(self.rest.len())
    }

    /// Returns true while it holds bytes that may be the beginning of a marker, or text.
    pub(super) fn is_unsure(&self) -> bool {
        !self.released && !self.rest.is_empty() && self.rest.len() < KEY_LENGTH && self.find() == 0
    }

    /// Treats those bytes as text.
    pub(super) fn release(&mut self) {
        self.released = self.is_unsure();
    }
}

fn key(run: i64) -> [u8; KEY_LENGTH] {
    let mut key = [0; KEY_LENGTH];
    key[..START.len()].copy_from_slice(START);
    key[START.len()..].copy_from_slice(&run.to_le_bytes());
    key
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use sandbox_python::part;

    const RUN: i64 = 0x0102_0304_fe6d_6172;

    fn mark(run: i64, number: i64) -> Vec<u8> {
        [&key(run)[..], &number.to_le_bytes()].concat()
    }

    /// Returns the text between the markers, joined.
    fn parts(pieces: &[&[u8]]) -> Vec<Result<Vec<u8>, i64>> {
        let mut splitter = MarkerSplitter::new();
        splitter.begin(RUN);
        let mut parts = Vec::new();
        let mut add = |splitter: &mut MarkerSplitter| {
            while let Some(part) = splitter.next() {
                match (part, parts.last_mut()) {
                    (Segment::Text(text), Some(Ok(before))) => {
                        Vec::extend_from_slice(before, &text);
                    }
                    (Segment::Text(text), _) => parts.push(Ok(text.to_vec())),
                    (Segment::Marker(number), _) => parts.push(Err(number)),
                }
            }
        };
        for piece in pieces {
            splitter.push(piece);
            add(&mut splitter);
        }
        splitter.release();
        add(&mut splitter);
        parts
    }

    #[test]
    fn marks_are_taken_out_of_the_text() {
        let data = [b"a\n".as_slice(), &mark(RUN, 1), b"b", &mark(RUN, 2), &mark(RUN, 3)].concat();
        let expected = [Ok(b"a\n".to_vec()), Err(1), Ok(b"b".to_vec()), Err(2), Err(3)];
        assert_eq!(parts(&[&data]), expected);
        let bytes: Vec<&[u8]> = data.chunks(1).collect();
        assert_eq!(parts(&bytes), expected);
    }

    #[test]
    fn what_looks_like_a_mark_is_text() {
        for text in [
            mark(RUN + 1, 1),
            b"\xfe\xfe\xfemark".to_vec(),
            b"\xfe".to_vec(),
            START.to_vec(),
            key(RUN)[..KEY_LENGTH - 1].to_vec(),
            [&[0xfe; 40][..], b"mark"].concat(),
        ] {
            assert_eq!(parts(&[&text]), [Ok(text)]);
        }
    }

    #[test]
    fn what_may_be_the_beginning_of_a_mark_waits() {
        let mut splitter = MarkerSplitter::new();
        splitter.begin(RUN);
        splitter.push(b"a\xfe");
        assert_eq!(splitter.next(), Some(Segment::Text("a".into())));
        assert_eq!(splitter.next(), None);
        assert!(splitter.is_unsure());
        splitter.release();
        assert_eq!(splitter.next(), Some(Segment::Text(Bytes::from_static(b"\xfe"))));
        assert!(!splitter.is_unsure());
    }

    proptest! {
        #[test]
        fn nothing_but_marks_is_lost(
            texts in prop::collection::vec("[\u{0}-\u{ff}]{0,9}|\u{fe}mark", 1..6),
            at in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            // As Latin-1, so that every byte occurs.
            let text = |text: &String| text.chars().map(|c| c as u8).collect::<Vec<u8>>();
            let mut data = Vec::new();
            let mut expected = Vec::new();
            for (number, text) in (0_i64..).zip(texts.iter().map(text)) {
                data.extend_from_slice(&text);
                data.extend_from_slice(&mark(RUN, number));
                if !text.is_empty() {
                    expected.push(Ok(text));
                }
                expected.push(Err(number));
            }
            let mut ends: Vec<_> = at.iter().map(|at| at.index(data.len())).collect();
            ends.push(data.len());
            ends.sort_unstable();
            let mut start = 0;
            let pieces: Vec<_> = ends.iter().map(|end| &data[std::mem::replace(&mut start, *end)..*end]).collect();
            prop_assert_eq!(parts(&pieces), expected);
        }
    }

    #[test]
    fn workers_write_the_same_marks() {
        let streams = part("streams").unwrap();
        let start = START.escape_ascii();
        assert!(streams.contains(&format!("MARK = b\"{start}\"")), "{start}");
    }
}
