//! One sandbox: every verb.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps,
    Context, ContextSpec, Error, ErrorKind, EventKind, EventStream, FileInfo, FileOps, FindFiles,
    FoundFile, InstallPackages, Instance, Life, LogStream, Metrics, PackageOps, PortOps, Result,
    RunCode, SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps, StartCommand, Tags, Tool,
    Variant, WatchStream, WriteOptions, resolve_directory,
};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::{Contexts, DEFAULT_CONTEXT, InterpreterContext, RunRequest};
use sandbox_kernel::KernelHost;
use sandbox_kernel::server::KernelEnvironment;
use serde_json::{Map, Value};

use crate::backend::{capabilities, stored};
use crate::beside::{Beside, Rest};
use crate::kernels::{Kernels, KernelsOnly};
use crate::lease::Lease;
use crate::notes::{Notes, SnapshotNote};
use crate::start::until_ready;
use crate::turn::Turns;

/// One sandbox.
#[derive(Debug)]
pub(crate) struct DatalayerInstance {
    lease: Arc<Lease>,
    contexts: Contexts,
    beside: Beside,
    /// The kernels go on when the handle goes away.
    left: Arc<AtomicBool>,
}

impl DatalayerInstance {
    /// A sandbox whose code begins in that directory, with these environment variables.
    /// `at` is where it is, if that is known.
    pub(crate) fn new(
        lease: Arc<Lease>,
        cwd: String,
        env: BTreeMap<String, String>,
        at: Option<KernelEnvironment>,
    ) -> Self {
        let beside = Beside::new(Arc::clone(&lease), env.clone(), cwd.clone(), at);
        let left = Arc::<AtomicBool>::default();
        let box_of = {
            let (lease, left) = (Arc::clone(&lease), Arc::clone(&left));
            // Each context is a kernel of its own on the server of the runtime.
            move |context: &str| -> Arc<dyn ProcessHost> {
                let (context, left) = (context.to_owned(), Arc::clone(&left));
                let rest = Arc::new(KernelsOnly(Arc::clone(&lease)));
                let kernels = Kernels::new(Arc::clone(&lease), context, left);
                Arc::new(KernelHost::new(rest, Arc::new(kernels)))
            }
        };
        let (variant, ended) = (Variant::DATALAYER_RUNTIME, Arc::clone(&lease.ended));
        let contexts = Contexts::with(variant, "python", ended, WorkerSpec { env, cwd }, box_of);
        Self { lease, contexts, beside, left }
    }

    /// A context that exists, of a sandbox that lives.
    fn context(&self, operation: &'static str, id: Option<&str>) -> Result<InterpreterContext> {
        self.lease.alive(operation)?;
        self.contexts.existing(operation, id)
    }

    /// What is asked of a sandbox that lives about files, programs and packages.
    async fn rest(&self, operation: &'static str) -> Result<&Rest> {
        self.beside.rest(operation).await
    }

    async fn explained<T>(&self, operation: &'static str, done: Result<T>) -> Result<T> {
        match done {
            Ok(done) => Ok(done),
            Err(error) => Err(self.lease.explained(operation, error).await),
        }
    }

    async fn hold(&self, call: &CallContext, hold: bool) -> Result<()> {
        let operation = if hold { "pause" } else { "resume" };
        self.lease.alive(operation)?;
        let record = self.lease.record();
        let api = self.lease.source.api().await?;
        let held = api.hold(call, record.name(), hold).await;
        self.explained(operation, held).await?;
        self.lease.set_paused(hold);
        if !hold {
            // It may have moved.
            self.lease.update(api.runtime(call, operation, record.name()).await?);
            until_ready(&api, call, &self.lease, self.lease.source.config.patience()).await?;
        }
        Ok(())
    }
}

impl Drop for DatalayerInstance {
    fn drop(&mut self) {
        self.left.store(true, Ordering::Release);
        self.lease.let_go();
    }
}

fn unsupported(operation: &'static str) -> Error {
    Error::unsupported(operation, format!("datalayer-runtime does not support {operation}"))
        .with_context("variant", Variant::DATALAYER_RUNTIME.as_str())
}

