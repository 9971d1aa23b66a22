//! The requests of the bridge, one method for each.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use sandbox_cloud::auth::KeyAuth;
use sandbox_cloud::http::websocket::{SocketRequest, WebSocket};
use sandbox_cloud::http::{Client, Request, StreamingResponse, Url, join};
use sandbox_core::{ByteStream, CallContext, Error, ErrorKind, PtySize, Result};
use serde_json::{Value, json};

use crate::config::Account;
use crate::wire::{Minted, RemoteProcess, RemoteTerminal, Tunnel};

/// Time for a request that a container has to start for, and to transfer a file.
const CONTAINER_TIMEOUT: Duration = Duration::from_secs(300);

/// The code of a read that failed for another reason than that there is no such file.
const READ_FAILED: &str = "exec_transport_error";

/// A file that no sandbox has.
const NO_FILE: &str = "/workspace/.code-sandboxes-no-file";

/// The generation of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// Commands are run by `exec`, terminals belong to sessions.
    Exec,
    /// Processes have logs that can be read again; terminals are programs.
    Processes,
}

/// The generations of bridges, by address. One that was found counts as long as the process lives.
pub(crate) type Generations = Arc<Mutex<HashMap<String, Generation>>>;

/// The bridge, for one call.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) client: Client<KeyAuth>,
    pub(crate) account: Account,
    pub(crate) generations: Generations,
}

impl Api {
    fn url(&self, segments: &[&str]) -> Url {
        join(&self.account.bridge, &[&["v1"], segments].concat())
    }

    fn sandbox_url(&self, id: &str, segments: &[&str]) -> Url {
        self.url(&[&["sandbox", id], segments].concat())
    }

