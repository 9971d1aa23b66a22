//! Bounded output buffer and listeners of a background command.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox_core::{CommandEvent, CommandOutcome, OutputStream, StreamTotals};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::STREAMS;

/// Bytes that are kept of the beginning of a stream, and again of its end.
const KEPT_PER_END: usize = 256 << 10;

/// Maximum number of chunks at each end, because each chunk costs more than its bytes.
const MAX_CHUNKS: usize = 4096;

/// Adjacent chunks are joined up to that size.
const CHUNK: usize = 16 << 10;

/// How far a listener may lag behind before the command has to wait. Less than what is kept, so the listener misses
/// nothing.
const MAX_LAG: u64 = (KEPT_PER_END / 2) as u64;

/// How long a command waits for a listener that does not read any more.
const LISTENER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a command waits for a listener that has not started to read, which may be in another process.
const BEGINNING: Duration = Duration::from_secs(1);

/// The output of one command, its end, and the position of each listener.
#[derive(Debug, Default)]
pub(super) struct OutputBuffer {
    state: Mutex<State>,
    /// Notifies listeners: there is more.
    more: Notify,
    /// Notifies the command: a listener has read, or is gone.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    streams: [Stream; 2],
    /// The number of the last chunk, of both streams together.
    last: u64,
    outcome: Option<CommandOutcome>,
    listeners: HashMap<u64, Cursor>,
}

/// The position of a listener: bytes of each stream that were read or lost.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    read: [u64; 2],
    /// How long the command waits for the listener, if it does.
    awaited: Option<Duration>,
}

impl OutputBuffer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, stream: OutputStream, data: &[u8]) {
        self.state().push(index(stream), data);
        self.more.notify_waiters();
    }

    pub(super) fn finish(&self, outcome: CommandOutcome) {
        self.state().outcome = Some(outcome);
        self.more.notify_waiters();
    }

    pub(super) fn outcome(&self) -> Option<CommandOutcome> {
        self.state().outcome.clone()
    }

    /// Returns the totals of standard output and standard error.
    pub(super) fn totals(&self) -> [StreamTotals; 2] {
        self.state().streams.each_ref().map(Stream::totals)
    }

    /// Waits until no listener lags far behind, for a limited time.
    pub(super) async fn room(&self) {
        loop {
            let Some(patience) = self.state().held_back() else { return };
            if timeout(patience, self.room.notified()).await.is_err() {
                self.state().wait_for_none();
            }
        }
    }

    /// Announces a listener that will read soon.
    pub(super) fn expect(&self, listener: u64) {
        let cursor = Cursor { awaited: Some(BEGINNING), ..Cursor::default() };
        self.state().listeners.insert(listener, cursor);
    }

    /// Returns the next event for a listener; the last event is the end of the command.
    pub(super) async fn next(&self, listener: u64) -> CommandEvent {
        loop {
            let more = self.more.notified();
            if let Some(event) = self.state().next(listener) {
                self.room.notify_one();
                return event;
            }
            more.await;
        }
    }

    pub(super) fn forget(&self, listener: u64) {
        self.state().listeners.remove(&listener);
        self.room.notify_one();
    }
}

fn index(stream: OutputStream) -> usize {
    usize::from(stream == OutputStream::Stderr)
}

impl State {
    fn push(&mut self, index: usize, data: &[u8]) {
        for data in data.chunks(CHUNK) {
            if self.streams[index].push(self.last, data) {
                self.last += 1;
            }
        }
    }

    fn is_behind(&self, cursor: &Cursor) -> bool {
        let behind = |index: usize| self.streams[index].total - cursor.read[index];
        behind(0).max(behind(1)) > MAX_LAG
    }

    /// Returns how long the command has to wait, if it has to.
    fn held_back(&self) -> Option<Duration> {
        let behind = self.listeners.values().filter(|cursor| self.is_behind(cursor));
        behind.filter_map(|cursor| cursor.awaited).max()
    }

