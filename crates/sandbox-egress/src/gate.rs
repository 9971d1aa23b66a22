//! The gate itself: the sockets of one sandbox, and the state that its tasks share.

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

/// Non-blocking sockets in the network of a sandbox.
#[derive(Debug)]
pub struct Sockets {
    /// Listens for every TCP connection that leaves the sandbox. The local address of an accepted connection is its
    /// destination.
    pub connections: OwnedFd,
    /// Receives DNS queries by UDP.
    pub dns_packets: OwnedFd,
    /// Listens for DNS queries by TCP.
    pub dns_connections: OwnedFd,
}

/// An open gate. Dropping it ends every connection; afterwards nothing leaves the sandbox.
#[derive(Debug)]
pub struct Gate {
    shared: Arc<Shared>,
    /// Owned by a task, which closes the listener when it ends. A proxy has no listener.
    listener: Weak<AdmissionListener>,
    tasks: Vec<AbortHandle>,
}

/// State shared by all tasks of a gate.
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

    /// Applies the rules to an address.
    pub(crate) fn check_address(
        &self,
        address: IpAddr,
        port: Option<u16>,
        source: Source,
    ) -> Result<(), DenialReason> {
        self.rules.check_address(address, port, source, self.upstream.is_own(address))
    }
}

impl Gate {
    /// Opens a gate, served by tasks of the current tokio runtime. The gate ends with that runtime.
    ///
    /// # Errors
    /// The descriptors are not sockets of these kinds.
    pub fn open(sockets: Sockets, config: GateConfig) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(config));
        let tcp = |fd: OwnedFd| TcpListener::from_std(fd.into());
        let listener = Arc::new(AdmissionListener::open(sockets.connections)?);
        let weak = Arc::downgrade(&listener);
        let packets = Arc::new(UdpSocket::from_std(sockets.dns_packets.into())?);
        let questions = tcp(sockets.dns_connections)?;
        let tasks = [
            tokio::spawn(serve_admitted(Arc::clone(&shared), listener)),
            tokio::spawn(dns_server::serve_packets(Arc::clone(&shared), packets)),
            tokio::spawn(dns_server::serve_connections(Arc::clone(&shared), questions)),
        ];
        let tasks = tasks.map(|task| task.abort_handle()).into();
        Ok(Self { shared, listener: weak, tasks })
    }

    /// Opens a gate that serves HTTP proxy connections (`CONNECT`, or a request with an absolute target), for sandboxes
    /// whose network cannot be intercepted. The caller supplies the connections and must ensure that the sandbox has no
    /// other way out. Served by a task of the current tokio runtime; the gate ends with that runtime.
    ///
    /// A refused request gets status 403 with the reason, an unreachable host 502.
    pub fn proxy<S>(connections: S, config: GateConfig) -> Self
    where
        S: Stream<Item: AsyncRead + AsyncWrite + Unpin + Send> + Send + 'static,
    {
        let shared = Arc::new(Shared::new(config));
        let task = tokio::spawn(serve_proxy(Arc::clone(&shared), connections));
        Self { shared, listener: Weak::new(), tasks: vec![task.abort_handle()] }
    }

    /// Ends every connection; afterwards nothing leaves the sandbox. May be called again.
    pub fn close(&self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }

    /// Sets a mark for [`Gate::denied_since`]. Connections that have already arrived count as before the mark.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.accept_pending();
        self.shared.denials.mark()
    }

    /// Returns what was refused since a mark: at most 64 different denials, the first ones. Connections that have
    /// already arrived are decided first.
    #[must_use]
    pub fn denied_since(&self, mark: u64) -> Vec<NetworkDenial> {
        self.accept_pending();
        self.shared.denials.since(mark)
    }

    fn accept_pending(&self) {
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

/// Takes connections until the stream ends; the connections end with this task.
async fn serve_proxy<S>(shared: Arc<Shared>, connections: S)
where
    S: Stream<Item: AsyncRead + AsyncWrite + Unpin + Send> + Send + 'static,
{
    let each = |client| proxy::serve(&shared, client);
    connections.for_each_concurrent(shared.limits.connections, each).await;
}

/// Serves connections until the task is aborted, and ends them with it. Connections beyond the limit wait in the
/// kernel's queue.
async fn serve_admitted(shared: Arc<Shared>, listener: Arc<AdmissionListener>) {
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
                // Either no descriptors are left, or the accepted connection is already gone.
                Err(_) => sleep(Duration::from_millis(20)).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}
