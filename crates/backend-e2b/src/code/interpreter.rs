//! Requests of the code interpreter, one method for each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use sandbox_cloud::http::{Request, Url, join, lines};
use sandbox_cloud::{Backoff, Connections};
use sandbox_core::{CallContext, Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::wire::{Line, parse};
use crate::addresses::CODE_PORT;
use crate::client_factory::SandboxClient;
use crate::error::is_port_closed;
use crate::remote::SandboxHandle;

/// Silence after which a run counts as lost. The interpreter says every few seconds that it is alive.
const MAX_SILENCE: Duration = Duration::from_secs(60);

/// Largest line, which may have an image.
const MAX_LINE: usize = 64 << 20;

/// A context of the interpreter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RemoteContext {
    pub(super) id: String,
    pub(super) language: String,
    pub(super) cwd: String,
}

/// Code to run.
#[derive(Clone, Debug, Default)]
pub(super) struct Execute {
    pub(super) code: String,
    /// The context. `None`: the default one of the language.
    pub(super) context: Option<String>,
    pub(super) language: Option<String>,
    pub(super) env: BTreeMap<String, String>,
}

/// The lines of a run. Dropping them interrupts the code.
pub(super) type Lines = BoxStream<'static, Result<Line>>;

/// The code interpreter of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Interpreter {
    handle: Arc<SandboxHandle>,
}

impl Interpreter {
    pub(crate) fn new(handle: Arc<SandboxHandle>) -> Self {
        Self { handle }
    }

    pub(super) fn handle(&self) -> &Arc<SandboxHandle> {
        &self.handle
    }

    fn client(&self, connections: Connections) -> Result<(SandboxClient, Url)> {
        self.handle.port(CODE_PORT, connections)
    }

    /// Returns true when the interpreter answers. `limit` is the time for one that is starting; where nothing listens on
    /// its port after that, there is none. `reachable` is the time for the sandbox itself.
    ///
    /// # Errors
    /// What kept the sandbox from answering.
    pub(crate) async fn is_there(&self, limit: Duration, reachable: Duration) -> Result<bool> {
        let (client, address) = self.client(Connections::Shared)?;
        let end = tokio::time::Instant::now() + limit;
        let (call, mut backoff) = (CallContext::new(), Backoff::new(reachable));
        loop {
            let request = Request::get("create", join(&address, &["health"])).accept("*/*");
            let error = match client.send(&call, &request).await {
                Ok(_) => return Ok(true),
                Err(error) => error,
            };
            match error.kind() {
                _ if is_port_closed(&error) => {
                    if tokio::time::Instant::now() >= end {
                        return Ok(false);
                    }
                }
                // Something else listens there.
                ErrorKind::NotFound | ErrorKind::Unsupported => return Ok(false),
                ErrorKind::Unavailable | ErrorKind::ConnectionLost => {}
                _ => return Err(error),
            }
            if !backoff.wait(&call).await {
                return Err(error);
            }
        }
    }

    /// `POST execute`
    pub(super) async fn execute(&self, request: &Execute) -> Result<Lines> {
        let operation = "run_code";
        let (client, address) = self.client(Connections::Shared)?;
        let mut body = Map::new();
        body.insert("code".into(), json!(request.code));
        if let Some(context) = &request.context {
            body.insert("context_id".into(), json!(context));
        }
        if let Some(language) = &request.language {
            body.insert("language".into(), json!(language));
        }
        if !request.env.is_empty() {
            body.insert("env_vars".into(), json!(request.env));
        }
        let request = Request::post(operation, join(&address, &["execute"]))
            .json(&Value::Object(body))
            .idle_timeout(MAX_SILENCE)
            // The head may come with the turn of the run, behind another one.
            .timeout(sandbox_core::MAX_DURATION);
        let answer = client.open(&CallContext::new(), &request).await?;
        let all = lines(operation, answer.into_bytes(), MAX_LINE);
        Ok(Box::pin(all.map(move |line| {
            parse(&line?).map_err(|error| {
                let message = "the code interpreter answers what is not understood";
                Error::new(ErrorKind::Protocol, operation, message).with_source(error)
            })
        })))
    }

    /// `POST contexts`
    pub(super) async fn create_context(
        &self,
        cwd: Option<&str>,
        language: Option<&str>,
    ) -> Result<RemoteContext> {
        let (client, address) = self.client(Connections::Shared)?;
        let mut body = Map::new();
        for (key, value) in [("cwd", cwd), ("language", language)] {
            if let Some(value) = value {
                body.insert(key.into(), json!(value));
            }
        }
        let url = join(&address, &["contexts"]);
        let request = Request::post("create_context", url).json(&Value::Object(body));
        client.json(&CallContext::new(), &request).await
    }

    /// `GET contexts`
    pub(super) async fn contexts(&self, operation: &'static str) -> Result<Vec<RemoteContext>> {
        let (client, address) = self.client(Connections::Shared)?;
        let request = Request::get(operation, join(&address, &["contexts"]));
        client.json(&CallContext::new(), &request).await
    }

    /// `POST contexts/{id}/restart`
    pub(super) async fn restart(&self, operation: &'static str, id: &str) -> Result<()> {
        let (client, address) = self.client(Connections::Shared)?;
        let url = join(&address, &["contexts", id, "restart"]);
        let request = Request::post(operation, url).idempotent();
        client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `DELETE contexts/{id}`. A context that is gone already is a success.
    pub(super) async fn delete(&self, id: &str) -> Result<()> {
        let (client, address) = self.client(Connections::Shared)?;
        let request = Request::delete("delete_context", join(&address, &["contexts", id]));
        match client.send(&CallContext::new(), &request).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
