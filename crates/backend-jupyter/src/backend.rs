//! Where sandboxes with kernels come from.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use sandbox_cells::cell::{CellHost, ZygoteSource};
use sandbox_cells::launchers::{CellLaunchers, isolation_info};
use sandbox_cells::mounts;
use sandbox_cells::visible_paths::{cell_spec, check_cell_options, environment, home_of};
use sandbox_cells::zygotes::Zygotes;
use sandbox_cells::{InCell, base_for_cell, health_in_cells};
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, Health, Instance, IsolationMode,
    ListQuery, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
    resolve_directory,
};
use sandbox_engine::checks::{check_of, check_size, with_unsupported_hint};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{InstanceRegistry, Packages, PrewarmPool, SandboxBaseSpec, is_prewarmable};
use sandbox_isolation::{Cell, CellLauncher, CellSpec, host_limits};
use sandbox_kernel::KernelHost;
use sandbox_kernel::launch::{KernelLimits, TransportSelector};
use serde_json::json;

use crate::away;
use crate::config::{JupyterConfig, Options};
use crate::installed::{Installed, all, find};
use crate::instance::{JupyterInstance, Kernel};
use crate::kernels::kernels_of;
use crate::warm::WarmInterpreter;

/// Makes sandboxes with Jupyter kernels on this host.
#[derive(Debug, Default)]
pub struct JupyterBackend {
    config: JupyterConfig,
    launchers: CellLaunchers,
    zygotes: Zygotes,
    /// At most one cell ahead, in which nothing ever ran.
    spares: PrewarmPool<CellSpec, Cell>,
    made: InstanceRegistry<JupyterInstance>,
}

/// Everything that decides what a sandbox is.
struct Recipe {
    /// With the isolation that it gets.
    spec: CreateSpec,
    /// The isolation that was asked for.
    asked: IsolationMode,
    options: Options,
    installed: Installed,
    capabilities: Capabilities,
}

/// What a kernel in a cell can do. Some of it takes the program that runs in kernels of IPython.
fn capabilities(mode: IsolationMode, ipython: bool) -> Capabilities {
    let strict = mode == IsolationMode::Strict;
    Capabilities {
        run_code: true,
        run_stdin: ipython,
        run_script: ipython,
        rich_results: true,
        live_output: true,
        limit_run_cpu_time: true,
        limit_command_cpu_time: true,
        contexts: true,
        variables: ipython,
        interrupt: true,
        restart: true,
        tools: ipython,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: ipython,
        files: true,
        file_attributes: true,
        watch: true,
        // Without a network of its own nothing listens there but what is the host's.
        expose_port: mode != IsolationMode::BestEffort,
        pause: true,
        metrics: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
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
        // Without a cell it would be the host's own, with all that only this host reaches.
        network_all: mode != IsolationMode::BestEffort,
        isolation_strict: true,
        isolation_best_effort: true,
        isolation_off: true,
        ..Capabilities::default()
    }
}

/// What can be enforced depends on the isolation that there is. `BestEffort` is what is left of it without cells.
fn check(spec: &CreateSpec, ipython: bool) -> Result<Capabilities> {
    let capabilities = capabilities(spec.isolation, ipython);
    capabilities.check(spec).map_err(|error| {
        let enforced =
            "local-jupyter enforces memory, disk, processes, lifetime, idle timeout, mounts and the network";
        with_unsupported_hint(error, spec, Variant::LOCAL_JUPYTER, enforced)
    })?;
    check_size(spec)?;
    check_cell_options(spec)?;
    Ok(capabilities)
}

/// `python-cpu-env` is the default name of the clients this library supersedes.
fn is_own_environment(name: &str) -> bool {
    matches!(name, "local-jupyter" | "jupyter" | "jupyter-server" | "python-cpu-env")
}

