//! One connection of one channel: a socket of the library, and the pump behind it.

use std::time::Duration;

use bytes::Bytes;
use tokio::task::{JoinError, JoinHandle};
use zeromq::util::PeerIdentity;
use zeromq::{
    DealerRecvHalf, DealerSendHalf, DealerSocket, ReqSocket, SocketOptions, SubSocket, ZmqError,
    ZmqMessage,
};
use zeromq::{Socket as _, SocketRecv};

use super::dial::Dialer;
use super::ipc_dir::IpcDir;
use super::pump::{PumpEnd, StopReason, pump};
use crate::channel::Channel;
use crate::limits::Limits;
use crate::session::random_hex;
use crate::zmtp::{FrameLimiter, Violation};

/// Limits the handshake. A tunnel may be slow, and a kernel may accept the connection and send nothing.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits the wait for the library's next message after the pump has stopped within a frame.
const FRAGMENT_TIMEOUT: Duration = Duration::from_millis(500);

/// Limits the wait for the library's next message after the pump has stopped. The last message is the pump's mark.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// The reason why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    /// A temporary error.
    #[error("{0}")]
    Retryable(String),
    /// A violation of the protocol, which would occur again.
    #[error("{0}")]
    Permanent(Violation),
    /// No private socket could be created.
    #[error("{0}")]
    Local(std::io::Error),
}

/// A socket of the library.
pub(super) enum Socket {
    Dealer(DealerSendHalf, DealerRecvHalf),
    Sub(SubSocket),
    Req(ReqSocket),
}

/// An established connection.
pub(super) struct Link {
    pub(super) socket: Socket,
    pump: JoinHandle<PumpEnd>,
    mark: Bytes,
}

/// Returns the socket types that a kernel uses for a channel.
fn peers(channel: Channel) -> &'static [&'static str] {
    match channel {
        Channel::IoPub => &["XPUB", "PUB"],
        Channel::Heartbeat => &["REP", "ROUTER"],
        Channel::Shell | Channel::Control | Channel::Stdin => &["ROUTER", "REP", "DEALER"],
    }
}

impl Link {
    /// Connects a channel.
    pub(super) async fn open(
        dialer: &dyn Dialer,
        channel: Channel,
        identity: &str,
        limits: Limits,
        folder: &IpcDir,
        spool: usize,
    ) -> Result<Self, LinkError> {
        let retryable = |error: std::io::Error| LinkError::Retryable(error.to_string());
        let kernel = tokio::time::timeout(HANDSHAKE_TIMEOUT, dialer.dial(channel));
        let kernel =
            kernel.await.map_err(|_| LinkError::Retryable("connecting timed out".to_owned()))?;
        let kernel = kernel.map_err(retryable)?;
        let private = folder.socket().map_err(LinkError::Local)?;
        let mark = Bytes::from(random_hex(16));
        let wire_mark = short_frame(&mark);
        let limiter = FrameLimiter::new(peers(channel), limits);
        let endpoint = private.endpoint();
        let pumping = async move {
            match private.listener.accept().await {
                Ok((library, _)) => {
                    // Accepts no other connection.
                    drop(private);
                    pump(kernel, library, limiter, spool, wire_mark).await
                }
                Err(error) => PumpEnd { stopped: StopReason::Ended(error), marked: false },
            }
        };
        let mut pump = AbortOnDrop(Some(tokio::spawn(pumping)));
        let connected = tokio::select! {
            connected = connect(channel, identity, &endpoint) => connected,
            // The library waits for a handshake that will not come.
            stopped = pump.handle() => return Err(link_error(stopped)),
        };
        match connected {
            Ok(socket) => Ok(Self { socket, pump: pump.keep(), mark }),
            Err(error) => {
                // The error of the pump is more specific than that of the library.
                match tokio::time::timeout(Duration::from_millis(100), pump.handle()).await {
                    Ok(stopped) => Err(link_error(stopped)),
                    Err(_) => Err(LinkError::Retryable(error.to_string())),
                }
            }
        }
    }

