//! Code in the code interpreter of a sandbox: contexts, each a kernel there, and runs in them.

mod context;
mod interpreter;
mod ops;
mod run;
mod variables;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_core::{
    CallContext, CodeMode, Context, ContextSpec, Error, ErrorKind, EventStream, Result, RunCode,
    Stdin, check_context_id, check_directory, check_env, random_hex, resolve_directory,
};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;
use serde_json::{Map, Value};

use self::context::{CodeContext, Stop};
pub(crate) use self::interpreter::Interpreter;
use self::run::RunSpec;
use self::variables::{answer, check_name, check_new_name, get_code, set_code};

const PYTHON: &str = "python";

/// The contexts of one sandbox.
#[derive(Debug)]
pub(crate) struct CodeContexts {
    interpreter: Interpreter,
    /// The working directory of the sandbox.
    cwd: String,
    all: Mutex<BTreeMap<String, Arc<CodeContext>>>,
}

impl CodeContexts {
    /// Starts with the default context, which the interpreter has already.
    pub(crate) fn new(interpreter: Interpreter, cwd: &str) -> Self {
        let contexts = Self { interpreter, cwd: cwd.to_owned(), all: Mutex::default() };
        let default = contexts.described(DEFAULT_CONTEXT, PYTHON);
        contexts.insert(CodeContext::new(contexts.interpreter.clone(), default, None));
        contexts
    }

    fn described(&self, id: &str, language: &str) -> Context {
        let (id, language) = (id.to_owned(), language.to_owned());
        Context { id, language, cwd: Some(self.cwd.clone()), env: BTreeMap::new() }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<CodeContext>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, context: CodeContext) -> Arc<CodeContext> {
        let context = Arc::new(context);
        self.all().insert(context.described.id.clone(), Arc::clone(&context));
        context
    }

