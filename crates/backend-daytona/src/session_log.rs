//! The output of a command of a session: the log that the toolbox keeps, followed while it is written.
//!
//! The log has lines of base64 (see `sandbox_shell::text`), each behind three bytes that name its stream. A connection that
//! breaks is opened again: the log then comes from its beginning, and the part that was read is passed over.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender};
use sandbox_core::{ErrorKind, Result, Retry};
use sandbox_shell::ProgramOutput;
use sandbox_shell::text::LineDecoder;
use tokio::time::{sleep, timeout};

use crate::programs::Programs;

/// Bytes before a line of standard output, and of standard error.
const MARKS: [&[u8]; 2] = [&[1, 1, 1], &[2, 2, 2]];

/// Attempts to open a connection that broke, and the pause before the second one.
const MAX_ATTEMPTS: u32 = 6;
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// First and longest time without output before the toolbox is asked whether the command still runs.
const MIN_SILENCE: Duration = Duration::from_secs(1);
const MAX_SILENCE: Duration = Duration::from_secs(16);

/// The normal end of a WebSocket.
const NORMAL: u16 = 1000;

/// A followed log.
struct Log {
    programs: Arc<Programs>,
    session: String,
    command: String,
    connection: Option<(SocketSender, SocketReceiver)>,
    lines: Lines,
    pending: VecDeque<(usize, Bytes)>,
    /// Bytes of the log that were read.
    read: u64,
    /// Bytes that come again on this connection.
    skip: u64,
    silence: Duration,
    is_over: bool,
}

/// Follows the log of a command of a session from its beginning. When the command has ended, the session is free for another
/// one.
pub(crate) fn follow(programs: Arc<Programs>, session: String, command: String) -> ProgramOutput {
    let log = Log {
        programs,
        session,
        command,
        connection: None,
        lines: Lines::default(),
        pending: VecDeque::new(),
        read: 0,
        skip: 0,
        silence: MIN_SILENCE,
        is_over: false,
    };
    Box::pin(stream::unfold(log, |mut log| async move {
        let chunk = log.next().await.transpose()?;
        Some((chunk.map_err(io::Error::other), log))
    }))
}

impl Log {
    async fn next(&mut self) -> Result<Option<(usize, Bytes)>> {
        loop {
            if let Some(chunk) = self.pending.pop_front() {
                return Ok(Some(chunk));
            }
            if self.is_over {
                return Ok(None);
            }
            if self.connection.is_none() {
                self.connect().await?;
            }
            let Some((_, receiver)) = &mut self.connection else { continue };
            match timeout(self.silence, receiver.next()).await {
                Ok(Some(SocketMessage::Binary(data))) => self.take(&data),
                Ok(Some(SocketMessage::Text(text))) => self.take(text.as_bytes()),
                Ok(Some(SocketMessage::Closed { code: Some(NORMAL), .. })) => self.end(),
                Ok(Some(SocketMessage::Closed { .. }) | None) => self.connection = None,
                Err(_) => self.look().await,
            }
        }
    }

    async fn connect(&mut self) -> Result<()> {
        let mut pause = MIN_PAUSE;
        for attempt in 1.. {
            let toolbox = self.programs.toolbox("command")?;
            let error = match toolbox.follow(&self.session, &self.command).await {
                Ok(socket) => {
                    self.connection = Some(socket.split());
                    self.skip = self.read;
                    return Ok(());
                }
                Err(error) => error,
            };
            if error.retry() == Retry::Never || attempt >= MAX_ATTEMPTS || self.programs.is_over() {
                self.is_over = true;
                return Err(error);
            }
            tracing::debug!(%error, "the log of a command is opened again");
            sleep(pause).await;
            pause *= 2;
        }
        Ok(())
    }

    fn take(&mut self, data: &[u8]) {
        self.silence = MIN_SILENCE;
        let passed = usize::try_from(self.skip).unwrap_or(usize::MAX).min(data.len());
        self.skip -= passed as u64;
        let data = &data[passed..];
        self.read += data.len() as u64;
        self.lines.push(data, &mut self.pending);
    }

    /// Ends the log: the command is over.
    fn end(&mut self) {
        self.is_over = true;
        self.lines.finish(&mut self.pending);
        self.programs.release(std::mem::take(&mut self.session));
    }

    /// Asks whether the command has ended: some versions of the toolbox do not close the log then.
    async fn look(&mut self) {
        self.silence = (self.silence * 2).min(MAX_SILENCE);
        let Ok(toolbox) = self.programs.toolbox("command") else { return };
        match toolbox.command(&self.session, &self.command).await {
            // What is still on its way comes before the next look.
            Ok(state) if state.exit_code.is_some() => {
                let Some((_, receiver)) = &mut self.connection else { return };
                let mut rest = Vec::new();
                while let Ok(Some(message)) = timeout(MIN_PAUSE, receiver.next()).await {
                    match message {
                        SocketMessage::Binary(data) => rest.push(data),
                        SocketMessage::Text(text) => rest.push(Bytes::from(text)),
                        SocketMessage::Closed { .. } => break,
                    }
                }
                rest.iter().for_each(|data| self.take(data));
                self.end();
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.connection = None,
            _ => {}
        }
    }
}

/// Splits a log into the pieces of both streams.
#[derive(Debug, Default)]
struct Lines {
    rest: BytesMut,
    decoders: [LineDecoder; 2],
}

impl Lines {
    fn push(&mut self, data: &[u8], pieces: &mut VecDeque<(usize, Bytes)>) {
        self.rest.extend_from_slice(data);
        while let Some(at) = memchr::memchr(b'\n', &self.rest) {
            let line = self.rest.split_to(at + 1);
            pieces.push_back(self.piece(&line));
        }
    }

    fn finish(&mut self, pieces: &mut VecDeque<(usize, Bytes)>) {
        let rest = self.rest.split();
        if !rest.is_empty() {
            pieces.push_back(self.piece(&rest));
        }
    }

    /// Decodes a line. Text that is no base64 comes from a shell that could not start the command, and is passed on as it is.
    fn piece(&mut self, line: &[u8]) -> (usize, Bytes) {
        let of = MARKS.iter().position(|mark| line.starts_with(mark));
        let (stream, text) = of.map_or((1, line), |stream| (stream, &line[MARKS[stream].len()..]));
        match self.decoders[stream].decode(text) {
            Some(data) => (stream, data),
            None => (1, Bytes::copy_from_slice(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    use super::*;

    #[test]
    fn streams_are_kept_apart_wherever_the_log_is_cut() {
        let log = [
            b"\x01\x01\x01".as_slice(),
            STANDARD.encode(b"out\0\x02\x02\x02").as_bytes(),
            b"\n\x02\x02\x02",
            STANDARD.encode(b"err").as_bytes(),
            b"\n\x02\x02\x02sh: not found\n",
        ]
        .concat();
        for size in 1..log.len() {
            let (mut lines, mut pieces) = (Lines::default(), VecDeque::new());
            log.chunks(size).for_each(|part| lines.push(part, &mut pieces));
            lines.finish(&mut pieces);
            let pieces: Vec<_> = pieces.iter().map(|(stream, data)| (*stream, &data[..])).collect();
            let expected: [(usize, &[u8]); 3] =
                [(0, b"out\0\x02\x02\x02"), (1, b"err"), (1, b"sh: not found\n")];
            assert_eq!(pieces, expected, "in parts of {size}");
        }
    }
}
