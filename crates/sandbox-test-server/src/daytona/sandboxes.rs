//! The sandboxes of the server, and their states.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use sandbox_core::{Backend, Mount, NetworkPolicy, Sandbox, random_hex};
use serde_json::{Map, Value, json};

use super::interpreter::Interpreters;
use super::pty::Terminal;
use super::session::Sessions;
use super::volumes::Volumes;
use super::{ORGANIZATION, Options};
use crate::cells;
use crate::faults::{Fault, Faults};

/// Every sandbox of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) options: Options,
    pub(crate) faults: Faults,
    backend: Arc<dyn Backend>,
    address: OnceLock<SocketAddr>,
    all: Mutex<HashMap<String, Arc<Entry>>>,
    /// Names of snapshots that were taken, with their sandboxes.
    pub(crate) snapshots: Mutex<BTreeMap<String, SnapshotEntry>>,
    pub(crate) volumes: Volumes,
}

/// A snapshot of the server.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotEntry {
    pub(crate) id: String,
    pub(crate) of: String,
    pub(crate) created_at: DateTime<Utc>,
}

/// One sandbox.
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) name: String,
    created_at: DateTime<Utc>,
    /// How far the clock of the server is ahead.
    clock_ahead: TimeDelta,
    state: Mutex<State>,
    cell: OnceLock<Sandbox>,
    pub(crate) sessions: Sessions,
    pub(crate) interpreters: Interpreters,
    terminals: Mutex<HashMap<String, Arc<Terminal>>>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry").field("id", &self.id).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct State {
    name: &'static str,
    /// The request for it, with what was changed since.
    body: Map<String, Value>,
    error: Option<String>,
    expires: Option<(Instant, DateTime<Utc>)>,
    last_used: Instant,
}

fn text(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}

impl Entry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its terminals.
    pub(crate) fn terminals(&self) -> MutexGuard<'_, HashMap<String, Arc<Terminal>>> {
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns its cell, if it has started.
    pub(crate) fn cell(&self) -> Option<&Sandbox> {
        self.state().last_used = Instant::now();
        self.cell.get()
    }

    pub(crate) fn state_name(&self) -> &'static str {
        self.state().name
    }

    pub(crate) fn set_state(&self, name: &'static str) {
        self.state().name = name;
    }

    fn fail(&self, name: &'static str, why: &str) {
        let mut state = self.state();
        state.name = name;
        state.error = Some(why.to_owned());
    }

    pub(crate) fn change(&self, field: &str, value: Value) {
        self.state().body.insert(field.to_owned(), value);
    }

    fn field(&self, name: &str) -> Value {
        self.state().body.get(name).cloned().unwrap_or(Value::Null)
    }

    /// Returns true for a sandbox that is deleted when it stops.
    pub(crate) fn is_ephemeral(&self) -> bool {
        self.field("autoDeleteInterval") == json!(0)
    }

    pub(crate) fn labels(&self) -> Map<String, Value> {
        self.field("labels").as_object().cloned().unwrap_or_default()
    }

    /// The object that clients parse. Entries of lists have no `env`.
    pub(crate) fn object(&self, address: SocketAddr, is_listed: bool) -> Value {
        let state = self.state();
        let body = &state.body;
        let given = |name: &str| body.get(name).cloned().filter(|value| !value.is_null());
        let or = |name: &str, default: Value| given(name).unwrap_or(default);
        let mut object = json!({
            "id": self.id,
            "organizationId": ORGANIZATION,
            "name": self.name,
            "snapshot": or("snapshot", json!("daytona-small")),
            "user": or("user", json!("daytona")),
            "labels": or("labels", json!({})),
            "public": or("public", json!(false)),
            "networkBlockAll": or("networkBlockAll", json!(false)),
            "kvm": false,
            "target": or("target", json!("us")),
            "cpu": or("cpu", json!(1)),
            "gpu": or("gpu", json!(0)),
            "memory": or("memory", json!(1)),
            "disk": or("disk", json!(3)),
            "state": state.name,
            "desiredState": "started",
            "sandboxClass": "linux-vm",
            "autoStopInterval": or("autoStopInterval", json!(15)),
            "autoArchiveInterval": or("autoArchiveInterval", json!(10080)),
            "autoDeleteInterval": or("autoDeleteInterval", json!(-1)),
            "createdAt": text(self.created_at),
            "updatedAt": text(self.created_at),
            "toolboxProxyUrl": format!("http://{address}/toolbox"),
        });
        for name in ["networkAllowList", "domainAllowList", "volumes"] {
            if let Some(value) = given(name) {
                object[name] = value;
            }
        }
        if let Some(types) = given("gpuType") {
            object["gpuType"] = types.get(0).cloned().unwrap_or(types);
        }
        if let Some((_, at)) = state.expires {
            object["autoDestroyAt"] = json!(text(at));
        }
        if let Some(error) = &state.error {
            object["errorReason"] = json!(error);
        }
        if !is_listed {
            object["env"] = or("env", json!({}));
        }
        object
    }

    fn set_ttl(&self, minutes: u64, minute: Duration) {
        let left = minute.saturating_mul(u32::try_from(minutes).unwrap_or(u32::MAX));
        let age = (Utc::now() + self.clock_ahead - self.created_at).to_std().unwrap_or_default();
        let at = self.created_at + chrono::Duration::minutes(minutes.cast_signed());
        self.state().expires =
            (minutes > 0).then(|| (Instant::now() + left.saturating_sub(age), at));
    }
}

impl Registry {
    pub(crate) fn new(options: Options, faults: Faults) -> Self {
        Self {
            options,
            faults,
            backend: cells::backend(),
            address: OnceLock::new(),
            all: Mutex::default(),
            snapshots: Mutex::default(),
            volumes: Volumes::default(),
        }
    }

