//! One connection with many streams on it: who may send how much, and who waits for what.
//!
//! Everything leaves in one queue, so a frame never overtakes an earlier one. The queue stays short because elements are
//! sent only as far as the other side has granted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};

use crate::frame::{Frame, Kind, MAX_PAYLOAD, OVERHEAD, Violation};
use crate::message::{MAX_MESSAGE, Message};
use crate::window::Window;

/// Bytes of elements that may be on their way, or wait to be read, in one direction of one stream.
pub(crate) const WINDOW: usize = 1 << 20;
/// Read bytes are granted anew in steps of that many.
const STEP: usize = WINDOW / 4;
/// Streams that the other side may have open.
const MAX_STREAMS: usize = 4096;
/// Bytes of messages that have arrived in part.
const MAX_PARTIAL: usize = 2 * MAX_MESSAGE;

/// The connection is gone, or nobody listens to the stream any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    out: mpsc::UnboundedSender<Frame>,
    streams: Mutex<Streams>,
    closed: watch::Sender<bool>,
    /// Whether the streams opened here have odd numbers: those of the client.
    odd: bool,
}

#[derive(Debug, Default)]
struct Streams {
    open: HashMap<u64, Entry>,
    /// Requests that have arrived in part.
    requests: HashMap<u64, BytesMut>,
    /// What is known of sandboxes, in part.
    states: HashMap<u64, BytesMut>,
    last: u64,
    closed: bool,
    /// How many of them the other side opened.
    theirs: usize,
    partial: usize,
}

#[derive(Debug)]
struct Entry {
    inbox: mpsc::UnboundedSender<Incoming>,
    window: Arc<Window>,
    partial: BytesMut,
    /// Bytes that came and were not granted anew.
    held: usize,
}

/// What arrives on a stream.
#[derive(Debug)]
pub(crate) enum Incoming {
    Reply(Message),
    /// An element, and what it took of the window.
    Item(Message, usize),
    End,
}

/// What a frame means beyond its stream.
#[derive(Debug)]
pub(crate) enum Taken {
    Request(Outlet, Inlet, Message),
    Cancel(u64),
    Release(u64),
    State(u64, Message),
}

/// Where one side of a stream sends.
#[derive(Clone, Debug)]
pub(crate) struct Outlet {
    link: Arc<Link>,
    id: u64,
    window: Arc<Window>,
}

/// Where one side of a stream hears.
#[derive(Debug)]
pub(crate) struct Inlet {
    link: Arc<Link>,
    id: u64,
    inbox: mpsc::UnboundedReceiver<Incoming>,
    /// Read, and not yet granted anew.
    read: usize,
    ended: bool,
    /// Whether this side asked. Giving up then cancels all of it; otherwise only the body is not read any more.
    asked: bool,
}

impl Link {
    /// A side of a connection, and the frames that it wants to send.
    pub(crate) fn new(odd: bool) -> (Arc<Self>, mpsc::UnboundedReceiver<Frame>) {
        let (out, frames) = mpsc::unbounded_channel();
        let streams = Mutex::new(Streams { last: u64::from(odd), ..Streams::default() });
        let closed = watch::Sender::new(false);
        (Arc::new(Self { out, streams, closed, odd }), frames)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame. When the connection is gone nobody is left to be told.
    pub(crate) fn send(&self, frame: Frame) {
        let _ = self.out.send(frame);
    }

    /// Sends a message in as many frames as it takes.
    fn send_message(&self, kind: Kind, stream: u64, message: &Message) {
        for (payload, more) in parts(message.encode()) {
            self.send(Frame { kind, more, stream, payload });
        }
    }

    /// Tells what is known of a sandbox.
    pub(crate) fn send_state(&self, stream: u64, message: &Message) {
        self.send_message(Kind::State, stream, message);
    }

    /// Opens a stream.
    pub(crate) fn open(self: &Arc<Self>) -> Result<(Outlet, Inlet), Closed> {
        let mut streams = self.streams();
        if streams.closed {
            return Err(Closed);
        }
        streams.last += 2;
        let id = streams.last;
        Ok(self.enter(&mut streams, id, true))
    }

    fn enter(self: &Arc<Self>, streams: &mut Streams, id: u64, asked: bool) -> (Outlet, Inlet) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let window = Arc::new(Window::new(WINDOW));
        let entry =
            Entry { inbox: sender, window: Arc::clone(&window), partial: BytesMut::new(), held: 0 };
        streams.open.insert(id, entry);
        let inlet = Inlet { link: Arc::clone(self), id, inbox, read: 0, ended: false, asked };
        (Outlet { link: Arc::clone(self), id, window }, inlet)
    }

