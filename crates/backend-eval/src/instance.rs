//! One sandbox: a cell, its contexts and its commands.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use sandbox_agent::RunMode;
use sandbox_agent::box_io::{BoxFiles, BoxIo, Spawn, WorkerSpec};
use sandbox_agent::cell::{CellBox, CellFiles};
use sandbox_agent::commands::Commands;
use sandbox_agent::interpreter::{EndReason, RunRequest};
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Capabilities, CodeMode, Command, CommandInfo, Context,
    ContextSpec, CreateSpec, Error, ErrorKind, Event, EventStream, FailureKind, FileInfo,
    FindFiles, FoundFile, InstallPackages, Instance, IsolationInfo, Metrics, Result, RunCode,
    SandboxId, SandboxInfo, SandboxStatus, SnapshotInfo, StartCommand, Tags, Tool, TunnelInfo,
    Variant, WatchEvent, WriteOptions, resolve_directory, unix_now,
};
use serde_json::{Map, Value};

use crate::contexts::{Contexts, is_python, only_python};
use crate::expiry::{Expiry, InUse};
use crate::network::{Network, Told, told};
use crate::packages::Packages;
use crate::workshop::DEFAULT_LIFETIME;

/// How long `terminate` waits for what it killed. Longer takes only what hangs in the kernel, which
/// runs no code of the sandbox any more.
const END_BOUND: Duration = Duration::from_secs(2);

/// One sandbox.
#[derive(Debug)]
pub(crate) struct EvalInstance {
    pub(crate) id: SandboxId,
    pub(crate) capabilities: Capabilities,
    pub(crate) cell: Arc<CellBox>,
    pub(crate) contexts: Contexts,
    pub(crate) ended: Arc<EndReason>,
    pub(crate) expiry: Expiry,
    pub(crate) described: Mutex<Described>,
    pub(crate) base: WorkerSpec,
    pub(crate) network: Network,
    pub(crate) commands: Commands,
    pub(crate) packages: Packages,
}

/// What listings show of it.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) name: Option<String>,
    pub(crate) tags: Tags,
    pub(crate) created_at: f64,
    pub(crate) isolation: IsolationInfo,
    pub(crate) metadata: Map<String, Value>,
}

impl EvalInstance {
    pub(crate) fn alive(&self, operation: &'static str) -> Result<()> {
        self.ended.get().map_or(Ok(()), |reason| Err(ended(operation, &self.id, reason)))
    }

    fn unsupported(&self, operation: &'static str) -> Error {
        Error::unsupported(operation, format!("local-eval has no {operation}"))
            .with_context("variant", Variant::LocalEval.as_str())
    }

    async fn make_directory(&self, field: &'static str, path: &str) -> Result<()> {
        let spec = Spawn {
            argv: vec!["mkdir".into(), "-p".into(), "--".into(), path.into()],
            env: self.base.env.clone(),
            cwd: "/".into(),
            stdin: false,
            terminal: None,
        };
        let exit = self.cell.spawn(spec).await?.process.exit().await?;
        if exit.code == Some(0) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("cannot be made in the sandbox, got {path:?}")))
    }

    /// Makes the working directory and starts the default interpreter.
    pub(crate) async fn prepare(&self, make_working_dir: bool, lazy: bool) -> Result<()> {
        self.expiry.end_with_maker_of(self.cell.cell().pid());
        let _in_use = self.expiry.in_use();
        let prepared = self.prepare_parts(make_working_dir, lazy).await;
        // When its lifetime ended meanwhile, that is the reason, and not what broke then.
        prepared.map_err(|error| self.alive("create").err().unwrap_or(error))
    }

    async fn prepare_parts(&self, make_working_dir: bool, lazy: bool) -> Result<()> {
        if make_working_dir {
            self.make_directory("working_dir", &self.base.cwd).await?;
        }
        if !lazy {
            self.contexts.for_run(None).warm_up().await?;
        }
        Ok(())
    }

    /// Whether it has not ended.
    pub(crate) fn is_running(&self) -> bool {
        self.ended.get().is_none()
    }

    /// Its life begins now, also when it was made ahead.
    pub(crate) fn begin(&self, spec: &CreateSpec) {
        self.expiry.set_lifetime(spec.lifetime.unwrap_or(DEFAULT_LIFETIME));
        drop(self.expiry.in_use());
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        described.name.clone_from(&spec.name);
        described.tags.clone_from(&spec.tags);
        described.created_at = unix_now();
    }

    fn end(&self, kind: FailureKind) {
        self.ended.set(kind);
        self.cell.kill();
        self.network.close();
    }
}

/// The error of everything that is asked of a sandbox that has ended.
pub(crate) fn ended(operation: &'static str, id: &SandboxId, reason: FailureKind) -> Error {
    let message = match reason {
        FailureKind::Expired => "the sandbox has expired",
        _ => "the sandbox has been terminated",
    };
    Error::new(ErrorKind::Terminated, operation, message).with_context("sandbox_id", id.to_string())
}

/// A stream that keeps its sandbox from being idle.
struct Using<S> {
    inner: S,
    _in_use: InUse,
}

