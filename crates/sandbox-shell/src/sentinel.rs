//! Finds sentinel lines of the scripts in the output of a command.

use bytes::{Bytes, BytesMut};

/// Splits output at lines that begin with a secret word, and passes everything else.
#[derive(Debug)]
pub struct SentinelScanner {
    word: Vec<u8>,
    buffered: BytesMut,
}

impl SentinelScanner {
    /// Makes a scanner for lines that begin with `word`.
    pub fn new(word: &str) -> Self {
        Self { word: word.as_bytes().to_vec(), buffered: BytesMut::new() }
    }

    /// Adds output. Returns the bytes before the next sentinel line, and the rest of that line. After a line it has to be
    /// called again, with empty output.
    pub fn scan(&mut self, data: &[u8]) -> (Bytes, Option<String>) {
        self.buffered.extend_from_slice(data);
        let Some(at) = memchr::memmem::find(&self.buffered, &self.word) else {
            let passed = self.buffered.len() - self.partial_word();
            return (self.buffered.split_to(passed).freeze(), None);
        };
        let Some(length) = memchr::memchr(b'\n', &self.buffered[at..]) else {
            return (self.buffered.split_to(at).freeze(), None);
        };
        let before = self.buffered.split_to(at).freeze();
        let line = self.buffered.split_to(length + 1);
        let line = String::from_utf8_lossy(&line[self.word.len()..]).trim().to_owned();
        (before, Some(line))
    }

    /// Returns how many bytes at the end may be the beginning of the word.
    fn partial_word(&self) -> usize {
        let most = self.buffered.len().min(self.word.len() - 1);
        (1..=most).rev().find(|count| self.buffered.ends_with(&self.word[..*count])).unwrap_or(0)
    }

    /// Returns the buffered bytes at the end of the output.
    pub fn rest(&mut self) -> Bytes {
        self.buffered.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinel_lines_are_found_across_chunks() {
        let all = b"before\nabcab\nabcdef exited 3\nafter abc";
        for size in 1..all.len() {
            let mut scanner = SentinelScanner::new("abcdef");
            let (mut passed, mut lines) = (Vec::new(), Vec::new());
            for chunk in all.chunks(size) {
                let mut chunk = chunk;
                loop {
                    let (before, line) = scanner.scan(chunk);
                    passed.extend_from_slice(&before);
                    chunk = &[];
                    match line {
                        Some(line) => lines.push(line),
                        None => break,
                    }
                }
            }
            passed.extend_from_slice(&scanner.rest());
            assert_eq!(passed, b"before\nabcab\nafter abc", "in chunks of {size}");
            assert_eq!(lines, ["exited 3"]);
        }
    }
}
