//! A sandbox on the other side: its state, and the verbs that are not generated.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};

use futures_core::Stream;
use sandbox_core::{
    ByteStream, CallContext, Capabilities, Command, ErrorKind, EventStream, Instance, Result,
    RunCode, SandboxInfo, SandboxStatus, StartCommand, Stdin, Tool, WriteOptions,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::command::started;
use super::facets::RemoteInstance;
use super::streams::{RunEvents, Values};
use super::{Client, StateSlot};
use crate::body::receive;
use crate::elements::Elements;
use crate::frame::{Frame, Kind};
use crate::verbs::Verb;
use crate::wire::error::WireError;
use crate::wire::request::Payload;
use crate::wire::{self, SandboxReply, State};

/// A sandbox on the other side.
#[derive(Debug)]
pub(super) struct RemoteSandbox {
    client: Arc<Client>,
    /// The stream of the request that made it.
    handle: u64,
    pub(super) capabilities: Capabilities,
    /// The errors of missing facets, by name of the facet.
    missing: BTreeMap<String, WireError>,
    initial: State,
    latest: StateSlot,
}

impl RemoteSandbox {
    /// Sends a request that makes a sandbox.
    pub(super) async fn request(
        client: &Arc<Client>,
        verb: Verb,
        call: &CallContext,
        on: u64,
        arguments: &impl Serialize,
    ) -> Result<Self> {
        let pending = client.request(verb, call, on, arguments, Payload::default())?;
        let handle = pending.id();
        let latest = client.cached.slot(handle);
        let SandboxReply { state: initial, capabilities, missing } = pending.value().await?;
        let capabilities = wire::capabilities(&capabilities);
        Ok(Self { client: Arc::clone(client), handle, capabilities, missing, initial, latest })
    }

    /// Returns the error of a missing facet, as the sandbox's own backend has it.
    pub(super) fn check_facet(&self, name: &str) -> Result<()> {
        self.missing.get(name).map_or(Ok(()), |missing| Err(missing.clone().into()))
    }

    fn state<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        let latest = self.latest.state.lock().unwrap_or_else(PoisonError::into_inner);
        read(latest.as_ref().unwrap_or(&self.initial))
    }

    /// Returns the last info that the server has sent. After the connection broke, the status of a sandbox that had not
    /// ended is `Error`.
    pub(super) fn info(&self) -> SandboxInfo {
        let info = self.state(|state| state.info.clone());
        SandboxInfo { status: self.status(), ..info }
    }

    pub(super) fn status(&self) -> SandboxStatus {
        match self.state(|state| state.info.status) {
            SandboxStatus::Terminated => SandboxStatus::Terminated,
            _ if self.client.link.is_closed() => SandboxStatus::Error,
            status => status,
        }
    }

    /// Returns whether code runs in a context, as the server has reported last. It reports when code starts, when it ends,
    /// and other changes within 25 ms, or 250 ms for runs of other clients.
    pub(super) fn is_executing(&self, context: Option<&str>) -> bool {
        let context = context.unwrap_or("default");
        let executing = self.state(|state| state.executing.iter().any(|id| id == context));
        executing && !self.client.link.is_closed()
    }

    pub(super) async fn value<T: DeserializeOwned>(
        &self,
        verb: Verb,
        call: &CallContext,
        arguments: &impl Serialize,
    ) -> Result<T> {
        self.client.value(verb, call, self.handle, arguments).await
    }

    /// Sends a request that ends the sandbox.
    pub(super) async fn end(
        &self,
        verb: Verb,
        call: &CallContext,
        arguments: &impl Serialize,
    ) -> Result<()> {
        match self.value(verb, call, arguments).await {
            Err(error)
                if error.kind() == ErrorKind::ConnectionLost
                    && self.status() == SandboxStatus::Terminated =>
            {
                Ok(())
            }
            ended => ended,
        }
    }

    pub(super) async fn stream<T: DeserializeOwned + 'static>(
        &self,
        verb: Verb,
        call: &CallContext,
        arguments: &impl Serialize,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<T>> + Send>>> {
        let pending =
            self.client.request(verb, call, self.handle, arguments, Payload::default())?;
        let recv = pending.reply::<()>().await?.recv;
        Ok(Box::pin(Elements::new(recv, Values::<T>::new(verb.name()))))
    }

    pub(super) async fn bytes(
        &self,
        verb: Verb,
        call: &CallContext,
        arguments: &impl Serialize,
    ) -> Result<ByteStream> {
        let pending =
            self.client.request(verb, call, self.handle, arguments, Payload::default())?;
        Ok(receive(pending.reply::<()>().await?.recv))
    }

    pub(super) async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        RemoteInstance::request(&self.client, Verb::fork, call, self.handle, &()).await
    }

    pub(super) async fn run_code(
        &self,
        call: &CallContext,
        mut request: RunCode,
    ) -> Result<EventStream> {
        let (stdin, payload) = Payload::from_stdin(std::mem::take(&mut request.stdin));
        let (verb, arguments) = (Verb::run_code, (request, stdin));
        let pending = self.client.request(verb, call, self.handle, &arguments, payload)?;
        let recv = pending.reply::<()>().await?.recv;
        Ok(Box::pin(Elements::new(recv, RunEvents::new(call.run_id.clone()))))
    }

    pub(super) async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        let Tool { name, description, parameters, call: function } = tool;
        let (verb, arguments) = (Verb::register_tool, (name, description, parameters));
        let payload = Payload::default();
        let pending = self.client.request(verb, call, self.handle, &arguments, payload)?;
        // Registered before the reply, because code may call the tool at once.
        self.client.cached.register_tool(pending.id(), function);
        pending.value().await
    }

    pub(super) async fn start_command(
        &self,
        call: &CallContext,
        mut request: StartCommand,
    ) -> Result<Command> {
        let background = request.background;
        let stdin = std::mem::replace(&mut request.stdin, Stdin::Empty);
        let (stdin, payload) = Payload::from_stdin(stdin);
        let (verb, arguments) = (Verb::start_command, (request, stdin));
        let pending = self.client.request(verb, call, self.handle, &arguments, payload)?;
        started(&self.client, pending, background).await
    }

    pub(super) async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let (verb, payload) = (Verb::connect_command, Payload::default());
        let pending = self.client.request(verb, call, self.handle, &(id,), payload)?;
        started(&self.client, pending, true).await
    }

    pub(super) async fn write_file(
        &self,
        call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let arguments = (path, options);
        self.client.upload(Verb::write_file, call, self.handle, &arguments, content).await
    }

    pub(super) async fn write_archive(
        &self,
        call: &CallContext,
        path: &str,
        tar: ByteStream,
    ) -> Result<()> {
        self.client.upload(Verb::write_archive, call, self.handle, &(path,), tar).await
    }
}

impl Drop for RemoteSandbox {
    fn drop(&mut self) {
        self.client.link.send(Frame::bare(Kind::Release, self.handle));
    }
}