impl<S: Stream<Item = Event> + Unpin> Stream for Using<S> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Event>> {
        Pin::new(&mut self.inner).poll_next(cx)
    }
}

fn run_request(call: &CallContext, request: RunCode, network_hint: Option<String>) -> RunRequest {
    let (mode, filename, argv) = match request.mode {
        CodeMode::Cell => (RunMode::Cell, String::new(), Vec::new()),
        CodeMode::Script { filename, argv } => {
            // As `sys.argv` has it: the program's own name first, `-` when it came from nowhere.
            let own = if filename.is_empty() { "-" } else { &filename };
            let argv = std::iter::once(own.to_owned()).chain(argv).collect();
            (RunMode::Script, filename, argv)
        }
    };
    RunRequest {
        run_id: call.run_id.clone(),
        mode,
        code: request.code,
        filename,
        argv,
        env: request.env,
        cwd: request.cwd,
        timeout: request.timeout,
        cpu_time: request.cpu_time,
        stdin: request.stdin,
        network_hint,
    }
}

#[async_trait]
impl Instance for EvalInstance {
    fn info(&self) -> SandboxInfo {
        let described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        let status = match self.ended.get() {
            None => SandboxStatus::Running,
            Some(_) => SandboxStatus::Terminated,
        };
        SandboxInfo {
            id: self.id.to_string(),
            variant: Variant::LocalEval,
            status,
            created_at: described.created_at,
            end_at: Some(self.expiry.end_at()),
            name: described.name.clone(),
            tags: described.tags.clone(),
            resources: None,
            isolation: Some(described.isolation.clone()),
            metadata: described.metadata.clone(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        self.alive("run_code")?;
        if let Some(language) = request.language.as_deref().filter(|language| !is_python(language))
        {
            return Err(only_python(language));
        }
        if request.memory.is_some() {
            let message = "local-eval has no memory limit for a single run";
            return Err(Error::unsupported("run_code", message));
        }
        let in_use = self.expiry.in_use();
        let context = self.contexts.for_run(request.context.as_deref());
        let mut request = run_request(call, request, self.network.hint());
        request.cwd = request.cwd.map(|path| resolve_directory(&context.spec().cwd, &path));
        let mark = self.network.mark();
        match context.run(request).await {
            Ok(inner) => Ok(Box::pin(Using { inner: Told::new(inner, mark), _in_use: in_use })),
            Err(error) => Err(self.alive("run_code").err().unwrap_or(error)),
        }
    }

    async fn create_context(&self, _call: &CallContext, mut spec: ContextSpec) -> Result<Context> {
        self.alive("create_context")?;
        Contexts::check(&spec)?;
        if let Some(path) = &mut spec.cwd {
            *path = resolve_directory(&self.base.cwd, path);
            self.make_directory("cwd", path).await?;
        }
        self.contexts.create(spec)
    }

    async fn list_contexts(&self, _call: &CallContext) -> Result<Vec<Context>> {
        self.alive("list_contexts")?;
        Ok(self.contexts.list())
    }

    async fn restart_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        self.alive("restart_context")?;
        self.contexts.existing("restart_context", Some(id))?.restart(false).await;
        Ok(())
    }

    async fn delete_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        self.alive("delete_context")?;
        self.contexts.delete(id).await
    }

    async fn get_variable(
        &self,
        _call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        self.alive("get_variable")?;
        let _in_use = self.expiry.in_use();
        self.contexts.existing("get_variable", context)?.get_variable(name).await
    }

    async fn set_variables(
        &self,
        _call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.alive("set_variables")?;
        let _in_use = self.expiry.in_use();
        self.contexts.existing("set_variables", context)?.set_variables(values).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        let id = context.unwrap_or(crate::contexts::DEFAULT);
        self.contexts.find(id).is_some_and(|context| context.is_executing())
    }

    async fn interrupt(&self, _call: &CallContext, context: Option<&str>) -> Result<bool> {
        self.alive("interrupt")?;
        Ok(self.contexts.existing("interrupt", context)?.interrupt())
    }

    async fn reset(&self, _call: &CallContext) -> Result<()> {
        self.alive("reset")?;
        self.contexts.restart_all().await;
        self.commands.end_all().await
    }

    async fn start_command(&self, _call: &CallContext, request: StartCommand) -> Result<Command> {
        self.alive("start_command")?;
        let in_use = Box::new(self.expiry.in_use());
        let (env, directory) = (self.command_env(), &self.base.cwd);
        let mark = self.network.mark();
        let started = self.commands.start(env, directory, request, in_use).await;
        let started = started.map(|command| told(command, mark));
        started.map_err(|error| self.alive("start_command").err().unwrap_or(error))
    }

    async fn install_packages(&self, _: &CallContext, packages: InstallPackages) -> Result<()> {
        self.alive("install_packages")?;
        match packages {
            InstallPackages::Python(names) => self.install_python(names).await,
            InstallPackages::System(_) => Err(self.unsupported("install_system_packages").with_hint(
                "install them on this host, with apt-get or its like: a sandbox sees what is below /usr",
            )),
        }
    }

