//! Ports of a container on the loopback of this host. Their bytes go the way of everything else, so that a container
//! needs no network for it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use sandbox_agent::pipe::PipePorts;
use sandbox_core::{Error, ErrorKind, Result, TunnelInfo};
use sandbox_local::Uses;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;

/// Between attempts to accept, when this process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Connections at a time, further ones wait. What one does not read stays under way, and is never more than half of what
/// may be: the code of the sandbox has the other half.
const MOST: usize = 16;

/// The ports of one container. Dropping this closes them, and every connection through them.
#[derive(Debug)]
pub(crate) struct Ports {
    there: PipePorts,
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
    pub(crate) fn new(there: PipePorts) -> Self {
        Self { there, room: Arc::new(Semaphore::new(MOST)), exposed: Mutex::default() }
    }

    /// Listens for a port of the container. Asked again, it is the same place.
    pub(crate) async fn expose(&self, port: u16, uses: Uses) -> Result<TunnelInfo> {
        if port == 0 {
            return Err(Error::invalid("port", "must be between 1 and 65535, got 0"));
        }
        let mut exposed = self.exposed.lock().await;
        let here = match exposed.get(&port) {
            Some(exposed) => exposed.here,
            None => {
                let (listener, here) = listen().await.map_err(|error| {
                    Error::new(ErrorKind::Unavailable, "expose_port", "no port is free here")
                        .with_source(error)
                })?;
                let room = Arc::clone(&self.room);
                let task = tokio::spawn(serve(listener, self.there.clone(), port, room, uses));
                exposed.insert(port, Exposed { here, task: task.abort_handle() });
                here
            }
        };
        let url = format!("http://{}:{here}", Ipv4Addr::LOCALHOST);
        Ok(TunnelInfo { port, url, protocol: "http".into(), headers: BTreeMap::new() })
    }
}

async fn listen() -> std::io::Result<(TcpListener, u16)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let here = listener.local_addr()?.port();
    Ok((listener, here))
}

/// Until the container has ended. What runs here ends with it.
async fn serve(
    listener: TcpListener,
    there: PipePorts,
    port: u16,
    room: Arc<Semaphore>,
    uses: Uses,
) {
    let mut connections = JoinSet::new();
    let next = async || {
        // Fails only when it is closed, and nobody does that.
        let place = Arc::clone(&room).acquire_owned().await;
        (place, listener.accept().await)
    };
    loop {
        tokio::select! {
            () = there.closed() => return,
            Some(_) = connections.join_next() => {}
            (place, accepted) = next() => match accepted {
                Ok((stream, _)) => {
                    let carried = carry(stream, there.clone(), port);
                    let in_use = uses.begin();
                    connections.spawn(async move {
                        carried.await;
                        drop((place, in_use));
                    });
                }
                Err(error) => {
                    tracing::debug!(port, %error, "a connection could not be accepted");
                    sleep(PAUSE).await;
                }
            },
        }
    }
}

/// A connection, from its beginning to its end. Where nobody listens it ends at once.
async fn carry(mut here: TcpStream, there: PipePorts, port: u16) {
    let carried = async {
        here.set_nodelay(true)?;
        let mut there = there.connect(port).await.map_err(std::io::Error::other)?;
        copy_bidirectional(&mut here, &mut there).await
    };
    if let Err(error) = carried.await {
        tracing::debug!(port, %error, "a connection has ended");
    }
}