    /// `GET /v1/openapi.json`: the generation of the bridge.
    ///
    /// # Errors
    /// `Unsupported` for a Worker that is no bridge.
    pub(crate) async fn generation(&self, operation: &'static str) -> Result<Generation> {
        let address = self.account.bridge.as_str();
        let all = || self.generations.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all().get(address).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let request = Request::get(operation, self.url(&["openapi.json"]));
        let document = match self.client.send(&CallContext::new(), &request).await {
            Ok(answer) => answer.json::<Value>().ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let paths = document.as_ref().and_then(|found| found["paths"].as_object());
        let has =
            |end: &str| paths.is_some_and(|paths| paths.keys().any(|path| path.ends_with(end)));
        let found = if has("/processes") {
            Generation::Processes
        } else if has("/exec") {
            Generation::Exec
        } else {
            return Err(self.no_bridge(operation).await);
        };
        all().insert(address.to_owned(), found);
        Ok(found)
    }

    /// Returns the error for a Worker that is no bridge. One made from the example of older tools has routes below `/api`.
    async fn no_bridge(&self, operation: &'static str) -> Error {
        let address = self.account.bridge.as_str().trim_end_matches('/');
        let ping = Request::get(operation, join(&self.account.bridge, &["api", "ping"]));
        let is_example = self.client.send(&CallContext::new(), &ping).await.is_ok();
        let what = match is_example {
            true => {
                "is one made from `examples/basic` of Cloudflare's Sandbox SDK, which the bridge has replaced"
            }
            false => "is not the bridge of Cloudflare's Sandbox SDK",
        };
        Error::unsupported(operation, format!("the Worker at {address} {what}")).with_hint(
            "deploy the bridge (docs/cloudflare.md has the commands) and set CLOUDFLARE_SANDBOX_BASE_URL to its address",
        )
    }

    /// `GET /health`, which needs no key and starts nothing.
    pub(crate) async fn health(&self, call: &CallContext) -> Result<()> {
        let url = join(&self.account.bridge, &["health"]);
        let answer: Value = self.client.json(call, &Request::get("health", url)).await?;
        match answer["ok"] == true {
            true => Ok(()),
            false => {
                let message = "the Worker does not say that it is up";
                Err(Error::new(ErrorKind::Protocol, "health", message))
            }
        }
    }

    /// `GET /v1/pool/stats`, which needs the key and starts nothing.
    pub(crate) async fn pool(&self, call: &CallContext) -> Result<Value> {
        self.client.json(call, &Request::get("health", self.url(&["pool", "stats"]))).await
    }

    /// `POST /v1/sandbox`: an id, and nothing that runs.
    pub(crate) async fn mint(&self, call: &CallContext) -> Result<String> {
        // A lost id stands for no container.
        let request = Request::post("create", self.url(&["sandbox"])).idempotent();
        self.client.json::<Minted>(call, &request).await.map(|minted| minted.id)
    }

    /// `DELETE /v1/sandbox/{id}`, which succeeds for every id.
    pub(crate) async fn delete(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<()> {
        let request =
            Request::delete(operation, self.sandbox_url(id, &[])).timeout(CONTAINER_TIMEOUT);
        self.client.send(call, &request).await.map(drop)
    }

    /// `POST /v1/sandbox/{id}/exec`: events of a command, as they come.
    pub(crate) async fn exec(
        &self,
        operation: &'static str,
        id: &str,
        argv: &[&str],
    ) -> Result<StreamingResponse> {
        let request = Request::post(operation, self.sandbox_url(id, &["exec"]))
            .json(&json!({"argv": argv}))
            .accept("text/event-stream")
            .timeout(CONTAINER_TIMEOUT);
        self.client.open(&CallContext::new(), &request).await
    }

    /// `POST /v1/sandbox/{id}/processes`
    pub(crate) async fn start(
        &self,
        operation: &'static str,
        id: &str,
        argv: &[&str],
        env: &BTreeMap<&str, &str>,
    ) -> Result<RemoteProcess> {
        let request = Request::post(operation, self.sandbox_url(id, &["processes"]))
            .json(&json!({"argv": argv, "env": env}))
            .timeout(CONTAINER_TIMEOUT);
        self.client.json(&CallContext::new(), &request).await
    }

    /// `GET /v1/sandbox/{id}/processes`, which starts no container.
    pub(crate) async fn processes(
        &self,
        operation: &'static str,
        id: &str,
    ) -> Result<Vec<RemoteProcess>> {
        let request = Request::get(operation, self.sandbox_url(id, &["processes"]));
        self.client.json(&CallContext::new(), &request).await
    }

    /// `GET /v1/sandbox/{id}/processes/{process}/logs`, followed from a cursor.
    pub(crate) async fn logs(
        &self,
        id: &str,
        process: &str,
        since: Option<&str>,
    ) -> Result<StreamingResponse> {
        let url = self.sandbox_url(id, &["processes", process, "logs"]);
        let mut request = Request::get("command", url)
            .query("follow", "true")
            .query("replay", "true")
            .accept("text/event-stream");
        if let Some(since) = since {
            request = request.query("since", since);
        }
        self.client.open(&CallContext::new(), &request).await
    }

    /// `PUT /v1/sandbox/{id}/file/{path}`, with at most 32 MiB.
    pub(crate) async fn put(
        &self,
        operation: &'static str,
        id: &str,
        path: &str,
        content: impl Into<Bytes>,
    ) -> Result<()> {
        let request = Request::put(operation, self.file(id, path))
            .bytes("application/octet-stream", content)
            .timeout(CONTAINER_TIMEOUT);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `GET /v1/sandbox/{id}/file/{path}`: the bytes of a file, as they come.
    pub(crate) async fn get(
        &self,
        operation: &'static str,
        id: &str,
        path: &str,
    ) -> Result<ByteStream> {
        let request = Request::get(operation, self.file(id, path)).timeout(CONTAINER_TIMEOUT);
        Ok(self.client.open(&CallContext::new(), &request).await?.into_bytes())
    }

    /// Starts the container of an id where it does not run, by asking for a file that is not there. Returns false where the
    /// bridge cannot tell such a file from a failure.
    ///
    /// # Errors
    /// What kept the container from starting.
    pub(crate) async fn start_container(&self, operation: &'static str, id: &str) -> Result<bool> {
        let request = Request::get(operation, self.file(id, NO_FILE))
            .at_most_once()
            .timeout(CONTAINER_TIMEOUT);
        match self.client.send(&CallContext::new(), &request).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) if error.context().contains(&("code", READ_FAILED.to_owned())) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn file(&self, id: &str, path: &str) -> Url {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        self.sandbox_url(id, &[&["file"], parts.as_slice()].concat())
    }

    /// `POST /v1/sandbox/{id}/mount`: mounts a bucket. The bridge checks the object.
    pub(crate) async fn mount(&self, id: &str, mount: &Value) -> Result<()> {
        let request = Request::post("create", self.sandbox_url(id, &["mount"]))
            .json(mount)
            .timeout(CONTAINER_TIMEOUT);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `POST /v1/sandbox/{id}/session`. A terminal of `exec`'s generation is that of a session.
    pub(crate) async fn create_session(&self, id: &str, session: &str) -> Result<()> {
        let request = Request::post("start_command", self.sandbox_url(id, &["session"]))
            .json(&json!({"id": session, "cwd": "/workspace"}))
            .timeout(CONTAINER_TIMEOUT);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `DELETE /v1/sandbox/{id}/session/{session}`, which ends its terminal.
    pub(crate) async fn delete_session(&self, id: &str, session: &str) -> Result<()> {
        let request = Request::delete("command", self.sandbox_url(id, &["session", session]));
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `GET /v1/sandbox/{id}/pty`, a WebSocket.
    pub(crate) async fn pty(&self, id: &str, session: &str, size: PtySize) -> Result<WebSocket> {
        let request = SocketRequest::new("start_command", self.sandbox_url(id, &["pty"]))
            .query("cols", &size.columns.to_string())
            .query("rows", &size.rows.to_string())
            .query("session", session);
        self.client.websocket(&CallContext::new(), &request).await
    }

    /// `POST /v1/sandbox/{id}/terminals`: a program on a terminal.
    pub(crate) async fn create_terminal(
        &self,
        id: &str,
        argv: &[&str],
        env: &BTreeMap<&str, &str>,
        size: PtySize,
    ) -> Result<RemoteTerminal> {
        let body = json!({"argv": argv, "env": env, "cols": size.columns, "rows": size.rows});
        let request =
            Request::post("start_command", self.sandbox_url(id, &["terminals"])).json(&body);
        self.client.json(&CallContext::new(), &request.timeout(CONTAINER_TIMEOUT)).await
    }

    /// `GET /v1/sandbox/{id}/terminals/{terminal}/connect`, a WebSocket. Output comes from the beginning, or from a cursor on.
    pub(crate) async fn connect_terminal(
        &self,
        id: &str,
        terminal: &str,
        size: PtySize,
        cursor: Option<&str>,
    ) -> Result<WebSocket> {
        let url = self.sandbox_url(id, &["terminals", terminal, "connect"]);
        let mut request = SocketRequest::new("start_command", url)
            .query("cols", &size.columns.to_string())
            .query("rows", &size.rows.to_string());
        if let Some(cursor) = cursor {
            request = request.query("cursor", cursor);
        }
        self.client.websocket(&CallContext::new(), &request).await
    }

    /// `POST /v1/sandbox/{id}/terminals/{terminal}/terminate`
    pub(crate) async fn end_terminal(&self, id: &str, terminal: &str) -> Result<()> {
        let url = self.sandbox_url(id, &["terminals", terminal, "terminate"]);
        self.client.send(&CallContext::new(), &Request::post("command", url)).await.map(drop)
    }

    /// `POST /v1/sandbox/{id}/tunnel/{port}`, which gives the same tunnel again.
    pub(crate) async fn tunnel(&self, call: &CallContext, id: &str, port: u16) -> Result<Tunnel> {
        let port = port.to_string();
        let request = Request::post("expose_port", self.sandbox_url(id, &["tunnel", &port]))
            .json(&json!({}))
            .timeout(CONTAINER_TIMEOUT);
        self.client.json(call, &request.idempotent()).await
    }
}