    /// Stops waiting for listeners that lag far behind.
    fn wait_for_none(&mut self) {
        let mut listeners = std::mem::take(&mut self.listeners);
        for cursor in listeners.values_mut() {
            cursor.awaited = cursor.awaited.filter(|_| !self.is_behind(cursor));
        }
        self.listeners = listeners;
    }

    fn next(&mut self, listener: u64) -> Option<CommandEvent> {
        let mut cursor = self.listeners.get(&listener).copied().unwrap_or_default();
        cursor.awaited = Some(LISTENER_TIMEOUT);
        let event = self.next_output(&mut cursor);
        self.listeners.insert(listener, cursor);
        event.or_else(|| self.outcome.clone().map(CommandEvent::Finished))
    }

    /// Returns the next output for a listener, in the order in which it was printed.
    fn next_output(&self, cursor: &mut Cursor) -> Option<CommandEvent> {
        let next = |index: usize| Some((index, self.streams[index].after(cursor.read[index])?));
        let (index, chunk) =
            [next(0), next(1)].into_iter().flatten().min_by_key(|(_, chunk)| chunk.number)?;
        let (stream, read) = (STREAMS[index], &mut cursor.read[index]);
        if chunk.start > *read {
            let bytes = chunk.start - *read;
            *read = chunk.start;
            return Some(CommandEvent::Skipped { stream, bytes });
        }
        // Within one chunk, so it fits.
        let data = &chunk.data[(*read - chunk.start) as usize..];
        *read = chunk.end();
        Some(CommandEvent::Output { stream, data: Bytes::copy_from_slice(data) })
    }
}

#[derive(Debug)]
struct Chunk {
    /// The number of the chunk, of both streams together.
    number: u64,
    /// The bytes of the stream before the chunk.
    start: u64,
    data: Vec<u8>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.data.len() as u64
    }
}

/// The beginning and the end of one stream.
#[derive(Debug, Default)]
struct Stream {
    head: VecDeque<Chunk>,
    tail: VecDeque<Chunk>,
    head_bytes: usize,
    tail_bytes: usize,
    total: u64,
}

impl Stream {
    /// Adds bytes, at most one chunk. Returns true when they became a new chunk, whose number is one above `last`.
    fn push(&mut self, last: u64, data: &[u8]) -> bool {
        let start = self.total;
        self.total += data.len() as u64;
        let to_head = self.tail.is_empty()
            && self.head_bytes + data.len() <= KEPT_PER_END
            && self.head.len() < MAX_CHUNKS;
        let (part, bytes) = match to_head {
            true => (&mut self.head, &mut self.head_bytes),
            false => (&mut self.tail, &mut self.tail_bytes),
        };
        *bytes += data.len();
        let joined = part.back_mut().filter(|chunk| {
            chunk.number == last && chunk.end() == start && chunk.data.len() + data.len() <= CHUNK
        });
        let is_new = match joined {
            Some(chunk) => {
                chunk.data.extend_from_slice(data);
                false
            }
            None => {
                part.push_back(Chunk { number: last + 1, start, data: data.to_vec() });
                true
            }
        };
        self.forget_middle();
        is_new
    }

    fn forget_middle(&mut self) {
        while let Some(oldest) = self.tail.front().map(|chunk| chunk.data.len())
            && (self.tail_bytes - oldest >= KEPT_PER_END || self.tail.len() > MAX_CHUNKS)
        {
            self.tail_bytes -= oldest;
            self.tail.pop_front();
        }
    }

    /// Returns the first chunk with bytes after the position.
    fn after(&self, read: u64) -> Option<&Chunk> {
        let in_part = |part: &VecDeque<Chunk>| part.partition_point(|chunk| chunk.end() <= read);
        self.head.get(in_part(&self.head)).or_else(|| self.tail.get(in_part(&self.tail)))
    }

