//! One sandbox: every verb.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::{Connections, SharedByKey, check_lifetime};
use sandbox_core::{
    CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps, Context, ContextSpec,
    CreateSpec, EventStream, FileOps, Instance, Life, LogStream, MAX_DURATION, Metrics, PackageOps,
    PortOps, Result, RunCode, SandboxId, SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps,
    StartCommand, Tags, Tool, TunnelInfo, Variant,
};
use sandbox_engine::host::{FileSystem, ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{InstanceHooks, Packages, SandboxBase, SandboxBaseSpec, StandardInstance};
use sandbox_shell::ShellCommands;
use serde_json::{Map, Value};
use tokio::runtime::{Handle as RuntimeHandle, Id};
use tokio::sync::OnceCell;

use crate::agent::{self, AgentHost, AgentLink};
use crate::capabilities::capabilities;
use crate::error::unsupported;
use crate::files::CloudflareFiles;
use crate::remote::{self, Handle};
use crate::snapshots;

/// Commands, files, packages, and code by the agent.
type Programs = StandardInstance<CloudflareHooks>;

/// Differences of these sandboxes from those of this computer.
#[derive(Debug)]
pub(crate) struct CloudflareHooks {
    link: Arc<AgentLink>,
}

#[async_trait]
impl InstanceHooks for CloudflareHooks {
    fn system_packages_hint(names: &[String]) -> String {
        let names = names.join(" ");
        format!(
            "run what installs them as a command, such as `apt-get install -y {names}`, or put them into the image of the \
             Worker's container"
        )
    }

    async fn metrics(instance: &StandardInstance<Self>) -> Result<Metrics> {
        instance.kind.link.connection().await?.usage().metrics().await
    }
}

/// One sandbox. Its verbs do not look whether it has ended: [`open`] does that for all of them.
#[derive(Debug)]
struct CloudflareInstance {
    shared: Arc<Shared>,
    handle: Arc<Handle>,
}

/// The verbs that all handles of this process for one sandbox share, so that each has the interpreters and commands of all.
#[derive(Debug)]
struct Shared {
    programs: Programs,
    /// Done once the commands in the background that earlier processes have started are known.
    commands: OnceCell<()>,
    /// Done once the contexts that the agent has kept are known.
    contexts: OnceCell<()>,
}

/// Sandbox and runtime.
type Key = (agent::Key, Id);

/// The verbs of the sandboxes of this process.
static SHARED: LazyLock<SharedByKey<Key, Shared>> = LazyLock::new(SharedByKey::default);

/// Opens a sandbox that was just made, with that working directory, whose programs have the variables of the specification.
///
/// # Errors
/// `Protocol` for an id that is none.
pub(crate) fn open(handle: Arc<Handle>, cwd: &str, spec: &CreateSpec) -> Result<Arc<dyn Instance>> {
    let instance = CloudflareInstance::new(handle, cwd, spec, || OnceCell::new_with(Some(())))?;
    Ok(instance.checked())
}

/// Opens a sandbox that was made before, with the commands in the background that earlier processes have started.
///
/// # Errors
/// As [`open`], and what keeps the bridge from being reached.
pub(crate) async fn open_attached(handle: Arc<Handle>, cwd: &str) -> Result<Arc<dyn Instance>> {
    let mut spec = CreateSpec::default();
    spec.env = handle.record().env;
    let instance = CloudflareInstance::new(handle, cwd, &spec, OnceCell::new)?;
    instance.shared.commands.get_or_try_init(|| instance.find_commands()).await?;
    Ok(instance.checked())
}

fn programs(handle: &Handle, id: SandboxId, cwd: &str, spec: &CreateSpec) -> Programs {
    let info = remote::info(handle);
    let mut create = CreateSpec::default();
    // The handle ends the sandbox.
    create.lifetime = Some(MAX_DURATION);
    create.output_limit = spec.output_limit;
    let secrets = spec.secrets.iter();
    let mut env = spec.env.clone();
    env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
    let base = SandboxBaseSpec {
        variant: Variant::CLOUDFLARE,
        capabilities: capabilities(),
        create: &create,
        isolation: info.isolation.unwrap_or_default(),
        env: env.clone(),
        cwd: cwd.to_owned(),
    };
    let (programs, link) = (&handle.programs, &handle.link);
    let host: Arc<dyn ProcessHost> = Arc::new(ShellCommands(Arc::clone(programs)));
    let files: Arc<dyn FileSystem> = Arc::new(CloudflareFiles::new(programs, link, cwd));
    let ended = Arc::clone(handle.end_reason());
    let mut base = SandboxBase::remote_with_end(Arc::clone(&ended), host, Some(files), base);
    base.id = id;
    let packages = format!("{}/.packages", cwd.trim_end_matches('/'));
    base.packages = Some(Packages::inside("python3".into(), packages, Vec::new()));
    let worker = WorkerSpec { env, cwd: cwd.to_owned() };
    let (programs, own) = (Arc::clone(programs), Arc::clone(link));
    let host_of = move |context: &str| -> Arc<dyn ProcessHost> {
        let (programs, link) = (Arc::clone(&programs), Arc::clone(&own));
        Arc::new(AgentHost { link, programs, context: context.to_owned() })
    };
    let contexts = Contexts::with(Variant::CLOUDFLARE, "python", ended, worker, host_of);
    let kind = CloudflareHooks { link: Arc::clone(link) };
    StandardInstance { base, contexts, kind }
}

impl Drop for Shared {
    /// The agent keeps what belongs to a client that is gone, and ends an interpreter that a client gives up.
    fn drop(&mut self) {
        self.programs.kind.link.disconnect();
    }
}

impl Drop for CloudflareInstance {
    fn drop(&mut self) {
        self.handle.release();
    }
}

impl Instance for CloudflareInstance {
    fn info(&self) -> SandboxInfo {
        remote::info(&self.handle)
    }

    fn status(&self) -> SandboxStatus {
        remote::info(&self.handle).status
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        Ok(self)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        Ok(self)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.shared.programs.files()
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        self.shared.programs.packages()
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        Ok(self)
    }
}

impl CloudflareInstance {
    /// `known` makes the cells of what earlier processes may have left.
    fn new(
        handle: Arc<Handle>,
        cwd: &str,
        spec: &CreateSpec,
        known: impl Fn() -> OnceCell<()>,
    ) -> Result<Self> {
        let id = remote::info(&handle).id.parse::<SandboxId>()?;
        let key = (handle.link.key.clone(), RuntimeHandle::current().id());
        let is_usable = |shared: &Shared| !shared.programs.kind.link.programs.is_over();
        let shared = SHARED.get_or_make(key, is_usable, || Shared {
            programs: programs(&handle, id, cwd, spec),
            commands: known(),
            contexts: known(),
        });
        Ok(Self { shared, handle })
    }

    /// Has all verbs look whether the sandbox has ended.
    fn checked(self) -> Arc<dyn Instance> {
        let lifetime = Arc::clone(&self.handle);
        check_lifetime(Arc::new(self), lifetime)
    }

    /// Returns the verbs of code. What the agent of a sandbox that was attached to has kept is looked up first.
    async fn code_ops(&self) -> Result<&dyn CodeOps> {
        self.shared.contexts.get_or_try_init(|| self.find_contexts()).await?;
        self.shared.programs.code()
    }

    async fn find_commands(&self) -> Result<()> {
        let base = &self.shared.programs.base;
        for (command, spawned) in self.handle.programs.kept().await? {
            base.commands.adopt(command, spawned, Box::new(base.expiry.in_use()));
        }
        Ok(())
    }

    async fn find_contexts(&self) -> Result<()> {
        let connection = self.handle.link.connection().await?;
        connection.adopt_contexts(&self.shared.programs.contexts).await
    }
}

#[async_trait]
impl CommandOps for CloudflareInstance {
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let started = self.shared.programs.commands()?.start_command(call, request).await?;
        Ok(self.handle.explain_command(started))
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.shared.programs.commands()?.list_commands(call).await
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let connected = self.shared.programs.commands()?.connect_command(call, id).await?;
        Ok(self.handle.explain_command(connected))
    }
}

