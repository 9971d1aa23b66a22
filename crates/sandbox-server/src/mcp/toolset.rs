//! The tools over a backend, for one session: what an MCP server offers, and a program without MCP can call.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandbox_core::{
    Backend, CreateSpec, DEFAULT_DETACHED, Error, ErrorKind, OutputStream, Result, Sandbox,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::catalog::{self, ToolDefinition};
use super::options::McpOptions;
use super::output_log::OutputLog;
use super::reply::ToolReply;
use super::sandboxes::{Entry, NamedLog, Sandboxes};
use super::tools::CreateSandbox;
use super::{code_module, wishes};

/// Tag of a sandbox that is kept for the next session.
const KEEP_TAG: &str = "mcp-session";

/// Least time between two notices of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Bytes of output in one notice of progress.
const PROGRESS_TEXT: usize = 2000;

/// Hears of the output of a call while it works.
pub trait Progress: Send + Sync {
    /// Takes the latest output. Not every piece comes here, so that a fast program does not flood a client.
    fn output(&self, text: &str);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn output(&self, _: &str) {}
}

/// The tools, with the sandboxes of one session. Cheap to clone.
///
/// ```
/// use std::sync::Arc;
///
/// use sandbox_server::mcp::{McpOptions, NoProgress, Toolset};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> sandbox_core::Result<()> {
/// let tools = Toolset::new(Arc::new(backend_eval::EvalBackend::default()), McpOptions::default())?;
/// let arguments = json!({"code": "6 * 7"}).as_object().cloned().unwrap_or_default();
/// let reply = tools.call("run_code", arguments, &NoProgress).await;
/// assert_eq!(reply.text(), "42");
/// tools.close().await;
/// # Ok(())
/// # }
/// ```
///
/// Dropping the last clone ends the sandboxes of the session.
#[derive(Clone, Debug)]
pub struct Toolset {
    server: Arc<Server>,
    session: Arc<Session>,
}

struct Server {
    options: McpOptions,
    definitions: Vec<ToolDefinition>,
    sandboxes: Sandboxes,
    /// Names of the snapshots that were made here.
    snapshots: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The sandboxes of one session.
#[derive(Debug)]
struct Session {
    server: Arc<Server>,
    /// The sandbox of calls that name none. `None` in the mutex: none was made yet.
    own: AsyncMutex<Option<Arc<Entry>>>,
    own_id: Mutex<Option<String>>,
    /// Ids of its sandboxes.
    made: Mutex<BTreeSet<String>>,
    /// True for a request without a session: it uses sandboxes by their ids, and ends none.
    is_stateless: bool,
}

impl Drop for Session {
    /// Ends the sandboxes that do not outlive the server. Commands that run in the background may hold them otherwise.
    fn drop(&mut self) {
        if self.is_stateless {
            return;
        }
        let made = std::mem::take(self.made.get_mut().unwrap_or_else(PoisonError::into_inner));
        let ended: Vec<_> = made.iter().filter_map(|id| self.server.sandboxes.remove(id)).collect();
        // Without a runtime the program ends, and what is attached ends with it.
        if let Ok(runtime) = Handle::try_current().as_ref()
            && !ended.is_empty()
        {
            runtime.spawn(async move {
                for ended in join_all(ended.iter().map(|entry| entry.end(false))).await {
                    if let Err(error) = ended {
                        tracing::warn!(%error, "a sandbox could not be ended");
                    }
                }
            });
        }
    }
}

impl Toolset {
    /// Makes the tools over a backend.
    ///
    /// # Errors
    /// `InvalidArgument` for options that are wrong, `Unsupported` for what the backend cannot enforce.
    pub fn new(backend: Arc<dyn Backend>, options: McpOptions) -> Result<Self> {
        options.validate()?;
        let capabilities = backend.capabilities();
        capabilities.check(&options.ceiling.base)?;
        if options.keep.is_some() && !capabilities.detached {
            return Err(Error::unsupported(
                "create",
                "sandboxes of this variant end with their process",
            )
            .with_hint("leave --keep out, or choose another variant"));
        }
        let definitions = catalog::offered(&options, &capabilities);
        if definitions.is_empty() {
            let message = "names no tool that this variant has and --read-only allows";
            return Err(Error::invalid("tools", message));
        }
        let sandboxes = Sandboxes::new(backend, options.ceiling.max_sandboxes);
        let snapshots = Mutex::default();
        let server = Arc::new(Server { options, definitions, sandboxes, snapshots });
        Ok(Self::over_server(server, false))
    }