    /// Splits the link into its socket and the detector of its end.
    pub(super) fn split(self) -> (Socket, EndDetector) {
        (self.socket, EndDetector { pump: self.pump, mark: self.mark, end: None })
    }
}

/// Detects the end of a connection.
pub(super) struct EndDetector {
    pump: JoinHandle<PumpEnd>,
    mark: Bytes,
    end: Option<PumpEnd>,
}

impl EndDetector {
    /// Receives a message. Returns `None` after the last.
    pub(super) async fn receive<R: SocketRecv>(&mut self, socket: &mut R) -> Option<Vec<Bytes>> {
        loop {
            if let Some(end) = &self.end {
                // The library has received all data, and needs a moment to deliver it.
                let timeout = if end.marked { DRAIN_TIMEOUT } else { FRAGMENT_TIMEOUT };
                let next = tokio::time::timeout(timeout, socket.recv()).await.ok()?;
                return self.unless_marked(next);
            }
            tokio::select! {
                next = socket.recv() => return self.unless_marked(next),
                end = &mut self.pump => self.end = Some(or_panicked(end)),
            }
        }
    }

    fn unless_marked(&self, received: Result<ZmqMessage, ZmqError>) -> Option<Vec<Bytes>> {
        let frames = received.ok()?.into_vec();
        (frames.last() != Some(&self.mark)).then_some(frames)
    }

    /// Returns the reason for the end. Call it after the last message.
    pub(super) async fn reason(mut self) -> StopReason {
        match self.end.take() {
            Some(end) => end.stopped,
            None => match tokio::time::timeout(FRAGMENT_TIMEOUT, &mut self.pump).await {
                Ok(end) => or_panicked(end).stopped,
                Err(_) => StopReason::Ours,
            },
        }
    }
}

impl Drop for EndDetector {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

fn or_panicked(end: Result<PumpEnd, JoinError>) -> PumpEnd {
    end.unwrap_or(PumpEnd { stopped: StopReason::Ours, marked: false })
}

fn link_error(end: Result<PumpEnd, JoinError>) -> LinkError {
    match or_panicked(end).stopped {
        StopReason::Violation(violation) => LinkError::Permanent(violation),
        other => LinkError::Retryable(other.to_string()),
    }
}

async fn connect(channel: Channel, identity: &str, endpoint: &str) -> Result<Socket, ZmqError> {
    let mut options = SocketOptions::default();
    options.connect_timeout(HANDSHAKE_TIMEOUT);
    Ok(match channel {
        Channel::IoPub => {
            let mut socket = SubSocket::with_options(options);
            // Subscribing before connecting makes the subscription the first message.
            socket.subscribe("").await?;
            socket.connect(endpoint).await?;
            Socket::Sub(socket)
        }
        Channel::Heartbeat => {
            let mut socket = ReqSocket::with_options(options);
            socket.connect(endpoint).await?;
            Socket::Req(socket)
        }
        Channel::Shell | Channel::Control | Channel::Stdin => {
            options.peer_identity(identity.parse::<PeerIdentity>()?);
            let mut socket = DealerSocket::with_options(options);
            socket.connect(endpoint).await?;
            let (sender, receiver) = socket.split();
            Socket::Dealer(sender, receiver)
        }
    })
}

/// Encodes a message of one short frame.
fn short_frame(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, u8::try_from(body.len()).unwrap_or(u8::MAX)];
    bytes.extend_from_slice(&body[..body.len().min(usize::from(u8::MAX))]);
    bytes
}

/// A task that is aborted on drop, unless it is kept.
struct AbortOnDrop(Option<JoinHandle<PumpEnd>>);

impl AbortOnDrop {
    async fn handle(&mut self) -> Result<PumpEnd, JoinError> {
        match &mut self.0 {
            Some(handle) => handle.await,
            None => std::future::pending().await,
        }
    }

    fn keep(mut self) -> JoinHandle<PumpEnd> {
        self.0.take().unwrap_or_else(|| tokio::spawn(std::future::pending()))
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.abort();
        }
    }
}
