//! One sandbox: every verb.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_cloud::{CreateLocks, DeferredFacets, check_lifetime};
use sandbox_core::{
    CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps, Context, ContextSpec,
    Error, ErrorKind, EventKind, EventStream, FileOps, Instance, Life, LogStream, Metrics,
    PackageOps, PortOps, Result, RunCode, SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps,
    StartCommand, Tags, Tool, Variant, resolve_directory,
};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::{Contexts, DEFAULT_CONTEXT, InterpreterContext, RunRequest};
use sandbox_kernel::KernelHost;
use sandbox_kernel::server::KernelEnvironment;
use serde_json::{Map, Value};

use crate::capabilities::capabilities;
use crate::describe;
use crate::error::unsupported;
use crate::kernels::{Kernels, NoProcessHost};
use crate::ready::until_ready;
use crate::records::{self, SnapshotRecord};
use crate::runtime::{self, RuntimeHandle};
use crate::sidecar::RuntimeSidecar;

/// One sandbox. Its verbs do not look whether it has ended: [`open`] does that for all of them.
#[derive(Debug)]
struct DatalayerInstance {
    handle: Arc<RuntimeHandle>,
    contexts: Contexts,
    sidecar: DeferredFacets<RuntimeSidecar>,
    /// The kernels outlive this instance.
    is_detached: Arc<AtomicBool>,
}

/// Opens a sandbox whose code starts in that directory, with these environment variables. `surroundings` are those of its
/// kernels, if they are known.
pub(crate) fn open(
    handle: Arc<RuntimeHandle>,
    cwd: String,
    env: BTreeMap<String, String>,
    surroundings: Option<KernelEnvironment>,
) -> Arc<dyn Instance> {
    let sidecar = RuntimeSidecar::new(Arc::clone(&handle), env.clone(), cwd.clone(), surroundings);
    let is_detached = Arc::<AtomicBool>::default();
    let new_host = {
        let (handle, is_detached) = (Arc::clone(&handle), Arc::clone(&is_detached));
        // Each context is a kernel of its own on the server of the runtime.
        move |context: &str| -> Arc<dyn ProcessHost> {
            let (context, is_detached) = (context.to_owned(), Arc::clone(&is_detached));
            let programs = Arc::new(NoProcessHost(Arc::clone(&handle)));
            let kernels = Kernels::new(Arc::clone(&handle), context, is_detached);
            Arc::new(KernelHost::new(programs, Arc::new(kernels)))
        }
    };
    let (variant, ended) = (Variant::DATALAYER_RUNTIME, Arc::clone(handle.end_reason()));
    let contexts = Contexts::with(variant, "python", ended, WorkerSpec { env, cwd }, new_host);
    let sidecar = DeferredFacets(sidecar);
    let lifetime = Arc::clone(&handle);
    check_lifetime(Arc::new(DatalayerInstance { handle, contexts, sidecar, is_detached }), lifetime)
}

impl DatalayerInstance {
    fn context(&self, operation: &'static str, id: Option<&str>) -> Result<InterpreterContext> {
        self.contexts.existing(operation, id)
    }

    async fn set_paused(&self, call: &CallContext, paused: bool) -> Result<()> {
        let runtime = self.handle.runtime();
        let api = self.handle.factory.api().await?;
        api.set_paused(call, runtime.name(), paused).await?;
        self.handle.set_paused(paused);
        if !paused {
            // Its address may be another one.
            self.handle.update(api.runtime(call, "resume", runtime.name()).await?);
            let timeout = self.handle.factory.config.ready_timeout();
            until_ready(&api, call, &self.handle, timeout).await?;
        }
        Ok(())
    }
}

impl Drop for DatalayerInstance {
    fn drop(&mut self) {
        self.is_detached.store(true, Ordering::Release);
        self.handle.release();
    }
}

impl Instance for DatalayerInstance {
    fn info(&self) -> SandboxInfo {
        runtime::info(&self.handle)
    }

    fn status(&self) -> SandboxStatus {
        runtime::info(&self.handle).status
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
        Ok(&self.sidecar)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        Ok(&self.sidecar)
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        Err(unsupported("expose_port"))
    }
}

#[async_trait]
impl Life for DatalayerInstance {
    async fn reset(&self, _: &CallContext) -> Result<()> {
        self.contexts.restart_all().await;
        self.sidecar.0.end_commands().await
    }