    fn over_server(server: Arc<Server>, is_stateless: bool) -> Self {
        let session = Arc::new(Session {
            server: Arc::clone(&server),
            own: AsyncMutex::default(),
            own_id: Mutex::default(),
            made: Mutex::default(),
            is_stateless,
        });
        Self { server, session }
    }

    /// Makes another session of the same server, with sandboxes of its own.
    #[must_use]
    pub fn new_session(&self) -> Self {
        Self::over_server(Arc::clone(&self.server), false)
    }

    /// Returns the tools for requests without a session: each names its sandbox, and sandboxes stay until they are ended or
    /// the server ends.
    #[must_use]
    pub fn stateless(&self) -> Self {
        Self::over_server(Arc::clone(&self.server), true)
    }

    /// Returns the offered tools.
    pub fn definitions(&self) -> &[ToolDefinition] {
        &self.server.definitions
    }

    /// Returns an offered tool.
    pub fn definition(&self, name: &str) -> Option<&ToolDefinition> {
        self.server.definitions.iter().find(|tool| tool.name == name)
    }

    /// Returns the settings.
    pub fn options(&self) -> &McpOptions {
        &self.server.options
    }

    /// Returns the question for the user, when this call needs a confirmation.
    pub fn question(&self, name: &str, arguments: &Map<String, Value>) -> Option<String> {
        let tool = self.definition(name).filter(|_| self.server.options.confirm)?;
        tool.question(arguments)
    }

    /// Calls a tool. Dropping the future stops the call: code is interrupted, and a command is ended.
    ///
    /// It never fails: a wrong call has an answer that says what is wrong.
    pub async fn call(
        &self,
        name: &str,
        arguments: Map<String, Value>,
        progress: &dyn Progress,
    ) -> ToolReply {
        let Some(tool) = self.definition(name) else {
            let names: Vec<_> = self.definitions().iter().map(|tool| tool.name).collect();
            return ToolReply::problem(format!(
                "There is no tool {name:?}; there are {}.",
                names.join(", ")
            ));
        };
        let notice = Mutex::default();
        let call = Call { tools: self, progress, notice: &notice };
        let reply = match (tool.run)(&call, arguments).await {
            Ok(reply) => reply,
            Err(error) => ToolReply::from(error),
        };
        reply.with_notice(notice.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Ends the sandboxes of the session, but for one that is kept.
    pub async fn close(&self) {
        let made: Vec<_> = {
            let mut made = self.session.made.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *made).into_iter().collect()
        };
        *self.session.own.lock().await = None;
        for id in made {
            let Ok(entry) = self.server.sandboxes.find(&id) else { continue };
            if let Err(error) = entry.end(false).await {
                tracing::warn!(%error, "a sandbox could not be ended");
            }
            self.server.sandboxes.remove(&id);
        }
    }

    /// Ends the sandboxes of all sessions, but for those that are kept.
    pub async fn close_all(&self) {
        self.server.sandboxes.end_all().await;
    }

    /// Finds a sandbox of the server for a resource.
    pub(super) fn find(&self, id: &str) -> Result<Arc<Entry>> {
        self.server.sandboxes.find(id)
    }

    /// Returns the sandbox of the session, if it was made.
    pub(super) fn own(&self) -> Option<Arc<Entry>> {
        let id = self.session.own_id.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.server.sandboxes.find(&id?).ok()
    }
}

/// One call of a tool.
pub(super) struct Call<'a> {
    tools: &'a Toolset,
    progress: &'a dyn Progress,
    /// What the answer says before everything else.
    notice: &'a Mutex<Option<String>>,
}

impl Call<'_> {
    pub(super) fn options(&self) -> &McpOptions {
        &self.tools.server.options
    }