    async fn list_commands(&self, _call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.alive("list_commands")?;
        Ok(self.commands.list())
    }

    async fn connect_command(&self, _call: &CallContext, id: &str) -> Result<Command> {
        self.alive("connect_command")?;
        let command = self.commands.connect(id, Box::new(self.expiry.in_use()))?;
        Ok(told(command, self.network.mark()))
    }

    async fn set_tags(&self, _call: &CallContext, tags: Tags) -> Result<()> {
        self.alive("set_tags")?;
        self.described.lock().unwrap_or_else(PoisonError::into_inner).tags = tags;
        Ok(())
    }

    async fn set_lifetime(&self, _call: &CallContext, lifetime: Duration) -> Result<()> {
        self.alive("set_lifetime")?;
        self.expiry.set_lifetime(lifetime);
        Ok(())
    }

    async fn terminate(&self, _call: &CallContext) -> Result<()> {
        self.end(FailureKind::Terminated);
        // Everything has been killed; the kernel needs a moment until nothing runs any more.
        let _ = tokio::time::timeout(END_BOUND, self.cell.closed()).await;
        Ok(())
    }

    async fn kill(&self, _call: &CallContext) -> Result<()> {
        self.end(FailureKind::Terminated);
        Ok(())
    }

    // Not there yet: each is declared unsupported in the capabilities, and says so.

    async fn read_file(
        &self,
        _call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream> {
        let read = |files: CellFiles| async move { files.read(path, range).await };
        Ok(self.content("read_file", self.with_files("read_file", read).await?))
    }

    async fn write_file(
        &self,
        _call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        self.with_files(
            "write_file",
            |files| async move { files.write(path, content, options).await },
        )
        .await
    }

    async fn list_files(&self, _call: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        self.with_files("list_files", |files| async move { files.list(path).await }).await
    }

    async fn stat_file(&self, _call: &CallContext, path: &str) -> Result<FileInfo> {
        self.with_files("stat_file", |files| async move { files.stat(path).await }).await
    }

    async fn create_directory(&self, _: &CallContext, path: &str, parents: bool) -> Result<()> {
        self.with_files("create_directory", |files| async move {
            files.make_directory(path, parents).await
        })
        .await
    }

    async fn remove_file(&self, _: &CallContext, path: &str, recursive: bool) -> Result<()> {
        self.with_files("remove_file", |files| async move { files.remove(path, recursive).await })
            .await
    }

    async fn rename_file(&self, _call: &CallContext, from: &str, to: &str) -> Result<()> {
        self.with_files("rename_file", |files| async move { files.rename(from, to).await }).await
    }

    async fn copy_file(&self, _call: &CallContext, from: &str, to: &str) -> Result<()> {
        self.with_files("copy_file", |files| async move { files.copy(from, to).await }).await
    }

    async fn set_file_mode(&self, _call: &CallContext, path: &str, mode: u32) -> Result<()> {
        self.with_files("set_file_mode", |files| async move { files.set_mode(path, mode).await })
            .await
    }

    async fn find_files(&self, _call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.with_files("find_files", |files| async move { files.find(query).await }).await
    }

    async fn read_archive(&self, _call: &CallContext, path: &str) -> Result<ByteStream> {
        let pack = |files: CellFiles| async move { files.read_archive(path).await };
        Ok(self.content("read_archive", self.with_files("read_archive", pack).await?))
    }

    async fn write_archive(&self, _: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        self.with_files(
            "write_archive",
            |files| async move { files.write_archive(path, tar).await },
        )
        .await
    }

    async fn watch_files(
        &self,
        _call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>> {
        let watch = |files: CellFiles| async move { files.watch(path, recursive).await };
        Ok(self.changes(self.with_files("watch_files", watch).await?))
    }

    async fn register_tool(&self, _call: &CallContext, tool: Tool) -> Result<()> {
        self.alive("register_tool")?;
        self.contexts.tools.register(tool)
    }

    async fn expose_port(&self, _call: &CallContext, _port: u16) -> Result<TunnelInfo> {
        Err(self.unsupported("expose_port"))
    }

    async fn pause(&self, _call: &CallContext) -> Result<()> {
        Err(self.unsupported("pause"))
    }

    async fn resume(&self, _call: &CallContext) -> Result<()> {
        Err(self.unsupported("resume"))
    }

    async fn create_snapshot(
        &self,
        _call: &CallContext,
        _name: &str,
        _description: &str,
    ) -> Result<SnapshotInfo> {
        Err(self.unsupported("create_snapshot"))
    }

    async fn fork(&self, _call: &CallContext) -> Result<Arc<dyn Instance>> {
        Err(self.unsupported("fork"))
    }

    async fn metrics(&self, _call: &CallContext) -> Result<Metrics> {
        Err(self.unsupported("metrics"))
    }

    async fn logs(
        &self,
        _call: &CallContext,
        _follow: bool,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<String>> + Send>>> {
        Err(self.unsupported("logs"))
    }
}

impl Drop for EvalInstance {
    fn drop(&mut self) {
        self.end(FailureKind::Terminated);
    }
}
