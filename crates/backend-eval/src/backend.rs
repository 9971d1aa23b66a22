//! Where local sandboxes come from.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    IsolationMode, ListQuery, NetworkMode, Page, Result, SandboxEnvironment, SandboxId,
    SandboxInfo, SandboxStatus, SnapshotInfo, Variant,
};
use sandbox_isolation::{host_limits, probe};
use sandbox_local::SnapshotStore;
use sandbox_local::checks::{check_size, further_checks, isolation_checks};
use sandbox_local::network;
use serde_json::json;

use crate::config::{EvalConfig, Options};
use crate::instance::EvalInstance;
use crate::python::{Python, locate};
use crate::spares::Spares;
use crate::workshop::{Recipe, Workshop};

/// Makes sandboxes on this host. The maker of cells and the warm interpreters are shared by all of them.
#[derive(Debug, Default)]
pub struct EvalBackend {
    config: EvalConfig,
    workshop: Arc<Workshop>,
    spares: Spares,
    /// Sandboxes of this backend, for listings.
    made: Mutex<Vec<Weak<EvalInstance>>>,
}

impl EvalBackend {
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
        run_code: true,
        run_stdin: true,
        run_script: true,
        rich_results: true,
        live_output: true,
        limit_run_cpu_time: true,
        contexts: true,
        variables: true,
        interrupt: true,
        restart: true,
        tools: true,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: true,
        files: true,
        watch: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
        snapshot: true,
        restore_snapshot: true,
        limit_disk: strict,
        limit_memory: strict,
        limit_cpu: strict && host_limits().cpu,
        limit_processes: strict,
        limit_disk_files: strict,
        limit_open_files: strict,
        limit_output: true,
        mounts: strict,
        network_none: mode != IsolationMode::Off,
        network_allowlist: strict,
        network_all: true,
        isolation_strict: true,
        isolation_best_effort: true,
        isolation_off: true,
        ..Capabilities::default()
    }
}

/// What this backend can enforce depends on the isolation that it has. `BestEffort` is what is left of it without cells.
fn check(spec: &CreateSpec) -> Result<Capabilities> {
    let capabilities = capabilities(spec.isolation);
    capabilities.check(spec).map_err(|error| {
        let hint = match (spec.isolation, spec.network.mode) {
            (IsolationMode::Off, _) if !spec.network.deny.is_empty() => {
                "without isolation the code has the host's network; use strict isolation"
            }
            (IsolationMode::Off, NetworkMode::None | NetworkMode::Allowlist) => {
                "without isolation the code has the host's network; use strict isolation"
            }
            (IsolationMode::Off, _) if !spec.mounts.is_empty() => {
                "without isolation the code has the host's files at their own paths; use strict isolation"
            }
            (IsolationMode::BestEffort, _) => {
                "this host has no namespaces for this user, and without them only the network can be closed; \
                 `sandboxes doctor` says how to get them"
            }
            (IsolationMode::Strict, _) if spec.cpu.is_some() => {
                "a share of the processors takes a control group: run as root in the topmost one"
            }
            _ => "local-eval enforces memory, disk, processes, lifetime, idle timeout, mounts and the network",
        };
        error.with_context("variant", Variant::LocalEval.as_str()).with_hint(hint)
    })?;
    check_size(spec)?;
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
    /// The sandboxes of this process.
    fn instances(&self) -> Vec<Arc<EvalInstance>> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.iter().filter_map(Weak::upgrade).collect()
    }

    /// Starts the interpreter, because only that shows whether it works.
    async fn python_check(&self, python: &Python, options: &Options) -> Check {
        let started = async {
            let maker = self.workshop.makers.get(IsolationMode::Off).await?;
            self.workshop.zygotes.get(&maker, python, options).await
        };
        let path = python.executable.display();
        let name = "python".to_owned();
        match started.await {
            Ok(zygote) => {
                let detail = format!("{} at {path}", zygote.hello().version);
                Check { name, ok: true, detail, fix: None }
            }
            Err(error) => {
                let (detail, fix) = (error.to_string(), error.hint().map(str::to_owned));
                Check { name, ok: false, detail, fix }
            }
        }
    }
}

#[async_trait]
impl Backend for EvalBackend {
    fn variant(&self) -> Variant {
        Variant::LocalEval
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
        if asked == IsolationMode::BestEffort && self.workshop.makers.has_cells().await {
            spec.isolation = IsolationMode::Strict;
        }
        let capabilities = check(&spec)?;
        let options = Options::of_create(&self.config, spec.single_use, &spec.provider_options)?;
        let find = |name: &String| self.workshop.snapshots.find("create", name);
        let snapshot = spec.snapshot.as_ref().map(find).transpose()?;
        let (python, maker) =
            tokio::join!(locate(&options), self.workshop.makers.get(spec.isolation));
        // Only started here, while the interpreter is looked for.
        drop(maker?);
        let recipe = Recipe { spec, asked, python: python?, options, capabilities, snapshot };
        let instance = match self.spares.take(&recipe).await {
            Some(spare) => spare,
            None => Arc::new(self.workshop.make(&recipe).await?),
        };
        instance.begin(&recipe.spec);
        self.spares.prepare(&self.workshop, recipe);
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.retain(|other| other.strong_count() > 0);
        made.push(Arc::downgrade(&instance));
        Ok(instance)
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        Err(Error::unsupported(
            "attach",
            format!("{id} cannot be attached to: local-eval sandboxes end with their process"),
        ))
    }

    /// Sandboxes of this process: they end with it, so there are no others.
    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        let wanted = |info: &SandboxInfo| {
            let has = |(key, value): (&String, &String)| info.tags.get(key) == Some(value);
            info.status == SandboxStatus::Running && query.tags.iter().all(has)
        };
        let infos = self.instances().into_iter().map(|instance| instance.info());
        Ok(Page::last(infos.filter(wanted).collect()))
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
        let mut health = Health { usable: true, ..Health::default() };
        match locate(&options).await {
            Ok(python) => health.checks.push(self.python_check(&python, &options).await),
            Err(error) => health.checks.push(Check {
                name: "python".into(),
                ok: false,
                detail: error.to_string(),
                fix: error.hint().map(str::to_owned),
            }),
        }
        let probe = probe().await;
        let further = further_checks(&probe.layers);
        health.checks.extend(isolation_checks(probe));
        let broken = health.checks.iter().find(|check| !check.ok).cloned();
        health.usable = broken.is_none();
        health.detail = broken.as_ref().map_or_else(
            || "Python workers in isolated cells".to_owned(),
            |check| format!("{}: {}", check.name, check.detail),
        );
        health.fix = broken.and_then(|check| check.fix);
        health.checks.extend(further);
        // Told, and no reason against the variant: most sandboxes have no network.
        if health.usable {
            health.checks.push(network::check(&self.workshop.makers).await);
        }
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.workshop.snapshots.list("list_snapshots")?;
        let instances = self.instances();
        let told = all.into_iter().map(|stored| {
            let here =
                instances.iter().map(|instance| instance.snapshots.contexts_of(&stored.info.id));
            SnapshotInfo { contexts: here.flatten().collect(), ..stored.info }
        });
        Ok(told.collect())
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        let deleted = self.workshop.snapshots.delete("delete_snapshot", name)?;
        for instance in self.instances() {
            instance.snapshots.forget(&deleted.info.id);
        }
        Ok(())
    }
}