    fn session(&self) -> &Session {
        &self.tools.session
    }

    /// Finds the sandbox that a call names, or that of the session, which is made when it is needed.
    pub(super) async fn sandbox(&self, id: Option<&str>) -> Result<Arc<Entry>> {
        if let Some(id) = id {
            return self.tools.server.sandboxes.find(id);
        }
        let mut own = self.session().own.lock().await;
        match &*own {
            Some(entry) if entry.is_alive() => return Ok(Arc::clone(entry)),
            Some(entry) => {
                self.tools.server.sandboxes.remove(&entry.id);
                let notice = "[The sandbox of this session had ended. This is a new, empty one.]";
                *self.notice.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(notice.to_owned());
            }
            None => {}
        }
        if self.session().is_stateless {
            return Err(Error::invalid("sandbox", "must be given: these requests have no session")
                .with_hint("create_sandbox gives an id"));
        }
        let spec = self.options().ceiling.base.clone();
        let entry = match &self.options().keep {
            Some(name) => self.kept(spec, name).await?,
            None => self.tools.server.sandboxes.create(spec).await?,
        };
        code_module::prepare(&entry.sandbox, &self.options().host_tools).await?;
        self.note(&entry.id);
        *self.session().own_id.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(entry.id.clone());
        *own = Some(Arc::clone(&entry));
        Ok(entry)
    }

    /// Finds the sandbox that was kept under a name, or makes it.
    async fn kept(&self, mut spec: CreateSpec, name: &str) -> Result<Arc<Entry>> {
        spec.name = Some(name.to_owned());
        spec.tags.insert(KEEP_TAG.to_owned(), name.to_owned());
        spec.detached = Some(spec.lifetime.unwrap_or(DEFAULT_DETACHED));
        let backend = Arc::clone(self.tools.server.sandboxes.backend());
        let sandbox = Sandbox::builder(backend).with_spec(spec).get_or_create().await?;
        self.tools.server.sandboxes.adopt(sandbox)
    }

    /// As [`Call::sandbox`], but without making one.
    pub(super) async fn existing(&self, id: Option<&str>) -> Result<Arc<Entry>> {
        if id.is_some() || self.session().is_stateless {
            return self.sandbox(id).await;
        }
        let own = self.session().own.lock().await;
        own.clone().filter(|entry| entry.is_alive()).ok_or_else(|| {
            let message = "this session has no sandbox yet, or it has ended";
            Error::new(ErrorKind::NotFound, "find", message)
        })
    }

    /// Makes a sandbox of its own.
    pub(super) async fn create(&self, wishes: &CreateSandbox) -> Result<Arc<Entry>> {
        if let Some(snapshot) = &wishes.snapshot {
            self.check_snapshot(snapshot)?;
        }
        let spec = wishes::narrow(&self.options().ceiling, wishes)?;
        let entry = self.tools.server.sandboxes.create(spec).await?;
        // Noted first, so that it ends with the session whatever comes.
        self.note(&entry.id);
        code_module::prepare(&entry.sandbox, &self.options().host_tools).await?;
        Ok(entry)
    }

    fn note(&self, id: &str) {
        self.session().made.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
    }

    /// Returns the sandboxes of the session, or of all requests without a session.
    pub(super) fn owned(&self) -> Vec<Arc<Entry>> {
        let made = self.session().made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let all = self.tools.server.sandboxes.alive();
        let is_stateless = self.session().is_stateless;
        all.into_iter().filter(|entry| is_stateless || made.contains(&entry.id)).collect()
    }

