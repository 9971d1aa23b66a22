//! Requests to an agent that are answered. Dropping one gives it up.

use std::sync::Arc;

use sandbox_core::Result;
use tokio::sync::oneshot;

use crate::link::{Answer, Link};
use crate::message::{STDIN, STDOUT, ToAgent, stream};
use crate::streams::{Reader, Writer};

/// A connection that was lost, as the agent's numbers have it (`ECONNRESET`).
pub(crate) const LOST: i64 = -104;

/// A request that is under way.
#[derive(Debug)]
pub(crate) struct Call {
    answer: oneshot::Receiver<Answer>,
    guard: Guard,
}

/// Gives the request up when it is dropped before its end.
#[derive(Debug)]
pub(crate) struct Guard {
    link: Arc<Link>,
    token: i64,
    over: bool,
}

impl Guard {
    /// Nothing is said to it beyond the request.
    pub(crate) fn end_input(&self) {
        let _ = self.link.say(&ToAgent::End(stream(self.token, STDIN)));
    }

    /// There is nothing to give up any more.
    pub(crate) fn done(mut self) {
        self.over = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.forget_call(self.token);
        if !self.over {
            let _ = self.link.say(&ToAgent::Cancel(self.token));
        }
    }
}

impl Call {
    /// Asks for something.
    pub(crate) fn begin(link: &Arc<Link>, verb: &str, arguments: &[Vec<u8>]) -> Result<Self> {
        Self::ask(link, link.new_key(), verb, arguments)
    }

    /// Asks for something that streams its result.
    pub(crate) fn reading(
        link: &Arc<Link>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Reader)> {
        let token = link.new_key();
        let reader = Reader::new(link, stream(token, STDOUT));
        Ok((Self::ask(link, token, verb, arguments)?, reader))
    }

    /// Asks for something that takes a stream.
    pub(crate) fn writing(
        link: &Arc<Link>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Writer)> {
        let token = link.new_key();
        let call = Self::ask(link, token, verb, arguments)?;
        Ok((call, Writer::new(link, stream(token, STDIN), false)))
    }

    /// Asks for something that becomes a stream in both directions.
    pub(crate) fn both_ways(
        link: &Arc<Link>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Reader, Writer)> {
        let token = link.new_key();
        let reader = Reader::new(link, stream(token, STDOUT));
        let call = Self::ask(link, token, verb, arguments)?;
        Ok((call, reader, Writer::narrow(link, stream(token, STDIN))))
    }

    fn ask(link: &Arc<Link>, token: i64, verb: &str, arguments: &[Vec<u8>]) -> Result<Self> {
        let answer = link.expect_answer(token);
        let guard = Guard { link: Arc::clone(link), token, over: false };
        link.say(&ToAgent::Call { token, verb, arguments })?;
        Ok(Self { answer, guard })
    }

    /// The answer to a request that is over with it.
    pub(crate) async fn answer(self) -> Answer {
        let (answer, guard) = self.answered().await;
        guard.done();
        answer
    }

    /// The answer to a request that goes on after it, and what gives it up.
    pub(crate) async fn answered(mut self) -> (Answer, Guard) {
        let answer = (&mut self.answer).await;
        let answer = answer.unwrap_or_else(|_| Err(self.guard.link.lost_trouble()));
        (answer, self.guard)
    }

    /// Whether the answer has come already.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Answer> {
        use std::future::Future as _;
        let link = Arc::clone(&self.guard.link);
        std::pin::Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or_else(|_| Err(link.lost_trouble())))
    }

    /// Nothing is to be given up any more.
    pub(crate) fn done(self) {
        self.guard.done();
    }
}
