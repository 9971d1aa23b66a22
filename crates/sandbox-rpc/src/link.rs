//! One connection with many streams: multiplexing and flow control.
//!
//! All frames leave in one queue, so a frame never overtakes an earlier one. The queue stays short because elements are sent
//! only within the window that the other side has granted.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};

use crate::frame::{Frame, Kind, MAX_PAYLOAD, OVERHEAD, Violation};
use crate::message::{MAX_MESSAGE, Message};
use crate::window::Window;

/// Maximum size of unread elements in one direction of one stream, in bytes.
pub(crate) const WINDOW: usize = 1 << 20;
/// Number of read bytes after which the reader replenishes the window.
const GRANT_SIZE: usize = WINDOW / 4;
/// Maximum number of streams that the other side may have open.
const MAX_STREAMS: usize = 4096;
/// Maximum size of messages that have arrived in part, in bytes.
const MAX_PARTIAL: usize = 2 * MAX_MESSAGE;

/// The connection is closed, or the other side no longer reads the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// One side of a connection.
#[derive(Debug)]
pub(crate) struct Link {
    out: mpsc::UnboundedSender<Frame>,
    streams: Mutex<Streams>,
    closed: watch::Sender<bool>,
    /// True when this side opens streams with odd numbers, as clients do.
    odd: bool,
}

#[derive(Debug, Default)]
struct Streams {
    open: HashMap<u64, Entry>,
    /// Requests that have arrived in part.
    requests: HashMap<u64, BytesMut>,
    /// States of sandboxes that have arrived in part.
    states: HashMap<u64, BytesMut>,
    last: u64,
    closed: bool,
    /// Number of streams that the other side opened.
    theirs: usize,
    partial: usize,
}

#[derive(Debug)]
struct Entry {
    inbox: mpsc::UnboundedSender<Incoming>,
    window: Arc<Window>,
    partial: BytesMut,
    /// Bytes that arrived since the window was replenished.
    unacknowledged: usize,
}

/// A message on a stream.
#[derive(Debug)]
pub(crate) enum Incoming {
    Reply(Message),
    /// An element, and its cost in the window.
    Item(Message, usize),
    End,
}

/// A frame that concerns more than its stream.
#[derive(Debug)]
pub(crate) enum InboundFrame {
    Request(SendStream, RecvStream, Message),
    Cancel(u64),
    Release(u64),
    State(u64, Message),
}

/// The sending half of a stream.
#[derive(Clone, Debug)]
pub(crate) struct SendStream {
    link: Arc<Link>,
    id: u64,
    window: Arc<Window>,
}

/// The receiving half of a stream.
#[derive(Debug)]
pub(crate) struct RecvStream {
    link: Arc<Link>,
    id: u64,
    inbox: mpsc::UnboundedReceiver<Incoming>,
    /// Bytes read since the window was replenished.
    read: usize,
    ended: bool,
    /// True when this side sent the request. Dropping the stream then cancels the request; otherwise it stops the body.
    is_requester: bool,
}

impl Link {
    /// Makes one side of a connection, and the queue of frames that it sends.
    pub(crate) fn new(odd: bool) -> (Arc<Self>, mpsc::UnboundedReceiver<Frame>) {
        let (out, frames) = mpsc::unbounded_channel();
        let streams = Mutex::new(Streams { last: u64::from(odd), ..Streams::default() });
        let closed = watch::Sender::new(false);
        (Arc::new(Self { out, streams, closed, odd }), frames)
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a frame. Frames for a closed connection are dropped.
    pub(crate) fn send(&self, frame: Frame) {
        let _ = self.out.send(frame);
    }

    /// Sends a message in as many frames as it takes.
    fn send_message(&self, kind: Kind, stream: u64, message: &Message) {
        for (payload, more) in parts(message.encode()) {
            self.send(Frame { kind, more, stream, payload });
        }
    }

    /// Sends the state of a sandbox.
    pub(crate) fn send_state(&self, stream: u64, message: &Message) {
        self.send_message(Kind::State, stream, message);
    }

    /// Opens a stream.
    pub(crate) fn open(self: &Arc<Self>) -> Result<(SendStream, RecvStream), Closed> {
        let mut streams = self.streams();
        if streams.closed {
            return Err(Closed);
        }
        streams.last += 2;
        let id = streams.last;
        Ok(self.insert(&mut streams, id, true))
    }

    fn insert(
        self: &Arc<Self>,
        streams: &mut Streams,
        id: u64,
        is_requester: bool,
    ) -> (SendStream, RecvStream) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let window = Arc::new(Window::new(WINDOW));
        let entry = Entry {
            inbox: sender,
            window: Arc::clone(&window),
            partial: BytesMut::new(),
            unacknowledged: 0,
        };
        streams.open.insert(id, entry);
        let recv =
            RecvStream { link: Arc::clone(self), id, inbox, read: 0, ended: false, is_requester };
        (SendStream { link: Arc::clone(self), id, window }, recv)
    }

    /// Removes a stream, which ends sending on it.
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

    /// Closes the connection and all of its streams.
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

