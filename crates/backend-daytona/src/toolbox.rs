//! The requests of the toolbox, the provider's service in each sandbox, one method for each.

use std::time::Duration;

use bytes::Bytes;
use sandbox_cloud::auth::KeyAuth;
use sandbox_cloud::http::websocket::{SocketRequest, WebSocket};
use sandbox_cloud::http::{Client, Part, Request, Url, join};
use sandbox_core::{ByteStream, CallContext, Error, ErrorKind, PtySize, Result, Retry};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::wire::{
    CommandState, Directory, Executed, InterpreterContext, InterpreterContexts, Session,
    SessionCommand,
};

/// Time for a script that is waited for, in seconds. The toolbox kills it then.
const SCRIPT_TIMEOUT: u64 = 3600;
/// Time to pass on input, whose reader may be slow, and to transfer a file.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(24 * 3600);
/// Bytes of a script's answer that are read.
const MAX_ANSWER: usize = 100 << 20;

/// The subprotocol by which a terminal reports its exit as a message.
const PTY_EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";

/// Returns the error of a request that no sandbox can refuse as not found: the sandbox itself is not there.
pub(crate) fn of_sandbox(error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound {
        return error;
    }
    let message = format!("the sandbox does not answer: {}", error.message());
    Error::new(ErrorKind::Unavailable, error.operation(), message)
        .with_retry(Retry::Never)
        .with_effect(error.effect())
}

/// The toolbox of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Toolbox {
    client: Client<KeyAuth>,
    base: Url,
}

impl Toolbox {
    pub(crate) fn new(client: Client<KeyAuth>, proxy: Url, id: String) -> Self {
        Self { client, base: join(&proxy, &[&id]) }
    }

    fn url(&self, segments: &[&str]) -> Url {
        join(&self.base, segments)
    }

