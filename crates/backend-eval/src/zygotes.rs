//! Warm interpreters, shared by all sandboxes of a backend that want the same.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_agent::Start;
use sandbox_agent::cell::{Program, Zygote, ZygoteSource};
use sandbox_agent::python::program_id;
use sandbox_core::Result;
use sandbox_isolation::{Maker, Privilege};
use sandbox_local::background;
use tokio::sync::OnceCell;

use crate::config::Options;
use crate::python::{Fingerprint, Layout, Python, remember};
use sandbox_local::cache;

/// What makes two interpreters interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Flavor {
    executable: PathBuf,
    preimport: Vec<String>,
    /// What a template had.
    imports: Vec<String>,
    warm: bool,
    /// With privileges over cells, or with those of the host process.
    privilege: Privilege,
}

type Shared = Arc<OnceCell<Arc<Zygote>>>;

/// Interpreters with what templates had that are kept. One is started again when it is needed.
const MOST_OF_TEMPLATES: usize = 4;

/// Lists of modules of templates that are known to do no good. After that many, all are tried again.
const MOST_USELESS: usize = 64;

/// The warm interpreters of one backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct Zygotes {
    all: Arc<Mutex<All>>,
}

#[derive(Debug, Default)]
struct All {
    by_flavor: HashMap<Flavor, Shared>,
    /// Those with what templates had, the one used last at the end.
    of_templates: Vec<Flavor>,
    /// With these, no interpreter starts.
    useless: HashSet<Flavor>,
}

impl Zygotes {
    /// The interpreter for these options, started when it is not there, or no longer.
    pub(crate) async fn get(
        &self,
        maker: &Maker,
        python: &Python,
        options: &Options,
    ) -> Result<Arc<Zygote>> {
        let mut flavor = Flavor {
            executable: python.executable.clone(),
            preimport: options.preimport.clone(),
            imports: options.imports.clone(),
            warm: options.warm,
            privilege: maker.privilege(),
        };
        if !flavor.imports.is_empty() && !self.all().useless.contains(&flavor) {
            match self.start(&flavor, maker, python, options).await {
                Ok(zygote) => return Ok(zygote),
                // Whatever that is, a template gets no say in whether there is an interpreter.
                Err(error) => {
                    tracing::debug!(%error, "without the imports of a template");
                    let mut all = self.all();
                    if all.useless.len() >= MOST_USELESS {
                        all.useless.clear();
                    }
                    all.useless.insert(flavor.clone());
                }
            }
        }
        flavor.imports.clear();
        self.start(&flavor, maker, python, options).await
    }

    async fn start(
        &self,
        flavor: &Flavor,
        maker: &Maker,
        python: &Python,
        options: &Options,
    ) -> Result<Arc<Zygote>> {
        let shared = self.shared(flavor);
        let start = || async {
            let start = Start {
                preimports: flavor.preimport.clone(),
                template_imports: flavor.imports.clone(),
                warm: flavor.warm,
            };
            let (maker, executable) = (maker.clone(), python.executable.clone());
            let zygote = background(start_quickly(maker, executable, start)).await??;
            let layout = Layout::from_hello(zygote.hello());
            layout.check_version()?;
            if python.layout.as_ref() != Some(&layout) {
                remember(options, &layout);
            }
            Ok(zygote)
        };
        shared.get_or_try_init(start).await.cloned()
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shared(&self, flavor: &Flavor) -> Shared {
        let mut all = self.all();
        if !flavor.imports.is_empty() {
            all.of_templates.retain(|known| known != flavor);
            all.of_templates.push(flavor.clone());
            if all.of_templates.len() > MOST_OF_TEMPLATES {
                // Its workers have it until they end.
                let oldest = all.of_templates.remove(0);
                all.by_flavor.remove(&oldest);
            }
        }
        let shared = all.by_flavor.entry(flavor.clone()).or_default();
        if shared.get().is_some_and(|zygote| !zygote.is_alive()) {
            *shared = Shared::default();
        }
        Arc::clone(shared)
    }

    /// The same as a function that a box calls when it needs a worker.
    pub(crate) fn source(&self, maker: Maker, python: Python, options: Options) -> ZygoteSource {
        let zygotes = self.clone();
        Arc::new(move || {
            let (zygotes, maker) = (zygotes.clone(), maker.clone());
            let (python, options) = (python.clone(), options.clone());
            Box::pin(async move { zygotes.get(&maker, &python, &options).await })
        })
    }
}

/// Starts an interpreter from the byte code of an earlier start, when there is some.
async fn start_quickly(maker: Maker, executable: PathBuf, start: Start) -> Result<Arc<Zygote>> {
    let name = byte_code_name(&executable);
    if let Some(byte_code) = name.as_deref().and_then(cache::read) {
        let program = Program::ByteCode(byte_code);
        match Zygote::start(&maker, &executable, start.clone(), program).await {
            Ok(zygote) => return Ok(zygote),
            // It may be the byte code that does not work.
            Err(error) => tracing::debug!(%error, "starting from text"),
        }
    }
    let zygote = Zygote::start(&maker, &executable, start, Program::Text).await?;
    if let (Some(name), Some(byte_code)) = (name, zygote.byte_code()) {
        cache::write(&name, byte_code);
    }
    Ok(zygote)
}

/// Byte code is good for one interpreter and one version of the program.
fn byte_code_name(executable: &Path) -> Option<String> {
    let mut hasher = DefaultHasher::new();
    (executable, Fingerprint::of(executable).ok()?, program_id()).hash(&mut hasher);
    Some(format!("agent-{:016x}.pyc", hasher.finish()))
}
