//! One runtime that was made or found: what is known of it, how long it lives, and its end.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use sandbox_core::{
    CallContext, EPHEMERAL, Error, ErrorKind, FailureKind, IsolationInfo, REUSE_KEY,
    ResourceConfig, Result, RunOutcome, SandboxInfo, SandboxStatus, Variant, unix_now,
};
use sandbox_engine::interpreter::EndReason;
use sandbox_kernel::KernelProcess;
use sandbox_kernel::server::keeper;
use sandbox_kernel::sidecar::Sidecar;
use serde_json::{Map, Value, json};

use crate::api::Api;
use crate::notes::{Note, Notes};
use crate::resources;
use crate::source::Source;
use crate::wire::{Environment, Runtime};

/// How long a thread that drops the last handle is held up by the deletion.
const DROP_PATIENCE: Duration = Duration::from_secs(5);
/// How long a failure waits to hear whether the sandbox is still there.
const LOOK_PATIENCE: Duration = Duration::from_secs(5);
/// How many seconds after one another a deletion that nobody waits for is tried.
const PAUSES: [u64; 6] = [1, 5, 15, 60, 180, 600];
/// How long is waited until a runtime that was deleted is no longer there.
const MOST_LOOKS: u32 = 40;

/// A runtime.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) source: Arc<Source>,
    pub(crate) notes: Notes,
    /// Why it ended, for what runs then.
    pub(crate) ended: Arc<EndReason>,
    /// The kernels that end with it.
    kernels: Mutex<Vec<Weak<KernelProcess>>>,
    /// The files and programs that end with it.
    beside: OnceLock<Weak<Sidecar>>,
    state: Mutex<State>,
    /// It ends with the last handle.
    pub(crate) own: bool,
}

#[derive(Debug)]
struct State {
    record: Runtime,
    note: Note,
    resources: Option<ResourceConfig>,
    /// When we end it, unix seconds. The service may do so earlier.
    end_at: Option<f64>,
    paused: bool,
    ended: bool,
}

impl Lease {
    pub(crate) fn new(
        source: Arc<Source>,
        record: Runtime,
        note: Note,
        environment: Option<&Environment>,
        own: bool,
    ) -> Self {
        let notes = Notes::of(&source.config);
        let resources =
            environment.map(|environment| resources::of(environment, note.gpu.as_deref()));
        let paused = status(&record) == SandboxStatus::Paused;
        let state = State { record, note, resources, end_at: None, paused, ended: false };
        let (ended, kernels, beside) = (Arc::default(), Mutex::default(), OnceLock::new());
        Self { source, notes, ended, kernels, beside, state: Mutex::new(state), own }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the service said last.
    pub(crate) fn record(&self) -> Runtime {
        self.state().record.clone()
    }

    /// The service says something new. What it leaves out stays as it was.
    pub(crate) fn update(&self, mut record: Runtime) {
        let mut state = self.state();
        record.ingress = record.ingress.or_else(|| state.record.ingress.take());
        record.token = record.token.or_else(|| state.record.token.take());
        state.record = record;
    }

    /// The kernel of a context, as far as it was noted, by this process or another one.
    pub(crate) fn kernel(&self, context: &str) -> Option<String> {
        let mut state = self.state();
        if let Some(note) = self.notes.read(state.record.id()) {
            state.note = note;
        }
        state.note.kernels.get(context).cloned()
    }

    /// What was asked for in environment variables and directory.
    pub(crate) fn begins_with(&self) -> (BTreeMap<String, String>, Option<String>) {
        let state = self.state();
        (state.note.env.clone(), state.note.cwd.clone())
    }

    /// A kernel that ends with it.
    pub(crate) fn watch(&self, kernel: &Arc<KernelProcess>) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.retain(|other| other.strong_count() > 0);
        kernels.push(Arc::downgrade(kernel));
    }

    /// It is over. What runs is told so at once, and not when its connection breaks.
    pub(crate) fn over(&self, kind: FailureKind) {
        self.ended.set(kind);
        self.state().ended = true;
        let kernels =
            std::mem::take(&mut *self.kernels.lock().unwrap_or_else(PoisonError::into_inner));
        for kernel in kernels.iter().filter_map(Weak::upgrade) {
            kernel.mark_dead();
        }
        if let Some(sidecar) = self.beside.get().and_then(Weak::upgrade) {
            sidecar.end();
        }
    }

    /// The files and programs that end with it. There is one of these.
    pub(crate) fn watch_beside(&self, sidecar: &Arc<Sidecar>) {
        let _ = self.beside.set(Arc::downgrade(sidecar));
    }

    /// Changes what is noted of it.
    pub(crate) fn change_note(&self, change: impl FnOnce(&mut Note)) {
        let mut state = self.state();
        state.note = self.notes.change(state.record.id(), &state.note, change);
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.state().paused = paused;
    }

