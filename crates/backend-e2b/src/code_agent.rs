//! Code in a sandbox whose template has Python and no code interpreter: in the workers of our resident agent.
//!
//! The agent outlives its connection, and keeps idle contexts for the next client, which may be another process. It is started
//! or connected to when code first runs. All handles of this process for one sandbox share the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use sandbox_agent_client::{AgentHost, ResidentAgent};
use sandbox_cloud::{Remote as _, SharedByKey};
use sandbox_core::{
    CodeOps, CreateSpec, Instance as _, IsolationInfo, MAX_DURATION, Result, SandboxId, Secret,
    Variant,
};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::{InstanceHooks, SandboxBase, SandboxBaseSpec, StandardInstance};
use tokio::runtime::{Handle, Id};
use tokio::sync::OnceCell;

use crate::agent::E2bRoute;
use crate::capabilities::with_agent;
use crate::envd::Envd;
use crate::remote;

/// What the agent knows its clients by. A snapshot and a fork carry the memory of the agent along, and another key of the team
/// leads to it as well, so that the word cannot be that of one sandbox or key. No other user of the sandbox enters the
/// directory of the agent.
const TOKEN: &str = "code-sandboxes-e2b";

/// Connects to the agent of one sandbox, and connects again when the connection was lost.
pub(crate) type AgentLink = ResidentAgent<E2bRoute>;

/// Code by the agent of one sandbox.
#[derive(Debug)]
pub(crate) struct CodeAgent {
    link: Arc<AgentLink>,
    id: SandboxId,
    cwd: String,
    isolation: IsolationInfo,
    instance: OnceCell<StandardInstance<AgentHooks>>,
}

/// Control plane, sandbox and runtime.
type Key = (String, String, Id);

/// The agents of this process. All handles for one sandbox share one.
static AGENTS: LazyLock<SharedByKey<Key, CodeAgent>> = LazyLock::new(SharedByKey::default);

impl CodeAgent {
    /// Returns the agent that this process has for a sandbox on the runtime of the caller, or a new one. Programs of the
    /// sandbox start with `environment`.
    ///
    /// # Errors
    /// `InvalidArgument` for a configured address that is none.
    pub(crate) fn shared(
        envd: &Envd,
        cwd: &str,
        environment: &BTreeMap<String, String>,
    ) -> Result<Arc<Self>> {
        let handle = envd.handle();
        let id: SandboxId = handle.id().parse()?;
        let api = handle.clients.endpoints()?.api.to_string();
        let key = (api, handle.local_id().to_owned(), Handle::current().id());
        let agent = AGENTS.get_or_make(
            key,
            |agent| !agent.link.has_ended(),
            || {
                let route = E2bRoute::new(envd.clone(), environment.clone());
                let link = Arc::new(ResidentAgent::new(route, Secret::new(TOKEN)));
                link.end_reason(handle.end_reason());
                let isolation = remote::info(handle).isolation.unwrap_or_default();
                Self { link, id, cwd: cwd.to_owned(), isolation, instance: OnceCell::new() }
            },
        );
        handle.ends_agent(&agent.link);
        Ok(agent)
    }

    /// Returns the verbs of code, and connects to the agent where that was not done yet.
    ///
    /// # Errors
    /// What keeps this computer from reaching the agent.
    pub(crate) async fn code(&self) -> Result<&dyn CodeOps> {
        self.instance.get_or_try_init(|| self.open()).await?.code()
    }

    /// Returns the verbs of code if they were used before.
    pub(crate) fn started(&self) -> Option<&dyn CodeOps> {
        self.instance.get()?.code().ok()
    }

    /// Ends all interpreters. Each context starts again, empty, with its next run.
    ///
    /// # Errors
    /// As [`CodeAgent::code`].
    pub(crate) async fn restart_all(&self) -> Result<()> {
        self.instance.get_or_try_init(|| self.open()).await?.contexts.restart_all().await;
        Ok(())
    }

    async fn open(&self) -> Result<StandardInstance<AgentHooks>> {
        let connection = self.link.connection().await?;
        let (env, cwd) = (self.link.known_environment(), self.cwd.clone());
        let ended = self.link.end_reason(&Arc::default());
        let mut create = CreateSpec::default();
        // The handle ends the sandbox.
        create.lifetime = Some(MAX_DURATION);
        let base = SandboxBaseSpec {
            variant: Variant::E2B,
            capabilities: with_agent(),
            create: &create,
            isolation: self.isolation.clone(),
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let host: Arc<dyn ProcessHost> =
            Arc::new(AgentHost { agent: Arc::clone(&self.link), context: None });
        let (link, directory) = (Arc::clone(&self.link), cwd.clone());
        let mut base = SandboxBase::remote_with_end(Arc::clone(&ended), host, None, base)
            .with_files_of(move || {
                let (link, directory) = (Arc::clone(&link), directory.clone());
                async move { link.files(&directory).await }
            });
        base.id = self.id.clone();
        let contexts = self.link.contexts(Variant::E2B, ended, WorkerSpec { env, cwd });
        connection.adopt_contexts(&contexts).await?;
        Ok(StandardInstance { base, contexts, kind: AgentHooks })
    }
}

/// Differences of these sandboxes from those of this computer: the daemon installs packages, and does all but code.
#[derive(Debug)]
pub(crate) struct AgentHooks;

impl InstanceHooks for AgentHooks {
    fn system_packages_hint(names: &[String]) -> String {
        format!("run `sudo apt-get install -y {}` as a command", names.join(" "))
    }
}
