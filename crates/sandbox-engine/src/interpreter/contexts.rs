//! The contexts of one sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{
    Context, ContextSpec, Error, ErrorKind, Result, Variant, check_context_id, check_directory,
    check_env, random_hex,
};

use super::{InterpreterContext, ToolSet};
use crate::host::{ProcessHost, WorkerSpec};
use crate::process::EndReason;

/// The context that every sandbox has.
pub const DEFAULT_CONTEXT: &str = "default";

/// The language of the interpreters of most variants.
const PYTHON: &str = "python";

/// Returns the host where the interpreter of a context starts, by the id of the context.
type BoxOf = Box<dyn Fn(&str) -> Arc<dyn ProcessHost> + Send + Sync>;

/// The contexts of one sandbox, by id. `default` is always there.
pub struct Contexts {
    variant: Variant,
    language: String,
    box_of: BoxOf,
    ended: Arc<EndReason>,
    /// The tools, which are the same for all contexts.
    pub tools: ToolSet,
    worker_spec: WorkerSpec,
    all: Mutex<BTreeMap<String, Entry>>,
}

impl fmt::Debug for Contexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contexts").field("all", &self.all).finish_non_exhaustive()
    }
}

#[derive(Clone, Debug)]
struct Entry {
    interpreter: InterpreterContext,
    described: Context,
}

impl Contexts {
    /// Makes the contexts of a sandbox whose Python interpreters start on that host. `worker_spec` has the defaults of
    /// all contexts.
    pub fn new(
        variant: Variant,
        host: Arc<dyn ProcessHost>,
        ended: Arc<EndReason>,
        worker_spec: WorkerSpec,
    ) -> Self {
        Self::with(variant, PYTHON, ended, worker_spec, move |_| Arc::clone(&host))
    }

    /// Makes the contexts of a sandbox with interpreters of any language. `box_of` returns the host of each context.
    pub fn with(
        variant: Variant,
        language: &str,
        ended: Arc<EndReason>,
        worker_spec: WorkerSpec,
        box_of: impl Fn(&str) -> Arc<dyn ProcessHost> + Send + Sync + 'static,
    ) -> Self {
        let (tools, all, language) = (ToolSet::new(), Mutex::default(), language.to_owned());
        let contexts =
            Self { variant, language, box_of: Box::new(box_of), ended, tools, worker_spec, all };
        let entry = contexts.entry(DEFAULT_CONTEXT.to_owned(), None, BTreeMap::new());
        contexts.all().insert(DEFAULT_CONTEXT.to_owned(), entry);
        contexts
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, id: String, cwd: Option<String>, env: BTreeMap<String, String>) -> Entry {
        let mut spec = self.worker_spec.clone();
        spec.env.extend(env.clone());
        if let Some(cwd) = &cwd {
            spec.cwd.clone_from(cwd);
        }
        let (language, cwd) = (self.language.clone(), Some(spec.cwd.clone()));
        let described = Context { id: id.clone(), language, cwd, env };
        let (host, ended) = ((self.box_of)(&id), Arc::clone(&self.ended));
        let interpreter = InterpreterContext::new(id, host, spec, ended, self.tools.clone());
        Entry { interpreter, described }
    }

    /// Returns the context for a run. A missing context is made.
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

    /// Returns a context that exists.
    ///
    /// # Errors
    /// `NotFound`, with the existing ids.
    pub fn existing(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<InterpreterContext> {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        self.find(id).ok_or_else(|| self.not_found(operation, id))
    }

    /// Returns a context, if it exists.
    pub fn find(&self, id: &str) -> Option<InterpreterContext> {
        self.all().get(id).map(|entry| entry.interpreter.clone())
    }

    fn not_found(&self, operation: &'static str, id: &str) -> Error {
        let known: Vec<String> = self.all().keys().cloned().collect();
        Error::new(ErrorKind::NotFound, operation, format!("context {id:?} not found"))
            .with_hint(format!("contexts: {}", known.join(", ")))
    }

    /// Checks a request before anything is made for the context.
    ///
    /// # Errors
    /// `Unsupported` for another language, `InvalidArgument` for malformed values.
    pub fn check(&self, spec: &ContextSpec) -> Result<()> {
        self.check_language("create_context", spec.language.as_deref())?;
        check_env(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        spec.cwd.as_deref().map(|path| check_directory("cwd", path)).transpose()?;
        spec.id.as_deref().map(check_context_id).transpose()?;
        Ok(())
    }

    /// Checks that code in that language can be run.
    ///
    /// # Errors
    /// `Unsupported` for another language than that of the interpreters.
    pub fn check_language(&self, operation: &'static str, language: Option<&str>) -> Result<()> {
        let own = plain_name(&self.language);
        let Some(other) = language.filter(|language| plain_name(language) != own) else {
            return Ok(());
        };
        let message = format!("{} only supports {own} here, got: {other}", self.variant);
        Err(Error::unsupported(operation, message).with_hint("run other languages as commands"))
    }

    /// Makes a context from a checked spec with an absolute directory.
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

    /// Returns all contexts, `default` first.
    pub fn list(&self) -> Vec<Context> {
        let all = self.all();
        let described = |entry: &Entry| entry.described.clone();
        let default = all.get(DEFAULT_CONTEXT).map(described);
        let others =
            all.iter().filter(|(id, _)| *id != DEFAULT_CONTEXT).map(|(_, entry)| described(entry));
        default.into_iter().chain(others).collect()
    }

    /// Ends a context and removes it.
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

    /// Returns the interpreters of all contexts.
    pub fn all_of_them(&self) -> Vec<InterpreterContext> {
        self.all().values().map(|entry| entry.interpreter.clone()).collect()
    }

    /// Kills every interpreter. The next run in each context starts a new one.
    pub async fn restart_all(&self) {
        for interpreter in self.all_of_them() {
            interpreter.restart(false).await;
        }
    }
}

/// Returns the name of a language, without version and case.
fn plain_name(language: &str) -> String {
    let name = language.to_ascii_lowercase();
    match name.as_str() {
        "py" | "python3" => PYTHON.to_owned(),
        "sh" | "shell" => "bash".to_owned(),
        _ => name,
    }
}