impl JupyterBackend {
    /// A backend with defaults of its own.
    pub fn new(config: JupyterConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// The options of a create.
    fn options(&self, spec: &CreateSpec) -> Result<Options> {
        let mut options =
            Options::of_create(&self.config, spec.single_use, &spec.provider_options)?;
        // Kernels are its environments.
        if let Some(name) = spec.environment.as_deref().filter(|name| !is_own_environment(name)) {
            options.kernel = Some(name.to_owned());
        }
        Ok(options)
    }

    async fn recipe(&self, mut spec: CreateSpec, options: Options) -> Result<Recipe> {
        let asked = spec.isolation;
        if asked == IsolationMode::BestEffort && self.launchers.has_cells().await {
            spec.isolation = IsolationMode::Strict;
        }
        check(&spec, true)?;
        let mut installed = find(&options)?;
        if spec.isolation == IsolationMode::Strict {
            installed = installed.with_mounts(&spec.mounts)?;
        }
        let capabilities = check(&spec, installed.command.looks_like_ipython())?;
        Ok(Recipe { spec, asked, options, installed, capabilities })
    }

    /// A sandbox with its working directory and, unless that shall wait, the default kernel.
    async fn make(&self, recipe: Recipe) -> Result<JupyterInstance> {
        let Recipe { spec, asked, options, installed, capabilities } = recipe;
        let maker = self.launchers.get(spec.isolation).await?;
        let mut cell_spec = cell_spec(&spec, &installed.directories);
        cell_spec.mounts = mounts::open(&spec.mounts, Vec::new()).await?;
        let strict = spec.isolation == IsolationMode::Strict;
        // Without a cell, a fork would be the parent of orphans and a fresh process is not.
        let warm = (strict && options.warm)
            .then(|| WarmInterpreter::find(&installed, &spec.mounts, &maker, &self.zygotes))
            .flatten();
        let first = warm.as_ref().filter(|_| !options.lazy);
        let (cell, _) = tokio::join!(self.cell(&maker, &cell_spec), async {
            // Only started here, while the cell is made.
            if let Some(warm) = first {
                drop(warm.zygote().await);
            }
        });
        let cell = cell?;
        let home = if strict { home_of(&spec) } else { cell.work_dir().to_owned() };
        let home = home.to_string_lossy().into_owned();
        let cwd = working_directory(&cell, &spec);
        let mut env = environment(&spec, &installed.programs(), Path::new(&home));
        if let Some(python) = installed.python.as_ref().filter(|python| python.is_virtual) {
            let prefix = python.prefix.to_string_lossy().into_owned();
            env.entry("VIRTUAL_ENV".into()).or_insert(prefix);
        }
        let isolation = isolation_info(asked, &cell);
        let rlimits = cell.rlimits().to_vec();
        let cell_box = Arc::new(CellHost::new(cell, no_zygote(), rlimits));
        let warm = warm.map(|warm| warm.in_cell(&cell_box));
        let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
        let base = SandboxBaseSpec {
            variant: Variant::LOCAL_JUPYTER,
            capabilities,
            create: &spec,
            isolation,
            env,
            cwd,
        };
        let mut base = base_for_cell(Arc::clone(&cell_box), base)?;
        if let Some(python) = installed.python.as_ref().filter(|_| capabilities.install_python) {
            let packages = Packages::new(python.executable.clone(), options.pip);
            let (major, minor) = python.version;
            let virtual_version = python.is_virtual.then(|| format!("{major}.{minor}"));
            base.packages = Some(packages.of_virtual_environment(virtual_version));
        }
        let command = installed.command;
        base.describe("kernel", json!(command.name));
        base.describe("language", json!(command.language));
        let cell = InCell::new(&cell_box);
        let language = command.language.clone();
        let transport = TransportSelector::new(options.transport.map(Into::into));
        let kernels =
            kernels_of(&cell_box, command, warm, transport, home, KernelLimits::from_spec(&spec))?;
        let host: Arc<dyn ProcessHost> = Arc::new(KernelHost::new(cell_box, Arc::new(kernels)));
        let (variant, ended) = (Variant::LOCAL_JUPYTER, Arc::clone(&base.end_reason));
        let box_of = move |_: &str| Arc::clone(&host);
        let contexts = Contexts::with(variant, &language, ended, worker_spec, box_of);
        let instance = JupyterInstance { base, contexts, kind: Kernel::Here(cell) };
        let no_files = std::future::ready(Ok(()));
        instance.prepare(no_files, spec.working_dir.is_some(), options.lazy).await?;
        instance.begin(&spec);
        if is_prewarmable(&spec) && spec.isolation == IsolationMode::Strict {
            self.prepare_next(maker, cell_spec);
        }
        Ok(instance)
    }

    async fn cell(&self, maker: &CellLauncher, spec: &CellSpec) -> Result<Cell> {
        let spare = self.spares.take(|spare| spare == spec).await;
        match spare.filter(|spare| spare.closing().now_or_never().is_none()) {
            Some(spare) => Ok(spare),
            None => maker.cell(spec).await.map_err(mounts::no_cell),
        }
    }

    /// Has the next cell made, once there were two alike.
    fn prepare_next(&self, maker: CellLauncher, spec: CellSpec) {
        let again = |spec: &CellSpec, last: Option<&CellSpec>| last == Some(spec);
        let make = |next: CellSpec| async move { maker.cell(&next).await.ok() };
        self.spares.prepare(spec, again, make);
    }
}

fn working_directory(cell: &Cell, spec: &CreateSpec) -> String {
    let work_dir = cell.work_dir().to_string_lossy();
    resolve_directory(&work_dir, spec.working_dir.as_deref().unwrap_or("."))
}

/// Kernels are programs, also those that are forked.
fn no_zygote() -> ZygoteSource {
    Arc::new(|| {
        Box::pin(async {
            Err(Error::unsupported("start_interpreter", "local-jupyter has no Python workers"))
        })
    })
}

#[async_trait]
impl Backend for JupyterBackend {
    fn variant(&self) -> Variant {
        Variant::LOCAL_JUPYTER
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(IsolationMode::Strict, true)
    }