    /// Whether it has not ended.
    ///
    /// # Errors
    /// `Terminated`.
    pub(crate) fn alive(&self, operation: &'static str) -> Result<()> {
        let state = self.state();
        let over = end_at(&state).is_some_and(|end| end <= unix_now());
        if !state.ended && !over {
            return Ok(());
        }
        let what = if over { "its lifetime is over" } else { "it has ended" };
        let id = state.record.id();
        Err(Error::new(ErrorKind::Terminated, operation, format!("datalayer-runtime/{id}: {what}"))
            .with_context("sandbox_id", format!("{}/{id}", Variant::DATALAYER_RUNTIME)))
    }

    /// What a failure of the way there means: that the sandbox has ended, when it has.
    pub(crate) async fn explained(&self, operation: &'static str, error: Error) -> Error {
        if matches!(error.kind(), ErrorKind::ConnectionLost | ErrorKind::Unavailable) {
            self.look().await;
        }
        self.alive(operation).err().unwrap_or(error)
    }

    /// The same for a run that ended with its interpreter.
    pub(crate) async fn explained_outcome(&self, outcome: &mut RunOutcome) {
        let Some(failure) = &mut outcome.failure else { return };
        if !matches!(failure.kind, FailureKind::ConnectionLost | FailureKind::KernelDied) {
            return;
        }
        self.look().await;
        if let Some(kind) = self.ended.get() {
            failure.kind = kind;
            failure.message = "the sandbox ended during the run".to_owned();
        }
    }