    pub(super) fn session_id(&self) -> Option<String> {
        self.session().own_id.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Forgets a sandbox that has ended.
    pub(super) async fn forget(&self, id: &str) {
        self.tools.server.sandboxes.remove(id);
        self.session().made.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        let mut own = self.session().own.lock().await;
        if own.as_ref().is_some_and(|entry| entry.id == id) {
            *own = None;
            *self.session().own_id.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    pub(super) fn note_snapshot(&self, name: &str) {
        let snapshots = &self.tools.server.snapshots;
        snapshots.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
    }

    pub(super) fn snapshots(&self) -> Vec<String> {
        let snapshots = &self.tools.server.snapshots;
        snapshots.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Refuses a snapshot that this server did not make: others of this user may hold what a client should not see.
    pub(super) fn check_snapshot(&self, name: &str) -> Result<()> {
        let known = self.snapshots();
        if known.iter().any(|one| one == name)
            || self.options().ceiling.base.snapshot.as_deref() == Some(name)
        {
            return Ok(());
        }
        let message = format!("this server has made no snapshot {name:?}");
        let hint = match known.as_slice() {
            [] => "the tool snapshot makes one".to_owned(),
            known => format!("there are: {}", known.join(", ")),
        };
        Err(Error::new(ErrorKind::NotFound, "restore_snapshot", message).with_hint(hint))
    }

    /// Returns the address of a file of a sandbox as a resource.
    pub(super) fn resource_uri(&self, entry: &Entry, path: &str) -> String {
        super::resources::uri(&entry.id, path)
    }
}

/// Records the output of a run: all of it in a log, and the latest of it as progress.
pub(super) struct Recording<'a> {
    pub(super) log: Arc<OutputLog>,
    progress: &'a dyn Progress,
    pending: String,
    last: Option<Instant>,
}

impl<'a> Recording<'a> {
    pub(super) fn new(call: &Call<'a>) -> Self {
        Self { log: Arc::default(), progress: call.progress, pending: String::new(), last: None }
    }

    pub(super) fn push(&mut self, stream: OutputStream, data: &[u8]) {
        let text = self.log.push(stream, data);
        self.pending.push_str(&text);
        if self.pending.len() > 2 * PROGRESS_TEXT {
            let from = super::cut::ceil_boundary(&self.pending, self.pending.len() - PROGRESS_TEXT);
            self.pending.drain(..from);
        }
        if self.last.is_none_or(|last| last.elapsed() >= PROGRESS_INTERVAL)
            && !self.pending.is_empty()
        {
            let from = self.pending.len().saturating_sub(PROGRESS_TEXT);
            let from = super::cut::ceil_boundary(&self.pending, from);
            self.progress.output(&self.pending[from..]);
            self.pending.clear();
            self.last = Some(Instant::now());
        }
    }

    pub(super) fn skip(&mut self, bytes: u64) {
        self.log.skip(bytes);
    }

    /// Names the log.
    pub(super) fn named(
        &self,
        id: &str,
        control: Option<Arc<dyn sandbox_core::CommandControl>>,
    ) -> NamedLog {
        NamedLog { id: id.to_owned(), log: Arc::clone(&self.log), control }
    }
}

/// Reads the arguments of a tool.
///
/// # Errors
/// `InvalidArgument` with the field, its problem, and the fields that there are.
pub(super) fn arguments<T: DeserializeOwned>(given: Map<String, Value>) -> Result<T> {
    serde_path_to_error::deserialize(Value::Object(given)).map_err(|error| {
        let path = error.path().to_string();
        let problem = error.into_inner().to_string();
        let message = match path.as_str() {
            "." => format!("the arguments are wrong: {problem}"),
            path => format!("the argument `{path}` is wrong: {problem}"),
        };
        Error::new(ErrorKind::InvalidArgument, "validate", message)
    })
}