    async fn set_tags(&self, _: &CallContext, tags: Tags) -> Result<()> {
        self.handle.change_record(|record| record.tags = tags);
        Ok(())
    }

    async fn set_lifetime(&self, _: &CallContext, lifetime: Duration) -> Result<()> {
        runtime::set_lifetime(&self.handle, lifetime)
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        self.set_paused(call, true).await
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        self.set_paused(call, false).await
    }

    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.handle.end("terminate", true).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.handle.end("kill", false).await
    }

    async fn fork(&self, _: &CallContext) -> Result<Arc<dyn Instance>> {
        Err(unsupported("fork"))
    }

    async fn metrics(&self, _: &CallContext) -> Result<Metrics> {
        Err(unsupported("metrics"))
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        Err(unsupported("logs"))
    }
}

#[async_trait]
impl CodeOps for DatalayerInstance {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let operation = "run_code";
        self.contexts.check_language(operation, request.language.as_deref())?;
        if request.memory.is_some() || request.cpu_time.is_some() {
            let message = "datalayer-runtime has no limit of memory or CPU time for a single run";
            return Err(Error::unsupported(operation, message));
        }
        let context = self.contexts.for_run(request.context.as_deref());
        let request = RunRequest::new(call, request, &context.spec().cwd);
        let events = context.run(request).await?;
        let handle = Arc::clone(&self.handle);
        Ok(Box::pin(events.then(move |mut event| {
            let handle = Arc::clone(&handle);
            async move {
                if let EventKind::Finished(outcome) = &mut event.kind {
                    handle.map_outcome(outcome).await;
                }
                event
            }
        })))
    }

    async fn create_context(&self, _: &CallContext, mut spec: ContextSpec) -> Result<Context> {
        self.contexts.check(&spec)?;
        if let Some(path) = &mut spec.cwd {
            *path = resolve_directory(&self.contexts.for_run(None).spec().cwd, path);
        }
        self.contexts.create(spec)
    }

    async fn list_contexts(&self, _: &CallContext) -> Result<Vec<Context>> {
        Ok(self.contexts.list())
    }

    async fn restart_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.context("restart_context", Some(id))?.restart(false).await;
        Ok(())
    }

    async fn delete_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.contexts.delete(id).await?;
        self.handle.change_record(|record| drop(record.kernels.remove(id)));
        Ok(())
    }

    async fn get_variable(
        &self,
        _: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        self.context("get_variable", context)?.get_variable(name).await
    }

    async fn set_variables(
        &self,
        _: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.context("set_variables", context)?.set_variables(values).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        let id = context.unwrap_or(DEFAULT_CONTEXT);
        self.contexts.find(id).is_some_and(|context| context.is_executing())
    }

    async fn interrupt(&self, _: &CallContext, context: Option<&str>) -> Result<bool> {
        Ok(self.context("interrupt", context)?.interrupt())
    }

    async fn register_tool(&self, _: &CallContext, tool: Tool) -> Result<()> {
        self.contexts.tools.register(tool)
    }
}

#[async_trait]
impl CommandOps for DatalayerInstance {
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        // Before anything is started for commands.
        if request.cpu_time.is_some() {
            let message = "datalayer-runtime has no limit of CPU time for a single command";
            return Err(Error::unsupported("start_command", message));
        }
        self.sidecar.start_command(call, request).await
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.sidecar.list_commands(call).await
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        self.sidecar.connect_command(call, id).await
    }
}

#[async_trait]
impl SnapshotOps for DatalayerInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let operation = "create_snapshot";
        let (factory, key) = (&self.handle.factory, format!("snapshot:{name}"));
        let directory = records::sandboxes(&factory.config);
        let _locks = CreateLocks::acquire(directory.directory(), call, operation, [key]).await?;
        let api = factory.api().await?;
        let all = api.snapshots(call, operation).await?;
        if all.iter().any(|snapshot| snapshot.name == name) {
            let message = format!("there is a snapshot {name:?} already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message));
        }
        let runtime = self.handle.runtime();
        let created = api.create_snapshot(call, runtime.name(), name, description).await?;
        let sandbox_id = runtime::info(&self.handle).id;
        let records = records::snapshots(&factory.config);
        records.write(&created.uid, &SnapshotRecord { sandbox_id: sandbox_id.clone() });
        Ok(SnapshotInfo { sandbox_id, ..describe::snapshot(&created, &records) })
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(unsupported("restore_snapshot"))
    }
}
