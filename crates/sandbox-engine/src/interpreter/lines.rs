//! Joins pieces of a line that were written right after each other to one event.
//!
//! An interpreter writes each piece at once, and `print("a", "b")` has four of them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::BytesMut;
use sandbox_core::OutputStream;
use tokio::time::{Sleep, sleep};

use super::worker::WorkerEvent;

/// How long the rest of a line may take to arrive.
const REST_TIMEOUT: Duration = Duration::from_millis(2);

/// Minimum size of a piece that is not joined.
const MAX_PART: usize = 1024;

/// A line whose end has not come yet.
#[derive(Debug)]
struct Part {
    stream: OutputStream,
    text: BytesMut,
    late: Pin<Box<Sleep>>,
}

/// Joins pieces of lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    part: Option<Part>,
    /// The event after the part.
    next: Option<WorkerEvent>,
}

impl Lines {
    /// Returns true when nothing is left to report.
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_none() && self.next.is_none()
    }

    /// Polls `hear`, and joins the pieces of one line. The order is kept.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        mut hear: impl FnMut(&mut Context<'_>) -> Poll<WorkerEvent>,
    ) -> Poll<WorkerEvent> {
        loop {
            let heard = self.next.take().map_or_else(|| hear(cx), Poll::Ready);
            let Some(part) = &mut self.part else {
                match ready!(heard) {
                    WorkerEvent::Output(stream, text) if is_part(&text) => {
                        let late = Box::pin(sleep(REST_TIMEOUT));
                        self.part = Some(Part { stream, text: BytesMut::from(text), late });
                        continue;
                    }
                    other => return Poll::Ready(other),
                }
            };
            match heard {
                Poll::Ready(WorkerEvent::Output(stream, text)) if stream == part.stream => {
                    part.text.extend_from_slice(&text);
                    if is_part(&part.text) {
                        continue;
                    }
                }
                Poll::Ready(other) => self.next = Some(other),
                Poll::Pending => ready!(part.late.as_mut().poll(cx)),
            }
            if let Some(part) = self.part.take() {
                return Poll::Ready(WorkerEvent::Output(part.stream, part.text.freeze()));
            }
        }
    }
}

fn is_part(text: &[u8]) -> bool {
    text.len() < MAX_PART && !text.ends_with(b"\n")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::poll_fn;

    use bytes::Bytes;

    use super::*;

    /// Collects all events; `None` stands for a moment without an event.
    async fn reported(
        pieces: &[Option<(OutputStream, &'static str)>],
    ) -> Vec<(OutputStream, String)> {
        let mut pieces: VecDeque<_> = pieces.iter().copied().collect();
        let (mut lines, mut all) = (Lines::default(), Vec::new());
        loop {
            let next = poll_fn(|cx| {
                lines.poll(cx, |_| match pieces.pop_front() {
                    Some(Some((stream, text))) => Poll::Ready(WorkerEvent::Output(
                        stream,
                        Bytes::from_static(text.as_bytes()),
                    )),
                    Some(None) => Poll::Pending,
                    None => Poll::Ready(WorkerEvent::Dead),
                })
            });
            match next.await {
                WorkerEvent::Output(stream, text) => {
                    all.push((stream, String::from_utf8(text.to_vec()).unwrap()));
                }
                _ => {
                    assert!(lines.is_empty());
                    return all;
                }
            }
        }
    }

    #[tokio::test]
    async fn pieces_of_a_line_come_together_and_wait_for_no_more() {
        use OutputStream::{Stderr, Stdout};
        let out = |text| Some((Stdout, text));
        let told = |all: &[(OutputStream, &str)]| {
            all.iter().map(|(stream, text)| (*stream, (*text).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(
            reported(&[out("a"), out(" "), out("b\n"), out("c\n")]).await,
            told(&[(Stdout, "a b\n"), (Stdout, "c\n")])
        );
        assert_eq!(
            reported(&[out("a"), Some((Stderr, "e")), out("b\n"), out("c")]).await,
            told(&[(Stdout, "a"), (Stderr, "e"), (Stdout, "b\n"), (Stdout, "c")])
        );
        // Once the time has passed, the incomplete line is reported.
        assert_eq!(reported(&[out("a"), None, None]).await, told(&[(Stdout, "a")]));
    }
}
