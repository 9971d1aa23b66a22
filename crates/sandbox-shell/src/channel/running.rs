//! Commands of a channel that have not ended: what is on its way to them and from them.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::frames::{END_INPUT, INPUT, frame};

/// Output of a command, and its end with the status of its process.
#[derive(Debug)]
pub(super) enum Piece {
    Output(usize, Bytes),
    End(i32),
}

pub(super) type Pieces = mpsc::UnboundedReceiver<Piece>;

/// A command that has not ended.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) pieces: mpsc::UnboundedSender<Piece>,
    /// The request, until there is an answer to it.
    pub(super) request: Option<Bytes>,
    /// Bytes of answers, and those that were acknowledged.
    pub(super) received: u64,
    pub(super) acknowledged: u64,
    pub(super) input: Input,
}

/// The standard input of a command, as far as the sandbox has not taken it.
#[derive(Debug, Default)]
pub(super) struct Input {
    /// Bytes that the sandbox has taken, and what was sent beyond.
    taken: u64,
    sent: VecDeque<Bytes>,
    is_ended: bool,
    /// The command reads no more.
    pub(super) is_closed: bool,
}

impl Running {
    pub(super) fn new(pieces: mpsc::UnboundedSender<Piece>, request: Bytes) -> Self {
        let request = Some(request);
        Self { pieces, request, received: 0, acknowledged: 0, input: Input::default() }
    }
}

impl Input {
    /// Returns the number of bytes that were sent and that the sandbox has not taken.
    pub(super) fn waiting(&self) -> u64 {
        self.sent.iter().map(|data| data.len() as u64).sum()
    }

    /// Returns the frame for further input.
    pub(super) fn push(&mut self, number: u32, data: Bytes) -> Bytes {
        let at = (self.taken + self.waiting()).to_le_bytes();
        let frame = frame(INPUT, number, &[&at, &data]);
        self.sent.push_back(data);
        frame
    }

    /// Returns the frame for the end of the input.
    pub(super) fn end(&mut self, number: u32) -> Bytes {
        self.is_ended = true;
        frame(END_INPUT, number, &[&(self.taken + self.waiting()).to_le_bytes()])
    }

    /// Notes how many bytes the sandbox has taken in all.
    pub(super) fn take(&mut self, taken: u64) {
        while self.taken < taken
            && let Some(first) = self.sent.front_mut()
        {
            let count = usize::try_from(taken - self.taken).unwrap_or(usize::MAX).min(first.len());
            drop(first.split_to(count));
            self.taken += count as u64;
            if first.is_empty() {
                self.sent.pop_front();
            }
        }
    }

    /// Returns the frames for what the sandbox has not taken.
    pub(super) fn again(&mut self, number: u32) -> Vec<Bytes> {
        let mut at = self.taken;
        let mut frames = Vec::new();
        for data in &self.sent {
            frames.push(frame(INPUT, number, &[&at.to_le_bytes(), data]));
            at += data.len() as u64;
        }
        if self.is_ended {
            frames.push(self.end(number));
        }
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_that_was_not_taken_is_sent_again_from_there() {
        let mut input = Input::default();
        input.push(3, Bytes::from_static(b"abc"));
        let second = input.push(3, Bytes::from_static(b"def"));
        assert_eq!(second[9..], [&3_u64.to_le_bytes()[..], b"def"].concat());
        let end = input.end(3);
        input.take(4);
        assert_eq!(input.waiting(), 2);
        let again = input.again(3);
        assert_eq!(again.len(), 2);
        assert_eq!(again[0][9..], [&4_u64.to_le_bytes()[..], b"ef"].concat());
        assert_eq!(again[1], end);
        // A sandbox that says that it has taken more than there was takes no more than that.
        input.take(1 << 40);
        assert_eq!((input.waiting(), input.again(3)), (0, vec![end]));
    }
}