    pub(crate) fn set_address(&self, address: SocketAddr) {
        let _ = self.address.set(address);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        *self.address.get().expect("the server has an address")
    }

    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Entry>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a sandbox that has not ended, by its id or its name.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Entry>> {
        let all = self.all();
        let found = all.get(id).or_else(|| all.values().find(|entry| entry.name == id));
        found.filter(|entry| entry.state_name() != "destroyed").cloned()
    }

    /// Returns the sandboxes that have not ended, oldest first.
    pub(crate) fn list(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self
            .all()
            .values()
            .filter(|entry| entry.state_name() != "destroyed")
            .cloned()
            .collect();
        all.sort_by_key(|entry| (entry.created_at, entry.id.clone()));
        all
    }

    pub(crate) fn alive(&self) -> Vec<String> {
        self.list().iter().map(|entry| entry.id.clone()).collect()
    }

    /// Creates a sandbox, which starts in the background. `None`: there is one of that name.
    pub(crate) fn create(self: &Arc<Self>, body: Map<String, Value>) -> Option<Arc<Entry>> {
        let text_of = |name: &str| body.get(name).and_then(Value::as_str).map(str::to_owned);
        let id = format!("{}-{}", random_hex(4), random_hex(6));
        let name = text_of("name").unwrap_or_else(|| id.clone());
        let has_build = body.get("buildInfo").is_some_and(Value::is_object);
        let minutes = body.get("ttlMinutes").and_then(Value::as_u64).unwrap_or(0);
        let entry = Arc::new(Entry {
            id: id.clone(),
            name: name.clone(),
            created_at: Utc::now() + self.options.clock_ahead,
            clock_ahead: self.options.clock_ahead,
            state: Mutex::new(State {
                name: if has_build { "pending_build" } else { "creating" },
                body,
                error: None,
                expires: None,
                last_used: Instant::now(),
            }),
            cell: OnceLock::new(),
            sessions: Sessions::default(),
            interpreters: Interpreters::default(),
            terminals: Mutex::default(),
        });
        entry.set_ttl(minutes, self.options.minute);
        {
            let mut all = self.all();
            let is_taken =
                all.values().any(|other| other.name == name && other.state_name() != "destroyed");
            if is_taken {
                return None;
            }
            all.insert(id, Arc::clone(&entry));
        }
        let (registry, starting) = (Arc::clone(self), Arc::clone(&entry));
        tokio::spawn(async move { registry.start(&starting, has_build).await });
        Some(entry)
    }

    async fn start(self: &Arc<Self>, entry: &Arc<Entry>, has_build: bool) {
        let wanted = |fault: &Fault| matches!(fault, Fault::Named(_));
        let fault = self.faults.take("", "start", wanted);
        tokio::time::sleep(self.options.start_time).await;
        if has_build {
            entry.set_state("building_snapshot");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        match fault {
            Some(Fault::Named("build fails")) => {
                return entry.fail(
                    "build_failed",
                    "failed to solve: process did not complete: exit code: 1",
                );
            }
            Some(Fault::Named("start fails")) => {
                return entry.fail("error", "no runner could start it");
            }
            Some(Fault::Named("never starts")) => return,
            _ => {}
        }
        match self.cell(entry).await {
            Ok(cell) => {
                let _ = entry.cell.set(cell);
                if entry.state_name() != "destroyed" {
                    entry.set_state("started");
                }
            }
            Err(error) => entry.fail("error", &error.to_string()),
        }
        self.watch(entry).await;
    }

    async fn cell(&self, entry: &Entry) -> sandbox_core::Result<Sandbox> {
        let mut builder = cells::builder(&self.backend)
            .lifetime(Duration::from_secs(7 * 24 * 3600))
            .processes(4000);
        for (name, value) in entry.field("env").as_object().into_iter().flatten() {
            builder = builder.env(name, value.as_str().unwrap_or_default());
        }
        if entry.field("networkBlockAll") == json!(true) {
            builder = builder.network(NetworkPolicy::none());
        }
        for volume in entry.field("volumes").as_array().into_iter().flatten() {
            let id = volume["volumeId"].as_str().unwrap_or_default();
            let target = volume["mountPath"].as_str().unwrap_or_default();
            if let Some(folder) = self.volumes.find(id) {
                builder = builder.mount(Mount::new(folder, target).writable());
            }
        }
        let snapshot = entry.field("snapshot");
        if let Some(name) = snapshot.as_str() {
            let found = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(found) = found.get(name) {
                builder = builder.snapshot_name(found.id.clone());
            }
        }
        builder.create().await
    }

    /// Ends a sandbox whose time is over, or that was not used for too long.
    async fn watch(self: &Arc<Self>, entry: &Arc<Entry>) {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if entry.state_name() == "destroyed" {
                return;
            }
            let idle = entry.field("autoStopInterval").as_u64().unwrap_or(15);
            let idle = self.options.minute.saturating_mul(u32::try_from(idle).unwrap_or(u32::MAX));
            let (is_expired, is_idle) = {
                let state = entry.state();
                let is_expired = state.expires.is_some_and(|(end, _)| end <= Instant::now());
                (is_expired, !idle.is_zero() && state.last_used.elapsed() > idle)
            };
            if is_expired || (is_idle && entry.is_ephemeral()) {
                self.destroy(&entry.id).await;
            }
        }
    }

    pub(crate) async fn destroy(&self, id: &str) {
        let Some(entry) = self.find(id) else { return };
        entry.set_state("destroyed");
        if let Some(cell) = entry.cell.get() {
            let _ = cell.kill().await;
        }
    }

    pub(crate) fn set_ttl(&self, entry: &Entry, minutes: u64) {
        entry.set_ttl(minutes, self.options.minute);
    }
}