    async fn post<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        segments: &[&str],
        body: &Value,
    ) -> Result<T> {
        let request = Request::post(operation, self.url(segments)).json(body);
        self.client.json(&CallContext::new(), &request).await
    }

    async fn get<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        segments: &[&str],
    ) -> Result<T> {
        self.client.json(&CallContext::new(), &Request::get(operation, self.url(segments))).await
    }

    /// `GET /work-dir`
    pub(crate) async fn work_dir(&self, call: &CallContext) -> Result<String> {
        let request = Request::get("create", self.url(&["work-dir"]));
        let found = self.client.json::<Directory>(call, &request).await;
        found.map(|found| found.dir).map_err(of_sandbox)
    }

    /// `POST /process/execute`
    pub(crate) async fn execute(&self, operation: &'static str, command: &str) -> Result<Executed> {
        let body = json!({"command": command, "timeout": SCRIPT_TIMEOUT});
        let request = Request::post(operation, self.url(&["process", "execute"]))
            .json(&body)
            .timeout(Duration::from_secs(SCRIPT_TIMEOUT + 30))
            .max_response(MAX_ANSWER);
        self.client.json(&CallContext::new(), &request).await.map_err(of_sandbox)
    }

    /// `POST /process/session`
    pub(crate) async fn create_session(&self, id: &str) -> Result<()> {
        let url = self.url(&["process", "session"]);
        let request = Request::post("start_command", url).json(&json!({"sessionId": id}));
        let sent = self.client.send(&CallContext::new(), &request).await;
        sent.map(drop).map_err(of_sandbox)
    }

    /// `GET /process/session`
    pub(crate) async fn sessions(&self) -> Result<Vec<Session>> {
        let found: Option<Vec<Session>> = self.get("attach", &["process", "session"]).await?;
        Ok(found.unwrap_or_default())
    }

    /// `POST /process/session/{session}/exec`, which answers at once.
    pub(crate) async fn start(&self, session: &str, command: &str) -> Result<String> {
        let body = json!({"command": command, "runAsync": true, "suppressInputEcho": true});
        let path = ["process", "session", session, "exec"];
        self.post::<SessionCommand>("start_command", &path, &body).await.map(|found| found.cmd_id)
    }

    /// `GET /process/session/{session}/command/{command}`
    pub(crate) async fn command(&self, session: &str, command: &str) -> Result<CommandState> {
        self.get("command", &["process", "session", session, "command", command]).await
    }

    /// `POST /process/session/{session}/command/{command}/input`
    pub(crate) async fn input(&self, session: &str, command: &str, line: &str) -> Result<()> {
        let url = self.url(&["process", "session", session, "command", command, "input"]);
        let request = Request::post("write_stdin", url)
            .json(&json!({"data": line}))
            .timeout(TRANSFER_TIMEOUT);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `GET /process/session/{session}/command/{command}/logs?follow=true`, a WebSocket.
    pub(crate) async fn follow(&self, session: &str, command: &str) -> Result<WebSocket> {
        let url = self.url(&["process", "session", session, "command", command, "logs"]);
        let request = SocketRequest::new("command", url).query("follow", "true");
        self.client.websocket(&CallContext::new(), &request).await
    }

    /// `GET /process/pty/create-connect`, a WebSocket.
    pub(crate) async fn terminal(&self, id: &str, size: PtySize) -> Result<WebSocket> {
        let url = self.url(&["process", "pty", "create-connect"]);
        let request = SocketRequest::new("start_command", url)
            .query("id", id)
            .query("cols", &size.columns.to_string())
            .query("rows", &size.rows.to_string())
            .protocol(PTY_EXIT_CONTROL);
        self.client.websocket(&CallContext::new(), &request).await.map_err(of_sandbox)
    }

    /// `GET /process/pty/{id}/connect`, a WebSocket to a terminal that is there.
    pub(crate) async fn terminal_again(&self, id: &str) -> Result<WebSocket> {
        let url = self.url(&["process", "pty", id, "connect"]);
        let request = SocketRequest::new("connect", url).protocol(PTY_EXIT_CONTROL);
        self.client.websocket(&CallContext::new(), &request).await
    }

    /// `POST /process/pty/{id}/resize`
    pub(crate) async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        let body = json!({"cols": size.columns, "rows": size.rows});
        let request = Request::post("resize", self.url(&["process", "pty", id, "resize"]));
        self.client.send(&CallContext::new(), &request.json(&body)).await.map(drop)
    }

    /// `GET /files/download`
    pub(crate) async fn download(&self, operation: &'static str, path: &str) -> Result<ByteStream> {
        let request = Request::get(operation, self.url(&["files", "download"]))
            .query("path", path)
            .accept("application/octet-stream");
        Ok(self.client.open(&CallContext::new(), &request).await?.into_bytes())
    }

    /// `POST /files/bulk-upload` of one file, whose bytes are sent as they come.
    pub(crate) async fn upload(
        &self,
        operation: &'static str,
        path: &str,
        content: ByteStream,
    ) -> Result<()> {
        let parts = vec![
            Part::text("files[0].path", path),
            Part::streamed_file("files[0].file", path, content, None),
        ];
        self.send_parts(operation, parts).await
    }

    /// `POST /files/bulk-upload` of one small file.
    pub(crate) async fn upload_bytes(
        &self,
        operation: &'static str,
        path: &str,
        content: impl Into<Bytes>,
    ) -> Result<()> {
        let parts =
            vec![Part::text("files[0].path", path), Part::file("files[0].file", path, content)];
        self.send_parts(operation, parts).await
    }

    async fn send_parts(&self, operation: &'static str, parts: Vec<Part>) -> Result<()> {
        let request = Request::post(operation, self.url(&["files", "bulk-upload"]))
            .multipart(parts)
            .timeout(TRANSFER_TIMEOUT);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `DELETE /files`
    pub(crate) async fn remove(&self, path: &str) -> Result<()> {
        let request = Request::delete("files", self.url(&["files"])).query("path", path);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }

    /// `GET /process/interpreter/execute`, a WebSocket for one run.
    pub(crate) async fn interpreter(&self, call: &CallContext) -> Result<WebSocket> {
        let url = self.url(&["process", "interpreter", "execute"]);
        let opened = self.client.websocket(call, &SocketRequest::new("run_code", url)).await;
        opened.map_err(of_sandbox)
    }

    /// `POST /process/interpreter/context`
    pub(crate) async fn create_context(&self, cwd: &str) -> Result<InterpreterContext> {
        let path = ["process", "interpreter", "context"];
        self.post("create_context", &path, &json!({"cwd": cwd, "language": "python"})).await
    }

    /// `GET /process/interpreter/context`
    pub(crate) async fn contexts(&self) -> Result<Vec<InterpreterContext>> {
        let path = ["process", "interpreter", "context"];
        let found: InterpreterContexts = self.get("list_contexts", &path).await?;
        Ok(found.contexts.unwrap_or_default())
    }

    /// `DELETE /process/interpreter/context/{id}`
    pub(crate) async fn delete_context(&self, id: &str) -> Result<()> {
        let url = self.url(&["process", "interpreter", "context", id]);
        let request = Request::delete("delete_context", url);
        self.client.send(&CallContext::new(), &request).await.map(drop)
    }
}
