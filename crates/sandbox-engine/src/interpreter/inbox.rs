//! Messages of a worker that were read and not taken yet, shared by the reader of a run and the watchdog.
//!
//! The watchdog must not kill a run that has ended by itself, and the reader may come late. So before it acts, the
//! watchdog reads ahead.

use std::collections::VecDeque;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::host::Control;
use crate::message::Reply;
use crate::process::would_block;
use crate::wire::{FrameReader, MAX_FRAME};

/// Maximum number of bytes that are read from the stream at once.
pub(crate) const CHUNK: usize = 64 << 10;

/// Maximum number of messages that are read ahead, because small ones take more memory here than on the stream. A stream
/// that is not read holds far fewer.
const MAX_AHEAD: usize = 1 << 14;

/// The control stream of a worker, with what was read from it and not taken yet.
#[derive(Debug)]
pub(crate) struct Inbox {
    control: Arc<dyn Control>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    reader: FrameReader,
    /// Messages that were read ahead. Those still in `reader` come after them.
    ahead: VecDeque<Result<Reply, String>>,
    /// The approximate number of bytes that were read ahead since the reader came last.
    ahead_bytes: usize,
    /// The number of all bytes that were read.
    all_bytes: u64,
    /// Set when something was read ahead that the reader has not seen.
    news: bool,
    /// The last request that was answered, and the kind of the answer.
    answered: Option<(i64, FinalReply)>,
    waker: Option<Waker>,
}

/// The next message for the reader.
#[derive(Debug)]
pub(crate) enum InboxPoll {
    Nothing,
    /// Something was read ahead. Output that was written before it comes first.
    News,
    Reply(Reply),
    Broken(String),
}

/// The result of reading the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    Something,
    Nothing,
    End,
}

/// The message that ends a request, by kind of request. Code can send any other message while it runs, so none of those
/// ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalReply {
    /// Ends a run.
    Done,
    /// Ends a request about variables.
    Value,
    /// Ends a request about the interpreter as a whole.
    Acknowledged,
}

/// How much of the answer to a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyProgress {
    /// All of the answer.
    Complete,
    /// A part of a message: the worker waits until the rest is read.
    Begun,
    Missing,
}

impl Inbox {
    pub(crate) fn new(control: Arc<dyn Control>) -> Self {
        Self { control, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next message. The task of `cx` is woken when more was read ahead.
    pub(crate) fn take(&self, cx: &Context<'_>) -> InboxPoll {
        let mut state = self.state();
        if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        if std::mem::take(&mut state.news) {
            return InboxPoll::News;
        }
        state.ahead_bytes = 0;
        match state.ahead.pop_front().or_else(|| state.decode()) {
            None => InboxPoll::Nothing,
            Some(Ok(reply)) => InboxPoll::Reply(reply),
            Some(Err(problem)) => InboxPoll::Broken(problem),
        }
    }

    /// Reads what is there. A `dead` worker sends nothing more, so the caller does not wait.
    pub(crate) fn poll_read(
        &self,
        cx: &mut Context<'_>,
        dead: bool,
        buffer: &mut [u8],
    ) -> ReadAhead {
        let mut state = self.state();
        loop {
            if !dead && self.control.poll_readable(cx).is_pending() {
                return ReadAhead::Nothing;
            }
            match self.read(&mut state, buffer) {
                ReadAhead::Nothing if !dead => {}
                heard => return heard,
            }
        }
    }

    fn read(&self, state: &mut State, buffer: &mut [u8]) -> ReadAhead {
        match self.control.try_read(buffer) {
            Ok(0) => ReadAhead::End,
            Ok(count) => {
                state.reader.push(&buffer[..count]);
                state.all_bytes += count as u64;
                ReadAhead::Something
            }
            Err(error) if would_block(&error) => ReadAhead::Nothing,
            Err(_) => ReadAhead::End,
        }
    }

    /// Looks for the last message of a request without taking it. Reads ahead while the reader does not, up to the
    /// maximum size of a message.
    pub(crate) fn find_final_reply(&self, id: i64, last: FinalReply) -> ReplyProgress {
        let mut buffer = Vec::new();
        let mut state = self.state();
        let answer = loop {
            state.decode_all();
            if state.answered == Some((id, last)) {
                break ReplyProgress::Complete;
            }
            if state.is_far_ahead() || state.is_broken() {
                break ReplyProgress::Missing;
            }
            buffer.resize(CHUNK, 0);
            let before = state.reader.pending();
            match self.read(&mut state, &mut buffer) {
                ReadAhead::Something => {
                    state.ahead_bytes += state.reader.pending() - before;
                    state.news = true;
                }
                ReadAhead::Nothing if before > 0 => break ReplyProgress::Begun,
                ReadAhead::Nothing | ReadAhead::End => break ReplyProgress::Missing,
            }
        };
        let waker = if state.news { state.waker.take() } else { None };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        answer
    }

    /// Returns the number of bytes that the worker has sent and that were read, of all requests.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.state().all_bytes
    }

    /// Returns true when the worker waits for a request and has sent nothing since its last answer.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        let taken = state.ahead.is_empty() && state.reader.pending() == 0;
        taken && self.control.try_read(&mut [0]).is_err_and(|error| would_block(&error))
    }
}

impl State {
    fn decode(&mut self) -> Option<Result<Reply, String>> {
        let reply = match self.reader.next_frame() {
            Ok(None) => return None,
            Ok(Some(frame)) => Reply::decode(frame).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        let answered = match &reply {
            Ok(Reply::Done { id, .. }) => Some((*id, FinalReply::Done)),
            Ok(Reply::Value { id, .. } | Reply::Failed { id, .. }) => {
                Some((*id, FinalReply::Value))
            }
            Ok(Reply::Acknowledged { id, .. }) => Some((*id, FinalReply::Acknowledged)),
            _ => None,
        };
        self.answered = answered.or(self.answered);
        Some(reply)
    }

    /// Returns true after a malformed message, behind which there is nothing to find.
    fn is_broken(&self) -> bool {
        self.ahead.back().is_some_and(Result::is_err)
    }

    fn is_far_ahead(&self) -> bool {
        self.ahead_bytes > MAX_FRAME || self.ahead.len() >= MAX_AHEAD
    }

    /// Decodes all complete messages.
    fn decode_all(&mut self) {
        while !self.is_broken()
            && !self.is_far_ahead()
            && let Some(reply) = self.decode()
        {
            self.news = true;
            self.ahead_bytes += size_of::<Reply>();
            self.ahead.push_back(reply);
        }
    }
}
