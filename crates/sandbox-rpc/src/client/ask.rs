//! Requests and their replies.

use std::sync::Arc;

use bytes::Bytes;
use sandbox_core::{ByteStream, CallContext, Effect, Error, ErrorKind, Result};
use serde::de::DeserializeOwned;

use super::Client;
use crate::body::{broken, lost, pump};
use crate::frame::{Frame, Kind};
use crate::link::{Incoming, Inlet};
use crate::message::Message;
use crate::wire::error::WireError;
use crate::wire::request::{Envelope, Freight, Verb};

/// A reply, and the stream that it came on.
pub(super) struct Replied<T> {
    pub(super) value: T,
    pub(super) tail: Bytes,
    pub(super) inlet: Inlet,
}

/// A request that nobody has answered yet. Dropping it gives up, and whatever it made with it.
pub(super) struct Pending {
    client: Arc<Client>,
    operation: &'static str,
    id: u64,
    inlet: Option<Inlet>,
}

impl Client {
    /// Sends a request.
    pub(super) fn ask(
        self: &Arc<Self>,
        operation: &'static str,
        call: &CallContext,
        on: u64,
        verb: Verb,
        freight: Freight,
    ) -> Result<Pending> {
        let (outlet, inlet) = self.link.open().map_err(|_| gone(operation))?;
        let envelope = Envelope { call: call.into(), on, verb };
        outlet.request(&Message::with_tail(&envelope, freight.tail));
        let id = outlet.id();
        if let Some(body) = freight.body {
            self.runtime.spawn(pump(outlet, body));
        }
        Ok(Pending { client: Arc::clone(self), operation, id, inlet: Some(inlet) })
    }

    /// Sends a request with a body and waits for its value. The body is read by whoever waits, so what reading it does is
    /// done then and there.
    pub(super) async fn send<T: DeserializeOwned>(
        self: &Arc<Self>,
        operation: &'static str,
        call: &CallContext,
        on: u64,
        verb: Verb,
        body: ByteStream,
    ) -> Result<T> {
        let (outlet, inlet) = self.link.open().map_err(|_| gone(operation))?;
        outlet.request(&Message::of(&Envelope { call: call.into(), on, verb }));
        let (client, id) = (Arc::clone(self), outlet.id());
        let pending = Pending { client, operation, id, inlet: Some(inlet) };
        let sending = async {
            pump(outlet, body).await;
            std::future::pending::<Result<Replied<T>>>().await
        };
        tokio::select! {
            replied = pending.last() => Ok(replied?.value),
            never = sending => Ok(never?.value),
        }
    }

    /// Sends a request and waits for its value.
    pub(super) async fn value<T: DeserializeOwned>(
        self: &Arc<Self>,
        operation: &'static str,
        call: &CallContext,
        on: u64,
        verb: Verb,
    ) -> Result<T> {
        let pending = self.ask(operation, call, on, verb, Freight::default())?;
        Ok(pending.last().await?.value)
    }
}

impl Pending {
    /// The number of the stream.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for a reply that something follows.
    pub(super) async fn first<T: DeserializeOwned>(mut self) -> Result<Replied<T>> {
        let reply = match self.inlet.as_mut() {
            Some(inlet) => inlet.next().await,
            None => None,
        };
        let Some(mut inlet) = self.inlet.take() else { return Err(lost(self.operation)) };
        let Some(Incoming::Reply(message)) = reply else { return Err(lost(self.operation)) };
        let answer = message.read::<Result<T, WireError>>();
        let refused = match answer {
            Ok(Ok(value)) => return Ok(Replied { value, tail: message.tail, inlet }),
            Ok(Err(error)) => error.into(),
            Err(violation) => broken(&violation),
        };
        inlet.finish();
        Err(refused)
    }

    /// Waits for a reply that nothing follows.
    pub(super) async fn last<T: DeserializeOwned>(self) -> Result<Replied<T>> {
        let mut replied = self.first().await?;
        replied.inlet.finish();
        Ok(replied)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        // The inlet cancels; what the request may have made in the meantime must go, too.
        if let Some(inlet) = self.inlet.take() {
            drop(inlet);
            self.client.link.send(Frame::bare(Kind::Release, self.id));
        }
    }
}

/// The connection was gone before the request.
fn gone(operation: &'static str) -> Error {
    Error::new(ErrorKind::ConnectionLost, operation, "the connection to the sandbox server is gone")
        .with_effect(Effect::NotSent)
}
