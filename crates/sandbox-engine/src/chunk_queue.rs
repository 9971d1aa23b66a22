//! Bytes that have arrived in chunks and are read in pieces of other sizes.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

/// A queue of chunks, with the number of bytes in it.
#[derive(Debug, Default)]
pub struct ChunkQueue {
    chunks: VecDeque<Bytes>,
    bytes: usize,
}

impl ChunkQueue {
    /// Returns the number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns true when nothing waits to be read.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Adds a chunk. An empty one is left out: it would look like an end.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.bytes += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// Takes the first chunk, or what is left of it.
    pub fn pop(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.len();
        Some(chunk)
    }

    /// Moves bytes to `buffer`, as many as fit, and returns their number.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut count = 0;
        while count < buffer.len()
            && let Some(chunk) = self.chunks.front_mut()
        {
            let part = chunk.len().min(buffer.len() - count);
            buffer[count..count + part].copy_from_slice(&chunk[..part]);
            chunk.advance(part);
            count += part;
            if chunk.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.bytes -= count;
        count
    }

    /// Drops everything in the queue.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_in_order_whatever_their_chunks_were() {
        let mut queue = ChunkQueue::default();
        for chunk in ["abc", "", "de", "f"] {
            queue.push(Bytes::from_static(chunk.as_bytes()));
        }
        assert_eq!(queue.len(), 6);
        let mut buffer = [0; 4];
        assert_eq!((queue.read(&mut buffer), &buffer), (4, b"abcd"));
        assert_eq!(queue.pop(), Some(Bytes::from_static(b"e")));
        assert_eq!((queue.len(), queue.read(&mut buffer), buffer[0]), (1, 1, b'f'));
        assert_eq!((queue.read(&mut buffer), queue.pop()), (0, None));
        queue.push(Bytes::from_static(b"g"));
        queue.clear();
        assert!(queue.is_empty() && queue.pop().is_none());
    }
}