    /// Forgets a stream: whoever still sends on it stops.
    pub(crate) fn forget(&self, id: u64) {
        let mut streams = self.streams();
        let Some(entry) = streams.open.remove(&id) else { return };
        streams.partial -= entry.partial.len();
        streams.theirs -= usize::from(self.is_theirs(id));
        entry.window.close();
    }

    fn is_theirs(&self, id: u64) -> bool {
        (id % 2 == 1) != self.odd
    }

    /// Ends every stream. Nothing can be opened any more.
    pub(crate) fn close(&self) {
        let open = {
            let mut streams = self.streams();
            streams.closed = true;
            streams.theirs = 0;
            streams.partial = 0;
            std::mem::take(&mut streams.open)
        };
        for entry in open.into_values() {
            entry.window.close();
        }
        self.closed.send_replace(true);
    }

    /// Whether the connection is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.streams().closed
    }

    /// Hears of the end of the connection.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Takes a frame that arrived.
    pub(crate) fn take(self: &Arc<Self>, frame: Frame) -> Result<Option<Taken>, Violation> {
        match frame.kind {
            Kind::Request => self.take_request(frame),
            Kind::Reply | Kind::Item => self.take_message(frame).map(|()| None),
            Kind::End => {
                if let Some(entry) = self.streams().open.get(&frame.stream) {
                    let _ = entry.inbox.send(Incoming::End);
                }
                Ok(None)
            }
            Kind::Credit => {
                let bytes = frame.credited()? as usize;
                if let Some(entry) = self.streams().open.get(&frame.stream)
                    && !entry.window.give(bytes)
                {
                    return Err(Violation("more was granted than the window has"));
                }
                Ok(None)
            }
            Kind::Stop => {
                if let Some(entry) = self.streams().open.get(&frame.stream) {
                    entry.window.close();
                }
                Ok(None)
            }
            Kind::Cancel => Ok(Some(Taken::Cancel(frame.stream))),
            Kind::Release => Ok(Some(Taken::Release(frame.stream))),
            Kind::State => self.take_state(frame),
        }
    }

    fn take_request(self: &Arc<Self>, frame: Frame) -> Result<Option<Taken>, Violation> {
        let id = frame.stream;
        if !self.is_theirs(id) {
            return Err(Violation("a request on a stream of ours"));
        }
        let mut streams = self.streams();
        if streams.closed {
            return Ok(None);
        }
        if streams.open.contains_key(&id) {
            return Err(Violation("a second request on one stream"));
        }
        if streams.theirs + streams.requests.len() >= MAX_STREAMS {
            return Err(Violation("too many requests at one time"));
        }
        let Streams { requests, partial, .. } = &mut *streams;
        let Some(bytes) = collect(requests.entry(id).or_default(), partial, frame)? else {
            return Ok(None);
        };
        streams.requests.remove(&id);
        let message = Message::decode(bytes)?;
        streams.theirs += 1;
        let (outlet, inlet) = self.enter(&mut streams, id, false);
        Ok(Some(Taken::Request(outlet, inlet, message)))
    }

    fn take_state(&self, frame: Frame) -> Result<Option<Taken>, Violation> {
        let mut streams = self.streams();
        let id = frame.stream;
        if streams.states.len() >= MAX_STREAMS {
            return Err(Violation("too many messages have arrived in part"));
        }
        let Streams { states, partial, .. } = &mut *streams;
        let Some(bytes) = collect(states.entry(id).or_default(), partial, frame)? else {
            return Ok(None);
        };
        streams.states.remove(&id);
        Ok(Some(Taken::State(id, Message::decode(bytes)?)))
    }

    fn take_message(&self, frame: Frame) -> Result<(), Violation> {
        let mut streams = self.streams();
        let id = frame.stream;
        let Some(entry) = streams.open.get_mut(&id) else { return Ok(()) };
        let mut cost = 0;
        if frame.kind == Kind::Item {
            cost = frame.cost();
            entry.held += cost;
            if entry.held > WINDOW {
                return Err(Violation("more was sent than was granted"));
            }
            if frame.more {
                // Nobody can read a part, so it must not hold up the rest.
                entry.held -= cost;
                self.send(Frame::credit(id, cost as u32));
            }
        }
        let kind = frame.kind;
        let Streams { open, partial, .. } = &mut *streams;
        let Some(entry) = open.get_mut(&id) else { return Ok(()) };
        let Some(bytes) = collect(&mut entry.partial, partial, frame)? else { return Ok(()) };
        let message = Message::decode(bytes)?;
        if let Some(entry) = streams.open.get(&id) {
            let _ = entry.inbox.send(match kind {
                Kind::Reply => Incoming::Reply(message),
                _ => Incoming::Item(message, cost),
            });
        }
        Ok(())
    }

    fn grant(&self, id: u64, bytes: usize) {
        let mut streams = self.streams();
        let Some(entry) = streams.open.get_mut(&id) else { return };
        entry.held -= bytes;
        drop(streams);
        self.send(Frame::credit(id, bytes as u32));
    }
}

