//! The contexts of one sandbox, each a kernel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_agent::box_io::{BoxIo, WorkerSpec};
use sandbox_agent::interpreter::{EndReason, InterpreterContext, ToolSet};
use sandbox_core::{
    Context, ContextSpec, Error, ErrorKind, Result, check_context_id, check_directory, check_env,
    random_hex,
};

/// The context that every sandbox has.
pub(crate) const DEFAULT: &str = "default";

/// The contexts of one sandbox, by id. `default` is always there.
#[derive(Debug)]
pub(crate) struct Contexts {
    box_io: Arc<dyn BoxIo>,
    ended: Arc<EndReason>,
    /// All contexts have the same.
    pub(crate) tools: ToolSet,
    base: WorkerSpec,
    language: String,
    all: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Clone, Debug)]
struct Entry {
    interpreter: InterpreterContext,
    described: Context,
}

impl Contexts {
    pub(crate) fn new(
        box_io: Arc<dyn BoxIo>,
        ended: Arc<EndReason>,
        base: WorkerSpec,
        language: String,
    ) -> Self {
        let (tools, all) = (ToolSet::new(), Mutex::default());
        let contexts = Self { box_io, ended, tools, base, language, all };
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
            language: self.language.clone(),
            cwd: Some(spec.cwd.clone()),
            env,
        };
        let (box_io, ended) = (Arc::clone(&self.box_io), Arc::clone(&self.ended));
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
        let Some(asked) = language.filter(|asked| plain_name(asked) != plain_name(&self.language))
        else {
            return Ok(());
        };
        let message =
            format!("this kernel of local-jupyter only supports {}, got: {asked}", self.language);
        Err(Error::unsupported(operation, message).with_hint(
            "choose a kernel of that language with the option `kernel`, or run it as a command",
        ))
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
                Ok(())
            }
            None => Err(self.not_found("delete_context", id)),
        }
    }

    pub(crate) async fn restart_all(&self) {
        let all: Vec<_> = self.all().values().map(|entry| entry.interpreter.clone()).collect();
        for interpreter in all {
            interpreter.restart(false).await;
        }
    }
}

/// The name of a language, without what people add to it.
fn plain_name(language: &str) -> String {
    let name = language.to_ascii_lowercase();
    match name.as_str() {
        "py" | "python3" => "python".to_owned(),
        "sh" | "shell" => "bash".to_owned(),
        _ => name,
    }
}
