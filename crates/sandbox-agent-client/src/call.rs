//! Requests to an agent that are answered. Dropping one gives it up.

use std::sync::Arc;

use sandbox_core::Result;
use tokio::sync::oneshot;

use crate::connection::{Answer, Connection};
use crate::message::{AgentRequest, STDIN, STDOUT, stream};
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
    connection: Arc<Connection>,
    token: i64,
    over: bool,
}

impl Guard {
    /// Nothing is said to it beyond the request.
    pub(crate) fn end_input(&self) {
        let _ = self.connection.say(&AgentRequest::End(stream(self.token, STDIN)));
    }

    /// There is nothing to give up any more.
    pub(crate) fn done(mut self) {
        self.over = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.connection.forget_call(self.token);
        if !self.over {
            let _ = self.connection.say(&AgentRequest::Cancel(self.token));
        }
    }
}

impl Call {
    /// Asks for something.
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<Self> {
        Self::ask(connection, connection.new_key(), verb, arguments)
    }

    /// Asks for something that streams its result.
    pub(crate) fn reading(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Reader)> {
        let token = connection.new_key();
        let reader = Reader::new(connection, stream(token, STDOUT));
        Ok((Self::ask(connection, token, verb, arguments)?, reader))
    }

    /// Asks for something that takes a stream.
    pub(crate) fn writing(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Writer)> {
        let token = connection.new_key();
        let call = Self::ask(connection, token, verb, arguments)?;
        Ok((call, Writer::new(connection, stream(token, STDIN), false)))
    }

    /// Asks for something that becomes a stream in both directions.
    pub(crate) fn both_ways(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Reader, Writer)> {
        let token = connection.new_key();
        let reader = Reader::new(connection, stream(token, STDOUT));
        let call = Self::ask(connection, token, verb, arguments)?;
        Ok((call, reader, Writer::narrow(connection, stream(token, STDIN))))
    }

    fn ask(
        connection: &Arc<Connection>,
        token: i64,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<Self> {
        let answer = connection.expect_answer(token);
        let guard = Guard { connection: Arc::clone(connection), token, over: false };
        connection.say(&AgentRequest::Call { token, verb, arguments })?;
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
        let answer = answer.unwrap_or_else(|_| Err(self.guard.connection.lost_error()));
        (answer, self.guard)
    }

    /// Whether the answer has come already.
    pub(crate) fn poll_answer(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Answer> {
        use std::future::Future as _;
        let connection = Arc::clone(&self.guard.connection);
        std::pin::Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or_else(|_| Err(connection.lost_error())))
    }

    /// Nothing is to be given up any more.
    pub(crate) fn done(self) {
        self.guard.done();
    }
}
