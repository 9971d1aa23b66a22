//! The client: a backend on the other side of a connection.

mod call;
mod command;
mod facets;
mod sandbox;
mod streams;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandbox_core::{
    CallContext, Capabilities, CreateSpec, Instance, Result, SandboxId, ToolFunction, Variant,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;

use self::facets::RemoteInstance;
use crate::handshake::{self, ClientHello, ServerHello};
use crate::link::{InboundFrame, Link};
use crate::tool_calls::{self, ToolCallRunner};
use crate::transport::{read_frames, write_frames};
use crate::verbs::Verb;
use crate::wire::request::WireSpec;
use crate::wire::{self, State};

/// A connection after the handshake.
#[derive(Debug)]
pub struct Negotiated<S> {
    stream: S,
    hello: ServerHello,
}

/// Performs the handshake with a server.
///
/// # Errors
/// `Unavailable` when the other side closes the stream, `Protocol` when it is no server.
pub async fn handshake<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    mut stream: S,
    hello: &ClientHello,
) -> Result<Negotiated<S>> {
    handshake::write_hello(&mut stream, hello).await.map_err(handshake::connect_error)?;
    let hello = handshake::read_hello(&mut stream).await.map_err(handshake::connect_error)?;
    Ok(Negotiated { stream, hello })
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Negotiated<S> {
    /// Returns the hello of the server.
    pub fn hello(&self) -> &ServerHello {
        &self.hello
    }

    /// Returns the backend of the server. It works while the current runtime lives.
    ///
    /// # Errors
    /// `Protocol` when the server has another protocol.
    pub fn into_backend(self) -> Result<RemoteBackend> {
        handshake::check_protocol(&self.hello)?;
        Ok(RemoteBackend::new(self.stream, self.hello))
    }
}

/// Connects to a server on the other side of a byte stream.
///
/// # Errors
/// Those of [`handshake()`] and [`Negotiated::into_backend`].
pub async fn connect<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
) -> Result<RemoteBackend> {
    handshake(stream, &ClientHello::new("serve")).await?.into_backend()
}

/// A backend on the other side of a connection.
///
/// Its attached sandboxes end with the connection, which is closed when this backend, its clones and its sandboxes are
/// dropped.
#[derive(Clone, Debug)]
pub struct RemoteBackend {
    client: Arc<Client>,
    variant: Variant,
    capabilities: Capabilities,
    about: Arc<Map<String, Value>>,
}

impl RemoteBackend {
    fn new<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
        stream: S,
        hello: ServerHello,
    ) -> Self {
        Self {
            client: Client::start(stream),
            variant: hello.variant,
            capabilities: wire::capabilities(&hello.capabilities),
            about: Arc::new(hello.about),
        }
    }

    /// Returns the facts that the server reported about itself in the handshake.
    pub fn about(&self) -> &Map<String, Value> {
        &self.about
    }

    /// Returns true when the connection is closed.
    pub fn is_closed(&self) -> bool {
        self.client.link.is_closed()
    }

    /// Waits until the connection is closed.
    pub async fn closed(&self) {
        // An error means that the link was dropped, which closes the connection, too.
        let _ = self.client.link.closed().wait_for(|closed| *closed).await;
    }

    async fn value<T: DeserializeOwned>(
        &self,
        verb: Verb,
        call: &CallContext,
        arguments: &impl Serialize,
    ) -> Result<T> {
        self.client.value(verb, call, 0, arguments).await
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let arguments = (WireSpec::from(spec),);
        RemoteInstance::request(&self.client, Verb::create, call, 0, &arguments).await
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let arguments = (id.to_string(),);
        RemoteInstance::request(&self.client, Verb::attach, call, 0, &arguments).await
    }
}

/// The client's end of a connection, shared by all of its handles.
#[derive(Debug)]
struct Client {
    link: Arc<Link>,
    runtime: Handle,
    cached: Arc<CachedState>,
}

/// States that the server has sent, and tools that it may call.
#[derive(Default)]
struct CachedState {
    states: Mutex<HashMap<u64, Weak<Mutex<Option<State>>>>>,
    tools: Mutex<HashMap<u64, ToolFunction>>,
}

impl std::fmt::Debug for CachedState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CachedState").finish_non_exhaustive()
    }
}

impl Client {
    fn start<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Arc<Self> {
        let (link, frames) = Link::new(true);
        let (from, to) = tokio::io::split(stream);
        let runtime = Handle::current();
        runtime.spawn(write_frames(to, frames, link.closed()));
        let cached = Arc::<CachedState>::default();
        runtime.spawn(read(from, Arc::downgrade(&link), Arc::clone(&cached)));
        Arc::new(Self { link, runtime, cached })
    }
}

/// Reads frames until the connection ends. This task does not keep the connection open.
async fn read<R: AsyncRead + Unpin>(from: R, link: Weak<Link>, cached: Arc<CachedState>) {
    let (guard, calls) = (CloseGuard(Weak::clone(&link)), ToolCallRunner::start());
    let read = read_frames(from, |frame| {
        let link = link.upgrade()?;
        Some(link.handle(frame).map(|frame| match frame {
            Some(InboundFrame::State(id, message)) => {
                if let Ok(state) = message.read() {
                    cached.update(id, state);
                }
            }
            Some(InboundFrame::Request(send, recv, message)) => {
                let (id, cached) = (send.id(), Arc::clone(&cached));
                let call = async move {
                    let link = send.link();
                    tool_calls::answer(send, recv, message, |id| cached.tool(id)).await;
                    link.forget(id);
                };
                calls.call(id, Box::pin(call));
            }
            Some(InboundFrame::Cancel(id)) => {
                calls.cancel(id);
                link.forget(id);
            }
            Some(InboundFrame::Release(_)) | None => {}
        }))
    });
    if let Err(error) = read.await {
        tracing::debug!(%error, "the connection to a sandbox server broke");
    }
    drop((guard, calls));
}

/// Closes a connection when it is dropped, also together with its runtime.
struct CloseGuard(Weak<Link>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.close();
        }
    }
}

impl CachedState {
    fn update(&self, id: u64, state: State) {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = states.get(&id).and_then(Weak::upgrade) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }

    /// Makes the slot for the states of a sandbox.
    fn slot(self: &Arc<Self>, id: u64) -> StateSlot {
        let state = Arc::default();
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.insert(id, Arc::downgrade(&state));
        StateSlot { cached: Arc::clone(self), id, state }
    }

    fn tool(&self, id: u64) -> Option<ToolFunction> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn register_tool(&self, id: u64, function: ToolFunction) {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).insert(id, function);
    }
}

/// The last state that the server has sent of one sandbox.
#[derive(Debug)]
struct StateSlot {
    cached: Arc<CachedState>,
    id: u64,
    state: Arc<Mutex<Option<State>>>,
}

impl Drop for StateSlot {
    fn drop(&mut self) {
        let mut states = self.cached.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.remove(&self.id);
    }
}