    async fn create(&self, _call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let options = self.options(&spec)?;
        let instance = Arc::new(match &options.target {
            Some(target) => {
                away::create(&spec, target, options.kernel.as_deref(), &options.pip).await?
            }
            None => self.make(self.recipe(spec, options).await?).await?,
        });
        self.made.add(&instance);
        Ok(instance)
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        Err(Error::unsupported(
            "attach",
            format!("{id} cannot be attached to: local-jupyter sandboxes end with their process"),
        ))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        Ok(self.made.list(&query))
    }

    /// The kernels that are installed.
    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let found = all(&Options::of_backend(&self.config))?;
        let environments = found.kernels.into_values().map(|kernel| {
            let mut environment = SandboxEnvironment::local(kernel.name, kernel.spec.display_name);
            environment.language = kernel.spec.language.to_lowercase();
            environment.metadata.insert("variant".into(), json!("local-jupyter"));
            environment
        });
        Ok(environments.collect())
    }

    async fn health(&self, _call: &CallContext) -> Result<Health> {
        let kernel = find(&Options::of_backend(&self.config)).and_then(|it| it.with_mounts(&[]));
        let kernel = check_of(
            "kernel",
            kernel.map(|it| format!("{} ({})", it.command.name, it.command.title)),
        );
        Ok(health_in_cells(kernel, "Jupyter kernels in isolated cells", &self.launchers).await)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        Err(Error::unsupported("list_snapshots", "local-jupyter has no snapshots"))
    }

    async fn delete_snapshot(&self, _call: &CallContext, _name: &str) -> Result<()> {
        Err(Error::unsupported("delete_snapshot", "local-jupyter has no snapshots"))
    }
}
