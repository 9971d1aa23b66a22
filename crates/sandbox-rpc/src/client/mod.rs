//! The side that wants a backend, and gets one.

mod ask;
mod backend;
mod calls;
mod command;
mod instance;
mod streams;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandbox_core::{Capabilities, Result, ToolFunction, Variant};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;

use self::calls::Calls;
use crate::hello::{self, ClientHello, ServerHello};
use crate::link::{Link, Taken};
use crate::tool;
use crate::transport::{read_frames, write_frames};
use crate::wire::{self, State};

/// A server that has introduced itself, and was asked for nothing yet.
#[derive(Debug)]
pub struct Greeted<S> {
    stream: S,
    hello: ServerHello,
}

/// Introduces itself to a server, and hears who that is.
///
/// # Errors
/// `Unavailable` when the other side goes away, `Protocol` when it is no server.
pub async fn greet<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    mut stream: S,
    hello: &ClientHello,
) -> Result<Greeted<S>> {
    hello::say(&mut stream, hello).await.map_err(hello::unreachable)?;
    let hello = hello::hear(&mut stream).await.map_err(hello::unreachable)?;
    Ok(Greeted { stream, hello })
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Greeted<S> {
    /// What the server said.
    pub fn hello(&self) -> &ServerHello {
        &self.hello
    }

    /// The backend behind the server. It works as long as the runtime that this is called in.
    ///
    /// # Errors
    /// `Protocol` when the server speaks another one.
    pub fn into_backend(self) -> Result<RemoteBackend> {
        hello::check(&self.hello)?;
        Ok(RemoteBackend::new(self.stream, self.hello))
    }
}

/// Connects to a server on the other side of a byte stream.
///
/// # Errors
/// Those of [`greet`] and [`Greeted::into_backend`].
pub async fn connect<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
) -> Result<RemoteBackend> {
    greet(stream, &ClientHello::new("serve")).await?.into_backend()
}

/// A backend on the other side of a connection.
///
/// Its attached sandboxes end with the connection, and so with the last of: this backend, its clones, and the sandboxes
/// that came of it.
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

    /// What the server said about itself beside its version and capabilities.
    pub fn about(&self) -> &Map<String, Value> {
        &self.about
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.client.link.is_closed()
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        // An error means that the connection is gone, too.
        let _ = self.client.link.closed().wait_for(|closed| *closed).await;
    }
}

/// What all handles of a connection share.
#[derive(Debug)]
struct Client {
    link: Arc<Link>,
    runtime: Handle,
    known: Arc<Known>,
}

/// What the server tells and asks on its own.
#[derive(Default)]
struct Known {
    states: Mutex<HashMap<u64, Weak<Mutex<Option<State>>>>>,
    tools: Mutex<HashMap<u64, ToolFunction>>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

impl Client {
    fn start<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S) -> Arc<Self> {
        let (link, frames) = Link::new(true);
        let (from, to) = tokio::io::split(stream);
        let runtime = Handle::current();
        runtime.spawn(write_frames(to, frames, link.closed()));
        let known = Arc::<Known>::default();
        runtime.spawn(read(from, Arc::downgrade(&link), Arc::clone(&known)));
        Arc::new(Self { link, runtime, known })
    }
}

/// Reads until the connection ends. It does not keep the connection open.
async fn read<R: AsyncRead + Unpin>(from: R, link: Weak<Link>, known: Arc<Known>) {
    let (ended, calls) = (End(Weak::clone(&link)), Calls::start());
    let read = read_frames(from, |frame| {
        let link = link.upgrade()?;
        Some(link.take(frame).map(|taken| match taken {
            Some(Taken::State(id, message)) => {
                if let Ok(state) = message.read() {
                    known.tell(id, state);
                }
            }
            Some(Taken::Request(outlet, inlet, message)) => {
                let (id, known) = (outlet.id(), Arc::clone(&known));
                let call = async move {
                    let link = outlet.link();
                    tool::answer(outlet, inlet, message, |id| known.tool(id)).await;
                    link.forget(id);
                };
                calls.begin(id, Box::pin(call));
            }
            Some(Taken::Cancel(id)) => {
                calls.end(id);
                link.forget(id);
            }
            Some(Taken::Release(_)) | None => {}
        }))
    });
    if let Err(error) = read.await {
        tracing::debug!(%error, "the connection to a sandbox server broke");
    }
    drop((ended, calls));
}

/// Ends everything on a connection, also when its runtime goes away.
struct End(Weak<Link>);

impl Drop for End {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.close();
        }
    }
}

impl Known {
    fn tell(&self, id: u64, state: State) {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = states.get(&id).and_then(Weak::upgrade) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
        }
    }

    /// A place for what the server will tell of a sandbox.
    fn expect(self: &Arc<Self>, id: u64) -> Slot {
        let told = Arc::default();
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.insert(id, Arc::downgrade(&told));
        Slot { known: Arc::clone(self), id, told }
    }

    fn tool(&self, id: u64) -> Option<ToolFunction> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
    }

    fn keep_tool(&self, id: u64, function: ToolFunction) {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner).insert(id, function);
    }
}

/// What the server told of one sandbox.
#[derive(Debug)]
struct Slot {
    known: Arc<Known>,
    id: u64,
    told: Arc<Mutex<Option<State>>>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut states = self.known.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.remove(&self.id);
    }
}
