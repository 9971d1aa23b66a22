//! One output stream of a program, kept for a reader that may come again at an earlier place.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::Notify;
use tonic::Status;

use super::router_wire::TaskExecStdioReadResponse;

/// Bytes that a program may be ahead of its reader.
const AHEAD: u64 = 8 << 20;
/// Bytes that are kept behind the reader.
const KEPT: u64 = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Output {
    state: Mutex<Kept>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Kept {
    chunks: VecDeque<(u64, Bytes)>,
    end: u64,
    read: u64,
    is_closed: bool,
}

impl Output {
    /// Adds bytes, and waits while the reader is too far behind.
    pub(super) async fn push(&self, data: Bytes) {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock().unwrap();
                if state.end - state.read < AHEAD {
                    let at = state.end;
                    state.end += data.len() as u64;
                    state.chunks.push_back((at, data));
                    break;
                }
            }
            changed.await;
        }
        self.changed.notify_waiters();
    }

    /// Marks the end of the stream.
    pub(super) fn close(&self) {
        self.state.lock().unwrap().is_closed = true;
        self.changed.notify_waiters();
    }

    /// Reads from a place on. With `cut`, the stream breaks after that many bytes.
    pub(super) fn read(
        self: Arc<Self>,
        offset: u64,
        cut: Option<usize>,
    ) -> impl Stream<Item = Result<TaskExecStdioReadResponse, Status>> + Send {
        stream::unfold(Some((self, offset, cut)), |reading| async move {
            let (output, offset, cut) = reading?;
            let mut data = output.next(offset).await?;
            let mut left = cut;
            if let Some(most) = cut {
                if most == 0 {
                    return Some((Err(Status::unavailable("the stream is cut")), None));
                }
                data.truncate(most);
                left = Some(most - data.len());
            }
            let next = offset + data.len() as u64;
            Some((Ok(TaskExecStdioReadResponse { data }), Some((output, next, left))))
        })
    }

    async fn next(&self, offset: u64) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock().unwrap();
                let has_advanced = offset > state.read;
                state.read = state.read.max(offset);
                let floor = state.read.saturating_sub(KEPT);
                while state.chunks.front().is_some_and(|(at, data)| at + data.len() as u64 <= floor)
                {
                    state.chunks.pop_front();
                }
                let found = state.chunks.iter().find(|(at, data)| at + data.len() as u64 > offset);
                if let Some((at, data)) = found {
                    let found = data.slice(usize::try_from(offset - at).unwrap()..);
                    drop(state);
                    self.changed.notify_waiters();
                    return Some(found);
                }
                if state.is_closed {
                    return None;
                }
                if has_advanced {
                    drop(state);
                    self.changed.notify_waiters();
                    continue;
                }
            }
            changed.await;
        }
    }
}
