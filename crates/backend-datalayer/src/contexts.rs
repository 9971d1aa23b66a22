//! The contexts of one sandbox, each a kernel of its own on the server of the runtime.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_agent::box_io::WorkerSpec;
use sandbox_agent::interpreter::{InterpreterContext, ToolSet};
use sandbox_core::{
    Context, ContextSpec, Error, ErrorKind, Result, check_context_id, check_directory, check_env,
    random_hex,
};
use sandbox_kernel::KernelBox;

use crate::kernels::{Kernels, Rest};
use crate::lease::Lease;

/// The context that every sandbox has.
pub(crate) const DEFAULT: &str = "default";

/// What the kernels of the service speak.
const LANGUAGE: &str = "python";

/// The contexts of one sandbox, by id. `default` is always there.
#[derive(Debug)]
pub(crate) struct Contexts {
    lease: Arc<Lease>,
    /// The kernels go on when the handle goes away.
    left: Arc<AtomicBool>,
    /// All contexts have the same.
    pub(crate) tools: ToolSet,
    base: WorkerSpec,
    all: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    interpreter: InterpreterContext,
    described: Context,
}

impl Contexts {
    pub(crate) fn new(lease: Arc<Lease>, base: WorkerSpec) -> Self {
        let (tools, all, left) = (ToolSet::new(), Mutex::default(), Arc::default());
        let contexts = Self { lease, left, tools, base, all };
        let entry = contexts.entry(DEFAULT.to_owned(), None, BTreeMap::new());
        contexts.all().insert(DEFAULT.to_owned(), entry);
        contexts
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: String, cwd: Option<String>, env: BTreeMap<String, String>) -> Entry {
        let mut spec = self.base.clone();
        spec.env.extend(env.clone());
        if let Some(cwd) = &cwd {
            spec.cwd.clone_from(cwd);
        }
        let described = Context {
            id: id.clone(),
            language: LANGUAGE.to_owned(),
            cwd: Some(spec.cwd.clone()),
            env,
        };
        let kernels = Kernels {
            lease: Arc::clone(&self.lease),
            context: id.clone(),
            left: Arc::clone(&self.left),
        };
        let rest = Arc::new(Rest(Arc::clone(&self.lease)));
        let box_io = Arc::new(KernelBox::new(rest, Arc::new(kernels)));
        let ended = Arc::clone(&self.lease.ended);
        let interpreter = InterpreterContext::new(id, box_io, spec, ended, self.tools.clone());
        Entry { interpreter, described }
    }

    /// A context for a run. One that nobody made comes into being with its first run.
    pub(crate) fn for_run(&self, id: Option<&str>) -> InterpreterContext {
        let id = id.unwrap_or(DEFAULT);
        let mut all = self.all();
        if let Some(entry) = all.get(id) {
            return entry.interpreter.clone();
        }
        let entry = self.entry(id.to_owned(), None, BTreeMap::new());
        all.insert(id.to_owned(), entry.clone());
        entry.interpreter
    }

    /// A context that exists.
    pub(crate) fn existing(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<InterpreterContext> {
        let id = id.unwrap_or(DEFAULT);
        self.find(id).ok_or_else(|| self.not_found(operation, id))
    }

    /// A context, if it exists.
    pub(crate) fn find(&self, id: &str) -> Option<InterpreterContext> {
        self.all().get(id).map(|entry| entry.interpreter.clone())
    }

    fn not_found(&self, operation: &'static str, id: &str) -> Error {
        let known: Vec<String> = self.all().keys().cloned().collect();
        Error::new(ErrorKind::NotFound, operation, format!("context {id:?} not found"))
            .with_hint(format!("contexts: {}", known.join(", ")))
    }

    /// Checks what can be checked before anything is made for a context.
    pub(crate) fn check(&self, spec: &ContextSpec) -> Result<()> {
        self.check_language("create_context", spec.language.as_deref())?;
        check_env(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        spec.cwd.as_deref().map(|path| check_directory("cwd", path)).transpose()?;
        spec.id.as_deref().map(check_context_id).transpose()?;
        Ok(())
    }

    /// Refuses what the kernel does not speak.
    pub(crate) fn check_language(
        &self,
        operation: &'static str,
        language: Option<&str>,
    ) -> Result<()> {
        match language.filter(|asked| !is_python(asked)) {
            Some(asked) => Err(Error::unsupported(
                operation,
                format!("datalayer-runtime only supports python, got: {asked}"),
            )),
            None => Ok(()),
        }
    }

    /// A context as a checked spec describes it, with an absolute directory.
    pub(crate) fn create(&self, spec: ContextSpec) -> Result<Context> {
        let id = spec.id.unwrap_or_else(|| random_hex(4));
        let mut all = self.all();
        if all.contains_key(&id) {
            let message = format!("context {id:?} exists already");
            return Err(Error::new(ErrorKind::AlreadyExists, "create_context", message));
        }
        let entry = self.entry(id.clone(), spec.cwd, spec.env);
        let described = entry.described.clone();
        all.insert(id, entry);
        Ok(described)
    }

    pub(crate) fn list(&self) -> Vec<Context> {
        let all = self.all();
        let described = |entry: &Entry| entry.described.clone();
        let default = all.get(DEFAULT).map(described);
        let others = all.iter().filter(|(id, _)| *id != DEFAULT).map(|(_, entry)| described(entry));
        default.into_iter().chain(others).collect()
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<()> {
        if id == DEFAULT {
            return Err(Error::invalid("context", "`default` cannot be deleted; reset it instead"));
        }
        let removed = self.all().remove(id);
        match removed {
            Some(entry) => {
                entry.interpreter.restart(false).await;
                self.lease.change_note(|note| drop(note.kernels.remove(id)));
                Ok(())
            }
            None => Err(self.not_found("delete_context", id)),
        }
    }

    /// The handle goes away, and the kernels stay.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    pub(crate) async fn restart_all(&self) {
        let all: Vec<_> = self.all().values().map(|entry| entry.interpreter.clone()).collect();
        for interpreter in all {
            interpreter.restart(false).await;
        }
    }
}

fn is_python(language: &str) -> bool {
    matches!(language.to_ascii_lowercase().as_str(), "python" | "python3" | "py")
}
