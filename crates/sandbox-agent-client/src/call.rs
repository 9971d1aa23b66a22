//! Requests to an agent, with their answers. Dropping one cancels it.

use std::sync::Arc;

use sandbox_core::Result;
use tokio::sync::oneshot;

use crate::connection::{Answer, Connection};
use crate::message::{AgentRequest, STDIN, STDOUT, stream};
use crate::streams::{Reader, Writer};

/// The number for a lost connection, as agents have it (`ECONNRESET`).
pub(crate) const LOST: i64 = -104;

/// A request that was sent and is not answered yet.
#[derive(Debug)]
pub(crate) struct Call {
    answer: oneshot::Receiver<Answer>,
    guard: Guard,
}

/// Cancels the request when it is dropped before the request has ended.
#[derive(Debug)]
pub(crate) struct Guard {
    connection: Arc<Connection>,
    token: i64,
    finished: bool,
}

impl Guard {
    /// Ends the input stream of the request.
    pub(crate) fn end_input(&self) {
        let _ = self.connection.send_first(&AgentRequest::End(stream(self.token, STDIN)));
    }

    /// Marks the request as ended.
    pub(crate) fn done(mut self) {
        self.finished = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.connection.remove_call(self.token);
        if !self.finished {
            let _ = self.connection.send_first(&AgentRequest::Cancel(self.token));
        }
    }
}

impl Call {
    /// Sends a request.
    pub(crate) fn begin(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<Self> {
        Self::ask(connection, connection.new_key(), verb, arguments)
    }

    /// Sends a request whose result is a stream.
    pub(crate) fn reading(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Reader)> {
        let token = connection.new_key();
        let reader = Reader::new(connection, stream(token, STDOUT));
        Ok((Self::ask(connection, token, verb, arguments)?, reader))
    }

    /// Sends a request that takes a stream.
    pub(crate) fn writing(
        connection: &Arc<Connection>,
        verb: &str,
        arguments: &[Vec<u8>],
    ) -> Result<(Self, Writer)> {
        let token = connection.new_key();
        let call = Self::ask(connection, token, verb, arguments)?;
        Ok((call, Writer::new(connection, stream(token, STDIN), false)))
    }

    /// Sends a request that becomes a stream in both directions.
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
        let guard = Guard { connection: Arc::clone(connection), token, finished: false };
        connection.send_first(&AgentRequest::Call { token, verb, arguments })?;
        Ok(Self { answer, guard })
    }

    /// Waits for the answer, which ends the request.
    pub(crate) async fn answer(self) -> Answer {
        let (answer, guard) = self.answered().await;
        guard.done();
        answer
    }

    /// Waits for the answer to a request that continues, and returns the guard that cancels it.
    pub(crate) async fn answered(mut self) -> (Answer, Guard) {
        let answer = (&mut self.answer).await;
        let answer = answer.unwrap_or_else(|_| Err(self.guard.connection.lost_error()));
        (answer, self.guard)
    }

    /// Polls the answer.
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

    /// Leaves the request running.
    pub(crate) fn done(self) {
        self.guard.done();
    }
}
