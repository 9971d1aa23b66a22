//! Connections of clients: how many there are, and how long one may take for the head of a request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Most connections at one time. Further ones wait until another one is closed.
const MAX_CONNECTIONS: usize = 4096;

/// Pause after a connection that could not be accepted, such as without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves connections until `stop` is true or its sender is gone, and then those that are under way. A connection without the
/// whole head of a next request for that long is closed. Dropping the future closes every connection.
pub(super) async fn serve(
    listener: TcpListener,
    service: Router,
    head_timeout: Duration,
    mut stop: watch::Receiver<bool>,
) {
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let (stream, permit) = tokio::select! {
            accepted = accept(&listener, &room) => accepted,
            // Forgets those that have ended.
            Some(_) = connections.join_next() => continue,
            () = stopped(&mut stop) => break,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = server.serve_connection(TokioIo::new(stream), service).with_upgrades();
        connections.spawn(run(connection, stop.clone(), permit));
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Waits until the server is to stop.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    // An error means that the server was dropped.
    drop(stop.wait_for(|stop| *stop).await);
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Fails only for a closed semaphore, and this one never is.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // Events are small, and each is for a client that waits.
                drop(stream.set_nodelay(true));
                return (stream, permit);
            }
            Err(error) => {
                tracing::debug!(%error, "a connection could not be accepted");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

type Connection = http1::UpgradeableConnection<TokioIo<TcpStream>, TowerToHyperService<Router>>;

async fn run(
    connection: Connection,
    mut stop: watch::Receiver<bool>,
    _permit: Option<OwnedSemaphorePermit>,
) {
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stopped(&mut stop) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // The client is gone, was too slow, or has sent what is no request.
        tracing::debug!(%error, "a connection has broken");
    }
}
