//! The requests of the services, one method for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sandbox_cloud::http::{self, Request, Url, all_pages, join, within_deadline};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Page, Result};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::auth::{DatalayerAuth, Endpoints};
use crate::wire::{
    AcceptedOperation, Checkpoint, Checkpoints, Environment, Environments, Runtime,
    RuntimeResponse, Runtimes, Snapshot, Snapshots, Usage,
};

/// Time for a create with all its attempts: a create that is given up early may leave a runtime that costs credits.
const CREATE_TIMEOUT: Duration = Duration::from_secs(300);
/// Interval of polls for the end of a pause, a snapshot or a deletion.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
const MAX_POLLS: u32 = 600;

/// Forms of requests that the service was found to have. The newer ones are tried first.
#[derive(Debug, Default)]
pub(crate) struct Dialect {
    /// A create names its environment by `environment_name`.
    flat_create: AtomicBool,
    /// Snapshots are below `runtime-snapshots`, and name a runtime `pod_name`.
    old_snapshots: AtomicBool,
}

/// The services, for one call.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    client: http::Client<DatalayerAuth>,
    dialect: Arc<Dialect>,
}

/// The request for a runtime.
#[derive(Clone, Debug)]
pub(crate) struct NewRuntime {
    pub(crate) environment: String,
    pub(crate) given_name: String,
    /// Credits that the runtime may use. It ends when they are used up.
    pub(crate) credits: f64,
    /// Id of the snapshot to start from.
    pub(crate) from: Option<String>,
}

impl Api {
    pub(crate) fn new(client: http::Client<DatalayerAuth>, dialect: Arc<Dialect>) -> Self {
        Self { client, dialect }
    }

    /// Returns the addresses of the services and the key.
    pub(crate) fn endpoints(&self) -> &Endpoints {
        &self.client.auth().endpoints
    }

    /// Returns a resource of the runtimes service.
    fn url(&self, segments: &[&str]) -> Url {
        join(&self.endpoints().runtimes, &[&["api", "runtimes", "v1"], segments].concat())
    }

    /// `GET environments`, all pages.
    pub(crate) async fn environments(&self, call: &CallContext) -> Result<Vec<Environment>> {
        let page = |cursor: Option<String>| async move {
            let mut url = self.url(&["environments"]);
            if let Some(cursor) = &cursor {
                url.query_pairs_mut().append_pair("cursor", cursor);
            }
            let page: Environments = self.get(call, "environments", url).await?;
            Ok(Page { items: page.environments, next: page.next })
        };
        all_pages("environments", page).await
    }

    /// `POST runtimes`
    pub(crate) async fn create(&self, call: &CallContext, new: &NewRuntime) -> Result<Runtime> {
        let flat = self.dialect.flat_create.load(Ordering::Relaxed);
        let created = self.create_as(call, new, flat).await;
        match created {
            // A refused request did nothing, so the other form can be tried.
            Err(error) if error.kind() == ErrorKind::InvalidArgument && !flat => {
                let created = self.create_as(call, new, true).await;
                if created.is_ok() {
                    self.dialect.flat_create.store(true, Ordering::Relaxed);
                }
                created.map_err(|second| if second.kind() == error.kind() { error } else { second })
            }
            created => created,
        }
    }

    async fn create_as(&self, call: &CallContext, new: &NewRuntime, flat: bool) -> Result<Runtime> {
        let mut body = json!({
            "type": "notebook",
            "given_name": new.given_name,
            "credits_limit": new.credits,
        });
        if flat {
            body["environment_name"] = new.environment.as_str().into();
        } else {
            body["environment"] = json!({"name": new.environment});
        }
        if let Some(snapshot) = &new.from {
            body["from"] = snapshot.as_str().into();
        }
        let timeout = CREATE_TIMEOUT.max(self.endpoints().request_timeout);
        let request = Request::post("create", self.url(&["runtimes"])).json(&body).timeout(timeout);
        let created = self.client.json::<RuntimeResponse>(call, &request).await?.runtime;
        Ok(created.with_clock(self.client.clock()))
    }

