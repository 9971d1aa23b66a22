//! The side that has the backend.

mod session;
mod state;
mod verbs;

use std::sync::Arc;

use sandbox_core::{Backend, Result};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::hello::{self, ClientHello, PROTOCOL, ServerHello, VERSION};
use crate::link::{Link, Taken};
use crate::transport::{read_frames, write_frames};
use crate::wire::names;
use session::Session;

/// A connection whose client has introduced itself, and has had no answer yet.
#[derive(Debug)]
pub struct Accepted<S> {
    stream: S,
    hello: ClientHello,
}

/// Hears who connects.
///
/// # Errors
/// `Unavailable` when the other side goes away, `Protocol` when it is no client.
pub async fn accept<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    mut stream: S,
) -> Result<Accepted<S>> {
    let hello = hello::hear(&mut stream).await.map_err(hello::unreachable)?;
    Ok(Accepted { stream, hello })
}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Accepted<S> {
    /// What the client said.
    pub fn hello(&self) -> &ClientHello {
        &self.hello
    }

    /// Answers and serves until the connection ends. Everything that only the client held ends with it: sandboxes that
    /// nobody else holds, runs, commands, transfers.
    ///
    /// A client that speaks another protocol hears which one is spoken here, and nothing more.
    ///
    /// # Errors
    /// `Unavailable` when the connection breaks, `Protocol` when the client breaks the protocol.
    ///
    /// # Cancellation
    /// Dropping the future is the end of the connection.
    pub async fn serve(
        mut self,
        backend: Arc<dyn Backend>,
        about: Map<String, Value>,
    ) -> Result<()> {
        self.introduce(&*backend, about).await?;
        if self.hello.protocol != PROTOCOL {
            return Ok(());
        }
        let (link, frames) = Link::new(false);
        let (from, to) = tokio::io::split(self.stream);
        tokio::spawn(write_frames(to, frames, link.closed()));
        let session = Session::new(Arc::clone(&link), backend);
        let _ended = session.end_when_dropped();
        let read = read_frames(from, |frame| {
            Some(link.take(frame).map(|taken| match taken {
                Some(Taken::Request(outlet, inlet, message)) => {
                    session.start(outlet, inlet, message);
                }
                Some(Taken::Cancel(id)) => session.cancel(id),
                Some(Taken::Release(id)) => session.release(id),
                Some(Taken::State(..)) | None => {}
            }))
        });
        read.await.map_err(hello::unreachable)
    }

    /// Answers, and ends the connection.
    ///
    /// # Errors
    /// `Unavailable` when the client went away.
    pub async fn refuse(mut self, backend: &dyn Backend, about: Map<String, Value>) -> Result<()> {
        self.introduce(backend, about).await
    }

    async fn introduce(&mut self, backend: &dyn Backend, about: Map<String, Value>) -> Result<()> {
        let hello = ServerHello {
            protocol: PROTOCOL,
            version: VERSION.into(),
            variant: backend.variant(),
            capabilities: names(&backend.capabilities()),
            about,
        };
        hello::say(&mut self.stream, &hello).await.map_err(hello::unreachable)
    }
}

/// Serves a backend on a connection, until it ends.
///
/// # Errors
/// Those of [`accept`] and [`Accepted::serve`].
///
/// # Cancellation
/// Dropping the future is the end of the connection.
pub async fn serve<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    backend: Arc<dyn Backend>,
    stream: S,
) -> Result<()> {
    accept(stream).await?.serve(backend, Map::new()).await
}