/// Adds a part to a message; the whole of it with the last one. `partial` counts what has arrived in part.
fn collect(
    message: &mut BytesMut,
    partial: &mut usize,
    frame: Frame,
) -> Result<Option<Bytes>, Violation> {
    if message.is_empty() && !frame.more {
        return Ok(Some(frame.payload));
    }
    if message.len() + frame.payload.len() > MAX_MESSAGE {
        return Err(Violation("a message is too long"));
    }
    if !frame.more {
        *partial -= message.len();
        message.extend_from_slice(&frame.payload);
        return Ok(Some(std::mem::take(message).freeze()));
    }
    message.extend_from_slice(&frame.payload);
    *partial += frame.payload.len();
    if *partial > MAX_PARTIAL {
        return Err(Violation("too many messages have arrived in part"));
    }
    Ok(None)
}

/// The frames of a message, and whether another one follows.
fn parts(mut bytes: Bytes) -> impl Iterator<Item = (Bytes, bool)> {
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let part = bytes.split_to(bytes.len().min(MAX_PAYLOAD));
        ended = bytes.is_empty();
        Some((part, !ended))
    })
}

impl Outlet {
    /// The number of the stream.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The connection it is on.
    pub(crate) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// Asks.
    pub(crate) fn request(&self, message: &Message) {
        self.link.send_message(Kind::Request, self.id, message);
    }

    /// Answers.
    pub(crate) fn reply(&self, message: &Message) {
        self.link.send_message(Kind::Reply, self.id, message);
    }

    /// Sends an element, as soon as there is room for it.
    pub(crate) async fn item(&self, message: &Message) -> Result<(), Closed> {
        for (payload, more) in parts(message.encode()) {
            let frame = Frame { kind: Kind::Item, more, stream: self.id, payload };
            self.window.take(frame.cost()).await?;
            self.link.send(frame);
        }
        Ok(())
    }

    /// Waits until there is room for an element, so that none is asked for too early.
    pub(crate) async fn ready(&self) -> Result<(), Closed> {
        self.window.ready().await
    }

    /// Sends no element until the other side [begins](Inlet::begin) to read.
    pub(crate) fn hold(&self) {
        self.window.hold();
    }

    /// Says that no more elements come.
    pub(crate) fn end(&self) {
        self.link.send(Frame::bare(Kind::End, self.id));
    }

    /// Waits until nobody listens any more.
    pub(crate) async fn unheard(&self) {
        self.window.closed().await;
    }
}

impl Inlet {
    /// What comes next; `None` when the connection broke or everything has come.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The same for those who implement a stream.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let incoming = std::task::ready!(self.inbox.poll_recv(cx));
        match &incoming {
            Some(Incoming::Item(_, cost)) => {
                self.read += cost;
                if self.read >= STEP {
                    self.link.grant(self.id, std::mem::take(&mut self.read));
                }
            }
            Some(Incoming::End) => self.ended = true,
            Some(Incoming::Reply(_)) | None => {}
        }
        Poll::Ready(incoming)
    }

    /// Begins to read a stream whose other side waits for that.
    pub(crate) fn begin(&self) {
        self.link.send(Frame::credit(self.id, WINDOW as u32));
    }

    /// Everything has been said that was to be said.
    pub(crate) fn finish(&mut self) {
        self.ended = true;
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        if self.asked {
            self.link.forget(self.id);
        }
        if !self.ended && !self.link.is_closed() {
            let kind = if self.asked { Kind::Cancel } else { Kind::Stop };
            self.link.send(Frame::bare(kind, self.id));
        }
    }
}

const _: () = assert!(MAX_PAYLOAD + OVERHEAD <= WINDOW);
