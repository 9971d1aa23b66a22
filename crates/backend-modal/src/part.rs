//! The verbs that the agent gives: code, commands, files, packages and ports of one sandbox.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_agent_client::{AgentHost, is_without_python};
use sandbox_cloud::{DeferredPart, SharedByKey};
use sandbox_core::{
    CreateSpec, Error, ErrorKind, Instance, IsolationInfo, Metrics, Result, SandboxId,
    StartCommand, Stdin, TunnelInfo, Variant,
};
use sandbox_engine::commands::Commands;
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::process::EndReason;
use sandbox_engine::{
    Connection, InstanceHooks, Packages, Ports, SandboxBase, SandboxBaseSpec, Servers,
    StandardInstance,
};
use sandbox_shell::{ShellCommands, ShellFiles};
use tokio::runtime::Id;
use tokio::sync::OnceCell;
use tokio::time::sleep;

use crate::agent::{AgentLink, NEEDS_PYTHON};
use crate::capabilities::{capabilities, commands_only};
use crate::host::{EarlyCommands, ModalHost, is_long};
use crate::shell::ImageShell;

/// Connections through one exposed port of this computer at a time.
const MAX_CONNECTIONS: usize = 16;

/// Hint for watching files of an image without Python.
const NO_WATCH: &str =
    "changes are reported by a program that needs Python 3.9 or later in the image";

/// Directory of packages, below the home directory.
const PACKAGES: &str = ".packages";

/// The agent of one sandbox, and what is started with it.
#[derive(Debug)]
pub(crate) struct AgentPart {
    pub(crate) link: Arc<AgentLink>,
    setup: Setup,
    instance: OnceCell<StandardInstance<AgentHooks>>,
    early: OnceLock<EarlyCommands>,
}

/// Settings of the verbs.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) id: SandboxId,
    pub(crate) cwd: String,
    /// The sandbox ends with this process.
    pub(crate) is_owned: bool,
    pub(crate) spec: CreateSpec,
    pub(crate) isolation: IsolationInfo,
}

/// Server, sandbox and runtime.
type Key = (String, String, Id);

/// The agents of this process. All handles for one sandbox share one.
static PARTS: LazyLock<SharedByKey<Key, AgentPart>> = LazyLock::new(SharedByKey::default);

/// Returns the agent that this process has for a sandbox on that runtime, or the one that `make` makes.
pub(crate) fn shared(
    (server, id, runtime): (&str, &str, Id),
    make: impl FnOnce() -> AgentPart,
) -> Arc<AgentPart> {
    let key = (server.to_owned(), id.to_owned(), runtime);
    PARTS.get_or_make(key, |part| !part.link.has_ended(), make)
}

impl AgentPart {
    pub(crate) fn new(link: AgentLink, setup: Setup) -> Self {
        let (instance, early) = (OnceCell::new(), OnceLock::new());
        Self { link: Arc::new(link), setup, instance, early }
    }

    /// Looks at the sandbox, so far as its create promises more than the service does: the directory that the create names, and
    /// an image without Python has no verbs of code. Starts no agent.
    ///
    /// # Errors
    /// `InvalidArgument` for a directory that cannot be made; what keeps the sandbox from being reached.
    pub(crate) async fn look(&self) -> Result<()> {
        self.link.environment().await?;
        let Some(found) = self.link.found() else { return Ok(()) };
        if !found.directory && self.setup.spec.working_dir.is_some() {
            let message = format!("cannot be made in the sandbox, got {:?}", self.setup.cwd);
            return Err(Error::invalid("working_dir", message));
        }
        if !found.python {
            self.instance().await?;
        }
        Ok(())
    }

