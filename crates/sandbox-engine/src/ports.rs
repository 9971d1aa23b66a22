//! Ports of a sandbox on the loopback of this host.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, ErrorKind, Result, TunnelInfo};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

use crate::expiry::ActivityTracker;

/// Delay between attempts to accept, when this process has no descriptors left.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A connection to a server in a sandbox.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Connects to the servers in a sandbox. It does not keep the sandbox alive.
#[async_trait]
pub trait Servers: fmt::Debug + Send + Sync + 'static {
    /// Connects to a port of the sandbox's loopback.
    ///
    /// # Errors
    /// When nothing listens there, or the sandbox has ended.
    async fn connect(&self, port: u16) -> io::Result<Box<dyn Connection>>;

    /// Waits until the sandbox has ended.
    async fn closed(&self);
}

/// The exposed ports of one sandbox. Dropping this closes them, and every connection through them.
#[derive(Debug)]
pub struct Ports {
    there: Arc<dyn Servers>,
    room: Arc<Semaphore>,
    exposed: Mutex<BTreeMap<u16, Exposed>>,
}

#[derive(Debug)]
struct Exposed {
    here: u16,
    task: AbortHandle,
}

impl Drop for Exposed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Ports {
    /// Exposes ports of a sandbox, with at most that many connections at a time. Further ones wait.
    pub fn new(there: Arc<dyn Servers>, max_connections: usize) -> Self {
        Self { there, room: Arc::new(Semaphore::new(max_connections)), exposed: Mutex::default() }
    }

    /// Listens on the loopback of this host for a port of the sandbox. A port that is exposed again keeps its address.
    ///
    /// # Errors
    /// `InvalidArgument` for port 0; `Unavailable` when no port is free here.
    pub async fn expose(&self, port: u16, uses: ActivityTracker) -> Result<TunnelInfo> {
        check_port(port)?;
        let mut exposed = self.exposed.lock().await;
        let here = match exposed.get(&port) {
            Some(exposed) => exposed.here,
            None => {
                let (listener, here) = listen().await.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "expose_port", "no port is free here")
                        .with_source(error)
                })?;
                let room = Arc::clone(&self.room);
                let task = tokio::spawn(serve(listener, Arc::clone(&self.there), port, room, uses));
                exposed.insert(port, Exposed { here, task: task.abort_handle() });
                here
            }
        };
        Ok(on_loopback(port, here))
    }
}

/// Refuses port 0.
///
/// # Errors
/// `InvalidArgument` for port 0.
pub fn check_port(port: u16) -> Result<()> {
    if port == 0 {
        return Err(Error::invalid("port", "must be between 1 and 65535, got 0"));
    }
    Ok(())
}

/// Describes a port of a sandbox that is reached on that port of this host.
pub fn on_loopback(port: u16, here: u16) -> TunnelInfo {
    let url = format!("http://{}:{here}", Ipv4Addr::LOCALHOST);
    TunnelInfo { port, url, protocol: "http".into(), headers: BTreeMap::new() }
}

async fn listen() -> io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let here = listener.local_addr()?.port();
    Ok((listener, here))
}

/// Accepts connections until the sandbox has ended. The connections end with this.
async fn serve(
    listener: TcpListener,
    there: Arc<dyn Servers>,
    port: u16,
    room: Arc<Semaphore>,
    uses: ActivityTracker,
) {
    let mut connections = JoinSet::new();
    let next = async || {
        // Fails only when the semaphore is closed, and nothing closes it.
        let place = Arc::clone(&room).acquire_owned().await;
        (place, listener.accept().await)
    };
    loop {
        tokio::select! {
            () = there.closed() => return,
            Some(_) = connections.join_next() => {}
            (place, accepted) = next() => match accepted {
                Ok((stream, _)) => {
                    let carried = carry(stream, Arc::clone(&there), port);
                    let in_use = uses.begin();
                    connections.spawn(async move {
                        carried.await;
                        drop((place, in_use));
                    });
                }
                Err(error) => {
                    tracing::debug!(port, %error, "a connection could not be accepted");
                    sleep(ACCEPT_RETRY_DELAY).await;
                }
            },
        }
    }
}

/// Carries a connection from its beginning to its end. Where nothing listens it ends at once.
async fn carry(mut here: TcpStream, there: Arc<dyn Servers>, port: u16) {
    let carried = async {
        here.set_nodelay(true)?;
        let mut there = there.connect(port).await?;
        copy_bidirectional(&mut here, &mut there).await
    };
    if let Err(error) = carried.await {
        tracing::debug!(port, %error, "a connection has ended");
    }
}
