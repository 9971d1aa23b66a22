//! Answers of many messages: lines of JSON, and server-sent events.

use std::collections::VecDeque;
use std::future::ready;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result};

/// One server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerEvent {
    /// The type, which is empty where the service names none.
    pub event: String,
    /// The lines of data, joined by line feeds.
    pub data: String,
    /// The id, for reading on after this event.
    pub id: Option<String>,
}

/// Splits a body into lines, without their ends and without empty ones. The last line need not have an end.
///
/// # Errors
/// Items are errors of the body, and `Protocol` for a line of more than `max` bytes; nothing follows an error.
pub fn lines(
    operation: &'static str,
    body: ByteStream,
    max: usize,
) -> impl Stream<Item = Result<Bytes>> + Send {
    all_lines(operation, body, max)
        .filter(|line| ready(!line.as_ref().is_ok_and(|line| line.is_empty())))
}

/// Reads the events of a `text/event-stream`. Comments, which keep a connection alive, are left out.
///
/// # Errors
/// Items are errors of the body, and `Protocol` for an event of more than `max` bytes; nothing follows an error.
pub fn server_events(
    operation: &'static str,
    body: ByteStream,
    max: usize,
) -> impl Stream<Item = Result<ServerEvent>> + Send {
    let events = all_lines(operation, body, max).scan(
        (PendingEvent::default(), false),
        move |(pending, is_over), line| {
            let event = match line {
                _ if *is_over => return ready(None),
                Ok(line) => pending.push(&line),
                Err(error) => Err(error),
            };
            let event = event.and_then(|event| match pending.size > max {
                true => Err(too_long(operation, max)),
                false => Ok(event),
            });
            *is_over = event.is_err();
            ready(Some(event.transpose()))
        },
    );
    events.filter_map(ready)
}

/// An event that is not complete.
#[derive(Debug, Default)]
struct PendingEvent {
    event: ServerEvent,
    has_data: bool,
    size: usize,
}

impl PendingEvent {
    /// Takes a line in, and gives the event that it completes.
    fn push(&mut self, line: &[u8]) -> Result<Option<ServerEvent>> {
        if line.is_empty() {
            // The id counts for all that follow; the rest is of one event alone.
            let next = ServerEvent { id: self.event.id.clone(), ..ServerEvent::default() };
            let complete = std::mem::replace(&mut self.event, next);
            let has_data = std::mem::take(&mut self.has_data);
            self.size = 0;
            return Ok(has_data.then_some(complete));
        }
        self.size += line.len();
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.event),
            "id" if !value.contains('\0') => self.event.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.has_data = true;
                self.event.data.push_str(value);
            }
            // Comments, and fields of later versions.
            _ => {}
        }
        Ok(None)
    }
}

struct Lines {
    body: Option<ByteStream>,
    rest: BytesMut,
    /// Bytes of the rest that have no line end.
    searched: usize,
    ready: VecDeque<Result<Bytes>>,
}

fn all_lines(
    operation: &'static str,
    body: ByteStream,
    max: usize,
) -> impl Stream<Item = Result<Bytes>> + Send {
    let (rest, ready) = (BytesMut::new(), VecDeque::new());
    let state = Lines { body: Some(body), rest, searched: 0, ready };
    stream::unfold(state, move |mut state| async move {
        loop {
            if let Some(line) = state.ready.pop_front() {
                return Some((line, state));
            }
            let body = state.body.as_mut()?;
            match body.next().await {
                Some(Ok(chunk)) => {
                    state.rest.extend_from_slice(&chunk);
                    state.split();
                    if state.rest.len() > max {
                        state.fail(too_long(operation, max));
                    }
                }
                Some(Err(error)) => state.fail(error),
                None => {
                    state.body = None;
                    let last = state.rest.split().freeze();
                    if !last.is_empty() {
                        state.ready.push_back(Ok(without_end(last)));
                    }
                }
            }
            let is_long = |line: &Result<Bytes>| line.as_ref().is_ok_and(|line| line.len() > max);
            if let Some(long) = state.ready.iter().position(is_long) {
                state.ready.truncate(long);
                state.fail(too_long(operation, max));
            }
        }
    })
}

impl Lines {
    fn split(&mut self) {
        while let Some(end) = memchr::memchr(b'\n', &self.rest[self.searched..]) {
            let mut line = self.rest.split_to(self.searched + end + 1);
            line.truncate(line.len() - 1);
            self.ready.push_back(Ok(without_end(line.freeze())));
            self.searched = 0;
        }
        self.searched = self.rest.len();
    }

    fn fail(&mut self, error: Error) {
        self.body = None;
        self.ready.push_back(Err(error));
    }
}

fn without_end(line: Bytes) -> Bytes {
    match line.last() {
        Some(b'\r') => line.slice(..line.len() - 1),
        _ => line,
    }
}

fn too_long(operation: &'static str, max: usize) -> Error {
    let message = format!("the service sent a message of more than {max} bytes");
    Error::new(ErrorKind::Protocol, operation, message).with_effect(Effect::Unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(chunks: &[&'static str]) -> ByteStream {
        let chunks: Vec<_> =
            chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        Box::pin(stream::iter(chunks))
    }

    #[tokio::test]
    async fn lines_are_whole_however_they_arrive() {
        let chunks = ["{\"a\":", "1}\n{\"b\":2}\r\n\n", "\r\n{\"c\"", ":3}"];
        let all: Vec<_> = lines("run", body(&chunks), 9).map(Result::unwrap).collect().await;
        assert_eq!(all, ["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_ends_the_stream() {
        for chunks in [&["ab\n", "abcdef\nab\n"][..], &["ab\nabc", "def"], &["ab\nabcdef"]] {
            let all: Vec<_> = lines("run", body(chunks), 5).collect().await;
            assert_eq!(all.len(), 2, "{all:?}");
            assert_eq!(all[0].as_ref().unwrap(), "ab");
            assert_eq!(all[1].as_ref().unwrap_err().kind(), ErrorKind::Protocol);
        }
    }

    #[tokio::test]
    async fn events_have_types_and_lines_of_data() {
        let chunks = [
            ": hello\n\nevent: stdout\ndata: aGk=\n\n",
            "id: 7\ndata: one\ndata:two\nda",
            "ta\n\nevent: nothing\n\ndata: last\nretry: 3\n\ndata: never",
        ];
        let all: Vec<_> =
            server_events("run", body(&chunks), 99).map(Result::unwrap).collect().await;
        let event = |event: &str, data: &str, id: Option<&str>| ServerEvent {
            event: event.into(),
            data: data.into(),
            id: id.map(Into::into),
        };
        assert_eq!(
            all,
            [
                event("stdout", "aGk=", None),
                event("", "one\ntwo\n", Some("7")),
                event("", "last", Some("7")),
            ]
        );
    }

    #[tokio::test]
    async fn an_event_is_bounded_too() {
        let chunks = ["data: ab\n\n", "data: abcd\n", "data: abcd\n\ndata: x\n\n"];
        let all: Vec<_> = server_events("run", body(&chunks), 15).collect().await;
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(all[1].as_ref().unwrap_err().kind(), ErrorKind::Protocol);
    }
}
