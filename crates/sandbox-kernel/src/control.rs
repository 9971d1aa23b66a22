//! The control stream of a kernel: requests of a worker on one side, answers on the other.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use sandbox_engine::host::{Control, Readable, Writable};
use sandbox_engine::{FrameReader, Reply, Request};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use crate::buffer::{Buffer, InputWriter};

/// Bytes of requests that wait for the kernel before whoever writes them does.
const MAX_WAITING_BYTES: usize = 32 << 20;

/// A request, and what the run that it asks for reads.
#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) request: Request,
    pub(crate) stdin: Option<Arc<Buffer>>,
    cost: usize,
}

/// The near side.
#[derive(Debug)]
pub(crate) struct KernelControl {
    shared: Arc<Shared>,
    incoming: Mutex<Incoming>,
    /// What serves the kernel ends with the last handle.
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

/// The far side, which serves the kernel.
#[derive(Debug)]
pub(crate) struct KernelSide {
    shared: Arc<Shared>,
    requests: mpsc::UnboundedReceiver<PendingRequest>,
}

/// Both sides. What `serve` makes of the far one is aborted with the near one.
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
    /// The next request. `None` when nobody asks any more.
    pub(crate) async fn next(&mut self) -> Option<PendingRequest> {
        let pending = self.requests.recv().await?;
        self.shared.waiting.fetch_sub(pending.cost, Ordering::AcqRel);
        let writer = self.shared.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            writer.wake();
        }
        Some(pending)
    }

    /// What waits until whoever reads the answers has told all of them, from now on: those of before are told, or nobody
    /// would have pending for more.
    pub(crate) fn reply_barrier(&self) -> ReplyBarrier {
        ReplyBarrier { before: self.shared.replies.added(), shared: Arc::clone(&self.shared) }
    }

    /// ReplyBarrier. What does not fit a frame is not told.
    pub(crate) fn reply(&self, reply: &Reply) -> bool {
        let mut frame = Vec::new();
        let fits = reply.encode(&mut frame).is_ok();
        if fits {
            self.shared.replies.push(&frame);
        }
        fits
    }
}

/// The answers to a request.
#[derive(Debug)]
pub(crate) struct ReplyBarrier {
    shared: Arc<Shared>,
    /// How many there had been before it.
    before: u64,
}

impl ReplyBarrier {
    /// Waits until each is told. What is written to a stream of the kernel before that may be told before them.
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