    /// Asks the service whether it is still there, and if not, it has ended.
    async fn look(&self) {
        if self.state().ended {
            return;
        }
        let name = self.record().name().to_owned();
        let asked = async {
            let api = self.source.api().await?;
            let call = CallContext::new().with_deadline(Instant::now() + LOOK_PATIENCE);
            api.runtime(&call, "look", &name).await
        };
        let is_gone = match asked.await {
            Ok(record) => is_over(&record),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        if is_gone {
            self.over(FailureKind::Terminated);
        }
    }

    pub(crate) fn info(&self) -> SandboxInfo {
        let state = self.state();
        let mut info = describe(&state.record, Some(&state.note), state.resources.clone());
        info.end_at = end_at(&state);
        let over = info.end_at.is_some_and(|end| end <= unix_now());
        info.status = match info.status {
            _ if state.ended || over => SandboxStatus::Terminated,
            _ if state.paused => SandboxStatus::Paused,
            SandboxStatus::Paused => SandboxStatus::Running,
            other => other,
        };
        info
    }

    /// Lets it live for that long from now.
    ///
    /// # Errors
    /// `Unsupported` beyond what is reserved, and for one that outlives this process.
    pub(crate) fn set_lifetime(self: &Arc<Self>, lifetime: Duration) -> Result<()> {
        let operation = "set_lifetime";
        let end = unix_now() + lifetime.as_secs_f64();
        let reserved = self.state().record.expired_at;
        if let Some(reserved) = reserved.filter(|reserved| end > reserved + 1.0) {
            let left = (reserved - unix_now()).max(0.0);
            let message = format!("the credits that are reserved last for {left:.0} s more");
            return Err(Error::unsupported(operation, message).with_hint(
                "credits are reserved at create, for the `lifetime` that is given there",
            ));
        }
        if !self.own {
            let message = "a sandbox that outlives this process ends when its reserved credits do";
            return Err(Error::unsupported(operation, message)
                .with_hint("terminate it when it is no longer used"));
        }
        self.end_in(lifetime);
        Ok(())
    }

    /// Ends it at that time, unless it is changed until then.
    pub(crate) fn end_in(self: &Arc<Self>, lifetime: Duration) {
        let end = unix_now() + lifetime.as_secs_f64();
        self.state().end_at = Some(end);
        let weak = Arc::downgrade(self);
        keeper::spawn(async move {
            tokio::time::sleep(lifetime).await;
            let Some(lease) = weak.upgrade() else { return };
            if lease.state().end_at != Some(end) {
                return;
            }
            lease.ended.set(FailureKind::Expired);
            if !lease.own {
                // The service ends it.
                lease.over(FailureKind::Expired);
            } else {
                lease.end_at_last("lifetime").await;
            }
        });
    }

    /// Ends it, and tries again for a while when that does not work: it costs.
    pub(crate) async fn end_at_last(&self, operation: &'static str) {
        let mut pauses = PAUSES.into_iter();
        while let Err(error) = self.end(operation, true, false).await {
            tracing::warn!(%error, name = self.record().name(), "the sandbox lives longer than it shall");
            let Some(pause) = pauses.next() else { return };
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
    }

    /// Deletes it, with `separate` over connections of its own. With `wait`, until the service no longer has it.
    ///
    /// # Errors
    /// What kept the service from deleting it; it then still runs, and may be deleted later.
    pub(crate) async fn end(
        &self,
        operation: &'static str,
        separate: bool,
        wait: bool,
    ) -> Result<()> {
        if self.state().ended {
            return Ok(());
        }
        let api =
            if separate { self.source.separate_api().await? } else { self.source.api().await? };
        self.end_over(&api, operation, wait).await
    }

    async fn end_over(&self, api: &Api, operation: &'static str, wait: bool) -> Result<()> {
        let (name, id) = {
            let state = self.state();
            (state.record.name().to_owned(), state.record.id().to_owned())
        };
        let call = CallContext::new();
        api.delete(&call, operation, &name).await?;
        self.over(FailureKind::Terminated);
        self.notes.forget(&id);
        for look in 0..MOST_LOOKS {
            if !wait
                || !matches!(api.runtime(&call, operation, &name).await, Ok(found) if !is_over(&found))
            {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50 << look.min(5))).await;
        }
        Ok(())
    }

    /// Ends it because it could not be made whole. What is not deleted is told: it costs.
    pub(crate) async fn give_up(&self, api: &Api, error: Error) -> Error {
        match self.end_over(api, "create", false).await {
            Ok(()) => error,
            Err(left) => {
                let name = self.record().name().to_owned();
                tracing::error!(%left, name, "a runtime is left behind");
                error.with_context("left_behind", name).with_hint(
                    "the runtime could not be deleted and may cost credits: `sandboxes ls -p datalayer-runtime`",
                )
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Lease {
    /// Nobody has a handle any more. What ends with the last one is deleted, before this thread goes on.
    pub(crate) fn let_go(&self) {
        if self.own {
            self.delete_now();
        }
    }

    /// Deletes it before this thread goes on, or soon after that.
    pub(crate) fn delete_now(&self) {
        let (name, id, ended) = {
            let state = self.state();
            (state.record.name().to_owned(), state.record.id().to_owned(), state.ended)
        };
        if ended {
            return;
        }
        let source = Arc::clone(&self.source);
        self.notes.forget(&id);
        self.over(FailureKind::Terminated);
        keeper::finish(DROP_PATIENCE, async move {
            let deleted = async {
                source.separate_api().await?.delete(&CallContext::new(), "drop", &name).await
            };
            if let Err(error) = deleted.await {
                tracing::error!(%error, name, "a runtime is left behind");
            }
        });
    }
}

fn end_at(state: &State) -> Option<f64> {
    [state.end_at, state.record.expired_at].into_iter().flatten().reduce(f64::min)
}

/// Whether the service says that it is no more.
pub(crate) fn is_over(record: &Runtime) -> bool {
    matches!(status(record), SandboxStatus::Terminated | SandboxStatus::Stopping)
}

/// Where a runtime is in its life, as the service tells it.
pub(crate) fn status(record: &Runtime) -> SandboxStatus {
    let said = record.status.as_deref().map(str::to_ascii_lowercase);
    match said.as_deref() {
        Some("pending" | "requested" | "queued") => SandboxStatus::Pending,
        Some("starting" | "creating" | "resuming") => SandboxStatus::Starting,
        Some("paused" | "pausing" | "suspended") => SandboxStatus::Paused,
        Some("terminating" | "stopping" | "deleting") => SandboxStatus::Stopping,
        Some("terminated" | "stopped" | "deleted" | "expired") => SandboxStatus::Terminated,
        Some("failed" | "error" | "crashed") => SandboxStatus::Error,
        _ if record.expired_at.is_some_and(|end| end <= unix_now()) => SandboxStatus::Terminated,
        _ if record.ingress.as_deref().unwrap_or_default().is_empty() => SandboxStatus::Starting,
        _ => SandboxStatus::Running,
    }
}

/// A runtime as it is listed.
pub(crate) fn describe(
    record: &Runtime,
    note: Option<&Note>,
    resources: Option<ResourceConfig>,
) -> SandboxInfo {
    let note = note.cloned().unwrap_or_default();
    let variant = Variant::DATALAYER_RUNTIME;
    SandboxInfo {
        id: format!("{variant}/{}", record.id()),
        variant,
        status: status(record),
        created_at: record.started_at.unwrap_or_else(unix_now),
        end_at: record.expired_at,
        name: record.given_name.clone(),
        resources,
        isolation: Some(IsolationInfo {
            mode: note.isolation,
            // The service does not tell what is between its runtimes.
            boundary: "remote".into(),
            layers: Vec::new(),
            network: note.network.as_str().into(),
        }),
        mounts: Vec::new(),
        metadata: metadata(record, &note),
        tags: note.tags,
    }
}

fn metadata(record: &Runtime, note: &Note) -> Map<String, Value> {
    let rate = record.burning_rate.unwrap_or_default();
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| metadata.insert(key.to_owned(), value);
    put("runtime_name", json!(record.name()));
    put("environment", json!(record.environment()));
    put("reservation_id", json!(record.reservation_id));
    put("credits_per_second", json!(rate));
    if let Some(begun) = record.started_at {
        let until = record.expired_at.map_or_else(unix_now, |end| unix_now().min(end));
        put("credits_used", json!((until - begun).max(0.0) * rate));
    }
    if let Some(gpu) = &note.gpu {
        put("gpu_asked_for", json!(gpu));
    }
    if note.transient {
        put(EPHEMERAL, json!(true));
    }
    if !note.tags.is_empty() {
        put("tags_are_kept", json!("on this computer; the service has none"));
    }
    if !note.terms.is_empty() {
        put(REUSE_KEY, Value::Object(note.terms.clone()));
    }
    metadata
}
