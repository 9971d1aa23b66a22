//! Keeps one channel connected, and moves its messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use zeromq::{DealerRecvHalf, DealerSendHalf, SubSocket, ZmqMessage};
use zeromq::{SocketRecv, SocketSend as _};

use super::dial::Dialer;
use super::link::{Ending, Link, LinkError, Socket};
use super::private::PrivateFolder;
use super::pump::Stopped;
use crate::channel::Channel;
use crate::client::hub::Hub;
use crate::client::{ClientOptions, CloseReason};
use crate::codec::Codec;
use crate::raw::RawMessage;

/// The first pause between two tries to connect. Each further one is longer by a twentieth, so that a kernel that starts
/// is found within a twentieth of the time that it has taken so far.
const FIRST_PAUSE: Duration = Duration::from_millis(2);

/// The longest pause between two tries to connect.
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Replies wait in the kernel for as long as it takes, so little is taken ahead of time, in bytes.
const SMALL_SPOOL: usize = 1024 * 1024;

/// A connection that broke sooner than this is not taken as one that worked.
const SETTLED: Duration = Duration::from_secs(1);

/// Everything that a channel needs.
pub(super) struct ChannelTask {
    pub(super) channel: Channel,
    pub(super) hub: Arc<Hub>,
    /// What the kernel sends replies to. The same for all channels, and after every reconnection.
    pub(super) identity: Arc<str>,
    pub(super) dialer: Arc<dyn Dialer>,
    pub(super) folder: Arc<PrivateFolder>,
    pub(super) options: ClientOptions,
    pub(super) codec: Codec,
    pub(super) outgoing: mpsc::Receiver<(Channel, RawMessage)>,
    /// Tells whether it is connected.
    pub(super) connected: watch::Sender<bool>,
}

/// How a connection ended.
enum Ended {
    /// It broke.
    Lost(Stopped),
    /// The client is gone.
    Closed,
}

impl ChannelTask {
    /// Runs until the client is gone, or there is no way to connect any more.
    pub(super) async fn run(mut self) {
        let mut within = self.patience(self.options.connect_timeout);
        let mut again = false;
        let mut pauses = Pauses::default();
        loop {
            let link = match self.connect(within, &mut pauses).await {
                Ok(link) => link,
                Err(reason) => return self.hub.close(&reason),
            };
            let since = Instant::now();
            let fences = self.hub.connected(self.channel, again);
            self.connected.send_replace(true);
            let ended = self.serve(link, fences).await;
            self.connected.send_replace(false);
            self.hub.disconnected(self.channel);
            match ended {
                Ended::Closed => return,
                Ended::Lost(Stopped::Violation(violation)) => {
                    let why = violation.to_string();
                    return self.hub.close(&CloseReason::Violation { channel: self.channel, why });
                }
                Ended::Lost(stopped) if self.patience(self.options.reconnect_timeout).is_zero() => {
                    return self.hub.close(&self.unreachable(Duration::ZERO, stopped.to_string()));
                }
                Ended::Lost(_) => {}
            }
            if since.elapsed() >= SETTLED {
                pauses = Pauses::default();
            }
            tokio::time::sleep(pauses.next()).await;
            within = self.patience(self.options.reconnect_timeout);
            again = true;
        }
    }

