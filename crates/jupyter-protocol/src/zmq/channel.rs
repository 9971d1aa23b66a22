//! Keeps one channel connected, and transfers its messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use zeromq::{DealerRecvHalf, DealerSendHalf, SubSocket, ZmqMessage};
use zeromq::{SocketRecv, SocketSend as _};

use super::dial::Dialer;
use super::ipc_dir::IpcDir;
use super::link::{EndDetector, Link, LinkError, Socket};
use super::pump::StopReason;
use crate::channel::Channel;
use crate::client::dispatcher::Dispatcher;
use crate::client::{ClientOptions, CloseReason};
use crate::codec::Codec;
use crate::raw::RawMessage;

/// The delay before the first retry. It grows by a twentieth with each attempt, so that a starting kernel is found
/// within a twentieth of its start-up time.
const INITIAL_BACKOFF: Duration = Duration::from_millis(2);

/// Maximum delay between two attempts to connect.
const MAX_BACKOFF: Duration = Duration::from_millis(500);

/// Minimum size of the read-ahead buffer, in bytes. Enough for replies, which the kernel queues itself.
const MIN_SPOOL_SIZE: usize = 1024 * 1024;

/// A connection that breaks earlier does not reset the backoff.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The task of one channel.
pub(super) struct ChannelTask {
    pub(super) channel: Channel,
    pub(super) dispatcher: Arc<Dispatcher>,
    /// The routing identity of the client, the same for all channels and reconnections.
    pub(super) identity: Arc<str>,
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) folder: Arc<IpcDir>,
    pub(super) options: ClientOptions,
    pub(super) codec: Codec,
    pub(super) outgoing: mpsc::Receiver<(Channel, RawMessage)>,
    /// True while connected.
    pub(super) connected: watch::Sender<bool>,
}

/// The end of a connection.
enum ConnectionEnd {
    /// The connection broke.
    Lost(StopReason),
    /// The client was dropped.
    Closed,
}

impl ChannelTask {
    /// Runs until the client is dropped, or connecting fails for good.
    pub(super) async fn run(mut self) {
        let mut within = self.timeout_for_channel(self.options.connect_timeout);
        let mut reconnected = false;
        let mut backoff = Backoff::default();
        loop {
            let link = match self.connect(within, &mut backoff).await {
                Ok(link) => link,
                Err(reason) => return self.dispatcher.close(&reason),
            };
            let since = Instant::now();
            let fences = self.dispatcher.connected(self.channel, reconnected);
            self.connected.send_replace(true);
            let ended = self.serve(link, fences).await;
            self.connected.send_replace(false);
            self.dispatcher.disconnected(self.channel);
            match ended {
                ConnectionEnd::Closed => return,
                ConnectionEnd::Lost(StopReason::Violation(violation)) => {
                    let why = violation.to_string();
                    return self
                        .dispatcher
                        .close(&CloseReason::Violation { channel: self.channel, why });
                }
                ConnectionEnd::Lost(stopped)
                    if self.timeout_for_channel(self.options.reconnect_timeout).is_zero() =>
                {
                    return self
                        .dispatcher
                        .close(&self.unreachable(Duration::ZERO, stopped.to_string()));
                }
                ConnectionEnd::Lost(_) => {}
            }
            if since.elapsed() >= STABLE_AFTER {
                backoff = Backoff::default();
            }
            tokio::time::sleep(backoff.next()).await;
            within = self.timeout_for_channel(self.options.reconnect_timeout);
            reconnected = true;
        }
    }

    /// Connects, with retries until the time is over.
    async fn connect(&self, within: Duration, backoff: &mut Backoff) -> Result<Link, CloseReason> {
        let mut why = "the handshake timed out".to_owned();
        let trying = async {
            loop {
                let limits = self.options.limits;
                let (folder, spool) = (&self.folder, self.spool());
                match Link::open(&*self.dialer, self.channel, &self.identity, limits, folder, spool)
                    .await
                {
                    Ok(link) => return Ok(link),
                    Err(LinkError::Permanent(violation)) => return Err(violation),
                    Err(error) => why = error.to_string(),
                }
                tokio::time::sleep(backoff.next()).await;
            }
        };
        let channel = self.channel;
        match tokio::time::timeout(within, trying).await {
            Ok(Ok(link)) => Ok(link),
            Ok(Err(violation)) => {
                Err(CloseReason::Violation { channel, why: violation.to_string() })
            }
            Err(_) => Err(self.unreachable(within, why)),
        }
    }

    /// Returns the timeout of the channel. Some kernels listen on stdin late or never, and most clients can do without,
    /// so that channel has none.
    fn timeout_for_channel(&self, default: Duration) -> Duration {
        if self.channel == Channel::Stdin { Duration::MAX } else { default }
    }

