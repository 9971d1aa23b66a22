//! Words of ours among what a command puts out.

use bytes::{Bytes, BytesMut};

/// Finds the lines that begin with a word that nobody else knows, and lets everything else pass.
#[derive(Debug)]
pub(super) struct SentinelScanner {
    word: Vec<u8>,
    held: BytesMut,
}

impl SentinelScanner {
    pub(super) fn new(word: &str) -> Self {
        Self { word: word.as_bytes().to_vec(), held: BytesMut::new() }
    }

    /// Takes what has come. Gives what came before a line of ours, and the rest of that line; then it is to be asked again,
    /// with nothing more.
    pub(super) fn take(&mut self, data: &[u8]) -> (Bytes, Option<String>) {
        self.held.extend_from_slice(data);
        let Some(at) = memchr::memmem::find(&self.held, &self.word) else {
            let kept = self.beginning();
            let passed = self.held.len() - kept;
            return (self.held.split_to(passed).freeze(), None);
        };
        let Some(length) = memchr::memchr(b'\n', &self.held[at..]) else {
            return (self.held.split_to(at).freeze(), None);
        };
        let before = self.held.split_to(at).freeze();
        let line = self.held.split_to(length + 1);
        let line = String::from_utf8_lossy(&line[self.word.len()..]).trim().to_owned();
        (before, Some(line))
    }

    /// How much at the end may be the beginning of the word.
    fn beginning(&self) -> usize {
        let most = self.held.len().min(self.word.len() - 1);
        (1..=most).rev().find(|count| self.held.ends_with(&self.word[..*count])).unwrap_or(0)
    }

    /// What was held back, when nothing more comes.
    pub(super) fn rest(&mut self) -> Bytes {
        self.held.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ours_are_found_however_they_come() {
        let all = b"before\nabcab\nabcdef over 3\nafter abc";
        for size in 1..all.len() {
            let mut marks = SentinelScanner::new("abcdef");
            let (mut passed, mut lines) = (Vec::new(), Vec::new());
            for piece in all.chunks(size) {
                let mut piece = piece;
                loop {
                    let (before, line) = marks.take(piece);
                    passed.extend_from_slice(&before);
                    piece = &[];
                    match line {
                        Some(line) => lines.push(line),
                        None => break,
                    }
                }
            }
            passed.extend_from_slice(&marks.rest());
            assert_eq!(passed, b"before\nabcab\nafter abc", "in pieces of {size}");
            assert_eq!(lines, ["over 3"]);
        }
    }
}
