//! Sandboxes of the service: cells of this library.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandbox_core::{Backend, NetworkPolicy, Sandbox, random_hex, unix_now};
use tonic::Status;

use super::execs::Exec;
use super::wire::{Definition, GenericResult, Resources, SandboxTag, TunnelData, network, status};
use super::{BuiltImage, State};

/// The directory of programs in a sandbox whose image has no Python.
const PLAIN: &str = "/workspace/.image/bin";

/// Fills that directory with all programs of the system but interpreters.
const WITHOUT_PYTHON: &str = "PATH=/usr/bin:/bin; mkdir -p \"$1\"; cd /usr/bin && \
    ls | grep -v -e python -e perl -e pydoc | sed 's|^|/usr/bin/|' | xargs ln -sf -t \"$1\"";

/// A sandbox, and what runs in it.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) id: String,
    pub(crate) task_id: String,
    pub(crate) app_id: String,
    pub(crate) definition: Definition,
    pub(crate) created_at: f64,
    pub(crate) tags: Mutex<Vec<SandboxTag>>,
    pub(crate) sandbox: Sandbox,
    pub(super) execs: Mutex<HashMap<String, Arc<Exec>>>,
    result: Mutex<Option<GenericResult>>,
    used_at: Mutex<Instant>,
}

impl Cell {
    pub(crate) fn is_running(&self) -> bool {
        self.result.lock().unwrap().is_none()
    }

    pub(super) fn result(&self) -> Option<GenericResult> {
        self.result.lock().unwrap().clone()
    }

    /// Returns the programs that run in it now, as the arguments that they were started with.
    pub(crate) fn programs(&self) -> Vec<Vec<String>> {
        let execs = self.execs.lock().unwrap();
        let running = execs.values().filter(|exec| exec.is_running());
        running.map(|exec| exec.argv.clone()).collect()
    }

    /// Ends it with that status, if it runs.
    pub(crate) async fn end(&self, with: i32) {
        let ended = GenericResult { status: with, ..GenericResult::default() };
        if self.result.lock().unwrap().is_some() {
            return;
        }
        *self.result.lock().unwrap() = Some(ended);
        let _ = self.sandbox.terminate().await;
        self.execs.lock().unwrap().values().for_each(|exec| exec.lost());
    }

    pub(super) fn used(&self) {
        *self.used_at.lock().unwrap() = Instant::now();
    }

    /// Ends it when its lifetime is over, or it was idle for too long: without a program that runs.
    async fn watch(self: Arc<Self>) {
        let born = Instant::now();
        let seconds = |count: u32| Duration::from_secs(count.into());
        let lifetime = seconds(self.definition.timeout_secs);
        let idle = self.definition.idle_timeout_secs.map(seconds);
        while self.is_running() {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if !self.programs().is_empty() {
                self.used();
            }
            let unused = self.used_at.lock().unwrap().elapsed();
            if born.elapsed() >= lifetime {
                self.end(status::TIMEOUT).await;
            } else if idle.is_some_and(|idle| unused >= idle) {
                self.end(status::IDLE_TIMEOUT).await;
            }
        }
    }

    /// Returns the addresses of its open ports.
    pub(super) async fn tunnels(&self) -> Result<Vec<TunnelData>, Status> {
        let mut tunnels = Vec::new();
        let ports = self.definition.open_ports.as_ref().map(|open| open.ports.clone());
        for spec in ports.unwrap_or_default() {
            let port = u16::try_from(spec.port).map_err(|_| Status::invalid_argument("port"))?;
            let exposed = self.sandbox.expose_port(port).await;
            let exposed = exposed.map_err(|error| Status::internal(error.to_string()))?;
            let here = exposed.url.rsplit(':').next().unwrap_or_default();
            let here = here.trim_end_matches('/').parse().unwrap_or_default();
            tunnels.push(TunnelData {
                host: "127.0.0.1".into(),
                port: here,
                container_port: spec.port,
                ..TunnelData::default()
            });
        }
        Ok(tunnels)
    }
}

/// A name of a sandbox that is being made, which no other one gets.
struct Reserved<'a> {
    state: &'a State,
    name: String,
}

