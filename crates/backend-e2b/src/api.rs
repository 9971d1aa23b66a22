//! The requests of the control plane, one method for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sandbox_cloud::auth::KeyAuth;
use sandbox_cloud::http::{self, Request, Url, all_pages, join};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Page, Result, Tags};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::addresses::Endpoints;
use crate::wire::{Connected, Described, Forked, LogLine, LogPage, Measured, Snapshot, Template};

/// Time for a create with all its attempts: a create that is given up early may leave a sandbox.
const CREATE_TIMEOUT: Duration = Duration::from_secs(120);

/// Most entries that a page of a list can have.
const MAX_PAGE: usize = 100;

/// Forms of requests that the service was found to have. The newer ones are tried first.
#[derive(Debug, Default)]
pub(crate) struct Dialect {
    /// Creates are sent to `sandboxes`, and not to `v2/sandboxes`.
    old_create: AtomicBool,
    /// Connects are sent to `sandboxes/{id}/connect`, and not below `v2`.
    old_connect: AtomicBool,
}

/// The control plane, for one call.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    client: http::Client<KeyAuth>,
    endpoints: Endpoints,
    dialect: Arc<Dialect>,
}

/// The request for a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct NewSandbox {
    pub(crate) template: String,
    pub(crate) lifetime: Duration,
    pub(crate) metadata: Tags,
    /// Variables of everything that runs, secret ones among them.
    pub(crate) env: Map<String, Value>,
    /// Fields of the network policy.
    pub(crate) network: Map<String, Value>,
    /// A word that only this create has.
    pub(crate) request: String,
}

impl NewSandbox {
    fn body(&self, is_old: bool) -> Value {
        let mut body = self.network.clone();
        body.insert("templateID".into(), json!(self.template));
        body.insert("timeout".into(), json!(whole_seconds(self.lifetime)));
        body.insert("metadata".into(), json!(self.metadata));
        body.insert("envVars".into(), json!(self.env));
        if is_old {
            body.insert("secure".into(), json!(true));
        }
        Value::Object(body)
    }
}

impl Api {
    pub(crate) fn new(
        client: http::Client<KeyAuth>,
        endpoints: Endpoints,
        dialect: Arc<Dialect>,
    ) -> Self {
        Self { client, endpoints, dialect }
    }

    /// Returns addresses and key.
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    fn url(&self, segments: &[&str]) -> Url {
        join(&self.endpoints.api, segments)
    }

    async fn get<T: DeserializeOwned>(
        &self,
        call: &CallContext,
        operation: &'static str,
        url: Url,
    ) -> Result<T> {
        self.client.json(call, &Request::get(operation, url)).await
    }

    /// `POST v2/sandboxes`, or `POST sandboxes` where that is not there.
    pub(crate) async fn create(&self, call: &CallContext, new: &NewSandbox) -> Result<Connected> {
        if !self.dialect.old_create.load(Ordering::Relaxed) {
            match self.create_at(call, new, false).await {
                Err(error) if is_missing(&error) => {
                    // The template may be what is missing, which the older form tells as well.
                    let created = self.create_at(call, new, true).await;
                    if created.is_ok() {
                        self.dialect.old_create.store(true, Ordering::Relaxed);
                    }
                    return created.map_err(|other| if is_missing(&other) { error } else { other });
                }
                created => return created,
            }
        }
        self.create_at(call, new, true).await
    }

    async fn create_at(
        &self,
        call: &CallContext,
        new: &NewSandbox,
        is_old: bool,
    ) -> Result<Connected> {
        let url = self.url(if is_old { &["sandboxes"] } else { &["v2", "sandboxes"] });
        let request = Request::post("create", url)
            .json(&new.body(is_old))
            .header("idempotency-key", &new.request)?
            .timeout(CREATE_TIMEOUT.max(self.endpoints.request_timeout));
        let created: Connected = self.client.json(call, &request).await?;
        if created.sandbox_id.is_empty() {
            let message = "the service created a sandbox without an id";
            return Err(
                Error::new(ErrorKind::Protocol, "create", message).with_effect(Effect::Unknown)
            );
        }
        Ok(created)
    }

