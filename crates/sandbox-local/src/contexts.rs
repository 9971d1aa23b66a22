//! The contexts of one sandbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_agent::box_io::{BoxIo, WorkerSpec};
use sandbox_agent::interpreter::{EndReason, InterpreterContext, ToolSet};
use sandbox_core::{
    Context, ContextSpec, Error, ErrorKind, Result, Variant, check_context_id, check_directory,
    check_env, random_hex,
};

/// The context that every sandbox has.
pub const DEFAULT_CONTEXT: &str = "default";

/// The contexts of one sandbox, by id. `default` is always there.
#[derive(Debug)]
pub struct Contexts {
    variant: Variant,
    box_io: Arc<dyn BoxIo>,
    ended: Arc<EndReason>,
    /// All contexts have the same.
    pub tools: ToolSet,
    base: WorkerSpec,
    all: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    interpreter: InterpreterContext,
    described: Context,
}

impl Contexts {
    /// The contexts of a sandbox of that variant, whose interpreters start as `base` says unless a context says otherwise.
    pub fn new(
        variant: Variant,
        box_io: Arc<dyn BoxIo>,
        ended: Arc<EndReason>,
        base: WorkerSpec,
    ) -> Self {
        let (tools, all) = (ToolSet::new(), Mutex::default());
        let contexts = Self { variant, box_io, ended, tools, base, all };
        let entry = contexts.entry(DEFAULT_CONTEXT.to_owned(), None, BTreeMap::new());
        contexts.all().insert(DEFAULT_CONTEXT.to_owned(), entry);
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
        let described =
            Context { id: id.clone(), language: "python".into(), cwd: Some(spec.cwd.clone()), env };
        let (box_io, ended) = (Arc::clone(&self.box_io), Arc::clone(&self.ended));
        let interpreter = InterpreterContext::new(id, box_io, spec, ended, self.tools.clone());
        Entry { interpreter, described }
    }

    /// A context for a run. One that nobody made comes into being with its first run.
    pub fn for_run(&self, id: Option<&str>) -> InterpreterContext {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        let mut all = self.all();
        if let Some(entry) = all.get(id) {
            return entry.interpreter.clone();
        }
        let entry = self.entry(id.to_owned(), None, BTreeMap::new());
        all.insert(id.to_owned(), entry.clone());
        entry.interpreter
    }

    /// A context that exists.
    ///
    /// # Errors
    /// `NotFound`, naming those there are.
    pub fn existing(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<InterpreterContext> {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        self.find(id).ok_or_else(|| self.not_found(operation, id))
    }

    /// A context, if it exists.
    pub fn find(&self, id: &str) -> Option<InterpreterContext> {
        self.all().get(id).map(|entry| entry.interpreter.clone())
    }

    fn not_found(&self, operation: &'static str, id: &str) -> Error {
        let known: Vec<String> = self.all().keys().cloned().collect();
        Error::new(ErrorKind::NotFound, operation, format!("context {id:?} not found"))
            .with_hint(format!("contexts: {}", known.join(", ")))
    }

    /// Checks what can be checked before anything is made for a context.
    ///
    /// # Errors
    /// `Unsupported` for another language, `InvalidArgument` for what cannot be.
    pub fn check(&self, spec: &ContextSpec) -> Result<()> {
        self.check_language(spec.language.as_deref())?;
        check_env(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        spec.cwd.as_deref().map(|path| check_directory("cwd", path)).transpose()?;
        spec.id.as_deref().map(check_context_id).transpose()?;
        Ok(())
    }

    /// Whether code in that language can be run.
    ///
    /// # Errors
    /// `Unsupported` for another one than Python.
    pub fn check_language(&self, language: Option<&str>) -> Result<()> {
        let Some(other) = language.filter(|language| !is_python(language)) else { return Ok(()) };
        let message = format!("{} only supports Python, got: {other}", self.variant);
        Err(Error::unsupported("run_code", message).with_hint("run other languages as commands"))
    }

    /// A context as a checked spec describes it, with an absolute directory.
    ///
    /// # Errors
    /// `AlreadyExists`.
    pub fn create(&self, spec: ContextSpec) -> Result<Context> {
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

    /// All of them, `default` first.
    pub fn list(&self) -> Vec<Context> {
        let all = self.all();
        let described = |entry: &Entry| entry.described.clone();
        let default = all.get(DEFAULT_CONTEXT).map(described);
        let others =
            all.iter().filter(|(id, _)| *id != DEFAULT_CONTEXT).map(|(_, entry)| described(entry));
        default.into_iter().chain(others).collect()
    }

    /// Ends a context and forgets it.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for `default`.
    pub async fn delete(&self, id: &str) -> Result<()> {
        if id == DEFAULT_CONTEXT {
            return Err(Error::invalid("context", "`default` cannot be deleted; reset it instead"));
        }
        let removed = self.all().remove(id);
        match removed {
            Some(entry) => {
                entry.interpreter.restart(false).await;
                Ok(())
            }
            None => Err(self.not_found("delete_context", id)),
        }
    }

    /// Every context that there is now.
    pub fn all_of_them(&self) -> Vec<InterpreterContext> {
        self.all().values().map(|entry| entry.interpreter.clone()).collect()
    }

    /// Ends every interpreter. The next run in each starts a new one.
    pub async fn restart_all(&self) {
        for interpreter in self.all_of_them() {
            interpreter.restart(false).await;
        }
    }
}

fn is_python(language: &str) -> bool {
    matches!(language.to_ascii_lowercase().as_str(), "python" | "python3" | "py")
}
