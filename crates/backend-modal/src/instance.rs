//! One sandbox: every verb.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_cloud::{CreateLocks, DeferredFacets, check_lifetime};
use sandbox_core::{
    CallContext, Capabilities, CodeOps, Command, CommandEvent, CommandInfo, CommandOps,
    CommandOutcome, Context, ContextSpec, Error, ErrorKind, EventKind, EventStream, Failure,
    FailureKind, FileOps, Instance, Life, LogStream, Metrics, PackageOps, PortOps, Result, RunCode,
    SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps, StartCommand, Tags, Tool, TunnelInfo,
    random_hex, unix_now,
};
use sandbox_engine::commands::Commands;
use serde_json::{Map, Value, json};

use crate::capabilities::{MAX_LIFETIME, capabilities};
use crate::create::{Opened, Original, copy};
use crate::describe::{self, with_own_tags};
use crate::error::unsupported;
use crate::part::{AgentPart, SharedPart};
use crate::records::{self, SnapshotRecord};
use crate::router::SNAPSHOT_DAYS;
use crate::sandbox::{self, SandboxHandle};
use crate::shell::no_python;
use crate::wire::{Definition, TunnelData};

/// Seconds by which the clocks of the service and of this computer may differ.
const CLOCK_TOLERANCE: f64 = 1.0;

/// Days that the service keeps the image of a fork: longer than any sandbox lives.
const FORK_DAYS: i64 = 2;

/// Hint for a pause.
const NO_PAUSE: &str = "what the service can resume has no name, tags and list, so it could not be found again: take a \
                        snapshot, and make a new sandbox from that";

/// Nanoseconds of a second.
const NANOS: f64 = 1e9;

/// One sandbox. Its verbs do not look whether it has ended: [`open`] does that for all of them.
#[derive(Debug)]
struct ModalInstance {
    handle: Arc<SandboxHandle>,
    part: Arc<AgentPart>,
    facets: DeferredFacets<SharedPart>,
}

/// Opens a sandbox.
pub(crate) fn open((handle, part): Opened) -> Arc<dyn Instance> {
    let facets = DeferredFacets(SharedPart(Arc::clone(&part)));
    let lifetime = Arc::clone(&handle);
    check_lifetime(Arc::new(ModalInstance { handle, part, facets }), lifetime)
}

impl Drop for ModalInstance {
    fn drop(&mut self) {
        self.handle.release();
    }
}

impl ModalInstance {
    /// Notes the end that another handle of this process has seen or caused.
    fn notice_end(&self) {
        if self.part.link.has_ended() {
            note_expiry(&self.handle);
            self.handle.mark_ended(FailureKind::Terminated);
        }
    }

    async fn code_ops(&self) -> Result<&dyn CodeOps> {
        let instance = self.part.instance().await?;
        if !instance.base.capabilities.run_code {
            return Err(no_python("run_code"));
        }
        instance.code()
    }