impl Instance for DatalayerInstance {
    fn info(&self) -> SandboxInfo {
        self.lease.info()
    }

    fn status(&self) -> SandboxStatus {
        self.lease.info().status
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
        Ok(self)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        Ok(self)
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
        self.lease.alive("reset")?;
        self.contexts.restart_all().await;
        self.beside.end_commands().await
    }

    async fn set_tags(&self, _: &CallContext, tags: Tags) -> Result<()> {
        self.lease.alive("set_tags")?;
        self.lease.change_note(|note| note.tags = tags);
        Ok(())
    }

    async fn set_lifetime(&self, _: &CallContext, lifetime: Duration) -> Result<()> {
        self.lease.alive("set_lifetime")?;
        self.lease.set_lifetime(lifetime)
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        self.hold(call, true).await
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        self.hold(call, false).await
    }

    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.lease.end("terminate", false, true).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.lease.end("kill", false, false).await
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
        self.lease.alive(operation)?;
        self.contexts.check_language(operation, request.language.as_deref())?;
        if request.memory.is_some() || request.cpu_time.is_some() {
            let message = "datalayer-runtime has no limit of memory or CPU time for a single run";
            return Err(Error::unsupported(operation, message));
        }
        let context = self.contexts.for_run(request.context.as_deref());
        let request = RunRequest::new(call, request, &context.spec().cwd);
        let events = self.explained(operation, context.run(request).await).await?;
        let lease = Arc::clone(&self.lease);
        Ok(Box::pin(events.then(move |mut event| {
            let lease = Arc::clone(&lease);
            async move {
                if let EventKind::Finished(outcome) = &mut event.kind {
                    lease.explained_outcome(outcome).await;
                }
                event
            }
        })))
    }

    async fn create_context(&self, _: &CallContext, mut spec: ContextSpec) -> Result<Context> {
        self.lease.alive("create_context")?;
        self.contexts.check(&spec)?;
        if let Some(path) = &mut spec.cwd {
            *path = resolve_directory(&self.contexts.for_run(None).spec().cwd, path);
        }
        self.contexts.create(spec)
    }

    async fn list_contexts(&self, _: &CallContext) -> Result<Vec<Context>> {
        self.lease.alive("list_contexts")?;
        Ok(self.contexts.list())
    }

    async fn restart_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.context("restart_context", Some(id))?.restart(false).await;
        Ok(())
    }

    async fn delete_context(&self, _: &CallContext, id: &str) -> Result<()> {
        self.lease.alive("delete_context")?;
        self.contexts.delete(id).await?;
        self.lease.change_note(|note| drop(note.kernels.remove(id)));
        Ok(())
    }

    async fn get_variable(
        &self,
        _: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        let operation = "get_variable";
        let value = self.context(operation, context)?.get_variable(name).await;
        self.explained(operation, value).await
    }

    async fn set_variables(
        &self,
        _: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        let operation = "set_variables";
        let set = self.context(operation, context)?.set_variables(values).await;
        self.explained(operation, set).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        let id = context.unwrap_or(DEFAULT_CONTEXT);
        self.contexts.find(id).is_some_and(|context| context.is_executing())
    }

    async fn interrupt(&self, _: &CallContext, context: Option<&str>) -> Result<bool> {
        Ok(self.context("interrupt", context)?.interrupt())
    }

    async fn register_tool(&self, _: &CallContext, tool: Tool) -> Result<()> {
        self.lease.alive("register_tool")?;
        self.contexts.tools.register(tool)
    }
}

#[async_trait]
impl CommandOps for DatalayerInstance {
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let operation = "start_command";
        // Before anything is started for commands.
        if request.cpu_time.is_some() {
            let message = "datalayer-runtime has no limit of CPU time for a single command";
            return Err(Error::unsupported(operation, message));
        }
        let started = self.rest(operation).await?.commands()?.start_command(call, request).await;
        self.explained(operation, started).await
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.rest("list_commands").await?.commands()?.list_commands(call).await
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        self.rest("connect_command").await?.commands()?.connect_command(call, id).await
    }
}

