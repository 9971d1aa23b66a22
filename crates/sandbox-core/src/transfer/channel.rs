//! Between a thread that may block and a task that may not.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use futures_channel::{mpsc, oneshot};
use futures_util::StreamExt as _;
use futures_util::future::poll_fn;

use crate::error::{Error, ErrorKind, Result};

/// Pieces that lie between the two sides.
const WAITING: usize = 4;

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on a thread that has nothing else to do.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// The sending end, in the task.
pub(super) struct ChunkSender(mpsc::Sender<Result<Bytes>>);

/// The receiving end.
pub(super) type ChunkReceiver = mpsc::Receiver<Result<Bytes>>;

pub(super) fn bridge() -> (ChunkSender, ChunkReceiver) {
    // The sender has one place of its own beside these.
    let (sender, receiver) = mpsc::channel(WAITING - 1);
    (ChunkSender(sender), receiver)
}

impl ChunkSender {
    /// Sends a chunk; waits while the channel is full. Returns false when the receiver is gone.
    pub(super) async fn give(&mut self, piece: Result<Bytes>) -> bool {
        let room = poll_fn(|cx| self.0.poll_ready(cx)).await;
        room.is_ok() && self.0.start_send(piece).is_ok()
    }

    /// Tells that this was all, with a piece that is empty. Being dropped tells nothing.
    pub(super) async fn complete(mut self) {
        self.give(Ok(Bytes::new())).await;
    }

    /// The same as [`ChunkSender::give`], on a thread.
    pub(super) fn give_blocking(&mut self, piece: Result<Bytes>) -> bool {
        block_on(self.give(piece))
    }
}

/// Takes the next piece on a thread. `None`: there are no more.
pub(super) fn take_blocking(taker: &mut ChunkReceiver) -> Option<Result<Bytes>> {
    block_on(taker.next())
}

/// Number of transfer threads.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();

/// Counts a thread for as long as it works.
struct Working;

impl Working {
    fn begin() -> Self {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_all();
    }
}

/// Waits until no transfer of this process has work left on this computer, and for that long at most; says whether that
/// is so. A transfer that was dropped removes what it had written, on a thread that ends with the process: call this
/// before the process ends. Blocks, and costs nothing when there is none.
pub fn wait_for_transfers(limit: Duration) -> bool {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = ENDED.wait_timeout_while(running, limit, |running| *running > 0);
    let (running, _) = waited.unwrap_or_else(PoisonError::into_inner);
    *running == 0
}

/// The state of a thread.
pub(super) struct Outcome<T>(oneshot::Receiver<Result<T>>);

/// Does work on a thread of its own.
pub(super) fn start<T: Send + 'static>(
    operation: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<Outcome<T>> {
    let (done, outcome) = oneshot::channel();
    let working = Working::begin();
    thread::Builder::new()
        .name("sandbox-transfer".to_owned())
        .spawn(move || {
            let ended = work();
            drop(working);
            let _ = done.send(ended);
        })
        .map_err(|error| {
            Error::new(ErrorKind::ResourceExhausted, operation, "no thread for the local side")
                .with_source(error)
        })?;
    Ok(Outcome(outcome))
}

impl<T> Outcome<T> {
    pub(super) async fn get(self, operation: &'static str) -> Result<T> {
        self.0.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unexpected, operation, "the thread of the transfer died"))
        })
    }
}
