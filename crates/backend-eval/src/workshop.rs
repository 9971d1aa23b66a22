//! Makes sandboxes: a cell, a warm interpreter, and a worker of the one in the other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_cells::Start;
use sandbox_cells::cell::{CellHost, Zygote, ZygoteSource};
use sandbox_cells::launchers::{CellLaunchers, isolation_info};
use sandbox_cells::mounts;
use sandbox_cells::visible_paths::{cell_spec, environment, home_of};
use sandbox_cells::zygotes::{ZygoteKey, Zygotes};
use sandbox_cells::{InCell, base_for_cell};
use sandbox_core::{Capabilities, CreateSpec, IsolationMode, Result, Variant, resolve_directory};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{Packages, SandboxBaseSpec, SnapshotStore, Snapshots, StoredSnapshot};
use sandbox_isolation::{Cell, CellLauncher, Rlimit};
use serde_json::json;

use crate::config::Options;
use crate::instance::{EvalInstance, Worker};
use crate::python::{Layout, Python, remember};

/// What the sandboxes of a backend share.
#[derive(Debug, Default)]
pub(crate) struct Workshop {
    pub(crate) launchers: CellLaunchers,
    pub(crate) zygotes: Zygotes,
    pub(crate) snapshots: SnapshotStore,
}

/// Everything that decides what a sandbox is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// With the isolation that it gets.
    pub(crate) spec: CreateSpec,
    /// The isolation that was asked for.
    pub(crate) asked: IsolationMode,
    pub(crate) python: Python,
    pub(crate) options: Options,
    pub(crate) capabilities: Capabilities,
    /// The one that it starts from. Another one of the same name is not like it.
    pub(crate) snapshot: Option<StoredSnapshot>,
}

impl Recipe {
    /// Whether the sandboxes differ in nothing but what people call them.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        // Where the parts of an interpreter are is found out when it has started for the first time.
        let mut renamed = Self { python: self.python.clone(), ..other.clone() };
        renamed.spec.name.clone_from(&self.spec.name);
        renamed.spec.tags.clone_from(&self.spec.tags);
        renamed == *self && other.python.executable == self.python.executable
    }
}

impl Workshop {
    /// A sandbox with its working directory and, unless that shall wait, the default interpreter.
    pub(crate) async fn make(&self, recipe: &Recipe) -> Result<EvalInstance> {
        let Recipe { spec, asked, python, options, capabilities, snapshot } = recipe;
        let maker = self.launchers.get(spec.isolation).await?;
        let (cell, rlimits, layout) = self.cell(&maker, spec, python, options).await?;
        let isolated = spec.isolation == IsolationMode::Strict;
        let home = if isolated { home_of(spec) } else { cell.work_dir().to_owned() };
        let work_dir = cell.work_dir().to_string_lossy();
        let cwd = resolve_directory(&work_dir, spec.working_dir.as_deref().unwrap_or("."));
        let env = worker_environment(spec, python, &home);
        let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
        let isolation = isolation_info(*asked, &cell);
        let source = self.source(maker, python.clone(), options.clone());
        let cell_box = Arc::new(CellHost::new(cell, source, rlimits));
        let base = SandboxBaseSpec {
            variant: Variant::LOCAL_EVAL,
            capabilities: *capabilities,
            create: spec,
            isolation,
            env,
            cwd,
        };
        let mut base = base_for_cell(Arc::clone(&cell_box), base)?;
        if let Some(layout) = layout.as_ref().filter(|_| spec.isolation != IsolationMode::Off) {
            let is_mounted =
                |path: &PathBuf| spec.mounts.iter().any(|mount| path.starts_with(&mount.target));
            base.hidden_paths =
                layout.unseen().into_iter().filter(|path| !is_mounted(path)).collect();
        }
        let version = layout.map(|layout| layout.version);
        let packages = Packages::new(python.executable.clone(), options.pip.clone());
        let virtual_version = version.clone().filter(|_| python.virtual_environment().is_some());
        base.packages = Some(packages.of_virtual_environment(virtual_version));
        base.describe("python", json!(python.executable.to_string_lossy()));
        let cell = InCell::new(&cell_box);
        let host: Arc<dyn ProcessHost> = cell_box;
        let contexts =
            Contexts::new(Variant::LOCAL_EVAL, host, Arc::clone(&base.end_reason), worker_spec);
        let snapshots = Snapshots::new(self.snapshots.clone(), version, options.preimport.clone())
            .with_imports(&options.imports);
        let instance = EvalInstance { base, contexts, kind: Worker { cell, snapshots } };
        let python = instance.kind.snapshots.python();
        instance.prepare_from(snapshot.as_ref(), python, spec, options.lazy).await?;
        Ok(instance)
    }