    /// Returns the size of the read-ahead buffer, in bytes.
    fn spool(&self) -> usize {
        match self.channel {
            Channel::IoPub => self.options.buffered.max(MIN_SPOOL_SIZE),
            _ => MIN_SPOOL_SIZE,
        }
    }

    fn unreachable(&self, within: Duration, why: String) -> CloseReason {
        CloseReason::Unreachable { channel: self.channel, within, why }
    }

    /// Transfers messages both ways until the connection ends.
    async fn serve(&mut self, link: Link, fences: Vec<RawMessage>) -> ConnectionEnd {
        let (socket, mut end_detector) = link.split();
        let finished = match socket {
            Socket::Sub(socket) => self.receive_published(socket, &mut end_detector).await,
            Socket::Dealer(sender, receiver) => {
                self.exchange(sender, receiver, &mut end_detector, fences).await
            }
            Socket::Req(_) => true,
        };
        if finished {
            ConnectionEnd::Closed
        } else {
            ConnectionEnd::Lost(end_detector.reason().await)
        }
    }

    /// Receives published messages. Returns true if the client was dropped, and false if the connection ended.
    async fn receive_published(
        &mut self,
        mut socket: SubSocket,
        end_detector: &mut EndDetector,
    ) -> bool {
        let (dispatcher, codec) = (&self.dispatcher, &mut self.codec);
        let receive = receive(dispatcher, codec, self.channel, &mut socket, end_detector);
        let dropped = async { while self.outgoing.recv().await.is_some() {} };
        tokio::select! {
            () = receive => false,
            () = dropped => true,
        }
    }

    /// Sends and receives messages. Returns true if the client was dropped, and false if the connection ended.
    async fn exchange(
        &mut self,
        mut sender: DealerSendHalf,
        mut receiver: DealerRecvHalf,
        end_detector: &mut EndDetector,
        fences: Vec<RawMessage>,
    ) -> bool {
        // Receiving modifies the codec, so sending uses a copy.
        let signing = self.codec.clone();
        let (dispatcher, codec) = (&self.dispatcher, &mut self.codec);
        let receive = receive(dispatcher, codec, self.channel, &mut receiver, end_detector);
        let send = send(dispatcher, &signing, &mut sender, fences, &mut self.outgoing);
        tokio::select! {
            () = receive => false,
            dropped = send => dropped,
        }
    }
}

/// Receives messages until the connection ends.
async fn receive<R: SocketRecv>(
    dispatcher: &Dispatcher,
    codec: &mut Codec,
    channel: Channel,
    socket: &mut R,
    end_detector: &mut EndDetector,
) {
    while let Some(frames) = end_detector.receive(socket).await {
        match codec.decode(frames) {
            Ok(message) => dispatcher.deliver(channel, message),
            Err(_) => dispatcher.reject(),
        }
        // Yields during a flood, so that other tasks run.
        tokio::task::consume_budget().await;
    }
}

/// Sends until the client is dropped. If the connection is lost, waits to be dropped.
async fn send(
    dispatcher: &Dispatcher,
    codec: &Codec,
    socket: &mut DealerSendHalf,
    fences: Vec<RawMessage>,
    outgoing: &mut mpsc::Receiver<(Channel, RawMessage)>,
) -> bool {
    for fence in fences {
        if send_one(codec, socket, &fence).await.is_err() {
            return std::future::pending().await;
        }
    }
    while let Some((_, message)) = outgoing.recv().await {
        dispatcher.sending(&message);
        if send_one(codec, socket, &message).await.is_err() {
            return std::future::pending().await;
        }
    }
    true
}

/// The library did not take the message.
struct SendFailed;

async fn send_one(
    codec: &Codec,
    socket: &mut DealerSendHalf,
    message: &RawMessage,
) -> Result<(), SendFailed> {
    let frames = ZmqMessage::try_from(codec.encode(message)).map_err(|_| SendFailed)?;
    socket.send(frames).await.map_err(|_| SendFailed)
}

/// Delays that grow with each attempt.
#[derive(Debug)]
struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(INITIAL_BACKOFF)
    }
}

impl Backoff {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 21 / 20).min(MAX_BACKOFF);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that becomes reachable during a delay is found late by a small part of its start-up time.
    #[test]
    fn a_pause_is_a_small_part_of_the_time_before_it() {
        let (mut backoff, mut before) = (Backoff::default(), Duration::ZERO);
        for _ in 0..1000 {
            let pause = backoff.next();
            assert!(pause <= INITIAL_BACKOFF + before / 20, "{pause:?} after {before:?}");
            assert!(pause <= MAX_BACKOFF, "{pause:?}");
            before += pause;
        }
        assert_eq!(backoff.next(), MAX_BACKOFF);
    }
}