    /// Returns the address of a port that was opened at create, if it was.
    async fn tunnel(&self, call: &CallContext, port: u16) -> Result<Option<TunnelInfo>> {
        let find = |all: &[TunnelData]| {
            let found = all.iter().find(|tunnel| tunnel.container_port == u32::from(port));
            found.map(|tunnel| TunnelInfo { port, url: url(tunnel), ..described() })
        };
        let known = self.handle.tunnels();
        if let Some(found) = find(&known) {
            return Ok(Some(found));
        }
        let api = self.handle.factory.api()?;
        match api.tunnels(call, &self.handle.sandbox_id()).await {
            Ok(tunnels) => {
                let found = find(&tunnels);
                self.handle.set_tunnels(tunnels);
                Ok(found)
            }
            // A sandbox without open ports has no tunnels.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidArgument | ErrorKind::NotFound | ErrorKind::Unavailable
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Asks the service what the sandbox has used and cost, and keeps the answer for [`Instance::info`].
    async fn refresh_usage(&self, call: &CallContext) {
        let Ok(api) = self.handle.factory.api() else { return };
        let id = self.handle.sandbox_id();
        let (used, cost) = tokio::join!(api.usage(call, &id), api.cost(call, &id));
        let mut usage = Map::new();
        if let Ok(used) = used {
            usage.insert("cpu_core_seconds".into(), json!(used.cpu_core_nanosecs as f64 / NANOS));
            usage.insert("memory_gib_seconds".into(), json!(used.mem_gib_nanosecs as f64 / NANOS));
            if used.gpu_nanosecs > 0 {
                usage.insert("gpu_seconds".into(), json!(used.gpu_nanosecs as f64 / NANOS));
            }
        }
        if let Ok(Some(cost)) = cost {
            usage.insert("cost".into(), json!(cost));
        }
        if !usage.is_empty() {
            let usage = Map::from_iter([("usage".to_owned(), Value::Object(usage))]);
            self.handle.set_usage(usage);
        }
    }
}

/// Notes that the lifetime is the reason of an end at its time. The service may end a sandbox a little before the clock of
/// this computer says so.
fn note_expiry(handle: &SandboxHandle) {
    if handle.end_at().is_some_and(|end| end <= unix_now() + CLOCK_TOLERANCE) {
        handle.end_reason().set(FailureKind::Expired);
    }
}

/// Asks the service whether the sandbox has ended.
async fn check_end(handle: &SandboxHandle) {
    note_expiry(handle);
    handle.check().await;
}

fn described() -> TunnelInfo {
    TunnelInfo { protocol: "http".to_owned(), ..TunnelInfo::default() }
}

/// Returns the address of a tunnel, whose encryption the provider ends.
fn url(tunnel: &TunnelData) -> String {
    match tunnel.port {
        443 => format!("https://{}", tunnel.host),
        port => format!("https://{}:{port}", tunnel.host),
    }
}

impl Instance for ModalInstance {
    fn info(&self) -> SandboxInfo {
        self.notice_end();
        let mut info = sandbox::info(&self.handle);
        if let Some(started) = self.part.started() {
            info.metadata.extend(started.info().metadata);
        }
        info
    }

    fn status(&self) -> SandboxStatus {
        self.notice_end();
        sandbox::info(&self.handle).status
    }

    /// Returns those of the sandbox once its image is known.
    fn capabilities(&self) -> Capabilities {
        self.part.started().map_or_else(capabilities, |started| started.base.capabilities)
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        match self.capabilities().run_code {
            true => Ok(self),
            false => Err(no_python("run_code")),
        }
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        Ok(self)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        Ok(&self.facets)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        match self.capabilities().install_python {
            true => Ok(&self.facets),
            false => Err(unsupported("install_packages").with_hint("put pip into the image")),
        }
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        Ok(self)
    }
}

#[async_trait]
impl Life for ModalInstance {
    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.handle.end("terminate", true).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.handle.end("kill", false).await
    }

    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()> {
        let all = with_own_tags(&self.handle.all_tags(), tags);
        self.handle.factory.api()?.set_tags(call, &self.handle.sandbox_id(), &all).await?;
        self.handle.set_tags(&all);
        Ok(())
    }

    async fn set_lifetime(&self, _: &CallContext, _: Duration) -> Result<()> {
        Err(unsupported("set_lifetime")
            .with_hint("the service fixes the lifetime at create: give `lifetime` there"))
    }

    async fn pause(&self, _: &CallContext) -> Result<()> {
        Err(unsupported("pause").with_hint(NO_PAUSE))
    }

    async fn resume(&self, _: &CallContext) -> Result<()> {
        Err(unsupported("resume").with_hint(NO_PAUSE))
    }

    async fn reset(&self, call: &CallContext) -> Result<()> {
        if let Some(early) = self.part.early_commands() {
            early.end_all().await?;
        }
        self.part.instance().await?.life().reset(call).await
    }

    /// Stores the files, and makes a sandbox like this one of them. Processes and variables are not in it.
    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        let operation = "fork";
        let (record, definition) = self.handle.made_with();
        let definition = definition.ok_or_else(|| {
            let message =
                "the restrictions of this sandbox are known on the computer that made it alone";
            Error::unsupported(operation, message)
                .with_hint("take a snapshot, and make a new sandbox from that")
        })?;
        // The agent knows the variables of the sandbox.
        self.part.instance().await?;
        let router = self.part.link.router().await?;
        let key = format!("sn-{}", random_hex(11));
        let image_id = router.snapshot(operation, &key, FORK_DAYS).await?;
        let left = self.handle.end_at().map(|end| end - unix_now());
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        let mut spec = self.part.spec().clone();
        spec.tags = describe::user_tags(&self.handle.all_tags());
        let original = Original {
            sandbox_id: self.handle.sandbox_id(),
            app_id: self.handle.app_id(),
            definition: Definition { image_id, ..definition },
            env: self.part.environment(),
            record,
            spec,
            is_owned: self.handle.is_owned(),
            left: left.unwrap_or(MAX_LIFETIME).min(MAX_LIFETIME),
        };
        Ok(open(copy(Arc::clone(&self.handle.factory), call, original).await?))
    }

