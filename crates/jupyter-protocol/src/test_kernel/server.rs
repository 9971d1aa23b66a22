//! Serves the test kernel on sockets, with faults below the messages.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Action, Behaviour, TestKernel};
use crate::channel::Channel;
use crate::connection::{ConnectionInfo, Endpoint};
use crate::zmtp::wire;

/// Faults at the level of connections.
#[derive(Clone, Debug, Default)]
pub struct Wire {
    /// Listens on the stdin channel only after this time.
    pub late_stdin: Option<Duration>,
    /// Listens on all channels only after this time.
    pub late: Option<Duration>,
    /// Accepts connections and sends nothing.
    pub silent: bool,
    /// Sends these bytes instead of a greeting.
    pub greeting: Option<Vec<u8>>,
    /// Claims to be another type of socket.
    pub socket_type: Option<&'static str>,
    /// Requires this security mechanism.
    pub mechanism: Option<&'static str>,
    /// Sends these bytes on a channel, right after the handshake.
    pub after_handshake: Option<(Channel, Vec<u8>)>,
    /// Sends these bytes on IOPub instead of the output of a request to run code.
    pub on_execute: Option<Vec<u8>>,
    /// Never reads from the shell channel.
    pub deaf: bool,
}

/// A [`TestKernel`] that listens on sockets. Dropping it closes them.
#[derive(Debug)]
pub struct TestServer {
    tasks: Vec<JoinHandle<()>>,
    paths: Vec<PathBuf>,
    shared: Arc<Shared>,
}

impl TestServer {
    /// Listens at the addresses of `info`.
    ///
    /// # Errors
    /// If an address cannot be used.
    ///
    /// # Cancellation
    /// Dropping the future closes the sockets, and this method can be called again.
    pub async fn start(
        info: &ConnectionInfo,
        behaviour: Behaviour,
        wire: Wire,
    ) -> io::Result<Self> {
        let kernel = TestKernel::new(info.signature_scheme, &info.key, behaviour);
        let (sender, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared { wire, sender, clients: Mutex::default() });
        let paths = Vec::new();
        let mut server = Self { tasks: Vec::new(), paths, shared: Arc::clone(&shared) };
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            let endpoint = info.endpoint(channel);
            if let Endpoint::Ipc { path } = &endpoint {
                server.paths.push(path.clone());
            }
            let late = match channel {
                Channel::Stdin => shared.wire.late_stdin.or(shared.wire.late),
                _ => shared.wire.late,
            };
            let listener = match late {
                Some(_) => None,
                None => Some(Listener::bind(&endpoint).await?),
            };
            let listening = listen(Arc::clone(&shared), channel, endpoint, listener, late);
            server.tasks.push(tokio::spawn(listening));
        }
        server.tasks.push(tokio::spawn(serve(kernel, Arc::clone(&shared), receiver)));
        Ok(server)
    }
}

