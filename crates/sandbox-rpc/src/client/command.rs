//! Commands on the other side.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use sandbox_core::{CallContext, Command, CommandControl, PtySize, Result};

use super::Client;
use super::ask::Pending;
use super::streams::CommandEvents;
use crate::frame::{Frame, Kind};
use crate::wire::Started;
use crate::wire::request::{Freight, Verb};

/// Waits until a command has started.
///
/// The events of one in the `background` are not asked for before they are read.
pub(super) async fn started(
    client: &Arc<Client>,
    pending: Pending,
    background: bool,
) -> Result<Command> {
    let stream = pending.id();
    let replied = pending.first::<Started>().await?;
    let control = Arc::new(Control { client: Arc::clone(client), stream });
    let Started { id, pid } = replied.value;
    let events = CommandEvents::new(replied.inlet, background);
    Ok(Command { id, pid, events: Box::pin(events), control })
}

/// The controls of a command, by the stream that it was started on.
#[derive(Debug)]
struct Control {
    client: Arc<Client>,
    stream: u64,
}

impl Control {
    async fn tell(&self, operation: &'static str, verb: Verb, tail: Bytes) -> Result<()> {
        let call = CallContext::new();
        let freight = Freight::tail(tail);
        let pending = self.client.ask(operation, &call, self.stream, verb, freight)?;
        pending.last::<()>().await.map(drop)
    }
}

#[async_trait]
impl CommandControl for Control {
    async fn write_stdin(&self, data: Bytes) -> Result<()> {
        self.tell("write_stdin", Verb::WriteStdin, data).await
    }

    async fn close_stdin(&self) -> Result<()> {
        self.tell("close_stdin", Verb::CloseStdin, Bytes::new()).await
    }

    async fn resize(&self, size: PtySize) -> Result<()> {
        self.tell("resize", Verb::Resize(size), Bytes::new()).await
    }

    async fn signal(&self, signal: i32, tree: bool) -> Result<()> {
        self.tell("signal", Verb::Signal { signal, tree }, Bytes::new()).await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.client.link.send(Frame::bare(Kind::Release, self.stream));
    }
}