    /// Tries until it is connected, or the time is over.
    async fn connect(&self, within: Duration, pauses: &mut Pauses) -> Result<Link, CloseReason> {
        let mut why = "the handshake took too long".to_owned();
        let trying = async {
            loop {
                let limits = self.options.limits;
                let (folder, spool) = (&self.folder, self.spool());
                match Link::open(&*self.dialer, self.channel, &self.identity, limits, folder, spool)
                    .await
                {
                    Ok(link) => return Ok(link),
                    Err(LinkError::Never(violation)) => return Err(violation),
                    Err(error) => why = error.to_string(),
                }
                tokio::time::sleep(pauses.next()).await;
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

    /// Some kernels listen on stdin late or never. Nobody may miss it, so there is no end to trying.
    fn patience(&self, usual: Duration) -> Duration {
        if self.channel == Channel::Stdin { Duration::MAX } else { usual }
    }

    /// How many bytes are taken from the kernel ahead of time.
    fn spool(&self) -> usize {
        match self.channel {
            Channel::IoPub => self.options.buffered.max(SMALL_SPOOL),
            _ => SMALL_SPOOL,
        }
    }

    fn unreachable(&self, within: Duration, why: String) -> CloseReason {
        CloseReason::Unreachable { channel: self.channel, within, why }
    }

    /// Moves messages both ways until the connection ends.
    async fn serve(&mut self, link: Link, fences: Vec<RawMessage>) -> Ended {
        let (socket, mut ending) = link.split();
        let finished = match socket {
            Socket::Sub(socket) => self.receive_published(socket, &mut ending).await,
            Socket::Dealer(sender, receiver) => {
                self.exchange(sender, receiver, &mut ending, fences).await
            }
            Socket::Req(_) => true,
        };
        if finished { Ended::Closed } else { Ended::Lost(ending.why().await) }
    }

    /// Whether it ended because the client is gone.
    async fn receive_published(&mut self, mut socket: SubSocket, ending: &mut Ending) -> bool {
        let (hub, codec) = (&self.hub, &mut self.codec);
        let receive = receive(hub, codec, self.channel, &mut socket, ending);
        let gone = async { while self.outgoing.recv().await.is_some() {} };
        tokio::select! {
            () = receive => false,
            () = gone => true,
        }
    }

    /// Whether it ended because the client is gone.
    async fn exchange(
        &mut self,
        mut sender: DealerSendHalf,
        mut receiver: DealerRecvHalf,
        ending: &mut Ending,
        fences: Vec<RawMessage>,
    ) -> bool {
        // Signing needs the codec as it is now, and receiving alters it.
        let signing = self.codec.clone();
        let (hub, codec) = (&self.hub, &mut self.codec);
        let receive = receive(hub, codec, self.channel, &mut receiver, ending);
        let send = send(hub, &signing, &mut sender, fences, &mut self.outgoing);
        tokio::select! {
            () = receive => false,
            gone = send => gone,
        }
    }
}

/// Receives until the connection ends.
async fn receive<R: SocketRecv>(
    hub: &Hub,
    codec: &mut Codec,
    channel: Channel,
    socket: &mut R,
    ending: &mut Ending,
) {
    while let Some(frames) = ending.receive(socket).await {
        match codec.decode(frames) {
            Ok(message) => hub.deliver(channel, message),
            Err(_) => hub.reject(),
        }
        // A flood must not keep others from running.
        tokio::task::consume_budget().await;
    }
}

/// Sends until the client is gone. If the connection is lost, waits to be dropped.
async fn send(
    hub: &Hub,
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
        hub.sending(&message);
        if send_one(codec, socket, &message).await.is_err() {
            return std::future::pending().await;
        }
    }
    true
}

/// The library could not take it.
struct NotTaken;

async fn send_one(
    codec: &Codec,
    socket: &mut DealerSendHalf,
    message: &RawMessage,
) -> Result<(), NotTaken> {
    let frames = ZmqMessage::try_from(codec.encode(message)).map_err(|_| NotTaken)?;
    socket.send(frames).await.map_err(|_| NotTaken)
}

/// Pauses that grow.
#[derive(Debug)]
struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(FIRST_PAUSE)
    }
}

impl Pauses {
    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 21 / 20).min(LAST_PAUSE);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was made ready while this side paused is noticed late by little, measured by how long it took.
    #[test]
    fn a_pause_is_a_small_part_of_the_time_before_it() {
        let (mut pauses, mut before) = (Pauses::default(), Duration::ZERO);
        for _ in 0..1000 {
            let pause = pauses.next();
            assert!(pause <= FIRST_PAUSE + before / 20, "{pause:?} after {before:?}");
            assert!(pause <= LAST_PAUSE, "{pause:?}");
            before += pause;
        }
        assert_eq!(pauses.next(), LAST_PAUSE);
    }
}