    fn totals(&self) -> StreamTotals {
        let bytes_kept = (self.head_bytes + self.tail_bytes) as u64;
        StreamTotals { bytes_total: self.total, bytes_kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads everything that is there now: output, and the number of lost bytes.
    fn read(state: &mut State, listener: u64) -> ([Vec<u8>; 2], [u64; 2]) {
        let (mut output, mut lost) = ([Vec::new(), Vec::new()], [0, 0]);
        while let Some(event) = state.next(listener) {
            match event {
                CommandEvent::Output { stream, data } => output[index(stream)].extend(&data),
                CommandEvent::Skipped { stream, bytes } => lost[index(stream)] += bytes,
                other => panic!("{other:?}"),
            }
        }
        (output, lost)
    }

    #[test]
    fn the_beginning_and_the_end_are_kept_and_all_of_it_is_counted() {
        let mut state = State::default();
        let all: Vec<u8> = (0..5_000_000_u32).map(|i| (i / 7) as u8).collect();
        all.chunks(1000).for_each(|data| state.push(0, data));
        let ([output, _], [lost, _]) = read(&mut state, 1);
        let totals = state.streams[0].totals();
        assert_eq!((totals.bytes_total, totals.bytes_kept), (5_000_000, output.len() as u64));
        assert_eq!(output.len() as u64 + lost, 5_000_000);
        assert!((2 * KEPT_PER_END - CHUNK..2 * KEPT_PER_END + CHUNK).contains(&output.len()));
        let head = state.streams[0].head_bytes;
        assert_eq!(output[..head], all[..head]);
        assert!(all.ends_with(&output[head..]));
    }

    #[test]
    fn streams_keep_their_order_and_small_pieces_are_bounded() {
        let mut state = State::default();
        for (index, data) in [(0, "a"), (1, "b"), (0, "c"), (0, "d"), (1, "e")] {
            state.push(index, data.as_bytes());
        }
        let mut order = String::new();
        while let Some(CommandEvent::Output { data, .. }) = state.next(1) {
            order.push_str(std::str::from_utf8(&data).unwrap());
        }
        assert_eq!(order, "abcde");
        for _ in 0..100_000 {
            state.push(0, b"x");
            state.push(1, b"y");
        }
        for stream in &state.streams {
            assert!(stream.head.len() + stream.tail.len() <= 2 * MAX_CHUNKS);
        }
        let (output, lost) = read(&mut state, 2);
        assert_eq!(output[0].len() as u64 + lost[0], 100_003);
        assert!(lost[0] > 0);
    }

    #[test]
    fn who_reads_is_waited_for_and_who_does_not_is_not() {
        let mut state = State::default();
        state.push(0, &vec![0; 2 * MAX_LAG as usize]);
        assert_eq!(state.held_back(), None);
        state.next(1);
        assert_eq!(state.held_back(), Some(LISTENER_TIMEOUT));
        state.wait_for_none();
        assert_eq!(state.held_back(), None);
        assert_eq!(read(&mut state, 1).1, [0, 0]);
        state.push(0, &vec![0; 8 * KEPT_PER_END]);
        assert_eq!(state.held_back(), Some(LISTENER_TIMEOUT));
        assert!(read(&mut state, 1).1[0] > 0);
    }

    #[tokio::test]
    async fn who_is_about_to_read_is_waited_for_a_moment() {
        let kept = OutputBuffer::default();
        kept.expect(1);
        kept.push(OutputStream::Stdout, &vec![0; 8 * KEPT_PER_END]);
        let begun = std::time::Instant::now();
        kept.room().await;
        assert!(begun.elapsed() >= BEGINNING, "{:?}", begun.elapsed());
        // The listener has had its time, and gets the number of lost bytes.
        assert!(read(&mut kept.state(), 1).1[0] > 0);

        // A listener that reads all the time misses nothing, though it read nothing before the first chunk was there.
        let kept = OutputBuffer::default();
        kept.expect(1);
        let listens = async {
            tokio::time::sleep(BEGINNING / 2).await;
            let mut bytes = 0;
            while let CommandEvent::Output { data, .. } = kept.next(1).await {
                bytes += data.len();
            }
            bytes
        };
        let prints = async {
            for _ in 0..100 {
                kept.push(OutputStream::Stdout, &[0; 64 << 10]);
                kept.room().await;
            }
            kept.finish(CommandOutcome::default());
        };
        assert_eq!(tokio::join!(listens, prints).0, 100 * (64 << 10));
    }
}