#[async_trait]
impl CodeOps for CloudflareInstance {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let events = self.code_ops().await?.run_code(call, request).await?;
        Ok(self.handle.explain_run(events))
    }

    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context> {
        self.code_ops().await?.create_context(call, spec).await
    }

    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>> {
        self.code_ops().await?.list_contexts(call).await
    }

    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.code_ops().await?.restart_context(call, id).await
    }

    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.code_ops().await?.delete_context(call, id).await
    }

    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        self.code_ops().await?.get_variable(call, context, name).await
    }

    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.code_ops().await?.set_variables(call, context, values).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        self.shared.programs.code().is_ok_and(|code| code.is_executing(context))
    }

    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool> {
        self.code_ops().await?.interrupt(call, context).await
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        self.code_ops().await?.register_tool(call, tool).await
    }
}

#[async_trait]
impl Life for CloudflareInstance {
    async fn reset(&self, call: &CallContext) -> Result<()> {
        self.shared.programs.life().reset(call).await
    }

    async fn set_tags(&self, _: &CallContext, tags: Tags) -> Result<()> {
        self.handle.change_record(|record| record.tags = tags);
        Ok(())
    }

    async fn set_lifetime(&self, _: &CallContext, _: Duration) -> Result<()> {
        Err(unsupported("set_lifetime").with_hint(
            "nothing at the bridge ends a sandbox at a time: terminate it when it is done",
        ))
    }

    async fn pause(&self, _: &CallContext) -> Result<()> {
        Err(unsupported("pause"))
    }

    async fn resume(&self, _: &CallContext) -> Result<()> {
        Err(unsupported("resume"))
    }

    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.handle.end("terminate", false).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.handle.end("kill", false).await
    }

    async fn fork(&self, _: &CallContext) -> Result<Arc<dyn Instance>> {
        Err(unsupported("fork"))
    }

    async fn metrics(&self, call: &CallContext) -> Result<Metrics> {
        self.shared.programs.life().metrics(call).await
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        Err(unsupported("logs").with_hint("the bridge keeps none: commands have their own output"))
    }
}

#[async_trait]
impl SnapshotOps for CloudflareInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        snapshots::take(&self.handle, call, name, description).await
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(snapshots::no_way_back())
    }
}

#[async_trait]
impl PortOps for CloudflareInstance {
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo> {
        sandbox_engine::check_port(port)?;
        let api = self.handle.factory.api("expose_port", Connections::Shared)?;
        let tunnel = api.tunnel(call, self.handle.local_id(), port).await?;
        let protocol = if tunnel.url.starts_with("http:") { "http" } else { "https" };
        Ok(TunnelInfo {
            port,
            url: tunnel.url,
            protocol: protocol.to_owned(),
            ..TunnelInfo::default()
        })
    }
}
