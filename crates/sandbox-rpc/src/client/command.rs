//! A command on the other side.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use bytes::Bytes;
use sandbox_core::{CallContext, Command, CommandControl, PtySize, Result};
use serde::Serialize;

use super::Client;
use super::call::Pending;
use super::streams::CommandEvents;
use crate::elements::Elements;
use crate::frame::{Frame, Kind};
use crate::verbs::Verb;
use crate::wire::CommandReply;
use crate::wire::request::Payload;

/// Waits until a command has started. The events of a `background` command are requested when they are first read.
pub(super) async fn started(
    client: &Arc<Client>,
    pending: Pending,
    background: bool,
) -> Result<Command> {
    let stream = pending.id();
    let reply = pending.reply::<CommandReply>().await?;
    let control = Arc::new(Control { client: Arc::clone(client), stream });
    let CommandReply { id, pid } = reply.value;
    let decoder = CommandEvents { since: Instant::now() };
    let events = Elements::new(reply.recv, decoder).held_back(background);
    Ok(Command { id, pid, events: Box::pin(events), control })
}

/// The controls of a command, identified by the stream on which it was started.
#[derive(Debug)]
struct Control {
    client: Arc<Client>,
    stream: u64,
}

impl Control {
    async fn send(&self, verb: Verb, arguments: &impl Serialize, tail: Bytes) -> Result<()> {
        let (call, payload) = (CallContext::new(), Payload { tail, body: None });
        self.client.request(verb, &call, self.stream, arguments, payload)?.value().await
    }
}

#[async_trait]
impl CommandControl for Control {
    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        self.send(Verb::write_stdin, &(), data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.send(Verb::close_stdin, &(), Bytes::new()).await
    }

    async fn resize(&self, size: PtySize) -> Result<()> {
        self.send(Verb::resize, &(size,), Bytes::new()).await
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        self.send(Verb::signal, &(signal, tree), Bytes::new()).await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.client.link.send(Frame::bare(Kind::Release, self.stream));
    }
}