#[async_trait]
impl FileOps for DatalayerInstance {
    async fn read_file(
        &self,
        call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream> {
        let read = self.rest("read_file").await?.files()?.read_file(call, path, range).await;
        self.explained("read_file", read).await
    }

    async fn write_file(
        &self,
        call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let rest = self.rest("write_file").await?;
        self.explained("write_file", rest.files()?.write_file(call, path, content, options).await)
            .await
    }

    async fn list_files(&self, call: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        let listed = self.rest("list_files").await?.files()?.list_files(call, path).await;
        self.explained("list_files", listed).await
    }

    async fn stat_file(&self, call: &CallContext, path: &str) -> Result<FileInfo> {
        let told = self.rest("stat_file").await?.files()?.stat_file(call, path).await;
        self.explained("stat_file", told).await
    }

    async fn create_directory(&self, call: &CallContext, path: &str, parents: bool) -> Result<()> {
        let rest = self.rest("create_directory").await?;
        self.explained(
            "create_directory",
            rest.files()?.create_directory(call, path, parents).await,
        )
        .await
    }

    async fn remove_file(&self, call: &CallContext, path: &str, recursive: bool) -> Result<()> {
        let removed =
            self.rest("remove_file").await?.files()?.remove_file(call, path, recursive).await;
        self.explained("remove_file", removed).await
    }

    async fn rename_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let renamed = self.rest("rename_file").await?.files()?.rename_file(call, from, to).await;
        self.explained("rename_file", renamed).await
    }

    async fn copy_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let copied = self.rest("copy_file").await?.files()?.copy_file(call, from, to).await;
        self.explained("copy_file", copied).await
    }

    async fn set_file_mode(&self, call: &CallContext, path: &str, mode: u32) -> Result<()> {
        let set = self.rest("set_file_mode").await?.files()?.set_file_mode(call, path, mode).await;
        self.explained("set_file_mode", set).await
    }

    async fn find_files(&self, call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        let found = self.rest("find_files").await?.files()?.find_files(call, query).await;
        self.explained("find_files", found).await
    }

    async fn read_archive(&self, call: &CallContext, path: &str) -> Result<ByteStream> {
        let read = self.rest("read_archive").await?.files()?.read_archive(call, path).await;
        self.explained("read_archive", read).await
    }

    async fn write_archive(&self, call: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        let written =
            self.rest("write_archive").await?.files()?.write_archive(call, path, tar).await;
        self.explained("write_archive", written).await
    }

    async fn watch_files(
        &self,
        call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<WatchStream> {
        let watched =
            self.rest("watch_files").await?.files()?.watch_files(call, path, recursive).await;
        self.explained("watch_files", watched).await
    }
}

#[async_trait]
impl PackageOps for DatalayerInstance {
    async fn install_packages(&self, call: &CallContext, packages: InstallPackages) -> Result<()> {
        let installed =
            self.rest("install_packages").await?.packages()?.install_packages(call, packages).await;
        self.explained("install_packages", installed).await
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
        self.lease.alive(operation)?;
        let (source, key) = (&self.lease.source, format!("snapshot:{name}"));
        let _turns = Turns::of(&source.config, call, operation, [key]).await?;
        let api = source.api().await?;
        let all = api.snapshots(call, operation).await?;
        if all.iter().any(|snapshot| snapshot.name == name) {
            let message = format!("there is a snapshot {name:?} already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message));
        }
        let made = api.create_snapshot(call, self.lease.record().name(), name, description).await;
        let made = self.explained(operation, made).await?;
        let sandbox_id = self.lease.info().id;
        let notes = Notes::of_snapshots(&source.config);
        notes.write(&made.uid, &SnapshotNote { sandbox_id: sandbox_id.clone() });
        Ok(SnapshotInfo { sandbox_id, ..stored(&made, &notes) })
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(unsupported("restore_snapshot"))
    }
}