impl TestServer {
    /// Returns the number of clients that are subscribed to IOPub.
    #[must_use]
    pub fn subscribers(&self) -> usize {
        self.shared.clients().connected.values().filter(|client| client.subscribed).count()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.shared.clients().dead = true;
        self.shared.disconnect(None);
        for path in &self.paths {
            // The socket may be removed already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// State shared by the connections.
#[derive(Debug)]
struct Shared {
    wire: Wire,
    sender: mpsc::UnboundedSender<Input>,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    next: u64,
    dead: bool,
    connected: HashMap<u64, Client>,
}

/// One connection.
#[derive(Debug)]
struct Client {
    channel: Channel,
    identity: Bytes,
    subscribed: bool,
    sender: mpsc::UnboundedSender<Vec<u8>>,
}

/// An input from a connection.
#[derive(Debug)]
enum Input {
    Subscribed,
    Message(Channel, Vec<Bytes>),
}

impl Shared {
    fn clients(&self) -> std::sync::MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, channel: Channel, frames: &[Bytes]) {
        let to = (channel != Channel::IoPub).then(|| frames.first().cloned().unwrap_or_default());
        let frames = if to.is_some() { &frames[1.min(frames.len())..] } else { frames };
        let bytes = wire::message(frames);
        for client in self.clients().connected.values() {
            let meant = match &to {
                Some(identity) => client.identity == *identity,
                None => client.subscribed,
            };
            if client.channel == channel && meant {
                // A disconnected client misses the message, as with a real kernel.
                let _ = client.sender.send(bytes.clone());
            }
        }
    }

    fn publish_bytes(&self, bytes: &[u8]) {
        for client in self.clients().connected.values().filter(|client| client.subscribed) {
            let _ = client.sender.send(bytes.to_vec());
        }
    }

    fn disconnect(&self, channel: Option<Channel>) {
        let keep = |client: &Client| channel.is_some_and(|channel| channel != client.channel);
        self.clients().connected.retain(|_, client| keep(client));
    }
}

/// Feeds the kernel and performs its actions.
async fn serve(
    mut kernel: TestKernel,
    shared: Arc<Shared>,
    mut inputs: mpsc::UnboundedReceiver<Input>,
) {
    while let Some(input) = inputs.recv().await {
        match input {
            Input::Subscribed => kernel.on_subscribe(),
            Input::Message(channel, frames) => {
                if let Some(bytes) = shared.wire.on_execute.as_ref().filter(|_| is_execute(&frames))
                {
                    shared.publish_bytes(bytes);
                    continue;
                }
                kernel.on_message(channel, frames);
            }
        }
        while let Some(action) = kernel.poll_action() {
            match action {
                Action::Send { channel, frames } => shared.send(channel, &frames),
                Action::Wait(duration) => tokio::time::sleep(duration).await,
                Action::Drop(channel) => shared.disconnect(Some(channel)),
                Action::Die => {
                    shared.clients().dead = true;
                    shared.disconnect(None);
                }
            }
        }
    }
}

fn is_execute(frames: &[Bytes]) -> bool {
    let needle = b"execute_request";
    frames.iter().any(|frame| frame.windows(needle.len()).any(|window| window == needle))
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Listener {
    async fn bind(endpoint: &Endpoint) -> io::Result<Self> {
        match endpoint {
            Endpoint::Tcp { host, port } => {
                TcpListener::bind((host.as_str(), *port)).await.map(Self::Tcp)
            }
            Endpoint::Ipc { path } => bind_unix(path).map(Self::Unix),
        }
    }

    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            Self::Unix(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    UnixListener::bind(path)
}

async fn listen(
    shared: Arc<Shared>,
    channel: Channel,
    endpoint: Endpoint,
    listener: Option<Listener>,
    late: Option<Duration>,
) {
    tokio::time::sleep(late.unwrap_or_default()).await;
    let listener = match listener {
        Some(listener) => listener,
        None => match Listener::bind(&endpoint).await {
            Ok(listener) => listener,
            Err(_) => return,
        },
    };
    while let Ok(stream) = listener.accept().await {
        if !shared.clients().dead {
            tokio::spawn(connection(Arc::clone(&shared), channel, stream));
        }
    }
}

fn socket_type(channel: Channel) -> &'static str {
    match channel {
        Channel::IoPub => "XPUB",
        Channel::Heartbeat => "REP",
        _ => "ROUTER",
    }
}

async fn connection(shared: Arc<Shared>, channel: Channel, mut stream: Box<dyn Stream>) {
    let wire = &shared.wire;
    if wire.silent {
        return std::future::pending().await;
    }
    let greeting = wire.greeting.clone();
    let greeting = greeting.unwrap_or_else(|| wire::greeting(wire.mechanism.unwrap_or("NULL")));
    let ready = wire::ready(wire.socket_type.unwrap_or(socket_type(channel)));
    let Ok(identity) = wire::accept(&mut stream, &greeting, &ready).await else { return };
    if let Some((_, bytes)) = wire.after_handshake.as_ref().filter(|(on, _)| *on == channel)
        && stream.write_all(bytes).await.is_err()
    {
        return;
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let echo = sender.clone();
    let number = {
        let mut clients = shared.clients();
        if clients.dead {
            return;
        }
        clients.next += 1;
        let number = clients.next;
        // A client that reconnects replaces its earlier connection.
        clients.connected.retain(|_, old| {
            old.channel != channel || identity.is_empty() || old.identity != identity
        });
        let client = Client { channel, identity: identity.clone(), subscribed: false, sender };
        clients.connected.insert(number, client);
        number
    };
    let (reader, writer) = tokio::io::split(stream);
    tokio::select! {
        () = write(writer, receiver) => {}
        () = read(&shared, channel, number, identity, reader, echo) => {}
    }
    shared.clients().connected.remove(&number);
}

/// Writes until the connection is closed.
async fn write(
    mut writer: impl AsyncWrite + Unpin,
    mut receiver: mpsc::UnboundedReceiver<Vec<u8>>,
) {
    while let Some(bytes) = receiver.recv().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(
    shared: &Shared,
    channel: Channel,
    number: u64,
    identity: Bytes,
    mut reader: impl AsyncRead + Unpin,
    echo: mpsc::UnboundedSender<Vec<u8>>,
) {
    // A weak sender, so that removing the client closes its connection.
    let weak = echo.downgrade();
    drop(echo);
    if shared.wire.deaf && channel == Channel::Shell {
        return std::future::pending().await;
    }
    loop {
        let Ok(mut frames) = wire::read_message(&mut reader).await else { return };
        match channel {
            Channel::IoPub => {
                let subscribe = frames.first().is_some_and(|frame| frame.starts_with(&[1]));
                if let Some(client) = shared.clients().connected.get_mut(&number) {
                    client.subscribed = subscribe;
                }
                if subscribe {
                    let _ = shared.sender.send(Input::Subscribed);
                }
            }
            Channel::Heartbeat => {
                if let Some(echo) = weak.upgrade() {
                    let _ = echo.send(wire::message(&frames));
                }
            }
            _ => {
                frames.insert(0, identity.clone());
                let _ = shared.sender.send(Input::Message(channel, frames));
            }
        }
    }
}
