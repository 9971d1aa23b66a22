//! Keeps the WebSocket of a kernel connected, and transfers its messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{SinkExt as _, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::Options;
use super::client::ServerClient;
use super::error::ServerError;
use super::socket::{self, ConnectError, FramingVersion, Socket};
use crate::channel::Channel;
use crate::client::dispatcher::Dispatcher;
use crate::client::{Client, ClientError, CloseReason, Effect, Heartbeat, Transport};
use crate::content::Content;
use crate::execution::Loss;
use crate::raw::RawMessage;

/// Number of queued outgoing messages before callers wait.
const OUTBOX_CAPACITY: usize = 64;

/// The delay before the first reconnection. It doubles with each attempt.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);

/// Maximum delay between two attempts to connect.
const MAX_BACKOFF: Duration = Duration::from_secs(5);

/// A connection that breaks earlier does not reset the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(5);

/// Interval of the check that a kernel with pending requests still exists. A server keeps the connection of a deleted
/// kernel and does not report the deletion.
const DELETION_POLL_INTERVAL: Duration = Duration::from_secs(2);

/// Prefixes of the notices that a server writes to standard error of an execution whose output it drops.
const RATE_LIMIT_NOTICES: [&str; 2] = ["IOPub message rate exceeded", "IOPub data rate exceeded"];

/// Connects to a kernel of a server.
pub(super) async fn connect(
    server: ServerClient,
    kernel_id: &str,
    options: Options,
) -> Result<Client, ClientError> {
    let dispatcher =
        Arc::new(Dispatcher::new(Arc::clone(&options.client.session), options.client.limits));
    let (outbox, outgoing) = mpsc::channel(OUTBOX_CAPACITY);
    let (connected_sender, mut connected) = watch::channel(false);
    let (want_stdin, _) = watch::channel(false);
    let task = SocketTask {
        server,
        kernel_id: kernel_id.to_owned(),
        dispatcher: Arc::clone(&dispatcher),
        options: options.clone(),
        outgoing,
        connected: connected_sender,
    };
    let mut tasks = JoinSet::new();
    let closing = Arc::clone(&dispatcher);
    tasks.spawn(async move {
        tokio::select! {
            () = task.run() => {}
            () = closing.wait_closed() => {}
        }
    });
    let transport = Transport {
        dispatcher,
        outboxes: Channel::MESSAGES.map(|_| outbox.clone()),
        want_stdin,
        stdin_connected: connected.clone(),
        heartbeat: watch::channel(Heartbeat::default()).1,
        tasks,
    };
    let client = Client::new(transport, options.client);
    // The sender is dropped only with the connection.
    let _ = connected.wait_for(|connected| *connected).await;
    match client.close_reason() {
        Some(reason) => Err(ClientError::Closed { reason, effect: Effect::None }),
        None => Ok(client),
    }
}

struct SocketTask {
    server: ServerClient,
    kernel_id: String,
    dispatcher: Arc<Dispatcher>,
    options: Options,
    outgoing: mpsc::Receiver<(Channel, RawMessage)>,
    /// True while connected.
    connected: watch::Sender<bool>,
}

/// The end of a connection.
enum ConnectionEnd {
    /// The connection broke.
    Lost(String),
    /// The other side exceeded a limit.
    Violation(String),
    /// The server no longer has the kernel.
    Deleted,
    /// The client was dropped.
    Closed,
}

impl SocketTask {
    /// Runs until the client is dropped, or connecting fails for good.
    async fn run(mut self) {
        let mut within = self.options.client.connect_timeout;
        let mut reconnected = false;
        let mut pause = INITIAL_BACKOFF;
        loop {
            let socket = match self.connect(within, &mut pause).await {
                Ok(socket) => socket,
                Err(reason) => return self.dispatcher.close(&reason),
            };
            let since = Instant::now();
            let fences = self.announce(reconnected);
            let ended = self.serve(socket, fences).await;
            self.connected.send_replace(false);
            // The output of a deleted kernel is not lost on the way, but with the kernel.
            if !matches!(ended, ConnectionEnd::Deleted) {
                Channel::MESSAGES.iter().for_each(|channel| self.dispatcher.disconnected(*channel));
            }
            match ended {
                ConnectionEnd::Closed => return,
                ConnectionEnd::Deleted => return self.dispatcher.close_with_kernel(),
                ConnectionEnd::Violation(why) => {
                    let channel = Channel::IoPub;
                    return self.dispatcher.close(&CloseReason::Violation { channel, why });
                }
                ConnectionEnd::Lost(why) if self.options.client.reconnect_timeout.is_zero() => {
                    return self.dispatcher.close(&unreachable(Duration::ZERO, why));
                }
                ConnectionEnd::Lost(_) => {}
            }
            if since.elapsed() >= STABLE_AFTER {
                pause = INITIAL_BACKOFF;
            } else {
                tokio::time::sleep(pause).await;
            }
            within = self.options.client.reconnect_timeout;
            reconnected = true;
        }
    }

    /// Marks all channels as connected. Returns the fences to send, which reveal the replies that are lost.
    fn announce(&self, reconnected: bool) -> Vec<(Channel, RawMessage)> {
        let mut fences = Vec::new();
        for channel in Channel::MESSAGES {
            let own = self.dispatcher.connected(channel, reconnected);
            fences.extend(own.into_iter().map(|fence| (channel, fence)));
        }
        self.connected.send_replace(true);
        fences
    }