    /// Returns true when the connection is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.streams().closed
    }

    /// Returns a receiver that becomes true when the connection is closed.
    pub(crate) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    /// Handles a frame that arrived.
    pub(crate) fn handle(
        self: &Arc<Self>,
        frame: Frame,
    ) -> Result<Option<InboundFrame>, Violation> {
        match frame.kind {
            Kind::Request => self.handle_request(frame),
            Kind::Reply | Kind::Item => self.handle_message(frame).map(|()| None),
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
                    return Err(Violation("more bytes were granted than the window has"));
                }
                Ok(None)
            }
            Kind::Stop => {
                if let Some(entry) = self.streams().open.get(&frame.stream) {
                    entry.window.close();
                }
                Ok(None)
            }
            Kind::Cancel => Ok(Some(InboundFrame::Cancel(frame.stream))),
            Kind::Release => Ok(Some(InboundFrame::Release(frame.stream))),
            Kind::State => self.handle_state(frame),
        }
    }

    fn handle_request(self: &Arc<Self>, frame: Frame) -> Result<Option<InboundFrame>, Violation> {
        let id = frame.stream;
        if !self.is_theirs(id) {
            return Err(Violation("a request on a stream of this side"));
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
        let (send, recv) = self.insert(&mut streams, id, false);
        Ok(Some(InboundFrame::Request(send, recv, message)))
    }

    fn handle_state(&self, frame: Frame) -> Result<Option<InboundFrame>, Violation> {
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
        Ok(Some(InboundFrame::State(id, Message::decode(bytes)?)))
    }

    fn handle_message(&self, frame: Frame) -> Result<(), Violation> {
        let mut streams = self.streams();
        let id = frame.stream;
        let Some(entry) = streams.open.get_mut(&id) else { return Ok(()) };
        let mut cost = 0;
        if frame.kind == Kind::Item {
            cost = frame.cost();
            entry.unacknowledged += cost;
            if entry.unacknowledged > WINDOW {
                return Err(Violation("more bytes were sent than were granted"));
            }
            if frame.more {
                // The reader gets whole messages only, so a part must not use up the window.
                entry.unacknowledged -= cost;
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
        entry.unacknowledged -= bytes;
        drop(streams);
        self.send(Frame::credit(id, bytes as u32));
    }
}

/// Adds a part to a message, and returns the message with its last part. `partial` is the total size of partial messages.
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

/// Splits a message into payloads of frames, each with whether another one follows.
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

impl SendStream {
    /// Returns the number of the stream.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the connection of the stream.
    pub(crate) fn link(&self) -> Arc<Link> {
        Arc::clone(&self.link)
    }

    /// Sends the request.
    pub(crate) fn request(&self, message: &Message) {
        self.link.send_message(Kind::Request, self.id, message);
    }

    /// Sends the reply.
    pub(crate) fn reply(&self, message: &Message) {
        self.link.send_message(Kind::Reply, self.id, message);
    }

    /// Sends an element as soon as the window has room for it.
    pub(crate) async fn item(&self, message: &Message) -> Result<(), Closed> {
        for (payload, more) in parts(message.encode()) {
            let frame = Frame { kind: Kind::Item, more, stream: self.id, payload };
            self.window.take(frame.cost()).await?;
            self.link.send(frame);
        }
        Ok(())
    }

    /// Waits until the window has room, so that an element is not produced too early.
    pub(crate) async fn ready(&self) -> Result<(), Closed> {
        self.window.ready().await
    }

    /// Holds elements back until the other side [starts](RecvStream::start) to read.
    pub(crate) fn hold(&self) {
        self.window.hold();
    }

    /// Ends the elements of this side.
    pub(crate) fn end(&self) {
        self.link.send(Frame::bare(Kind::End, self.id));
    }

    /// Waits until the other side stops reading.
    pub(crate) async fn stopped(&self) {
        self.window.closed().await;
    }
}

impl RecvStream {
    /// Receives the next message; `None` when the connection is closed or the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        std::future::poll_fn(|cx| self.poll_next(cx)).await
    }

    /// Polls for the next message.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Incoming>> {
        let incoming = std::task::ready!(self.inbox.poll_recv(cx));
        match &incoming {
            Some(Incoming::Item(_, cost)) => {
                self.read += cost;
                if self.read >= GRANT_SIZE {
                    self.link.grant(self.id, std::mem::take(&mut self.read));
                }
            }
            Some(Incoming::End) => self.ended = true,
            Some(Incoming::Reply(_)) | None => {}
        }
        Poll::Ready(incoming)
    }

    /// Starts to read a stream whose elements the other side holds back.
    pub(crate) fn start(&self) {
        self.link.send(Frame::credit(self.id, WINDOW as u32));
    }

    /// Marks the stream as complete, so that dropping it cancels nothing.
    pub(crate) fn finish(&mut self) {
        self.ended = true;
    }
}

impl Drop for RecvStream {
    fn drop(&mut self) {
        if self.is_requester {
            self.link.forget(self.id);
        }
        if !self.ended && !self.link.is_closed() {
            let kind = if self.is_requester { Kind::Cancel } else { Kind::Stop };
            self.link.send(Frame::bare(kind, self.id));
        }
    }
}

const _: () = assert!(MAX_PAYLOAD + OVERHEAD <= WINDOW);
