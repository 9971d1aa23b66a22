//! The output of programs: events of an `exec`, whose text is lines of base64, or the log of a process, which is exact and is
//! read again where a connection breaks.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_cloud::http::{ServerEvent, server_events};
use sandbox_core::{ByteStream, Error, ErrorKind, Result, Retry};
use sandbox_shell::ProgramOutput;
use sandbox_shell::text::Lines;
use tokio::time::sleep;

use crate::programs::Programs;
use crate::wire::LogEvent;

/// Largest event.
const MAX_EVENT: usize = 16 << 20;

/// Attempts to open a log without anything that comes from it, and the pause after the first one.
const MAX_ATTEMPTS: u32 = 6;
const MIN_PAUSE: Duration = Duration::from_millis(100);

type Events = Pin<Box<dyn Stream<Item = Result<ServerEvent>> + Send>>;

fn events(body: ByteStream) -> Events {
    Box::pin(server_events("command", body, MAX_EVENT))
}

/// Decodes the data of an event.
fn decode(text: &str) -> Result<Vec<u8>> {
    STANDARD.decode(text.trim()).map_err(|error| {
        Error::new(ErrorKind::Protocol, "command", "an event of the bridge is not base64")
            .with_source(error)
    })
}

/// Text of both streams, put together to what its lines stand for.
#[derive(Debug, Default)]
struct Pieces {
    lines: [Lines; 2],
    pending: VecDeque<(usize, Bytes)>,
}

impl Pieces {
    fn finish(&mut self) {
        for (stream, lines) in self.lines.iter_mut().enumerate() {
            lines.finish(stream, &mut self.pending);
        }
    }
}

/// Returns the output of an `exec`.
pub(crate) fn of_exec(body: ByteStream) -> ProgramOutput {
    let state = (Some(events(body)), Pieces::default());
    let output = stream::unfold(state, |(mut events, mut pieces)| async move {
        loop {
            if let Some(piece) = pieces.pending.pop_front() {
                return Some((Ok(piece), (events, pieces)));
            }
            let event = match events.as_mut()?.next().await {
                Some(Ok(event)) => event,
                Some(Err(error)) => return Some((Err(io::Error::other(error)), (None, pieces))),
                None => {
                    let error = "the answer of the bridge ended before the command";
                    return Some((Err(io::Error::other(error)), (None, pieces)));
                }
            };
            match event.event.as_str() {
                "stdout" | "stderr" => match decode(&event.data) {
                    Ok(text) => {
                        let stream = usize::from(event.event == "stderr");
                        pieces.lines[stream].push(stream, &text, &mut pieces.pending);
                    }
                    Err(error) => return Some((Err(io::Error::other(error)), (None, pieces))),
                },
                "exit" => {
                    events = None;
                    pieces.finish();
                }
                "error" => return Some((Err(io::Error::other(event.data)), (None, pieces))),
                _ => {}
            }
        }
    });
    Box::pin(output.fuse())
}

/// A log that is followed, and opened again where its connection breaks.
struct Log {
    programs: Arc<Programs>,
    process: String,
    events: Option<Events>,
    /// The cursor behind what was read.
    since: Option<String>,
    attempts: u32,
    is_over: bool,
}

/// Returns the output of a process.
pub(crate) fn of_process(programs: Arc<Programs>, process: String) -> ProgramOutput {
    let log = Log { programs, process, events: None, since: None, attempts: 0, is_over: false };
    let output = stream::unfold(log, |mut log| async move {
        let piece = log.next().await.transpose()?;
        Some((piece.map_err(io::Error::other), log))
    });
    Box::pin(output.fuse())
}

impl Log {
    async fn next(&mut self) -> Result<Option<(usize, Bytes)>> {
        while !self.is_over {
            let Some(events) = &mut self.events else {
                self.connect().await?;
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => {
                    if let Some(piece) = self.take(&event.data)? {
                        return Ok(Some(piece));
                    }
                }
                // The log of a process ends with an event.
                end => {
                    tracing::debug!(?end, "the log of a process is opened again");
                    self.events = None;
                }
            }
        }
        Ok(None)
    }

    async fn connect(&mut self) -> Result<()> {
        if self.attempts > 0 {
            sleep(MIN_PAUSE * 2_u32.pow(self.attempts - 1)).await;
        }
        self.attempts += 1;
        let api = self.programs.api("command")?;
        let opened = api.logs(self.programs.id(), &self.process, self.since.as_deref()).await;
        match opened {
            Ok(answer) if self.attempts <= MAX_ATTEMPTS => {
                self.events = Some(events(answer.into_bytes()));
                Ok(())
            }
            Ok(_) => Err(self.broken("the log of the command breaks again and again")),
            Err(error)
                if error.retry() != Retry::Never
                    && self.attempts < MAX_ATTEMPTS
                    && !self.programs.is_over() =>
            {
                Ok(())
            }
            Err(error) => {
                self.is_over = true;
                Err(error)
            }
        }
    }

    fn broken(&mut self, message: &str) -> Error {
        self.is_over = true;
        Error::new(ErrorKind::ConnectionLost, "command", message)
    }

    fn take(&mut self, data: &str) -> Result<Option<(usize, Bytes)>> {
        let event: LogEvent = serde_json::from_str(data).map_err(|error| {
            self.broken("an event of the bridge has another form").with_source(error)
        })?;
        self.attempts = 0;
        self.since = event.cursor.or_else(|| self.since.take());
        let piece = |stream| Ok(Some((stream, Bytes::from(decode(&event.data)?))));
        match event.kind.as_str() {
            "stdout" => piece(0),
            "stderr" => piece(1),
            "terminal" if event.state == "error" => {
                let why = event.error.unwrap_or_default().message;
                Err(self.broken(&format!("the bridge has lost the command: {why}")))
            }
            "terminal" => {
                self.is_over = true;
                Ok(None)
            }
            "truncated" => {
                Err(self.broken("the bridge has dropped output that was not read in time"))
            }
            _ => Ok(None),
        }
    }
}
