//! What a worker has said and nobody has taken yet. Whoever reads a run and its watchdog share it.
//!
//! The watchdog must not end a run that has ended by itself, and the reader may come late. So
//! before it acts, the watchdog reads ahead.

use std::collections::VecDeque;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::host::Control;
use crate::message::Reply;
use crate::process::would_block;
use crate::wire::{FrameReader, MAX_FRAME};

/// Most bytes taken from the stream at once.
pub(crate) const CHUNK: usize = 64 << 10;

/// Most messages that are read ahead, because small ones take more memory here than on the stream. A stream that nobody
/// reads holds back far fewer.
const MAX_AHEAD: usize = 1 << 14;

/// The control stream of a worker, and what was read from it and not yet taken.
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
    /// Roughly how many bytes were read ahead since the reader was there last.
    ahead_bytes: usize,
    /// Something was read ahead, and the reader does not know yet.
    news: bool,
    /// The last request that was answered, and how.
    answered: Option<(i64, FinalReply)>,
    waker: Option<Waker>,
}

/// What the reader finds.
#[derive(Debug)]
pub(crate) enum InboxPoll {
    Nothing,
    /// Something was read ahead. Output that was written before it is to be told first.
    News,
    Reply(Reply),
    Broken(String),
}

/// What a look at the stream gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAhead {
    Something,
    Nothing,
    End,
}

/// The message that ends a request of a kind. Code can send any other one while it runs, and so none of those ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FinalReply {
    /// Of a run.
    Done,
    /// Of a question for variables: their value, or why there is none.
    Value,
    /// Of something that is done about the interpreter.
    Acknowledged,
}

/// What is known of the answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyProgress {
    /// All of it is here.
    Complete,
    /// The worker is in the middle of a message: it waits for somebody to read.
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

    /// Takes the next message. The task of `cx` is woken when there is more and it was read ahead.
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

    /// Reads what is there. A `dead` worker says nothing more, so that nothing is waited for.
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
                ReadAhead::Something
            }
            Err(error) if would_block(&error) => ReadAhead::Nothing,
            Err(_) => ReadAhead::End,
        }
    }

    /// Looks for the last message about a request without taking it. Reads on where nobody else does, up to the size of
    /// the largest message.
    pub(crate) fn find_final_reply(&self, id: i64, last: FinalReply) -> ReplyProgress {
        let mut buffer = Vec::new();
        let mut state = self.state();
        let answer = loop {
            state.sort();
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

    /// Whether the worker waits for a request and has said nothing since it answered the last one.
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

    /// After nonsense there is nothing more to find.
    fn is_broken(&self) -> bool {
        self.ahead.back().is_some_and(Result::is_err)
    }

    fn is_far_ahead(&self) -> bool {
        self.ahead_bytes > MAX_FRAME || self.ahead.len() >= MAX_AHEAD
    }

    /// Decodes what is complete.
    fn sort(&mut self) {
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