    /// `POST v2/sandboxes/{id}/connect`, which resumes a paused sandbox, and never shortens the time of a running one.
    pub(crate) async fn connect(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
        lifetime: Duration,
    ) -> Result<Connected> {
        let body = json!({"timeout": whole_seconds(lifetime)});
        let request = |segments: &[&str]| {
            // Connecting twice is connecting once.
            Request::post(operation, self.url(segments)).json(&body).idempotent()
        };
        let old = ["sandboxes", id, "connect"];
        if !self.dialect.old_connect.load(Ordering::Relaxed) {
            match self.client.json(call, &request(&["v2", "sandboxes", id, "connect"])).await {
                Err(error) if is_missing(&error) => {
                    let connected = self.client.json(call, &request(&old)).await;
                    if connected.is_ok() {
                        self.dialect.old_connect.store(true, Ordering::Relaxed);
                    }
                    return connected
                        .map_err(|other| if is_missing(&other) { error } else { other });
                }
                connected => return connected,
            }
        }
        self.client.json(call, &request(&old)).await
    }

    /// `GET sandboxes/{id}`
    pub(crate) async fn sandbox(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<Described> {
        let found: Described = self.get(call, operation, self.url(&["sandboxes", id])).await?;
        Ok(found.with_clock(self.client.clock()))
    }

    /// `GET v2/sandboxes`, one page, running and paused ones, with all of these entries in their metadata.
    pub(crate) async fn page(
        &self,
        call: &CallContext,
        operation: &'static str,
        metadata: &Tags,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page<Described>> {
        let limit = limit.clamp(1, MAX_PAGE).to_string();
        let mut request = Request::get(operation, self.url(&["v2", "sandboxes"]))
            .query("state", "running,paused")
            .query("limit", &limit);
        if !metadata.is_empty() {
            request = request.query("metadata", &metadata_filter(metadata));
        }
        if let Some(cursor) = cursor {
            request = request.query("nextToken", cursor);
        }
        let response = self.client.send(call, &request).await?;
        let next = response.header("x-next-token").filter(|token| !token.is_empty());
        let (items, clock) = (response.json::<Vec<Described>>()?, self.client.clock());
        let items = items.into_iter().map(|found| found.with_clock(clock)).collect();
        Ok(Page { items, next: next.map(str::to_owned) })
    }

    /// `GET v2/sandboxes`, all pages.
    pub(crate) async fn all(
        &self,
        call: &CallContext,
        operation: &'static str,
        metadata: &Tags,
    ) -> Result<Vec<Described>> {
        let page = |cursor: Option<String>| async move {
            self.page(call, operation, metadata, MAX_PAGE, cursor.as_deref()).await
        };
        all_pages(operation, page).await
    }

    /// `DELETE sandboxes/{id}`. A sandbox that is gone already is a success.
    pub(crate) async fn kill(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<()> {
        let request = Request::delete(operation, self.url(&["sandboxes", id]));
        match self.client.send(call, &request).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// `POST sandboxes/{id}/timeout`: the end of the sandbox, that long from now.
    pub(crate) async fn set_timeout(
        &self,
        call: &CallContext,
        id: &str,
        lifetime: Duration,
    ) -> Result<()> {
        let body = json!({"timeout": whole_seconds(lifetime)});
        self.post(call, "set_lifetime", &["sandboxes", id, "timeout"], &body).await
    }

    /// `POST sandboxes/{id}/pause`. A sandbox that is paused already is a success.
    pub(crate) async fn pause(&self, call: &CallContext, id: &str) -> Result<()> {
        let url = self.url(&["sandboxes", id, "pause"]);
        // A pause writes the memory of the sandbox to disk.
        let request =
            Request::post("pause", url).json(&json!({})).idempotent().timeout(CREATE_TIMEOUT);
        match self.client.send(call, &request).await {
            Err(error) if has_status(&error, "409") => {
                match self.sandbox(call, "pause", id).await {
                    Ok(found) if found.is_paused() => Ok(()),
                    _ => Err(error),
                }
            }
            paused => paused.map(drop),
        }
    }

    /// `POST sandboxes/{id}/fork`, one copy.
    pub(crate) async fn fork(
        &self,
        call: &CallContext,
        id: &str,
        lifetime: Duration,
    ) -> Result<Connected> {
        let body = json!({"timeout": whole_seconds(lifetime), "count": 1});
        let request = Request::post("fork", self.url(&["sandboxes", id, "fork"]))
            .json(&body)
            .timeout(CREATE_TIMEOUT);
        let made: Vec<Forked> = self.client.json(call, &request).await?;
        match made.into_iter().next() {
            Some(Forked { sandbox: Some(sandbox), .. }) if !sandbox.sandbox_id.is_empty() => {
                Ok(sandbox)
            }
            Some(Forked { error: Some(error), .. }) => {
                let kind = match error.code {
                    429 => ErrorKind::RateLimited,
                    404 => ErrorKind::NotFound,
                    _ => ErrorKind::Unavailable,
                };
                Err(Error::new(kind, "fork", error.message))
            }
            _ => {
                let message = "the service copied the sandbox without naming the copy";
                Err(Error::new(ErrorKind::Protocol, "fork", message).with_effect(Effect::Unknown))
            }
        }
    }

    /// `POST sandboxes/{id}/snapshots`
    pub(crate) async fn create_snapshot(
        &self,
        call: &CallContext,
        id: &str,
        name: &str,
    ) -> Result<Snapshot> {
        let url = self.url(&["sandboxes", id, "snapshots"]);
        let request = Request::post("create_snapshot", url)
            .json(&json!({"name": name}))
            .timeout(CREATE_TIMEOUT);
        self.client.json(call, &request).await
    }

    /// `GET snapshots`, all pages.
    pub(crate) async fn snapshots(
        &self,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<Snapshot>> {
        let page = |cursor: Option<String>| async move {
            let mut request =
                Request::get(operation, self.url(&["snapshots"])).query("limit", "100");
            if let Some(cursor) = &cursor {
                request = request.query("nextToken", cursor);
            }
            let response = self.client.send(call, &request).await?;
            let next = response.header("x-next-token").map(str::to_owned);
            Ok(Page { items: response.json()?, next })
        };
        all_pages(operation, page).await
    }

    /// `DELETE templates/{id}`, which a snapshot is.
    pub(crate) async fn delete_template(&self, call: &CallContext, id: &str) -> Result<()> {
        let request = Request::delete("delete_snapshot", self.url(&["templates", id]));
        self.client.send(call, &request).await.map(drop)
    }

    /// `GET templates` and `GET default-templates`. A service without the latter has none of these.
    pub(crate) async fn templates(&self, call: &CallContext) -> Result<Vec<Template>> {
        let operation = "environments";
        let mut all: Vec<Template> = self.get(call, operation, self.url(&["templates"])).await?;
        let offered = self.get(call, operation, self.url(&["default-templates"])).await;
        let offered: Vec<Template> = match offered {
            Err(error) if is_missing(&error) => Vec::new(),
            offered => offered?,
        };
        for template in offered {
            if !all.iter().any(|known| known.template_id == template.template_id) {
                all.push(template);
            }
        }
        Ok(all)
    }

    /// `GET sandboxes/{id}/metrics`: the latest figures, where there are any.
    pub(crate) async fn metrics(&self, call: &CallContext, id: &str) -> Result<Option<Measured>> {
        let url = self.url(&["sandboxes", id, "metrics"]);
        let all: Vec<Measured> = self.get(call, "metrics", url).await?;
        Ok(all.into_iter().max_by_key(|measured| measured.timestamp_unix))
    }

    /// `GET v2/sandboxes/{id}/logs`: lines since a time, in milliseconds.
    pub(crate) async fn logs(
        &self,
        call: &CallContext,
        id: &str,
        since: Option<i64>,
    ) -> Result<Vec<LogLine>> {
        let url = self.url(&["v2", "sandboxes", id, "logs"]);
        let mut request =
            Request::get("logs", url).query("direction", "forward").query("limit", "1000");
        if let Some(since) = since {
            request = request.query("cursor", &since.to_string());
        }
        Ok(self.client.json::<LogPage>(call, &request).await?.logs)
    }

    async fn post(
        &self,
        call: &CallContext,
        operation: &'static str,
        segments: &[&str],
        body: &Value,
    ) -> Result<()> {
        let request = Request::post(operation, self.url(segments)).json(body).idempotent();
        self.client.send(call, &request).await.map(drop)
    }
}

/// Returns a duration in seconds, rounded up: the service takes no parts of one.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Returns the filter for entries of the metadata. The service decodes the filter as a whole, and then keys and values.
fn metadata_filter(metadata: &Tags) -> String {
    let escape = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let twice = |text: &str| escape(&escape(text));
    let pair = |(key, value): (&String, &String)| format!("{}={}", twice(key), twice(value));
    metadata.iter().map(pair).collect::<Vec<_>>().join("&")
}

/// Returns true when the service does not have that kind of request, or what it is about.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported)
}

fn has_status(error: &Error, status: &str) -> bool {
    error.context().iter().any(|(key, value)| *key == "status" && value == status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_escaped_twice() {
        let tags = Tags::from([("a b".into(), "1&2=3".into()), ("team".into(), "x+y".into())]);
        assert_eq!(metadata_filter(&tags), "a%2520b=1%25262%253D3&team=x%252By");
    }

    #[test]
    fn parts_of_a_second_are_whole_ones() {
        for (millis, seconds) in [(0, 0), (1, 1), (1000, 1), (1001, 2), (600_000, 600)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}
