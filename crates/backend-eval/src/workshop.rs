//! Makes sandboxes: a cell, a warm interpreter, and a worker of the one in the other.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandbox_agent::box_io::{BoxIo, WorkerSpec};
use sandbox_agent::cell::CellBox;
use sandbox_agent::commands::Commands;
use sandbox_agent::interpreter::EndReason;
use sandbox_core::{
    Capabilities, CreateSpec, Error, ErrorKind, IsolationInfo, IsolationMode, Result, SandboxId,
    Variant, resolve_directory, unix_now,
};
use sandbox_isolation::{Cell, CellKind, CellSpec, Maker, Rlimit};
use serde_json::{Map, json};
use tokio::sync::{Mutex as AsyncMutex, OnceCell};

use crate::background::background;
use crate::config::Options;
use crate::contexts::Contexts;
use crate::expiry::Expiry;
use crate::instance::{Described, EvalInstance};
use crate::network::Network;
use crate::packages::Packages;
use crate::python::{Layout, Python};
use crate::view::{cell_spec, environment};
use crate::zygotes::Zygotes;

/// How long a sandbox lives when nothing is said.
pub(crate) const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// What the sandboxes of a backend share.
#[derive(Debug, Default)]
pub(crate) struct Workshop {
    maker: AsyncMutex<Option<Maker>>,
    /// Makes what is not isolated, without any privilege over cells.
    plain_maker: AsyncMutex<Option<Maker>>,
    has_cells: OnceCell<bool>,
    pub(crate) zygotes: Zygotes,
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
        let Recipe { spec, asked, python, options, capabilities } = recipe;
        let maker = self.maker(spec.isolation).await?;
        let (cell, rlimits) = self.cell(&maker, spec, python, options).await?;
        let isolated = spec.isolation == IsolationMode::Strict;
        let home = if isolated { Path::new("/home/sandbox") } else { cell.work_dir() };
        let work_dir = cell.work_dir().to_string_lossy();
        let cwd = resolve_directory(&work_dir, spec.working_dir.as_deref().unwrap_or("."));
        let base = WorkerSpec { env: environment(spec, python, home), cwd };
        let network = Network::open(spec, &cell)?;
        let mut isolation = isolation_info(*asked, &cell);
        isolation.network = network.description();
        let source = self.zygotes.source(maker, python.clone(), options.clone());
        let cell_box = Arc::new(CellBox::new(cell, source, rlimits));
        let box_io: Arc<dyn BoxIo> = Arc::<CellBox>::clone(&cell_box);
        let ended = Arc::new(EndReason::new());
        let executable = python.executable.to_string_lossy();
        let commands = Commands::new(Arc::clone(&box_io), Arc::clone(&ended));
        let instance = EvalInstance {
            id: SandboxId::random(Variant::LocalEval),
            capabilities: *capabilities,
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
                metadata: Map::from_iter([("python".into(), json!(executable))]),
            }),
            base,
            network,
            commands,
            packages: Packages::new(python.executable.clone(), options.pip.clone()),
        };
        instance.prepare(spec.working_dir.is_some(), options.lazy).await?;
        Ok(instance)
    }

    /// The maker of cells, started when it is not there, or no longer.
    pub(crate) async fn maker(&self, isolation: IsolationMode) -> Result<Maker> {
        let off = isolation != IsolationMode::Strict;
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

    /// Whether this host lets us make cells. Only making one tells; it is found out once.
    pub(crate) async fn has_cells(&self) -> bool {
        let found = self.has_cells.get_or_init(|| async {
            let Ok(maker) = self.maker(IsolationMode::Strict).await else { return false };
            background(async move { maker.cell(&CellSpec::strict()).await.is_ok() })
                .await
                .unwrap_or(false)
        });
        *found.await
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
            let rlimits = cell.rlimits().to_vec();
            Ok((cell, rlimits))
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

pub(crate) fn no_isolation(error: sandbox_isolation::Error) -> Error {
    use sandbox_isolation::Error as Cause;
    match &error {
        Cause::Unavailable { missing, fix } => {
            Error::new(ErrorKind::IsolationUnavailable, "create", missing.clone()).with_hint(format!(
                "{fix}; or give up isolation explicitly: `--isolation off`, or .isolation(IsolationMode::Off)"
            ))
        }
        Cause::NoGate { .. } => {
            let message = "network policies other than `none` cannot be enforced on this host";
            Error::unsupported("create", message)
                .with_context("field", "network")
                .with_hint(error.to_string())
        }
        Cause::Invalid(message) => Error::new(ErrorKind::InvalidArgument, "create", message.clone()),
        _ => Error::new(ErrorKind::Unavailable, "create", "the cell could not be made").with_source(error),
    }
}

/// What keeps the code in, as the cell was set up.
fn isolation_info(mode: IsolationMode, cell: &Cell) -> IsolationInfo {
    let (boundary, network) = match cell.kind() {
        CellKind::Off => ("process", "all"),
        CellKind::Confined => ("process", "none"),
        CellKind::Strict => ("cell", "none"),
    };
    let layers = match cell.kind() {
        // Limits alone keep nobody in.
        CellKind::Off => Vec::new(),
        _ => cell.layers().iter().map(ToString::to_string).collect(),
    };
    IsolationInfo { mode, boundary: boundary.into(), layers, network: network.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_default_holds() {
        assert_eq!(DEFAULT_LIFETIME, Duration::from_secs(24 * 3600));
    }
}