    async fn metrics(&self, call: &CallContext) -> Result<Metrics> {
        let measured = async { self.part.instance().await?.life().metrics(call).await };
        let (measured, ()) = tokio::join!(measured, self.refresh_usage(call));
        measured
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        Err(unsupported("logs").with_hint(
            "the service has the output of a first program, and sandboxes of this library have none: commands have \
             their own output",
        ))
    }
}

#[async_trait]
impl CodeOps for ModalInstance {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let events = self.code_ops().await?.run_code(call, request).await?;
        let handle = Arc::clone(&self.handle);
        Ok(Box::pin(events.then(move |mut event| {
            let handle = Arc::clone(&handle);
            async move {
                if let EventKind::Finished(outcome) = &mut event.kind {
                    if outcome.failure.is_some() {
                        note_expiry(&handle);
                    }
                    handle.map_outcome(outcome).await;
                }
                event
            }
        })))
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
        let code = self.part.started().and_then(|started| started.code().ok());
        code.is_some_and(|code| code.is_executing(context))
    }

    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool> {
        self.code_ops().await?.interrupt(call, context).await
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        self.code_ops().await?.register_tool(call, tool).await
    }
}

/// Signal that ends the programs of a sandbox with the sandbox.
const SIGKILL: i32 = 9;

/// Replaces a lost connection or a kill by the end of the sandbox, where that is the cause.
fn with_end(command: Command, handle: &Arc<SandboxHandle>) -> Command {
    let handle = Arc::clone(handle);
    let events = command.events.then(move |mut event| {
        let handle = Arc::clone(&handle);
        async move {
            if let CommandEvent::Finished(outcome) = &mut event
                && may_be_end(outcome)
            {
                check_end(&handle).await;
                if let Some(kind) = handle.end_reason().get() {
                    let message = "the sandbox ended meanwhile".to_owned();
                    outcome.failure = Some(Failure { kind, message, signal: None });
                }
            }
            event
        }
    });
    Command { events: Box::pin(events), ..command }
}

fn may_be_end(outcome: &CommandOutcome) -> bool {
    match &outcome.failure {
        Some(failure) => failure.kind == FailureKind::ConnectionLost,
        None => outcome.signal == Some(SIGKILL),
    }
}

#[async_trait]
impl CommandOps for ModalInstance {
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let started = match self.part.early(&request) {
            Some(early) => early.start(request).await,
            None => self.facets.start_command(call, request).await,
        };
        match started {
            Ok(started) => Ok(with_end(started, &self.handle)),
            Err(error) => Err(self.part.explain(error).await),
        }
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        let mut all = self.facets.list_commands(call).await?;
        all.extend(self.part.early_commands().map(Commands::list).unwrap_or_default());
        Ok(all)
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let early = self.part.early_commands();
        if let Some(early) = early.filter(|early| early.list().iter().any(|info| info.id == id)) {
            return early.connect(id, Box::new(()));
        }
        Ok(with_end(self.facets.connect_command(call, id).await?, &self.handle))
    }
}

#[async_trait]
impl PortOps for ModalInstance {
    /// Gives the public address of a port that was opened at create, and an address of this computer for every other one.
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo> {
        sandbox_engine::check_port(port)?;
        match self.tunnel(call, port).await? {
            Some(tunnel) => Ok(tunnel),
            None => self.part.instance().await?.ports()?.expose_port(call, port).await,
        }
    }
}

#[async_trait]
impl SnapshotOps for ModalInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let operation = "create_snapshot";
        let factory = &self.handle.factory;
        let records = records::snapshots(&factory.config);
        let key = format!("snapshot:{name}");
        let _locks = CreateLocks::acquire(records.directory(), call, operation, [key]).await?;
        let server = factory.api()?.account.server.to_string();
        let is_taken = |(id, record): &(String, SnapshotRecord)| record.name == name || id == name;
        if records.all().iter().any(is_taken) {
            let message = format!("there is a snapshot {name:?} already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message).with_hint(
                "choose another name, or delete that one: `Sandbox::delete_snapshot()`",
            ));
        }
        let router = self.part.link.router().await?;
        let image_id =
            router.snapshot(operation, &format!("sn-{}", random_hex(11)), SNAPSHOT_DAYS).await?;
        let record = SnapshotRecord {
            name: name.to_owned(),
            description: description.to_owned(),
            sandbox_id: sandbox::info(&self.handle).id,
            created_at: unix_now(),
            server,
        };
        records.write(&image_id, &record);
        Ok(describe::snapshot(&image_id, &record))
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(unsupported("restore_snapshot").with_hint(
            "make a new sandbox from the snapshot: `.snapshot_name(\"NAME\")` at create",
        ))
    }
}
