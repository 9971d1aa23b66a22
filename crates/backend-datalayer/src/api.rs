//! What the services can be asked, one method for each.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::{Method, Url};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result};
use serde_json::{Value, json};

use crate::client::{Client, Request};
use crate::wire::{
    Begun, Checkpoint, Checkpoints, Environment, Environments, One, Runtime, Runtimes, Snapshot,
    Snapshots, Usage,
};

/// Pages of a listing that are read at most; more is a service that repeats itself.
const MOST_PAGES: usize = 100;
/// How often the end of a pause, a snapshot or a deletion is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often at most.
const MOST_LOOKS: u32 = 600;

/// Which forms the service was found to speak. The newer ones are tried first.
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
    pub(crate) client: Client,
    dialect: Arc<Dialect>,
}

/// What a runtime is made with.
#[derive(Clone, Debug)]
pub(crate) struct NewRuntime {
    pub(crate) environment: String,
    pub(crate) given_name: String,
    /// Credits that it may use, which end it when they are used.
    pub(crate) credits: f64,
    /// Id of the snapshot that it starts from.
    pub(crate) from: Option<String>,
}

impl Api {
    pub(crate) fn new(client: Client, dialect: Arc<Dialect>) -> Self {
        Self { client, dialect }
    }

    /// `GET environments`, all pages.
    pub(crate) async fn environments(&self, call: &CallContext) -> Result<Vec<Environment>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..MOST_PAGES {
            let mut url = self.client.runtimes(&["environments"]);
            if let Some(cursor) = &cursor {
                url.query_pairs_mut().append_pair("cursor", cursor);
            }
            let page: Environments = self.get(call, "environments", url).await?;
            all.extend(page.environments);
            cursor = page.next.filter(|next| !next.is_empty());
            if cursor.is_none() {
                return Ok(all);
            }
        }
        Err(Error::new(ErrorKind::Protocol, "environments", "the list of environments has no end"))
    }

    /// `POST runtimes`
    pub(crate) async fn create(&self, call: &CallContext, new: &NewRuntime) -> Result<Runtime> {
        let flat = self.dialect.flat_create.load(Ordering::Relaxed);
        let made = self.create_as(call, new, flat).await;
        match made {
            // Such a request does nothing, so the other form can be tried.
            Err(error) if error.kind() == ErrorKind::InvalidArgument && !flat => {
                let made = self.create_as(call, new, true).await;
                if made.is_ok() {
                    self.dialect.flat_create.store(true, Ordering::Relaxed);
                }
                made.map_err(|second| if second.kind() == error.kind() { error } else { second })
            }
            made => made,
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
        let url = self.client.runtimes(&["runtimes"]);
        let request = Request { operation: "create", method: Method::POST, url, body: Some(&body) };
        Ok(self.client.json::<One>(call, &request).await?.runtime)
    }

    /// `GET runtimes`
    pub(crate) async fn runtimes(
        &self,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<Vec<Runtime>> {
        let url = self.client.runtimes(&["runtimes"]);
        Ok(self.get::<Runtimes>(call, operation, url).await?.runtimes)
    }

    /// `GET runtimes/{name}`
    pub(crate) async fn runtime(
        &self,
        call: &CallContext,
        operation: &'static str,
        name: &str,
    ) -> Result<Runtime> {
        let url = self.client.runtimes(&["runtimes", name]);
        Ok(self.get::<One>(call, operation, url).await?.runtime)
    }

    /// `DELETE runtimes/{name}`. One that is gone already is fine.
    pub(crate) async fn delete(
        &self,
        call: &CallContext,
        operation: &'static str,
        name: &str,
    ) -> Result<()> {
        let url = self.client.runtimes(&["runtimes", name]);
        self.remove(call, operation, url).await.map(drop)
    }

    /// `POST runtimes/{name}/pause` and `POST runtimes/{name}/resume`, until the service says that it is done.
    pub(crate) async fn hold(&self, call: &CallContext, name: &str, hold: bool) -> Result<()> {
        let (verb, wanted) = if hold { ("pause", "paused") } else { ("resume", "resumed") };
        let url = self.client.runtimes(&["runtimes", name, verb]);
        let body = json!({});
        let request = Request { operation: verb, method: Method::POST, url, body: Some(&body) };
        let begun: Begun = self.client.json(call, &request).await?;
        let Some(id) = begun.checkpoint_id else { return Ok(()) };
        for _ in 0..MOST_LOOKS {
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
        let url = self.client.runtimes(&["runtime-checkpoints"]);
        match self.get::<Checkpoints>(call, "list", url).await {
            Ok(found) => Ok(found.checkpoints),
            Err(error) if is_not_there(&error) => Ok(Vec::new()),
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
            Err(error) if is_not_there(&error) && !old => {
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

    /// `POST ..-snapshots`, without stopping the runtime, until the snapshot is there. Its name is not taken.
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
        let url = self.snapshots_url(&[]);
        let request = Request { operation, method: Method::POST, url, body: Some(&body) };
        self.client.json::<Value>(call, &request).await?;
        for _ in 0..MOST_LOOKS {
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
        for _ in 0..MOST_LOOKS {
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
        self.get(call, "health", self.client.iam(&["usage", "credits"])).await
    }

    fn snapshots_url(&self, segments: &[&str]) -> Url {
        let old = self.dialect.old_snapshots.load(Ordering::Relaxed);
        let first = if old { "runtime-snapshots" } else { "sandbox-snapshots" };
        self.client.runtimes(&[&[first], segments].concat())
    }

    async fn get<T: serde::de::DeserializeOwned>(
        &self,
        call: &CallContext,
        operation: &'static str,
        url: Url,
    ) -> Result<T> {
        let request = Request { operation, method: Method::GET, url, body: None };
        self.client.json(call, &request).await
    }

    /// Whether it is known to be gone.
    async fn remove(&self, call: &CallContext, operation: &'static str, url: Url) -> Result<bool> {
        let request = Request { operation, method: Method::DELETE, url, body: None };
        match self.client.done(call, &request).await {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(error),
        }
    }
}

/// The service does not have that kind of resource.
fn is_not_there(error: &Error) -> bool {
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
    if call.deadline.is_some_and(|deadline| std::time::Instant::now() + LOOK > deadline) {
        return Err(not_in_time(operation));
    }
    tokio::time::sleep(LOOK).await;
    Ok(())
}

fn not_in_time(operation: &'static str) -> Error {
    Error::new(ErrorKind::Timeout, operation, "the service has not finished in time")
        .with_effect(Effect::Unknown)
}