    /// Returns a context of this handle, or one that another handle has made.
    async fn find(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<Option<Arc<CodeContext>>> {
        let id = id.unwrap_or(DEFAULT_CONTEXT);
        if let Some(known) = self.all().get(id) {
            return Ok(Some(Arc::clone(known)));
        }
        let there = self.interpreter.contexts(operation).await?;
        let Some(found) = there.into_iter().find(|context| context.id == id) else {
            return Ok(None);
        };
        let mut described = self.described(id, &plain_name(&found.language));
        described.cwd = Some(found.cwd);
        let context = CodeContext::new(self.interpreter.clone(), described, Some(found.id));
        Ok(Some(self.insert(context)))
    }

    async fn existing(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<Arc<CodeContext>> {
        self.find(operation, id).await?.ok_or_else(|| {
            let known: Vec<String> = self.all().keys().cloned().collect();
            let message = format!("context {:?} not found", id.unwrap_or(DEFAULT_CONTEXT));
            Error::new(ErrorKind::NotFound, operation, message)
                .with_hint(format!("contexts: {}", known.join(", ")))
        })
    }

    /// Returns the context for a run. A missing one is made.
    async fn for_run(&self, id: Option<&str>, language: Option<&str>) -> Result<Arc<CodeContext>> {
        let language = language.map(plain_name);
        let Some(id) = id.filter(|id| *id != DEFAULT_CONTEXT) else {
            return match language {
                Some(language) if language != PYTHON => self.of_language(&language).await,
                _ => self.existing("run_code", None).await,
            };
        };
        let context = match self.find("run_code", Some(id)).await? {
            Some(context) => context,
            None => {
                let mut spec = ContextSpec::default();
                (spec.id, spec.language) = (Some(id.to_owned()), language.clone());
                self.create(spec).await?;
                self.existing("run_code", Some(id)).await?
            }
        };
        match language {
            Some(language) if language != context.described.language => {
                let own = &context.described.language;
                let message = format!("context {id:?} only supports {own}, got: {language}");
                Err(Error::unsupported("run_code", message)
                    .with_hint("create a context of that language"))
            }
            _ => Ok(context),
        }
    }

    /// Returns the context of this handle for a language other than Python, which is made for its first run.
    ///
    /// # Errors
    /// `Unsupported` for a language that the template does not have.
    async fn of_language(&self, language: &str) -> Result<Arc<CodeContext>> {
        let id = format!("{DEFAULT_CONTEXT}-{language}");
        if let Some(known) = self.all().get(&id) {
            return Ok(Arc::clone(known));
        }
        let mut spec = ContextSpec::default();
        (spec.id, spec.language) = (Some(id.clone()), Some(language.to_owned()));
        self.create(spec).await?;
        self.existing("run_code", Some(&id)).await
    }

    /// Starts code.
    async fn run(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        check_run(&request)?;
        let (id, language) = (request.context.clone(), request.language.clone());
        let context = self.for_run(id.as_deref(), language.as_deref()).await?;
        if request.cwd.is_some() && context.described.language != PYTHON {
            let message = "e2b has a directory for a single run in Python alone";
            return Err(Error::unsupported("run_code", message)
                .with_hint("create a context with that directory"));
        }
        let base = context.described.cwd.as_deref().unwrap_or(&self.cwd);
        let cwd = request.cwd.as_deref().map(|cwd| resolve_directory(base, cwd));
        run::start(context, RunSpec::new(call, request, cwd)).await
    }

    /// Creates a context from a checked spec.
    async fn create(&self, spec: ContextSpec) -> Result<Context> {
        let operation = "create_context";
        if let Some(id) = &spec.id
            && self.find(operation, Some(id)).await?.is_some()
        {
            let message = format!("context {id:?} exists already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message));
        }
        let cwd = resolve_directory(&self.cwd, spec.cwd.as_deref().unwrap_or("."));
        let language = spec.language.as_deref().map(plain_name);
        let made = self.interpreter.create_context(Some(&cwd), language.as_deref()).await;
        let made = made.map_err(|error| match (error.kind(), &language) {
            (ErrorKind::InvalidArgument | ErrorKind::Unexpected, Some(other))
                if other != PYTHON =>
            {
                let message =
                    format!("the template has no interpreter for {other}: {}", error.message());
                Error::unsupported(operation, message).with_hint("run other languages as commands")
            }
            _ => error,
        })?;
        let described = Context {
            id: spec.id.unwrap_or_else(|| made.id.clone()),
            language: language.unwrap_or_else(|| PYTHON.to_owned()),
            cwd: Some(cwd),
            env: spec.env,
        };
        let context = CodeContext::new(self.interpreter.clone(), described, Some(made.id));
        Ok(self.insert(context).described.clone())
    }

    /// Checks a request before anything is made for the context.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn check(spec: &ContextSpec) -> Result<()> {
        check_env(spec.env.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
        spec.cwd.as_deref().map(|path| check_directory("cwd", path)).transpose()?;
        spec.id.as_deref().map(check_context_id).transpose()?;
        Ok(())
    }

    /// Lists the contexts, `default` first, with those of other handles last.
    async fn list(&self) -> Result<Vec<Context>> {
        let there = self.interpreter.contexts("list_contexts").await?;
        let default = self.default_of(PYTHON, &there);
        let (known, mut all): (Vec<_>, Vec<_>) = {
            let all = self.all();
            let mut own: Vec<_> = all.values().cloned().collect();
            own.sort_by_key(|context| context.described.id != DEFAULT_CONTEXT);
            let known = own.iter().filter_map(|context| context.remote()).collect();
            (known, own.iter().map(|context| context.described.clone()).collect())
        };
        for found in there {
            let is_own = known.contains(&found.id) || default.as_ref() == Some(&found.id);
            if !is_own {
                let mut described = self.described(&found.id, &plain_name(&found.language));
                described.cwd = Some(found.cwd);
                all.push(described);
            }
        }
        Ok(all)
    }

    /// Returns the id that the interpreter has for the default context of a language: the oldest that was not asked for.
    fn default_of(&self, language: &str, there: &[interpreter::RemoteContext]) -> Option<String> {
        let known: Vec<String> =
            self.all().values().filter_map(|context| context.remote()).collect();
        let mut defaults = there.iter().filter(|context| {
            plain_name(&context.language) == language && !known.contains(&context.id)
        });
        defaults.next().map(|context| context.id.clone())
    }

    /// Ends the interpreter of a context and starts it again, empty.
    async fn restart(&self, operation: &'static str, id: &str) -> Result<()> {
        let context = self.existing(operation, Some(id)).await?;
        context.restart(operation).await
    }

    /// Restarts every context of this handle.
    pub(crate) async fn restart_all(&self, operation: &'static str) -> Result<()> {
        let all: Vec<_> = self.all().values().cloned().collect();
        for context in all {
            context.restart(operation).await?;
        }
        Ok(())
    }

    /// Ends a context and removes it.
    async fn delete(&self, id: &str) -> Result<()> {
        if id == DEFAULT_CONTEXT {
            return Err(Error::invalid("context", "`default` cannot be deleted; reset it instead"));
        }
        let context = self.existing("delete_context", Some(id)).await?;
        context.stop(Stop::Deleted);
        if let Some(remote) = context.remote() {
            self.interpreter.delete(&remote).await?;
        }
        self.all().remove(id);
        Ok(())
    }

    /// Returns true while code of this handle runs in the context.
    fn has_run(&self, id: Option<&str>) -> bool {
        let all = self.all();
        all.get(id.unwrap_or(DEFAULT_CONTEXT)).is_some_and(|context| context.is_executing())
    }

    /// Interrupts the run of this handle in the context.
    async fn stop(&self, id: Option<&str>) -> Result<bool> {
        Ok(self.existing("interrupt", id).await?.stop(Stop::Interrupted))
    }

    /// Reads a variable.
    async fn read_variable(&self, id: Option<&str>, name: &str) -> Result<Value> {
        let operation = "get_variable";
        check_name(name)?;
        let context = self.of_python(operation, id).await?;
        let word = random_hex(16);
        let printed = context.ask(operation, get_code(&word, name)).await?;
        answer(operation, name, &word, &printed)
    }

    /// Sets variables: all of them, or none.
    async fn write_variables(&self, id: Option<&str>, values: Map<String, Value>) -> Result<()> {
        let operation = "set_variables";
        values.keys().try_for_each(|name| check_new_name(name))?;
        let context = self.of_python(operation, id).await?;
        let word = random_hex(16);
        let printed = context.ask(operation, set_code(&word, &values)).await?;
        answer(operation, "", &word, &printed).map(drop)
    }

    /// Changes the directory of the default context.
    pub(crate) async fn change_directory(&self, path: &str) -> Result<()> {
        let context = self.existing("create", None).await?;
        let code = format!("__import__('os').chdir({})", variables::literal(path));
        context.ask("create", code).await.map(drop)
    }

    /// Lets the interpreters of this handle find packages that were installed meanwhile.
    pub(crate) async fn refresh_packages(&self) -> Result<()> {
        const CODE: &str = "(lambda m: (m('site').addsitedir(m('site').getusersitepackages()), \
                            m('importlib').invalidate_caches(), None)[-1])(__import__('importlib').import_module)";
        let all: Vec<_> = self.all().values().cloned().collect();
        for context in all.iter().filter(|context| context.described.language == PYTHON) {
            context.ask("install_packages", CODE.to_owned()).await?;
        }
        Ok(())
    }

    async fn of_python(
        &self,
        operation: &'static str,
        id: Option<&str>,
    ) -> Result<Arc<CodeContext>> {
        let context = self.existing(operation, id).await?;
        if context.described.language == PYTHON {
            return Ok(context);
        }
        let language = &context.described.language;
        let message = format!("variables are read and set in Python alone, and not in {language}");
        Err(Error::unsupported(operation, message))
    }
}

/// Refuses a run with settings that the interpreter does not have.
fn check_run(request: &RunCode) -> Result<()> {
    let is_script = matches!(request.mode, CodeMode::Script { .. });
    let what = if is_script {
        "no scripts"
    } else if !matches!(request.stdin, Stdin::Empty) {
        "no standard input for code"
    } else if request.memory.is_some() || request.cpu_time.is_some() {
        "no limit of memory or CPU time for a single run"
    } else if request.output_limit.is_some() {
        "no limit of output"
    } else {
        return Ok(());
    };
    Err(Error::unsupported("run_code", format!("the code interpreter of e2b has {what}"))
        .with_hint("run it as a command, such as `python3 FILE`"))
}

/// Returns the name of a language, without version and case.
fn plain_name(language: &str) -> String {
    let name = language.to_ascii_lowercase();
    match name.as_str() {
        "py" | "python3" => PYTHON.to_owned(),
        "js" | "node" => "javascript".to_owned(),
        "ts" => "typescript".to_owned(),
        "sh" | "shell" => "bash".to_owned(),
        _ => name,
    }
}
