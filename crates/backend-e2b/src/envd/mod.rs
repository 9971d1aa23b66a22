//! The daemon in a sandbox: processes and files over the Connect protocol, file contents over HTTP.

mod commands;
mod connect;
mod files;
mod process;
mod run;
mod upload;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::stream::BoxStream;
use sandbox_cloud::Connections;
use sandbox_cloud::http::{Request, Url, join};
use sandbox_core::{CallContext, Error, Result};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::addresses::ENVD_PORT;
use crate::client_factory::SandboxClient;
use crate::remote::SandboxHandle;
use crate::wire::Measured;

pub(crate) use self::commands::EnvdCommands;
pub(crate) use self::files::E2bFiles;
pub(crate) use self::process::{StartProcess, agent_tag};
pub(crate) use self::run::{Output, PipedProcess};

/// Interval, in seconds, in which the daemon says that a stream is alive.
const KEEPALIVE_SECONDS: &str = "50";

/// Silence after which a stream counts as lost.
const MAX_SILENCE: Duration = Duration::from_secs(150);

/// Messages of a stream, as JSON.
pub(crate) type Messages = BoxStream<'static, Result<Bytes>>;

/// The daemon of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Envd {
    handle: Arc<SandboxHandle>,
    connections: Connections,
    /// The user of processes and files. Default: that of the template.
    user: Option<&'static str>,
}

impl Envd {
    pub(crate) fn new(handle: Arc<SandboxHandle>) -> Self {
        Self { handle, connections: Connections::Shared, user: None }
    }

    /// Returns the same daemon for the administrator of the sandbox.
    pub(crate) fn as_root(&self) -> Self {
        Self { user: Some("root"), ..self.clone() }
    }

    /// Returns the handle of the sandbox.
    pub(crate) fn handle(&self) -> &Arc<SandboxHandle> {
        &self.handle
    }

    fn client(&self) -> Result<(SandboxClient, Url)> {
        self.handle.port(ENVD_PORT, self.connections)
    }

    /// Calls a method. `is_read`: it changes nothing, so that it can be repeated.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        method: &str,
        body: &Value,
        is_read: bool,
    ) -> Result<T> {
        let (client, address) = self.client()?;
        let url = join(&address, &method.split('/').collect::<Vec<_>>());
        let request = Request::post(operation, url)
            .json(body)
            .header(connect::VERSION.0, connect::VERSION.1)?;
        let request = self.for_user(request)?;
        let request = if is_read { request.idempotent() } else { request };
        client.json(&CallContext::new(), &request).await
    }

    /// Calls a method that answers with a stream. Dropping the stream ends the request, and nothing in the sandbox.
    pub(crate) async fn stream(
        &self,
        operation: &'static str,
        method: &str,
        body: &Value,
    ) -> Result<Messages> {
        let (client, address) = self.client()?;
        let url = join(&address, &method.split('/').collect::<Vec<_>>());
        let request = Request::post(operation, url)
            .bytes(connect::STREAM_TYPE, connect::envelope(body))
            .accept(connect::STREAM_TYPE)
            .header(connect::VERSION.0, connect::VERSION.1)?
            .header("keepalive-ping-interval", KEEPALIVE_SECONDS)?
            .idle_timeout(MAX_SILENCE);
        let request = self.for_user(request)?;
        let answer = client.open(&CallContext::new(), &request).await?;
        Ok(Box::pin(connect::messages(operation, answer.into_bytes())))
    }

    /// Sends a request to the HTTP interface, and gives its answer as it comes.
    pub(crate) async fn open(
        &self,
        operation: &'static str,
        path: &str,
        query: &[(&str, &str)],
        change: impl FnOnce(Request) -> Result<Request>,
    ) -> Result<sandbox_cloud::http::StreamingResponse> {
        let (client, request) = self.request(operation, path, query, change)?;
        client.open(&CallContext::new(), &request).await
    }

    /// `GET metrics`: the resources that are in use now.
    pub(crate) async fn measured(&self) -> Result<Measured> {
        #[derive(serde::Deserialize)]
        #[serde(default)]
        #[derive(Default)]
        struct Figures {
            mem_used: u64,
            disk_used: u64,
        }
        let (client, request) = self.request("metrics", "metrics", &[], Ok)?;
        let Figures { mem_used, disk_used } = client.json(&CallContext::new(), &request).await?;
        Ok(Measured { mem_used, disk_used, ..Measured::default() })
    }

    fn request(
        &self,
        operation: &'static str,
        path: &str,
        query: &[(&str, &str)],
        change: impl FnOnce(Request) -> Result<Request>,
    ) -> Result<(SandboxClient, Request)> {
        let (client, address) = self.client()?;
        let request = Request::get(operation, join(&address, &[path])).accept("*/*");
        let request =
            query.iter().fold(request, |request, (name, value)| request.query(name, value));
        Ok((client, change(request)?))
    }

    /// Names the user that a method is for.
    fn for_user(&self, request: Request) -> Result<Request> {
        match self.user {
            Some(user) => {
                let name = STANDARD.encode(format!("{user}:"));
                request.header("authorization", &format!("Basic {name}"))
            }
            None => Ok(request),
        }
    }

    /// Replaces an error by the end of the sandbox, where that is the cause.
    pub(crate) async fn explain(&self, operation: &'static str, error: Error) -> Error {
        self.handle.map_error(operation, error).await
    }
}

/// Returns a stream of messages as values of one type.
pub(crate) fn typed<T: DeserializeOwned + Send>(
    operation: &'static str,
    messages: Messages,
) -> impl Stream<Item = Result<T>> + Send {
    use futures_util::StreamExt as _;
    messages.map(move |message| connect::parse(operation, &message?))
}
