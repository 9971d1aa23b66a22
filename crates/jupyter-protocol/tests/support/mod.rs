//! A test kernel on sockets in its own directory, and helpers for clients.

use std::time::Duration;

use jupyter_protocol::client::Client;
use jupyter_protocol::execution::{Event, GracePeriods};
use jupyter_protocol::test_kernel::{Behaviour, TestServer, Wire};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ConnectionInfo, ExecuteRequest};

/// A kernel that ends with the test.
pub(crate) struct Kernel {
    pub(crate) info: ConnectionInfo,
    folder: tempfile::TempDir,
    server: Option<TestServer>,
}

impl Kernel {
    /// Creates a kernel that does not listen yet.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { info: ConnectionInfo::ipc(folder.path().join("k")), folder, server: None }
    }

    /// Starts a kernel that listens.
    pub(crate) async fn start(behaviour: Behaviour, wire: Wire) -> Self {
        Self::new().serve(behaviour, wire).await
    }

    pub(crate) async fn serve(mut self, behaviour: Behaviour, wire: Wire) -> Self {
        self.server = Some(TestServer::start(&self.info, behaviour, wire).await.unwrap());
        self
    }

    /// Replaces the kernel behind the same sockets.
    pub(crate) async fn replace(mut self, behaviour: Behaviour) -> Self {
        assert!(self.folder.path().exists());
        drop(self.server.take());
        self.serve(behaviour, Wire::default()).await
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.server.as_ref().map_or(0, TestServer::subscribers)
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.info, quick()).await.unwrap()
    }
}

/// Returns options with short timeouts.
pub(crate) fn quick() -> Options {
    let mut options = Options::default();
    options.client.connect_timeout = Duration::from_secs(10);
    options.client.reconnect_timeout = Duration::from_secs(10);
    options.client.grace = GracePeriods::default()
        .with_idle(Duration::from_millis(500))
        .with_reply(Duration::from_millis(500));
    options
}

/// Runs code that succeeds, and returns its output.
pub(crate) async fn text(client: &Client, code: &str) -> String {
    client.ready(Duration::from_secs(10)).await.unwrap();
    let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
    let mut out = String::new();
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) => out.push_str(&stream.text),
            Event::Finished(outcome) => {
                assert!(outcome.is_ok() || outcome.reply.is_none(), "{outcome:?}");
            }
            _ => {}
        }
    }
    out
}

/// Returns the names of events.
pub(crate) fn names(events: &[Event]) -> Vec<&'static str> {
    let name = |event: &Event| match event {
        Event::Started => "started",
        Event::Input(_) => "input",
        Event::Stream(_) => "stream",
        Event::Display { .. } => "display",
        Event::UpdateDisplay { .. } => "update",
        Event::ClearOutput { .. } => "clear",
        Event::Result { .. } => "result",
        Event::Error(_) => "error",
        Event::Reply(_) => "reply",
        Event::Idle => "idle",
        Event::Finished(_) => "finished",
        _ => "other",
    };
    events.iter().map(name).collect()
}