    /// `GET runtimes`
    pub(crate) async fn runtimes(
        &self,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<Runtime>> {
        let url = self.url(&["runtimes"]);
        let all = self.get::<Runtimes>(call, operation, url).await?.runtimes;
        Ok(all.into_iter().map(|runtime| runtime.with_clock(self.client.clock())).collect())
    }

    /// `GET runtimes/{name}`
    pub(crate) async fn runtime(
        &self,
        call: &CallContext,
        operation: &'static str,
        name: &str,
    ) -> Result<Runtime> {
        let url = self.url(&["runtimes", name]);
        let found = self.get::<RuntimeResponse>(call, operation, url).await?.runtime;
        Ok(found.with_clock(self.client.clock()))
    }

    /// `DELETE runtimes/{name}`. A runtime that is gone already is a success.
    pub(crate) async fn delete(
        &self,
        call: &CallContext,
        operation: &'static str,
        name: &str,
    ) -> Result<()> {
        let url = self.url(&["runtimes", name]);
        self.remove(call, operation, url).await.map(drop)
    }

    /// `POST runtimes/{name}/pause` and `POST runtimes/{name}/resume`, until the service reports the end.
    pub(crate) async fn set_paused(
        &self,
        call: &CallContext,
        name: &str,
        paused: bool,
    ) -> Result<()> {
        let (verb, wanted) = if paused { ("pause", "paused") } else { ("resume", "resumed") };
        let url = self.url(&["runtimes", name, verb]);
        let request = Request::post(verb, url).json(&json!({}));
        let accepted: AcceptedOperation = self.client.json(call, &request).await?;
        let Some(id) = accepted.checkpoint_id else { return Ok(()) };
        for _ in 0..MAX_POLLS {
            let all = self.checkpoints(call).await?;
            let found = all.into_iter().find(|checkpoint| checkpoint.id == id).unwrap_or_default();
            let Checkpoint { status, status_message, .. } = found;
            if status == wanted {
                return Ok(());
            }
            if matches!(status.as_str(), "failed" | "deleted") {
                let why = status_message.unwrap_or(status);
                let message = format!("the service could not {verb} the sandbox: {why}");
                return Err(Error::new(ErrorKind::Unavailable, verb, message));
            }
            wait(call, verb).await?;
        }
        Err(not_in_time(verb))
    }

    /// `GET runtime-checkpoints`. A service without them has none.
    pub(crate) async fn checkpoints(&self, call: &CallContext) -> Result<Vec<Checkpoint>> {
        let url = self.url(&["runtime-checkpoints"]);
        match self.get::<Checkpoints>(call, "list", url).await {
            Ok(found) => Ok(found.checkpoints),
            Err(error) if is_missing(&error) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// `GET ..-snapshots`
    pub(crate) async fn snapshots(
        &self,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<Snapshot>> {
        let old = self.dialect.old_snapshots.load(Ordering::Relaxed);
        let found = self.get::<Snapshots>(call, operation, self.snapshots_url(&[])).await;
        match found {
            Err(error) if is_missing(&error) && !old => {
                self.dialect.old_snapshots.store(true, Ordering::Relaxed);
                let found = self.get::<Snapshots>(call, operation, self.snapshots_url(&[])).await;
                if found.is_err() {
                    self.dialect.old_snapshots.store(false, Ordering::Relaxed);
                }
                Ok(found?.snapshots)
            }
            found => Ok(found?.snapshots),
        }
    }

    /// `POST ..-snapshots`, without stopping the runtime, until the snapshot exists. The name must be free.
    pub(crate) async fn create_snapshot(
        &self,
        call: &CallContext,
        runtime: &str,
        name: &str,
        description: &str,
    ) -> Result<Snapshot> {
        let operation = "create_snapshot";
        let old = self.dialect.old_snapshots.load(Ordering::Relaxed);
        let key = if old { "pod_name" } else { "runtime_name" };
        let body = json!({key: runtime, "name": name, "description": description, "stop": false});
        let request = Request::post(operation, self.snapshots_url(&[])).json(&body);
        self.client.json::<Value>(call, &request).await?;
        for _ in 0..MAX_POLLS {
            let all = self.snapshots(call, operation).await?;
            match all.into_iter().find(|snapshot| snapshot.name == name) {
                Some(found) if is_failed(&found) => {
                    let message = format!("the service could not take the snapshot {name:?}");
                    return Err(Error::new(ErrorKind::Unexpected, operation, message));
                }
                Some(found) if !is_pending(&found) => return Ok(found),
                _ => wait(call, operation).await?,
            }
        }
        Err(not_in_time(operation))
    }

    /// `DELETE ..-snapshots/{uid}`, until it is gone.
    pub(crate) async fn delete_snapshot(&self, call: &CallContext, uid: &str) -> Result<()> {
        let operation = "delete_snapshot";
        let gone = self.remove(call, operation, self.snapshots_url(&[uid])).await?;
        if gone {
            return Ok(());
        }
        for _ in 0..MAX_POLLS {
            match self.get::<Value>(call, operation, self.snapshots_url(&[uid])).await {
                Ok(_) => wait(call, operation).await?,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(not_in_time(operation))
    }

    /// `GET usage/credits`
    pub(crate) async fn usage(&self, call: &CallContext) -> Result<Usage> {
        let url = join(&self.endpoints().iam, &["api", "iam", "v1", "usage", "credits"]);
        self.get(call, "health", url).await
    }

    fn snapshots_url(&self, segments: &[&str]) -> Url {
        let old = self.dialect.old_snapshots.load(Ordering::Relaxed);
        let first = if old { "runtime-snapshots" } else { "sandbox-snapshots" };
        self.url(&[&[first], segments].concat())
    }

    async fn get<T: DeserializeOwned>(
        &self,
        call: &CallContext,
        operation: &'static str,
        url: Url,
    ) -> Result<T> {
        self.client.json(call, &Request::get(operation, url)).await
    }

    /// Deletes a resource. Returns true when it is known to be gone.
    async fn remove(&self, call: &CallContext, operation: &'static str, url: Url) -> Result<bool> {
        match self.client.send_and_wait(call, &Request::delete(operation, url)).await {
            Ok(_) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// Returns true when the service does not have that kind of resource.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported)
}

fn is_failed(snapshot: &Snapshot) -> bool {
    snapshot.status.as_deref().is_some_and(|status| matches!(status, "failed" | "error"))
}

fn is_pending(snapshot: &Snapshot) -> bool {
    let pending = ["pending", "requested", "creating", "in_progress", "uploading"];
    snapshot.status.as_deref().is_some_and(|status| pending.contains(&status))
}

async fn wait(call: &CallContext, operation: &'static str) -> Result<()> {
    if !within_deadline(call, POLL_INTERVAL) {
        return Err(not_in_time(operation));
    }
    tokio::time::sleep(POLL_INTERVAL).await;
    Ok(())
}

fn not_in_time(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "the service has not finished in time")
        .with_effect(Effect::Unknown)
}
