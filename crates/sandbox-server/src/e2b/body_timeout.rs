//! Bodies of requests that do not come in time, or that nothing reads.

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::app::App;

/// The path of calls whose messages come one after the other, for as long as the client likes.
const STREAMED_INPUT: &str = "/process.Process/StreamInput";

/// The path of files, whose bodies may take long as long as something comes.
const FILES: &str = "/files";

/// Bytes of a refused body that are still read, and the time for them.
const MAX_DRAINED: usize = 1 << 20;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits the time in which the body of a request has to come: as a whole, or each piece of a file.
pub(super) async fn limit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    if path == STREAMED_INPUT || request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (limit, is_of_piece) = (app.client_timeout, path == FILES);
    let (unread, mut given_back) = oneshot::channel();
    let timed = |body| Body::new(TimedBody::new(body, limit, is_of_piece, unread));
    let response = next.run(request.map(timed)).await;
    // A client that is still sending may not see an answer behind which its connection is closed.
    if response.status().is_client_error()
        && let Ok(body) = given_back.try_recv()
        && body.size_hint().lower() <= MAX_DRAINED as u64
    {
        let read = Limited::new(body, MAX_DRAINED).collect();
        let _ = timeout(DRAIN_TIMEOUT, read).await;
    }
    response
}

/// The error of a body that has not come in time.
#[derive(Debug, thiserror::Error)]
#[error("the body has not come within {} seconds", .0.as_secs_f64())]
pub(super) struct BodyTimeout(Duration);

/// Returns true for the error of a body that is longer than its limit.
pub(super) fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| error.is::<LengthLimitError>())
}

/// Returns true for the error of a body that has not come in time.
pub(super) fn is_too_late(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|error| error.is::<BodyTimeout>())
}

/// A body that fails when it takes too long.
#[derive(Debug)]
struct TimedBody {
    body: Body,
    limit: Duration,
    /// Each piece has that time, and not the whole.
    is_of_piece: bool,
    end: Pin<Box<Sleep>>,
    /// Takes the body when it was not read to its end.
    unread: Option<oneshot::Sender<Body>>,
}

impl TimedBody {
    fn new(body: Body, limit: Duration, is_of_piece: bool, unread: oneshot::Sender<Body>) -> Self {
        Self { body, limit, is_of_piece, end: Box::pin(sleep(limit)), unread: Some(unread) }
    }
}

impl Drop for TimedBody {
    fn drop(&mut self) {
        if let Some(unread) = self.unread.take()
            && !self.body.is_end_stream()
        {
            // Without a receiver the answer has been given.
            let _ = unread.send(std::mem::take(&mut self.body));
        }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            if self.is_of_piece {
                let end = Instant::now() + self.limit;
                self.end.as_mut().reset(end);
            }
            return Poll::Ready(frame);
        }
        ready!(self.end.as_mut().poll(cx));
        Poll::Ready(Some(Err(axum::Error::new(BodyTimeout(self.limit)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::stream;

    use super::*;

    /// A body of that many pieces, one in each second.
    fn slow(pieces: u32) -> Body {
        Body::from_stream(stream::unfold(pieces, |left| async move {
            sleep(Duration::from_secs(1)).await;
            let left = left.checked_sub(1)?;
            Some((Ok::<_, Infallible>("x"), left))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn a_whole_or_each_piece_has_its_time() {
        let limit = Duration::from_secs(5);
        let read = async |pieces, limit, is_of_piece| {
            TimedBody::new(slow(pieces), limit, is_of_piece, oneshot::channel().0).collect().await
        };
        assert_eq!(read(3, limit, false).await.unwrap().to_bytes(), "xxx");
        let late = read(9, limit, false).await.unwrap_err();
        assert!(is_too_late(&late) && !is_too_long(&late), "{late}");
        assert_eq!(read(9, limit, true).await.unwrap().to_bytes().len(), 9);
        let late = read(9, Duration::from_millis(500), true).await.unwrap_err();
        assert!(is_too_late(&late), "{late}");
    }
}
