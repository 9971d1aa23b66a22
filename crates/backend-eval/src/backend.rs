//! Where local sandboxes come from.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_agent::box_io::{BoxIo, WorkerSpec};
use sandbox_agent::cell::CellBox;
use sandbox_agent::interpreter::EndReason;
use sandbox_core::{
    Backend, CallContext, Capabilities, Check, CreateSpec, Error, ErrorKind, Health, Instance,
    IsolationInfo, IsolationMode, ListQuery, NetworkMode, Page, Result, SandboxEnvironment,
    SandboxId, SandboxInfo, SandboxStatus, SnapshotInfo, Variant, unix_now,
};
use sandbox_isolation::{Cell, Layer, Maker, Privilege, Probe, Rlimit, probe};
use serde_json::{Map, json};
use tokio::sync::Mutex as AsyncMutex;

use crate::background::background;
use crate::config::{EvalConfig, Options};
use crate::contexts::Contexts;
use crate::expiry::Expiry;
use crate::instance::{Described, EvalInstance};
use crate::python::{Layout, Python, locate};
use crate::view::{cell_spec, environment};
use crate::zygotes::Zygotes;

/// How long a sandbox lives when nothing is said.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What code without network hears. It names what opens the network here.
const NO_NETWORK: &str = "Network access is disabled in this sandbox; it is available with isolation off: \
                          `--isolation off`, or .isolation(IsolationMode::Off)";

/// Makes sandboxes on this host. The maker of cells and the warm interpreters are shared by all of them.
#[derive(Debug, Default)]
pub struct EvalBackend {
    config: EvalConfig,
    maker: AsyncMutex<Option<Maker>>,
    /// Makes what is not isolated, without any privilege over cells.
    plain_maker: AsyncMutex<Option<Maker>>,
    zygotes: Zygotes,
    /// Sandboxes of this backend, for listings.
    made: Mutex<Vec<Weak<EvalInstance>>>,
}

