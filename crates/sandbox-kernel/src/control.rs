//! The control stream of a kernel: requests of a worker on one side, replies on the other.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use sandbox_engine::host::{Control, Readable, Writable};
use sandbox_engine::{FrameReader, Reply, Request};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::buffer::{Buffer, InputWriter};

/// Maximum size of the requests that wait for the kernel before their writer does, in bytes.
const MAX_WAITING_BYTES: usize = 32 << 20;

/// A request, and the standard input of its run.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) request: Request,
    pub(crate) stdin: Option<Arc<Buffer>>,
    cost: usize,
}

/// The side of the interpreter.
#[derive(Debug)]
pub(crate) struct KernelControl {
    shared: Arc<Shared>,
    incoming: Mutex<Incoming>,
    /// The task that serves the kernel. It ends with the last handle.
    serving: AbortHandle,
}

#[derive(Debug)]
struct Incoming {
    frames: FrameReader,
    stdin: Option<Arc<Buffer>>,
    requests: mpsc::UnboundedSender<PendingRequest>,
}

#[derive(Debug, Default)]
struct Shared {
    replies: Buffer,
    waiting: AtomicUsize,
    writer: Mutex<Option<Waker>>,
}

/// The side of the kernel.
#[derive(Debug)]
pub(crate) struct KernelSide {
    shared: Arc<Shared>,
    requests: mpsc::UnboundedReceiver<PendingRequest>,
}

/// Creates both sides. The task of `serve` is aborted when the returned side is dropped.
pub(crate) fn control(serve: impl FnOnce(KernelSide) -> AbortHandle) -> KernelControl {
    let (sender, requests) = mpsc::unbounded_channel();
    let shared = Arc::new(Shared::default());
    let serving = serve(KernelSide { shared: Arc::clone(&shared), requests });
    let incoming = Incoming { frames: FrameReader::new(), stdin: None, requests: sender };
    KernelControl { shared, incoming: Mutex::new(incoming), serving }
}

impl Drop for KernelControl {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl KernelSide {
    /// Waits for the next request. Returns `None` when the control stream is closed.
    pub(crate) async fn next(&mut self) -> Option<PendingRequest> {
        let pending = self.requests.recv().await?;
        self.shared.waiting.fetch_sub(pending.cost, Ordering::AcqRel);
        let writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            writer.wake();
        }
        Some(pending)
    }

    /// Creates a barrier for the replies from now on. Earlier replies have been read, because a new request has
    /// arrived.
    pub(crate) fn reply_barrier(&self) -> ReplyBarrier {
        ReplyBarrier { before: self.shared.replies.added(), shared: Arc::clone(&self.shared) }
    }

    /// Sends a reply. Returns false, without sending, if it does not fit in a frame.
    pub(crate) fn reply(&self, reply: &Reply) -> bool {
        let mut frame = Vec::new();
        let fits = reply.encode(&mut frame).is_ok();
        if fits {
            self.shared.replies.push(&frame);
        }
        fits
    }
}

/// A barrier for the replies to one request.
#[derive(Debug)]
pub(crate) struct ReplyBarrier {
    shared: Arc<Shared>,
    /// The number of replies before the request.
    before: u64,
}

impl ReplyBarrier {
    /// Waits until the replies have been read. Text that is written to a stream earlier may be reported before them.
    pub(crate) async fn wait(&self) {
        self.shared.replies.settled(self.before).await;
    }
}

impl Drop for KernelSide {
    fn drop(&mut self) {
        self.shared.replies.close();
    }
}

impl Readable for KernelControl {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.replies.poll_readable(cx)
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.shared.replies.try_read(buffer)
    }
}

impl KernelControl {
    fn write(&self, data: &[u8], stdin: Option<Arc<Buffer>>) -> io::Result<usize> {
        if self.shared.waiting.load(Ordering::Acquire) > MAX_WAITING_BYTES {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
        if stdin.is_some() {
            incoming.stdin = stdin;
        }
        incoming.frames.push(data);
        loop {
            let malformed = |error| io::Error::new(io::ErrorKind::InvalidData, error);
            let (request, cost) = match incoming.frames.next_frame().map_err(malformed)? {
                None => return Ok(data.len()),
                Some(frame) => (Request::decode(frame).map_err(malformed)?, frame.body.len()),
            };
            let stdin = match &request {
                Request::Run(run) if run.has_stdin => incoming.stdin.take(),
                _ => None,
            };
            self.shared.waiting.fetch_add(cost, Ordering::AcqRel);
            if incoming.requests.send(PendingRequest { request, stdin, cost }).is_err() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
    }
}

impl Writable for KernelControl {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shared.waiting.load(Ordering::Acquire) <= MAX_WAITING_BYTES
            || self.shared.replies.is_closed()
        {
            return Poll::Ready(Ok(()));
        }
        *writer = Some(cx.waker().clone());
        Poll::Pending
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.write(data, None)
    }
}

impl Control for KernelControl {
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)> {
        let buffer = Arc::new(Buffer::default());
        let written = self.write(data, Some(Arc::clone(&buffer)))?;
        Ok((written, Box::new(InputWriter(buffer))))
    }
}
