//! Where local sandboxes come from.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cells::health_in_cells;
use sandbox_cells::visible_paths::check_cell_options;
use sandbox_core::{
    Backend, ByteSize, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health,
    Instance, IsolationMode, ListQuery, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo,
    SnapshotInfo, Variant, hint_with_rust,
};
use sandbox_engine::checks::{check_of, check_size, with_unsupported_hint};
use sandbox_engine::{
    InstanceRegistry, PrewarmPool, SnapshotCatalog, SnapshotStore, StoredSnapshot, is_prewarmable,
};
use sandbox_isolation::host_limits;
use serde_json::json;

use crate::config::{EvalConfig, Options};
use crate::instance::{EvalInstance, Worker};
use crate::python::{Layout, Python, locate};
use crate::workshop::{Recipe, Workshop, zygote};

/// A snapshot on disk from which a sandbox may be prewarmed.
const SMALL: ByteSize = ByteSize::mib(64);

/// Makes sandboxes on this host. The maker of cells and the warm interpreters are shared by all of them.
#[derive(Debug, Default)]
pub struct EvalBackend {
    config: EvalConfig,
    workshop: Arc<Workshop>,
    /// At most one sandbox ahead. It is as fresh as any other: nothing ever ran in it.
    spares: PrewarmPool<Recipe, Arc<EvalInstance>>,
    made: InstanceRegistry<EvalInstance>,
}

impl EvalBackend {
    fn catalog(&self) -> SnapshotCatalog<'_, Worker> {
        SnapshotCatalog::new(&self.workshop.snapshots, &self.made, |worker| &worker.snapshots)
    }

    /// A backend with defaults of its own.
    pub fn new(config: EvalConfig) -> Self {
        let snapshots = SnapshotStore::new(config.snapshot_directory.clone());
        let workshop = Arc::new(Workshop { snapshots, ..Workshop::default() });
        Self { config, workshop, ..Self::default() }
    }
}

fn capabilities(mode: IsolationMode) -> Capabilities {
    let strict = mode == IsolationMode::Strict;
    Capabilities {
        limit_run_cpu_time: true,
        limit_run_memory: true,
        limit_command_cpu_time: true,
        file_attributes: true,
        // Without a network of its own nothing listens there but what is the host's.
        expose_port: mode != IsolationMode::BestEffort,
        limit_disk: strict,
        limit_memory: strict,
        limit_cpu: strict && host_limits().cpu,
        limit_processes: strict,
        limit_disk_files: strict,
        limit_open_files: strict,
        mounts: strict,
        network_none: mode != IsolationMode::Off,
        network_allowlist: strict,
        // Without a cell it would be the host's own, with all that only this host reaches.
        network_all: mode != IsolationMode::BestEffort,
        isolation_best_effort: true,
        isolation_off: true,
        ..Capabilities::local_python()
    }
}

/// What this backend can enforce depends on the isolation that it has. `BestEffort` is what is left of it without cells.
fn check(spec: &CreateSpec) -> Result<Capabilities> {
    let capabilities = capabilities(spec.isolation);
    capabilities.check(spec).map_err(|error| {
        let enforced = "local-eval enforces memory, disk, processes, lifetime, idle timeout, mounts and the network";
        with_unsupported_hint(error, spec, Variant::LOCAL_EVAL, enforced)
    })?;
    check_size(spec)?;
    check_cell_options(spec)?;
    if let Some(name) = spec.environment.as_deref().filter(|name| !is_own_environment(name)) {
        return Err(Error::new(
            ErrorKind::NotFound,
            "create",
            format!("environment {name:?} not found (available: local-eval)"),
        ));
    }
    Ok(capabilities)
}

/// `python-cpu-env` is the default name of the clients this library supersedes.
fn is_own_environment(name: &str) -> bool {
    matches!(name, "local-eval" | "eval" | "python-cpu-env")
}

impl EvalBackend {
    /// Has the next sandbox made, once there were two alike. Those from a snapshot, unless it is large, are made again and
    /// take time: there one is enough.
    fn prepare_next(&self, recipe: Recipe) {
        if !is_prewarmable(&recipe.spec) {
            return;
        }
        let small = |stored: &StoredSnapshot| stored.info.size <= SMALL.as_u64();
        let again = |recipe: &Recipe, last: Option<&Recipe>| {
            recipe.snapshot.as_ref().is_some_and(small)
                || last.is_some_and(|last| last.is_like(recipe))
        };
        let workshop = Arc::clone(&self.workshop);
        let make = |next: Recipe| async move { workshop.make(&next).await.ok().map(Arc::new) };
        self.spares.prepare(recipe, again, make);
    }