impl EvalBackend {
    /// A backend with defaults of its own.
    pub fn new(config: EvalConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// The maker of cells, started when it is not there, or no longer.
    async fn maker(&self, isolation: IsolationMode) -> Result<Maker> {
        let off = isolation == IsolationMode::Off;
        let mut maker = if off { &self.plain_maker } else { &self.maker }.lock().await;
        match &*maker {
            Some(maker) if !maker.is_closed() => Ok(maker.clone()),
            _ => {
                let start = async move {
                    if off { Maker::start_off().await } else { Maker::start().await }
                };
                let started = background(start).await?.map_err(no_isolation)?;
                Ok(maker.insert(started).clone())
            }
        }
    }

    /// The cell, and the limits of what runs in it.
    async fn cell(
        &self,
        maker: &Maker,
        spec: &CreateSpec,
        python: &Python,
        options: &Options,
    ) -> Result<(Cell, Vec<Rlimit>)> {
        let make = async |layout: Option<&Layout>| {
            let cell_spec = cell_spec(spec, python, layout);
            let cell = maker.cell(&cell_spec).await.map_err(no_isolation)?;
            Ok((cell, cell_spec.rlimits))
        };
        let Some(known) = &python.layout else {
            // The first time, the interpreter itself says where its parts are.
            let zygote = self.zygotes.get(maker, python, options).await?;
            return make(Some(&Layout::from_hello(zygote.hello()))).await;
        };
        if options.lazy {
            return make(Some(known)).await;
        }
        let (made, zygote) =
            tokio::join!(make(Some(known)), self.zygotes.get(maker, python, options));
        let layout = Layout::from_hello(zygote?.hello());
        if layout == *known { made } else { make(Some(&layout)).await }
    }
}

fn no_isolation(error: sandbox_isolation::Error) -> Error {
    use sandbox_isolation::Error as Cause;
    match &error {
        Cause::Unavailable { missing, fix } => {
            Error::new(ErrorKind::IsolationUnavailable, "create", missing.clone()).with_hint(format!(
                "{fix}; or give up isolation explicitly: `--isolation off`, or .isolation(IsolationMode::Off)"
            ))
        }
        Cause::Invalid(message) => Error::new(ErrorKind::InvalidArgument, "create", message.clone()),
        _ => Error::new(ErrorKind::Unavailable, "create", "the cell could not be made").with_source(error),
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
        commands: true,
        command_stdin: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
        limit_disk: strict,
        limit_processes: strict,
        network_none: strict,
        network_all: !strict,
        isolation_strict: true,
        isolation_off: true,
        ..Capabilities::default()
    }
}

/// What this backend can enforce depends on the isolation that is asked for.
fn check(spec: &CreateSpec) -> Result<Capabilities> {
    let capabilities = capabilities(spec.isolation);
    capabilities.check(spec).map_err(|error| {
        let hint = match (spec.isolation, spec.network.mode) {
            (IsolationMode::Off, NetworkMode::None | NetworkMode::Allowlist) => {
                "without isolation the code has the host's network; use strict isolation"
            }
            (IsolationMode::Strict, NetworkMode::All) => {
                "a strict cell has no network; the host's network is available with isolation off"
            }
            _ => "local-eval enforces disk, processes, lifetime, idle timeout and network `none`",
        };
        error.with_context("variant", Variant::LocalEval.as_str()).with_hint(hint)
    })?;
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

fn isolation_info(spec: &CreateSpec, maker: &Maker) -> IsolationInfo {
    if spec.isolation == IsolationMode::Off {
        return IsolationInfo {
            mode: IsolationMode::Off,
            boundary: "process".into(),
            layers: Vec::new(),
            network: "all".into(),
        };
    }
    let mut layers: Vec<String> = [
        "user-namespace",
        "pid-namespace",
        "mount-namespace",
        "network-namespace",
        "ipc-namespace",
        "uts-namespace",
        "cgroup-namespace",
        "private-root",
        "no-capabilities",
        "no-new-privileges",
        "rlimits",
    ]
    .map(String::from)
    .to_vec();
    if maker.privilege() == Privilege::Root {
        layers.push("unused-host-uid".into());
    }
    IsolationInfo {
        mode: IsolationMode::Strict,
        boundary: "cell".into(),
        layers,
        network: "none".into(),
    }
}

impl EvalBackend {
    /// Starts the interpreter, because only that shows whether it works.
    async fn python_check(&self, python: &Python, options: &Options) -> Check {
        let started = async {
            let maker = self.maker(IsolationMode::Off).await?;
            self.zygotes.get(&maker, python, options).await
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

fn isolation_checks(probe: Probe) -> Vec<Check> {
    let fix = match &probe.error {
        Some(sandbox_isolation::Error::Unavailable { fix, .. }) => Some(fix.clone()),
        _ => None,
    };
    let problem = probe.error.as_ref().map(ToString::to_string);
    let check = |layer: Layer| Check {
        name: layer.name.to_string(),
        ok: layer.available,
        detail: if layer.available {
            "available".into()
        } else {
            problem.clone().unwrap_or_default()
        },
        fix: if layer.available { None } else { fix.clone() },
    };
    probe.layers.into_iter().map(check).collect()
}

#[async_trait]
impl Backend for EvalBackend {
    fn variant(&self) -> Variant {
        Variant::LocalEval
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            limit_disk: true,
            limit_processes: true,
            network_none: true,
            network_all: true,
            ..capabilities(IsolationMode::Strict)
        }
    }

    async fn create(&self, _call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let capabilities = check(&spec)?;
        let options = Options::parse(&self.config, &spec.provider_options)?;
        let (python, maker) = tokio::join!(locate(&options), self.maker(spec.isolation));
        let (python, maker) = (python?, maker?);
        let (cell, rlimits) = self.cell(&maker, &spec, &python, &options).await?;

        let isolated = spec.isolation == IsolationMode::Strict;
        let home = if isolated { Path::new("/home/sandbox") } else { cell.work_dir() };
        let cwd = match &spec.working_dir {
            Some(path) if path.starts_with('/') => path.clone(),
            Some(path) => cell.work_dir().join(path).to_string_lossy().into_owned(),
            None => cell.work_dir().to_string_lossy().into_owned(),
        };
        let base = WorkerSpec { env: environment(&spec, &python, home), cwd };
        let isolation = isolation_info(&spec, &maker);
        let source = self.zygotes.source(maker, python.clone(), options.clone());
        let cell_box = Arc::new(CellBox::new(cell, source, rlimits));
        let box_io: Arc<dyn BoxIo> = Arc::<CellBox>::clone(&cell_box);
        let ended = Arc::new(EndReason::new());
        let instance = EvalInstance {
            id: SandboxId::random(Variant::LocalEval),
            capabilities,
            contexts: Contexts::new(Arc::clone(&box_io), Arc::clone(&ended), base.clone()),
            expiry: Expiry::start(
                box_io,
                Arc::clone(&ended),
                spec.lifetime.unwrap_or(DEFAULT_LIFETIME),
                spec.idle_timeout,
            ),
            cell: cell_box,
            ended,
            described: Mutex::new(Described {
                name: spec.name.clone(),
                tags: spec.tags.clone(),
                created_at: unix_now(),
                isolation,
                metadata: Map::from_iter([(
                    "python".into(),
                    json!(python.executable.to_string_lossy()),
                )]),
            }),
            base,
            network_hint: isolated.then(|| NO_NETWORK.to_owned()),
            commands: Mutex::default(),
        };
        instance.prepare(spec.working_dir.is_some(), options.lazy).await?;
        let instance = Arc::new(instance);
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
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let wanted = |info: &SandboxInfo| {
            let has = |(key, value): (&String, &String)| info.tags.get(key) == Some(value);
            info.status == SandboxStatus::Running && query.tags.iter().all(has)
        };
        let infos = made.iter().filter_map(Weak::upgrade).map(|instance| instance.info());
        Ok(Page::last(infos.filter(wanted).collect()))
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let options = Options::parse(&self.config, &Map::new())?;
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
        let options = Options::parse(&self.config, &Map::new())?;
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
        health.checks.extend(isolation_checks(probe().await));
        let broken = health.checks.iter().find(|check| !check.ok).cloned();
        health.usable = broken.is_none();
        health.detail = broken.as_ref().map_or_else(
            || "Python workers in isolated cells".to_owned(),
            |check| format!("{}: {}", check.name, check.detail),
        );
        health.fix = broken.and_then(|check| check.fix);
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        Err(Error::unsupported("list_snapshots", "local-eval has no snapshots"))
    }

    async fn delete_snapshot(&self, _call: &CallContext, _name: &str) -> Result<()> {
        Err(Error::unsupported("delete_snapshot", "local-eval has no snapshots"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_default_holds() {
        assert_eq!(DEFAULT_LIFETIME, Duration::from_secs(24 * 3600));
    }
}