    /// Starts the agent and the interpreter of the default context in the background, so that the first run of code finds them.
    /// A verb that needs them sooner starts them itself, and one that they failed for starts them again and reports the failure.
    pub(crate) fn start_ahead(self: &Arc<Self>, delay: Duration) {
        let part = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(delay).await;
            let Some(part) = part.upgrade().filter(|part| !part.link.has_ended()) else { return };
            let started = async {
                let instance = part.instance().await?;
                match instance.base.capabilities.run_code {
                    true => instance.contexts.for_run(None).warm_up().await,
                    false => Ok(()),
                }
            };
            if let Err(error) = started.await {
                tracing::debug!(%error, "the agent is started again when a verb needs it");
            }
        });
    }

    /// Returns the way to start this command without the agent. `None`: the agent is there, or the command needs the agent.
    pub(crate) fn early(&self, request: &StartCommand) -> Option<&EarlyCommands> {
        let is_ended = request.timeout.is_some() || self.setup.is_owned;
        let has_input = request.interactive || !matches!(request.stdin, Stdin::Empty);
        let needs_agent = request.background
            || request.pty.is_some()
            || has_input
            || is_long(&request.command.argv())
            || !is_ended;
        let is_refused = request.as_root || request.cpu_time.is_some();
        if needs_agent || is_refused || self.instance.initialized() {
            return None;
        }
        Some(self.early.get_or_init(|| {
            let shell = Arc::new(self.shell());
            let ended = self.link.end_reason(&Arc::default());
            EarlyCommands::new(shell, ended, &self.setup.cwd, self.setup.spec.output_limit)
        }))
    }

    /// Returns the commands that were started without the agent, if there were any.
    pub(crate) fn early_commands(&self) -> Option<&Commands> {
        self.early.get().map(|early| &early.commands)
    }

    /// Returns the verbs, and connects to the agent where that was not done yet.
    ///
    /// # Errors
    /// `Unsupported` when the image has no Python; what kept this computer from reaching the agent.
    pub(crate) async fn instance(&self) -> Result<&StandardInstance<AgentHooks>> {
        match self.instance.get_or_try_init(|| self.open()).await {
            Ok(instance) => Ok(instance),
            Err(error) => Err(self.explain(error).await),
        }
    }

    /// Replaces the error of a verb by the end of the sandbox, where that is the cause.
    pub(crate) async fn explain(&self, error: Error) -> Error {
        // The service knows no task of a sandbox that has ended.
        let is_of_service = error.context().iter().any(|(key, _)| *key == "status");
        if !is_of_service || !self.link.has_ended_at_service().await {
            return error;
        }
        self.link.end();
        Error::new(ErrorKind::Terminated, error.operation(), "the sandbox has ended")
            .with_context("sandbox_id", self.setup.id.to_string())
            .with_source(error)
    }

    /// Returns the verbs if they were used before.
    pub(crate) fn started(&self) -> Option<&StandardInstance<AgentHooks>> {
        self.instance.get()
    }

    async fn open(&self) -> Result<StandardInstance<AgentHooks>> {
        let opened = self.open_verbs().await?;
        if let Some(early) = self.early.get() {
            early.keep_in_use(opened.base.expiry.in_use());
        }
        Ok(opened)
    }

    async fn open_verbs(&self) -> Result<StandardInstance<AgentHooks>> {
        let Setup { id, cwd, is_owned, spec, isolation } = &self.setup;
        let end_reason = &self.link.end_reason(&Arc::default());
        self.link.environment().await?;
        if self.link.found().is_some_and(|found| !found.python) {
            return self.open_shell(end_reason);
        }
        let connection = match self.link.connection().await {
            Err(error) if is_without_python(&error) => return self.open_shell(end_reason),
            connected => connected?,
        };
        let python = connection.interpreter("pip").await?;
        let env = self.environment();
        let site = format!("{}/{PACKAGES}", env["HOME"].trim_end_matches('/'));
        let mut create = spec.clone();
        // The provider ends the sandbox, or the handle does.
        create.lifetime = None;
        let base = SandboxBaseSpec {
            variant: Variant::MODAL,
            capabilities: sandbox_core::Capabilities {
                install_python: python.has_package,
                ..capabilities()
            },
            create: &create,
            isolation: isolation.clone(),
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let agent = AgentHost { agent: Arc::clone(&self.link), context: None };
        let shell = Arc::new(self.shell());
        let programs: Arc<dyn ProcessHost> =
            Arc::new(ModalHost { agent, service: ShellCommands(shell), is_owned: *is_owned });
        let (link, directory) = (Arc::clone(&self.link), cwd.clone());
        let mut base = SandboxBase::remote_with_end(Arc::clone(end_reason), programs, None, base)
            .with_files_of(move || {
                let (link, directory) = (Arc::clone(&link), directory.clone());
                async move { link.files(&directory).await }
            });
        base.id = id.clone();
        if python.has_package {
            base.packages =
                Some(Packages::inside(PathBuf::from(python.executable), site, Vec::new()));
        }
        let worker = WorkerSpec { env, cwd: cwd.clone() };
        let ended = Arc::clone(end_reason);
        let contexts = self.link.contexts(Variant::MODAL, ended, worker);
        connection.adopt_contexts(&contexts).await?;
        for (kept, streams) in connection.kept_commands().await? {
            // A command that has ended meanwhile is no command any more.
            if let Ok(spawned) = connection.spawn(streams).await {
                base.commands.adopt(kept, spawned, Box::new(base.expiry.in_use()));
            }
        }
        let servers = AgentServers { link: Arc::clone(&self.link) };
        let ports = Some(Ports::new(Arc::new(servers), MAX_CONNECTIONS));
        let kind = AgentHooks { link: Arc::clone(&self.link), ports };
        Ok(StandardInstance { base, contexts, kind })
    }

    fn shell(&self) -> ImageShell {
        ImageShell::new(Arc::clone(&self.link), &self.setup.cwd, self.setup.is_owned)
    }

    /// Opens the verbs of an image without Python: commands and files by its shell.
    fn open_shell(&self, end_reason: &Arc<EndReason>) -> Result<StandardInstance<AgentHooks>> {
        let Setup { id, cwd, spec, isolation, .. } = &self.setup;
        let env = self.environment();
        let mut create = spec.clone();
        create.lifetime = None;
        let base = SandboxBaseSpec {
            variant: Variant::MODAL,
            capabilities: commands_only(),
            create: &create,
            isolation: isolation.clone(),
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let shell = Arc::new(self.shell());
        let files = ShellFiles::new(Arc::<ImageShell>::clone(&shell), cwd, NO_WATCH);
        let host: Arc<dyn ProcessHost> = Arc::new(ShellCommands(shell));
        let (ended, programs) = (Arc::clone(end_reason), Arc::clone(&host));
        let mut base = SandboxBase::remote_with_end(ended, programs, Some(Arc::new(files)), base);
        base.id = id.clone();
        base.unsupported_hint = Some(NEEDS_PYTHON);
        let worker = WorkerSpec { env, cwd: cwd.clone() };
        let contexts = Contexts::new(Variant::MODAL, host, Arc::clone(end_reason), worker);
        let kind = AgentHooks { link: Arc::clone(&self.link), ports: None };
        Ok(StandardInstance { base, contexts, kind })
    }

    /// Returns the variables of the sandbox, those of its image among them.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        let mut env = self.link.known_environment();
        env.extend(self.setup.spec.env.clone());
        let secrets = self.setup.spec.secrets.iter();
        env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
        env
    }

    /// Returns the create that this process knows, or an empty one.
    pub(crate) fn spec(&self) -> &CreateSpec {
        &self.setup.spec
    }
}