impl<'a> Reserved<'a> {
    fn new(state: &'a State, name: &str) -> Result<Self, Status> {
        let mut starting = state.starting.lock().unwrap();
        let all = state.all.lock().unwrap();
        let has_it =
            |cell: &Arc<Cell>| cell.is_running() && cell.definition.name.as_deref() == Some(name);
        if starting.iter().any(|other| other == name) || all.values().any(has_it) {
            let message = format!("Sandbox with name '{name}' already exists");
            return Err(Status::already_exists(message));
        }
        starting.push(name.to_owned());
        Ok(Self { state, name: name.to_owned() })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.state.starting.lock().unwrap().retain(|name| *name != self.name);
    }
}

/// Makes a sandbox.
pub(super) async fn create(
    state: &State,
    is_v2: bool,
    app_id: String,
    definition: Definition,
    tags: Vec<SandboxTag>,
    env: HashMap<String, String>,
) -> Result<Arc<Cell>, Status> {
    let _reserved = definition.name.as_ref().map(|name| Reserved::new(state, name)).transpose()?;
    let image = state.images.lock().unwrap().get(&definition.image_id).cloned();
    let image =
        image.ok_or_else(|| Status::not_found(format!("no image {}", definition.image_id)))?;
    if is_v2 && definition.resources.as_ref().is_some_and(has_gpu) {
        return Err(Status::invalid_argument("GPUs are not supported"));
    }
    let sandbox = cell(state, &definition, &image, &env).await?;
    // The provider's client takes ids with that beginning alone, and knows the generation by the rest.
    let id = format!("sb-{}", random_hex(if is_v2 { 13 } else { 11 }));
    let task_id = format!("ta-{}{}", random_hex(11), if is_v2 { "V" } else { "" });
    let cell = Arc::new(Cell {
        id,
        task_id,
        app_id,
        definition,
        created_at: unix_now(),
        tags: Mutex::new(tags),
        sandbox,
        execs: Mutex::default(),
        result: Mutex::default(),
        used_at: Mutex::new(Instant::now()),
    });
    state.all.lock().unwrap().insert(cell.id.clone(), Arc::clone(&cell));
    tokio::spawn(Arc::clone(&cell).watch());
    Ok(cell)
}

/// The provider's client sends an empty message for none.
fn has_gpu(resources: &Resources) -> bool {
    resources.gpu_config.as_ref().is_some_and(|gpu| gpu.count > 0)
}

async fn cell(
    state: &State,
    definition: &Definition,
    image: &BuiltImage,
    env: &HashMap<String, String>,
) -> Result<Sandbox, Status> {
    let failed = |error: sandbox_core::Error| Status::internal(error.to_string());
    let backend: Arc<dyn Backend> = Arc::<backend_eval::EvalBackend>::clone(&state.cells);
    let mut builder = Sandbox::builder(backend)
        .lifetime(Duration::from_secs(24 * 3600))
        .provider_option("interpreter", "lazy");
    for (name, value) in env {
        builder = builder.env(name, value);
    }
    if let Some(python) = &state.python {
        let programs = python.parent().unwrap_or(Path::new("/usr/bin")).display().to_string();
        builder = builder
            .provider_option("python", python.display().to_string())
            .env("PATH", format!("{programs}:/usr/local/bin:/usr/bin:/bin"));
    }
    let access = definition.network_access.clone().unwrap_or_default();
    if access.network_access_type == network::ALLOWLIST {
        let hosts = access.allowed_domains.iter().chain(&access.allowed_cidrs);
        builder = builder.network(NetworkPolicy::allowlist(hosts).map_err(failed)?);
    }
    if let Some(resources) = &definition.resources
        && resources.memory_mb_max > 0
    {
        builder = builder.memory(sandbox_core::ByteSize::mib(resources.memory_mb_max.into()));
    }
    if image.is_snapshot {
        builder = builder.snapshot_name(&definition.image_id);
    }
    let has_python = !image.lines.iter().any(|line| line.starts_with("FROM busybox"));
    if !has_python {
        builder = builder.env("PATH", PLAIN);
    }
    let sandbox = builder.create().await.map_err(failed)?;
    if !has_python {
        let made = sandbox.commands().run(["/bin/sh", "-c", WITHOUT_PYTHON, "sh", PLAIN]).await;
        made.map_err(failed)?;
    }
    Ok(sandbox)
}
