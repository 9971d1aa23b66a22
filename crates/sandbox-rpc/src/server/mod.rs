//! The server: offers a backend on a connection.

mod dispatch;
mod session;
mod state;

use std::sync::Arc;

use sandbox_core::{Backend, Result};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::handshake::{self, ClientHello, PROTOCOL, ServerHello, VERSION};
use crate::link::{InboundFrame, Link};
use crate::transport::{read_frames, write_frames};
use crate::wire::capability_names;
use session::Session;

/// A connection whose client has sent its hello, and waits for the answer.
#[derive(Debug)]
pub struct Accepted<S> {
    stream: S,
    hello: ClientHello,
}

/// Receives the hello of a client.
///
/// # Errors
/// `Unavailable` when the other side closes the stream, `Protocol` when it is no client.
pub async fn accept<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    mut stream: S,
) -> Result<Accepted<S>> {
    let hello = handshake::read_hello(&mut stream).await.map_err(handshake::connect_error)?;
    Ok(Accepted { stream, hello })
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Accepted<S> {
    /// Returns the hello of the client.
    pub fn hello(&self) -> &ClientHello {
        &self.hello
    }

    /// Answers the hello and serves until the connection ends. What only the client held ends with the connection:
    /// attached sandboxes, runs, commands, transfers.
    ///
    /// A client with another protocol gets the hello of the server, and nothing more.
    ///
    /// # Errors
    /// `Unavailable` when the connection breaks, `Protocol` when the client violates the protocol.
    ///
    /// # Cancellation
    /// Dropping the future closes the connection.
    pub async fn serve(
        mut self,
        backend: Arc<dyn Backend>,
        about: Map<String, Value>,
    ) -> Result<()> {
        self.answer(&*backend, about).await?;
        if self.hello.protocol != PROTOCOL {
            return Ok(());
        }
        let (link, frames) = Link::new(false);
        let (from, to) = tokio::io::split(self.stream);
        tokio::spawn(write_frames(to, frames, link.closed()));
        let session = Session::new(Arc::clone(&link), backend);
        let _guard = session.close_when_dropped();
        let read = read_frames(from, |frame| {
            Some(link.handle(frame).map(|frame| match frame {
                Some(InboundFrame::Request(send, recv, message)) => {
                    session.start(send, recv, message);
                }
                Some(InboundFrame::Cancel(id)) => session.cancel(id),
                Some(InboundFrame::Release(id)) => session.release(id),
                Some(InboundFrame::State(..)) | None => {}
            }))
        });
        read.await.map_err(handshake::connect_error)
    }

    /// Answers the hello, and closes the connection.
    ///
    /// # Errors
    /// `Unavailable` when the client has closed the connection.
    pub async fn refuse(mut self, backend: &dyn Backend, about: Map<String, Value>) -> Result<()> {
        self.answer(backend, about).await
    }

    async fn answer(&mut self, backend: &dyn Backend, about: Map<String, Value>) -> Result<()> {
        let hello = ServerHello {
            protocol: PROTOCOL,
            version: VERSION.into(),
            variant: backend.variant(),
            capabilities: capability_names(&backend.capabilities()),
            about,
        };
        handshake::write_hello(&mut self.stream, &hello).await.map_err(handshake::connect_error)
    }
}

/// Serves a backend on a connection until the connection ends.
///
/// # Errors
/// Those of [`accept`] and [`Accepted::serve`].
///
/// # Cancellation
/// Dropping the future closes the connection.
pub async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    backend: Arc<dyn Backend>,
    stream: S,
) -> Result<()> {
    accept(stream).await?.serve(backend, Map::new()).await
}