    /// The interpreter for these options, as a function that a box calls when it needs a worker.
    fn source(&self, maker: CellLauncher, python: Python, options: Options) -> ZygoteSource {
        let zygotes = self.zygotes.clone();
        Arc::new(move || {
            let (zygotes, maker) = (zygotes.clone(), maker.clone());
            let (python, options) = (python.clone(), options.clone());
            Box::pin(async move { zygote(&zygotes, &maker, &python, &options).await })
        })
    }

    /// The cell, the limits of what runs in it, and where the parts of its Python are.
    async fn cell(
        &self,
        maker: &CellLauncher,
        spec: &CreateSpec,
        python: &Python,
        options: &Options,
    ) -> Result<(Cell, Vec<Rlimit>, Option<Layout>)> {
        let mounts =
            mounts::open(&spec.mounts, self.snapshots.directory().into_iter().collect()).await?;
        let make = async |layout: Option<&Layout>| {
            let mut cell_spec = cell_spec(spec, &python.shown(layout));
            cell_spec.mounts.clone_from(&mounts);
            let cell = maker.cell(&cell_spec).await.map_err(mounts::no_cell)?;
            let rlimits = cell.rlimits().to_vec();
            Ok((cell, rlimits, layout.cloned()))
        };
        let Some(known) = &python.layout else {
            // The first time, the interpreter itself says where its parts are.
            let zygote = zygote(&self.zygotes, maker, python, options).await?;
            return make(Some(&Layout::from_hello(zygote.hello()))).await;
        };
        if options.lazy {
            return make(Some(known)).await;
        }
        let (made, zygote) =
            tokio::join!(make(Some(known)), zygote(&self.zygotes, maker, python, options));
        let layout = Layout::from_hello(zygote?.hello());
        if layout == *known { made } else { make(Some(&layout)).await }
    }
}

/// The interpreter for these options. Where its parts are is remembered.
pub(crate) async fn zygote(
    zygotes: &Zygotes,
    maker: &CellLauncher,
    python: &Python,
    options: &Options,
) -> Result<Arc<Zygote>> {
    let start = Start {
        preimports: options.preimport.clone(),
        template_imports: options.imports.clone(),
        warm: options.warm,
        program: Vec::new(),
    };
    let flavor = ZygoteKey {
        executable: python.executable.clone(),
        start,
        installed: Vec::new(),
        privilege: maker.privilege(),
    };
    let zygote = zygotes.get(maker, flavor).await?;
    let layout = Layout::from_hello(zygote.hello());
    if python.layout.as_ref() != Some(&layout) {
        remember(options, &layout);
    }
    Ok(zygote)
}

/// The environment of everything in the sandbox. What the caller says of a virtual environment counts.
fn worker_environment(spec: &CreateSpec, python: &Python, home: &Path) -> BTreeMap<String, String> {
    let mut env = environment(spec, &python.programs(), home);
    if let Some(venv) = python.virtual_environment() {
        env.entry("VIRTUAL_ENV".into()).or_insert_with(|| venv.to_string_lossy().into_owned());
    }
    env
}
