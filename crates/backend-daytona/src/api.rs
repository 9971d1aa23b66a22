//! The requests of the API, one method for each.

use sandbox_cloud::auth::KeyAuth;
use sandbox_cloud::http::{Client, Request, Url, all_pages, join};
use sandbox_core::{ByteStream, CallContext, ErrorKind, Page, Result, Tags};
use serde_json::{Value, json};

use crate::config::Account;
use crate::wire::{NamedUrl, PreviewUrl, Sandbox, Sandboxes, Snapshot, Snapshots, Volume};

/// Entries of a page that are asked for.
const PAGE_SIZE: &str = "100";

/// The API, for one call.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) client: Client<KeyAuth>,
    pub(crate) account: Account,
}

impl Api {
    fn url(&self, segments: &[&str]) -> Url {
        join(&self.account.api, segments)
    }

    /// Sends a request whose answer is a sandbox.
    async fn read_sandbox(&self, call: &CallContext, request: &Request) -> Result<Sandbox> {
        let sandbox: Sandbox = self.client.json(call, request).await?;
        Ok(sandbox.with_clock(self.client.clock()))
    }

    /// `POST /sandbox`
    pub(crate) async fn create(&self, call: &CallContext, body: &Value) -> Result<Sandbox> {
        let request = Request::post("create", self.url(&["sandbox"])).json(body);
        self.read_sandbox(call, &request).await
    }