/// The agent of a sandbox, as the facets of commands, files and packages take it.
#[derive(Clone, Debug)]
pub(crate) struct SharedPart(pub(crate) Arc<AgentPart>);

#[async_trait]
impl DeferredPart for SharedPart {
    async fn part(&self) -> Result<&dyn Instance> {
        self.0.instance().await.map(|instance| instance as &dyn Instance)
    }
}

/// The verbs that are not the same for all agents.
#[derive(Debug)]
pub(crate) struct AgentHooks {
    link: Arc<AgentLink>,
    /// None where there is no agent, through which they are reached.
    ports: Option<Ports>,
}

#[async_trait]
impl InstanceHooks for AgentHooks {
    fn system_packages_hint(names: &[String]) -> String {
        format!(
            "build them into the image: the provider option `build` with \"RUN apt-get update && apt-get install -y {}\"",
            names.join(" ")
        )
    }

    async fn expose_port(instance: &StandardInstance<Self>, port: u16) -> Result<TunnelInfo> {
        match &instance.kind.ports {
            Some(ports) => ports.expose(port, instance.base.expiry.uses()).await,
            None => Err(Error::unsupported(
                "expose_port",
                format!("port {port} was not opened at create, and an image without Python has no other way to it"),
            )
            .with_hint("name it at create: the provider option `ports`")),
        }
    }

    async fn metrics(instance: &StandardInstance<Self>) -> Result<Metrics> {
        if instance.kind.ports.is_none() {
            return Err(instance.base.unsupported("metrics"));
        }
        instance.kind.link.connection().await?.usage().metrics().await
    }
}

/// Servers in a sandbox, through its agent.
#[derive(Debug)]
struct AgentServers {
    link: Arc<AgentLink>,
}

#[async_trait]
impl Servers for AgentServers {
    async fn connect(&self, port: u16) -> io::Result<Box<dyn Connection>> {
        let connection = self.link.connection().await.map_err(io::Error::other)?;
        let connected = connection.ports().connect(port).await.map_err(io::Error::other)?;
        Ok(Box::new(connected))
    }

    async fn closed(&self) {
        self.link.closed().await;
    }
}