    /// The version of the interpreter, which is started, because only that shows whether it works; and what of its
    /// modules sandboxes do not see.
    async fn layout(&self, python: &Python, options: &Options) -> Result<(String, Vec<PathBuf>)> {
        let maker = self.workshop.launchers.get(IsolationMode::Off).await?;
        let zygote = zygote(&self.workshop.zygotes, &maker, python, options).await?;
        let version = format!("{} at {}", zygote.hello().version, python.executable.display());
        Ok((version, Layout::from_hello(zygote.hello()).unseen()))
    }
}

/// Told, and no reason against the variant.
fn not_shown(unseen: &[PathBuf]) -> Option<Check> {
    let paths: Vec<_> = unseen.iter().map(|path| path.display().to_string()).collect();
    let first = paths.first()?;
    Some(Check {
        name: "directories of modules".into(),
        ok: true,
        detail: format!("not in sandboxes, as they may hold anything: {}", paths.join(", ")),
        fix: Some(hint_with_rust(
            &format!("to show one: `--mount {first}:{first}`"),
            ".mount(Mount::new(..))",
        )),
    })
}

#[async_trait]
impl Backend for EvalBackend {
    fn variant(&self) -> Variant {
        Variant::LOCAL_EVAL
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            limit_disk: true,
            limit_memory: true,
            limit_processes: true,
            limit_disk_files: true,
            limit_open_files: true,
            mounts: true,
            network_none: true,
            network_allowlist: true,
            network_all: true,
            ..capabilities(IsolationMode::Strict)
        }
    }

    async fn create(&self, _call: &CallContext, mut spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let asked = spec.isolation;
        if asked == IsolationMode::BestEffort && self.workshop.launchers.has_cells().await {
            spec.isolation = IsolationMode::Strict;
        }
        let capabilities = check(&spec)?;
        let mut options =
            Options::of_create(&self.config, spec.single_use, &spec.provider_options)?;
        let find = |name: &String| self.workshop.snapshots.find("create", name);
        let snapshot = spec.snapshot.as_ref().map(find).transpose()?;
        if let Some(stored) = &snapshot {
            stored.check_whole()?;
            options.begin_like(stored, spec.isolation);
        }
        let (python, maker) =
            tokio::join!(locate(&options), self.workshop.launchers.get(spec.isolation));
        // Only started here, while the interpreter is looked for.
        drop(maker?);
        let recipe = Recipe { spec, asked, python: python?, options, capabilities, snapshot };
        let spare = self.spares.take(|spare| spare.is_like(&recipe)).await;
        let instance = match spare.filter(|spare| spare.base.is_running()) {
            Some(spare) => spare,
            None => Arc::new(self.workshop.make(&recipe).await?),
        };
        instance.begin(&recipe.spec);
        self.prepare_next(recipe);
        self.made.add(&instance);
        Ok(instance)
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        Err(Error::unsupported(
            "attach",
            format!("{id} cannot be attached to: local-eval sandboxes end with their process"),
        ))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        Ok(self.made.list(&query))
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let options = Options::of_backend(&self.config);
        let mut environment = SandboxEnvironment::local("local-eval", "Local Eval");
        environment.metadata.insert("variant".into(), json!("local-eval"));
        if let Ok(python) = locate(&options).await {
            environment
                .metadata
                .insert("python".into(), json!(python.executable.to_string_lossy()));
            if let Some(layout) = python.layout {
                environment.metadata.insert("python_version".into(), json!(layout.version));
            }
        }
        Ok(vec![environment])
    }

    async fn health(&self, _call: &CallContext) -> Result<Health> {
        let options = Options::of_backend(&self.config);
        let layout = async { self.layout(&locate(&options).await?, &options).await };
        let (python, unseen) = match layout.await {
            Ok((version, unseen)) => (Ok(version), unseen),
            Err(error) => (Err(error), Vec::new()),
        };
        let python = check_of("python", python);
        let what = "Python workers in isolated cells";
        let mut health = health_in_cells(python, what, &self.workshop.launchers).await;
        health.checks.extend(not_shown(&unseen));
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        self.catalog().list()
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        let find = |name| self.workshop.snapshots.find("delete_snapshot", name);
        if let Ok(stored) = find(name) {
            stored.check_whole()?;
        }
        self.catalog().delete(name).map(drop)
    }
}
