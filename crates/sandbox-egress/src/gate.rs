//! The gate itself: the sockets of one sandbox, and what they have in common.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use sandbox_core::{DenialReason, NetworkDenial, NetworkMode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use crate::config::{GateConfig, Limits};
use crate::connection;
use crate::denials::Denials;
use crate::dns_server;
use crate::fake_ip::FakeIpPool;
use crate::listener::AdmissionListener;
use crate::proxy;
use crate::resolver::Resolver;
use crate::rules::{Rules, Source};
use crate::upstream::Upstream;

/// The sockets of a sandbox, in its own network. They do not block.
#[derive(Debug)]
pub struct Sockets {
    /// Listens for every TCP connection that leaves the sandbox. The local address of an accepted one is what was meant.
    pub connections: OwnedFd,
    /// DNS questions by UDP.
    pub dns_packets: OwnedFd,
    /// Listens for DNS questions by TCP.
    pub dns_connections: OwnedFd,
}

/// A gate that is open. Dropping it ends every connection, and then nothing leaves the sandbox any more.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    /// A task has it, and closes it with its end. A proxy has none.
    listener: Weak<AdmissionListener>,
    tasks: Vec<AbortHandle>,
}

/// What all tasks of a gate share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rules: Rules,
    pub(crate) limits: Limits,
    pub(crate) upstream: Arc<dyn Upstream>,
    pub(crate) resolver: Resolver,
    pub(crate) denials: Denials,
    fake_ips: Mutex<FakeIpPool>,
}

impl Shared {
    fn new(mut config: GateConfig) -> Self {
        if !matches!(config.policy.mode, NetworkMode::Allowlist | NetworkMode::All) {
            config.policy.mode = NetworkMode::Allowlist;
            config.policy.allow.clear();
        }
        Self {
            rules: Rules::new(config.policy),
            limits: config.limits,
            resolver: Resolver::new(Arc::clone(&config.upstream), config.limits.connect),
            upstream: config.upstream,
            denials: Denials::default(),
            fake_ips: Mutex::new(FakeIpPool::new(config.limits.names)),
        }
    }

    pub(crate) fn fake_ips(&self) -> MutexGuard<'_, FakeIpPool> {
        self.fake_ips.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the rules say of an address.
    pub(crate) fn address(
        &self,
        address: IpAddr,
        port: Option<u16>,
        source: Source,
    ) -> Result<(), DenialReason> {
        self.rules.address(address, port, source, self.upstream.is_own(address))
    }
}

impl Gate {
    /// Begins to serve, in tasks of the current tokio runtime. The gate ends with that runtime.
    ///
    /// # Errors
    /// When the descriptors are no such sockets.
    pub fn open(sockets: Sockets, config: GateConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config));
        let tcp = |fd: OwnedFd| TcpListener::from_std(fd.into());
        let listener = Arc::new(AdmissionListener::open(sockets.connections)?);
        let watched = Arc::downgrade(&listener);
        let packets = Arc::new(UdpSocket::from_std(sockets.dns_packets.into())?);
        let questions = tcp(sockets.dns_connections)?;
        let tasks = [
            tokio::spawn(accept(Arc::clone(&shared), listener)),
            tokio::spawn(dns_server::serve_packets(Arc::clone(&shared), packets)),
            tokio::spawn(dns_server::serve_connections(Arc::clone(&shared), questions)),
        ];
        let tasks = tasks.map(|task| task.abort_handle()).into();
        Ok(Self { shared, listener: watched, tasks })
    }

    /// Begins to serve connections on which programs say themselves where they want to, as they say it to a proxy for
    /// HTTP (`CONNECT`, or a request with an absolute target): for sandboxes whose network cannot be looked into. Where
    /// the connections come from is the caller's business; there must be no other way out. In a task of the current tokio
    /// runtime; the gate ends with that runtime.
    ///
    /// What is refused is answered with status 403 and the reason, what cannot be reached with 502.
    pub fn proxy<S>(connections: S, config: GateConfig) -> Self
    where
        S: Stream<Item: AsyncRead + AsyncWrite + Unpin + Send> + Send + 'static,
    {
        let shared = Arc::new(Shared::new(config));
        let task = tokio::spawn(proxied(Arc::clone(&shared), connections));
        Self { shared, listener: Weak::new(), tasks: vec![task.abort_handle()] }
    }

    /// Ends every connection; nothing leaves the sandbox any more. May be repeated.
    pub fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// This moment, for [`Gate::denied_since`]. A connection that has arrived by now came before it.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.decide();
        self.shared.denials.mark()
    }

    /// What was refused since a moment, at most 64 different denials, the first ones. A connection that has arrived by
    /// now is decided about first.
    #[must_use]
    pub fn denied_since(&self, mark: u64) -> Vec<NetworkDenial> {
        self.decide();
        self.shared.denials.since(mark)
    }

    fn decide(&self) {
        if let Some(listener) = self.listener.upgrade() {
            listener.accept_pending(&self.shared);
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.close();
    }
}

/// Takes connections until no more can come; they end with this task.
async fn proxied<S>(shared: Arc<Shared>, connections: S)
where
    S: Stream<Item: AsyncRead + AsyncWrite + Unpin + Send> + Send + 'static,
{
    let each = |client| proxy::serve(&shared, client);
    connections.for_each_concurrent(shared.limits.connections, each).await;
}

/// Serves connections for ever; they end with this task. Beyond the limit they wait in the kernel's queue.
async fn accept(shared: Arc<Shared>, listener: Arc<AdmissionListener>) {
    let mut open = JoinSet::new();
    loop {
        while open.len() >= shared.limits.connections {
            open.join_next().await;
        }
        tokio::select! {
            next = listener.next(&shared) => match next {
                Ok((client, destination)) => {
                    let shared = Arc::clone(&shared);
                    open.spawn(async move { connection::serve(&shared, client, destination).await });
                }
                // No descriptors are left, or the one that came is gone already.
                Err(_) => sleep(Duration::from_millis(20)).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}