    /// `GET /sandbox/{id or name}`
    pub(crate) async fn sandbox(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<Sandbox> {
        self.read_sandbox(call, &Request::get(operation, self.url(&["sandbox", id]))).await
    }

    /// `GET /sandbox/{id or name}`, or `None` where there is none.
    pub(crate) async fn find(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<Option<Sandbox>> {
        match self.sandbox(call, operation, id).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `GET /sandbox`, all pages of those with these labels.
    pub(crate) async fn sandboxes(
        &self,
        call: &CallContext,
        operation: &'static str,
        labels: &Tags,
    ) -> Result<Vec<Sandbox>> {
        let page = |cursor: Option<String>| async move {
            let mut request =
                Request::get(operation, self.url(&["sandbox"])).query("limit", PAGE_SIZE);
            if !labels.is_empty() {
                request = request.query("labels", &json!(labels).to_string());
            }
            if let Some(cursor) = &cursor {
                request = request.query("cursor", cursor);
            }
            let page: Sandboxes = self.client.json(call, &request).await?;
            let clock = self.client.clock();
            let items = page.items.into_iter().map(|sandbox| sandbox.with_clock(clock));
            Ok(Page { items: items.collect(), next: page.next_cursor })
        };
        all_pages(operation, page).await
    }

    /// `DELETE /sandbox/{id}`. A sandbox that is gone already is a success.
    pub(crate) async fn delete(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<()> {
        let request = Request::delete(operation, self.url(&["sandbox", id]));
        match self.client.send(call, &request).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// `POST /sandbox/{id}/{verb}`: start, stop, pause, archive.
    pub(crate) async fn act(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
        verb: &str,
    ) -> Result<()> {
        let request = Request::post(operation, self.url(&["sandbox", id, verb])).idempotent();
        self.client.send(call, &request).await.map(drop)
    }

    /// `POST /sandbox/{id}/autodelete/{minutes}`, counted from a stop: 0 deletes at once, -1 never.
    pub(crate) async fn set_auto_delete(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
        minutes: i64,
    ) -> Result<()> {
        let minutes = minutes.to_string();
        let url = self.url(&["sandbox", id, "autodelete", &minutes]);
        self.client.send(call, &Request::post(operation, url).idempotent()).await.map(drop)
    }

    /// `POST /sandbox/{id}/resize`
    pub(crate) async fn resize(
        &self,
        call: &CallContext,
        id: &str,
        size: &Value,
    ) -> Result<Sandbox> {
        let request = Request::post("create", self.url(&["sandbox", id, "resize"]));
        self.read_sandbox(call, &request.json(size).idempotent()).await
    }

    /// `GET /volumes/by-name/{name}`, or `None` where there is none.
    pub(crate) async fn volume(&self, call: &CallContext, name: &str) -> Result<Option<Volume>> {
        let request = Request::get("create", self.url(&["volumes", "by-name", name]));
        match self.client.json(call, &request).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `POST /volumes`
    pub(crate) async fn create_volume(&self, call: &CallContext, name: &str) -> Result<Volume> {
        let request = Request::post("create", self.url(&["volumes"]));
        self.client.json(call, &request.json(&json!({"name": name}))).await
    }

    /// `POST /sandbox/{id}/ttl/{minutes}`, counted from the creation.
    pub(crate) async fn set_ttl(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
        minutes: u64,
    ) -> Result<()> {
        let minutes = minutes.to_string();
        let url = self.url(&["sandbox", id, "ttl", &minutes]);
        self.client.send(call, &Request::post(operation, url).idempotent()).await.map(drop)
    }

    /// `PUT /sandbox/{id}/labels`
    pub(crate) async fn set_labels(
        &self,
        call: &CallContext,
        id: &str,
        labels: &Tags,
    ) -> Result<()> {
        let request = Request::put("set_tags", self.url(&["sandbox", id, "labels"]));
        self.client.send(call, &request.json(&json!({"labels": labels}))).await.map(drop)
    }

    /// `GET /sandbox/{id}/build-logs-url`, then the log at that address as it is written.
    pub(crate) async fn build_log(&self, call: &CallContext, id: &str) -> Result<ByteStream> {
        let operation = "create";
        let url = self.url(&["sandbox", id, "build-logs-url"]);
        let at: NamedUrl = self.client.json(call, &Request::get(operation, url)).await?;
        // A key goes to the API alone; the address of a log elsewhere is refused by the client.
        let at = self.account.api.join(&at.url).map_err(|error| {
            sandbox_core::Error::new(ErrorKind::Protocol, operation, error.to_string())
        })?;
        let request = Request::get(operation, at).query("follow", "true").accept("text/plain");
        Ok(self.client.open(call, &request).await?.into_bytes())
    }

    /// `GET /sandbox/{id}/ports/{port}/preview-url`
    pub(crate) async fn preview_url(
        &self,
        call: &CallContext,
        id: &str,
        port: u16,
    ) -> Result<PreviewUrl> {
        let port = port.to_string();
        let url = self.url(&["sandbox", id, "ports", &port, "preview-url"]);
        self.client.json(call, &Request::get("expose_port", url)).await
    }

    /// `POST /sandbox/{id}/fork`
    pub(crate) async fn fork(&self, call: &CallContext, id: &str, name: &str) -> Result<Sandbox> {
        let request = Request::post("fork", self.url(&["sandbox", id, "fork"]));
        self.read_sandbox(call, &request.json(&json!({"name": name}))).await
    }

    /// `POST /sandbox/{id}/snapshot`
    pub(crate) async fn create_snapshot(
        &self,
        call: &CallContext,
        id: &str,
        name: &str,
    ) -> Result<()> {
        let request = Request::post("create_snapshot", self.url(&["sandbox", id, "snapshot"]));
        self.client.send(call, &request.json(&json!({"name": name}))).await.map(drop)
    }

    /// `GET /snapshots`, all pages.
    pub(crate) async fn snapshots(
        &self,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<Snapshot>> {
        let page = |cursor: Option<String>| async move {
            let number = cursor.unwrap_or_else(|| "1".to_owned());
            let request = Request::get(operation, self.url(&["snapshots"]))
                .query("page", &number)
                .query("limit", PAGE_SIZE);
            let found: Snapshots = self.client.json(call, &request).await?;
            let next = (found.page < found.total_pages).then(|| (found.page + 1).to_string());
            Ok(Page { items: found.items, next })
        };
        all_pages(operation, page).await
    }

    /// `DELETE /snapshots/{id}`
    pub(crate) async fn delete_snapshot(&self, call: &CallContext, id: &str) -> Result<()> {
        let request = Request::delete("delete_snapshot", self.url(&["snapshots", id]));
        self.client.send(call, &request).await.map(drop)
    }
}
