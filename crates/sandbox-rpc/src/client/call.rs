//! Requests of the client and their replies.

use std::sync::Arc;

use sandbox_core::{ByteStream, CallContext, Effect, Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Client;
use crate::body::{interrupted, pump};
use crate::elements::Interruption;
use crate::frame::{Frame, Kind};
use crate::link::{Incoming, RecvStream, SendStream};
use crate::message::Message;
use crate::verbs::Verb;
use crate::wire::error::WireError;
use crate::wire::request::{Envelope, Payload};

/// A reply, and the stream on which it arrived.
pub(super) struct Reply<T> {
    pub(super) value: T,
    pub(super) recv: RecvStream,
}

/// A request without a reply yet. Dropping it cancels the request, and releases what the request may have made.
pub(super) struct Pending {
    client: Arc<Client>,
    operation: &'static str,
    id: u64,
    recv: Option<RecvStream>,
}

impl Client {
    /// Sends a request. A body is sent by a task of its own.
    pub(super) fn request(
        self: &Arc<Self>,
        verb: Verb,
        call: &CallContext,
        on: u64,
        arguments: &impl Serialize,
        payload: Payload,
    ) -> Result<Pending> {
        let (send, pending) = self.open(verb)?;
        let envelope = Envelope { call: call.into(), on, verb, arguments };
        send.request(&Message::with_tail(&envelope, payload.tail));
        if let Some(body) = payload.body {
            self.runtime.spawn(pump(send, body));
        }
        Ok(pending)
    }

    /// Sends a request with a body, and waits for its value. The body is polled by the caller's task.
    pub(super) async fn upload<T: DeserializeOwned>(
        self: &Arc<Self>,
        verb: Verb,
        call: &CallContext,
        on: u64,
        arguments: &impl Serialize,
        body: ByteStream,
    ) -> Result<T> {
        let (send, pending) = self.open(verb)?;
        send.request(&Message::from_head(&Envelope { call: call.into(), on, verb, arguments }));
        let sending = async {
            pump(send, body).await;
            std::future::pending::<Result<T>>().await
        };
        tokio::select! {
            value = pending.value() => value,
            never = sending => never,
        }
    }

    /// Sends a request, and waits for its value.
    pub(super) async fn value<T: DeserializeOwned>(
        self: &Arc<Self>,
        verb: Verb,
        call: &CallContext,
        on: u64,
        arguments: &impl Serialize,
    ) -> Result<T> {
        self.request(verb, call, on, arguments, Payload::default())?.value().await
    }

    fn open(self: &Arc<Self>, verb: Verb) -> Result<(SendStream, Pending)> {
        let operation = verb.name();
        let (send, recv) = self.link.open().map_err(|_| disconnected(operation))?;
        let (client, id) = (Arc::clone(self), send.id());
        Ok((send, Pending { client, operation, id, recv: Some(recv) }))
    }
}

impl Pending {
    /// Returns the number of the stream.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for a reply that elements follow.
    pub(super) async fn reply<T: DeserializeOwned>(mut self) -> Result<Reply<T>> {
        let reply = match self.recv.as_mut() {
            Some(recv) => recv.next().await,
            None => None,
        };
        let (Some(mut recv), Some(Incoming::Reply(message))) = (self.recv.take(), reply) else {
            return Err(interrupted(self.operation, Interruption::ConnectionLost));
        };
        let error = match message.read::<Result<T, WireError>>() {
            Ok(Ok(value)) => return Ok(Reply { value, recv }),
            Ok(Err(error)) => error.into(),
            Err(violation) => interrupted(self.operation, Interruption::Violation(violation)),
        };
        recv.finish();
        Err(error)
    }

    /// Waits for a reply that is the whole answer.
    pub(super) async fn value<T: DeserializeOwned>(self) -> Result<T> {
        let Reply { value, mut recv } = self.reply().await?;
        recv.finish();
        Ok(value)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // Dropping the stream cancels the request; the release is for what it may have made already.
        if let Some(recv) = self.recv.take() {
            drop(recv);
            self.client.link.send(Frame::bare(Kind::Release, self.id));
        }
    }
}

/// Returns the error of a request on a connection that was closed before.
fn disconnected(operation: &'static str) -> Error {
    let message = "the connection to the sandbox server is closed";
    Error::new(ErrorKind::ConnectionLost, operation, message).with_effect(Effect::NotSent)
}