    /// Connects, with retries until the server refuses or the time is over.
    async fn connect(&self, within: Duration, pause: &mut Duration) -> Result<Socket, CloseReason> {
        let mut why = "connecting timed out".to_owned();
        let trying = async {
            loop {
                let session = self.dispatcher.session.id();
                let limits = &self.options.client.limits;
                match socket::connect(&self.server, &self.kernel_id, session, limits).await {
                    Ok(socket) => return Ok(socket),
                    Err(ConnectError::Refused(why)) => return Err(CloseReason::Refused(why)),
                    Err(ConnectError::Retryable(reason)) => why = reason,
                }
                tokio::time::sleep(*pause).await;
                *pause = (*pause * 2).min(MAX_BACKOFF);
            }
        };
        match tokio::time::timeout(within, trying).await {
            Ok(connected) => connected,
            Err(_) => Err(unreachable(within, why)),
        }
    }

    /// Transfers messages both ways until the connection ends.
    async fn serve(&mut self, socket: Socket, fences: Vec<(Channel, RawMessage)>) -> ConnectionEnd {
        let framing = socket.framing;
        let (mut sink, mut stream) = socket.stream.split();
        let (ping, mut pings) = mpsc::channel::<()>(1);
        let (dispatcher, outgoing) = (&self.dispatcher, &mut self.outgoing);
        let send = async {
            let sent = |(channel, message): (Channel, RawMessage)| {
                dispatcher.sending(&message);
                framing.encode(channel, &message)
            };
            for fence in fences {
                if let Ok(message) = sent(fence) {
                    sink.send(message).await?;
                }
            }
            loop {
                let message = tokio::select! {
                    next = outgoing.recv() => match next {
                        Some(next) => sent(next),
                        None => {
                            // Best effort: the server notices the end of the stream anyway.
                            let _ = sink.close().await;
                            return Ok(());
                        }
                    },
                    Some(()) = pings.recv() => Ok(Message::Ping(bytes::Bytes::new())),
                };
                // Only a message built from invalid texts is not JSON.
                if let Ok(message) = message {
                    sink.send(message).await?;
                }
            }
        };
        let receive = receive(dispatcher, framing, &mut stream, &ping, &self.options);
        tokio::select! {
            ended = receive => ended,
            () = wait_until_deleted(&self.server, &self.kernel_id, dispatcher) => ConnectionEnd::Deleted,
            sent = send => match sent {
                Ok(()) => ConnectionEnd::Closed,
                Err(error) => classify(&error),
            },
        }
    }
}

/// Waits until requests are pending and the server no longer has the kernel.
async fn wait_until_deleted(server: &ServerClient, kernel_id: &str, dispatcher: &Dispatcher) {
    loop {
        tokio::time::sleep(DELETION_POLL_INTERVAL).await;
        if dispatcher.has_pending()
            && matches!(server.kernel(kernel_id).await, Err(ServerError::NotFound { .. }))
        {
            return;
        }
    }
}

/// Receives messages until the connection ends. Pings a silent server.
async fn receive<S>(
    dispatcher: &Dispatcher,
    framing: FramingVersion,
    stream: &mut S,
    ping: &mpsc::Sender<()>,
    options: &Options,
) -> ConnectionEnd
where
    S: futures_util::Stream<Item = Result<Message, Error>> + Unpin,
{
    let mut silent = false;
    loop {
        let next = match tokio::time::timeout(options.ping, stream.next()).await {
            Ok(next) => next,
            Err(_) if silent => {
                return ConnectionEnd::Lost("the server does not answer".to_owned());
            }
            Err(_) => {
                silent = true;
                // A queued ping serves as well.
                let _ = ping.try_send(());
                continue;
            }
        };
        silent = false;
        match next {
            None | Some(Ok(Message::Close(_))) => {
                return ConnectionEnd::Lost("the server closed the connection".to_owned());
            }
            Some(Err(error)) => return classify(&error),
            Some(Ok(message)) => match framing.decode(message, &options.client.limits) {
                Some(Ok((channel, message))) => deliver(dispatcher, channel, message),
                Some(Err(_)) => dispatcher.reject(),
                None => {}
            },
        }
        // Yields during a flood, so that other tasks run.
        tokio::task::consume_budget().await;
    }
}

/// Delivers a message to the dispatcher, or records a loss if it is the server's notice of one.
fn deliver(dispatcher: &Dispatcher, channel: Channel, message: RawMessage) {
    if is_rate_notice(dispatcher, channel, &message) {
        dispatcher.record_loss(Loss::RateLimited, message.parent().msg_id());
    } else {
        dispatcher.deliver(channel, message);
    }
}

/// Returns true for a notice of the server. It carries the session of this client, which no kernel uses.
fn is_rate_notice(dispatcher: &Dispatcher, channel: Channel, message: &RawMessage) -> bool {
    if channel != Channel::IoPub
        || message.msg_type() != "stream"
        || message.header().session != dispatcher.session.id()
    {
        return false;
    }
    match message.parse_content(&dispatcher.limits) {
        Content::Stream(stream) => {
            RATE_LIMIT_NOTICES.iter().any(|notice| stream.text.starts_with(notice))
        }
        _ => false,
    }
}

fn classify(error: &Error) -> ConnectionEnd {
    match error {
        Error::Capacity(capacity) => ConnectionEnd::Violation(capacity.to_string()),
        other => ConnectionEnd::Lost(other.to_string()),
    }
}

fn unreachable(within: Duration, why: String) -> CloseReason {
    CloseReason::Unreachable { channel: Channel::Shell, within, why }
}
