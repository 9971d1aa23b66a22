//! Queue of byte chunks between a connection and the reader of a stream.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

/// Chunks in order of arrival, with the number of their bytes.
#[derive(Debug, Default)]
pub struct ChunkQueue {
    chunks: VecDeque<Bytes>,
    len: usize,
}

impl ChunkQueue {
    /// Returns the number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the queue has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a chunk.
    pub fn push(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.len += chunk.len();
            self.chunks.push_back(chunk);
        }
    }

    /// Removes the first chunk.
    pub fn pop(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.pop_front()?;
        self.len -= chunk.len();
        Some(chunk)
    }

    /// Moves bytes from the front into a buffer, and returns how many.
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
        self.len -= count;
        count
    }

    /// Removes all chunks.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.len = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_in_order_whatever_the_sizes() {
        let mut queue = ChunkQueue::default();
        for chunk in ["ab", "", "cde", "f"] {
            queue.push(Bytes::from_static(chunk.as_bytes()));
        }
        assert_eq!(queue.len(), 6);
        let mut buffer = [0; 3];
        assert_eq!((queue.read(&mut buffer), &buffer), (3, b"abc"));
        assert_eq!(queue.pop().as_deref(), Some(&b"de"[..]));
        assert_eq!((queue.read(&mut buffer), buffer[0]), (1, b'f'));
        assert_eq!((queue.read(&mut buffer), queue.is_empty()), (0, true));
        queue.push(Bytes::from_static(b"x"));
        queue.clear();
        assert_eq!((queue.len(), queue.pop()), (0, None));
    }
}
