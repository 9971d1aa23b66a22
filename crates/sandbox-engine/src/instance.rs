//! One sandbox: its base, and interpreters in it. Every verb of a sandbox, for backends of every kind.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::host::{FileSystem, Links};
use crate::interpreter::{Contexts, DEFAULT_CONTEXT, RunRequest};
use async_trait::async_trait;
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps,
    Context, ContextSpec, CreateSpec, Error, EventStream, FailureKind, FileInfo, FileOps,
    FindFiles, FoundFile, InstallPackages, Instance, Life, LogStream, Metrics, PackageOps, PortOps,
    Result, RunCode, SandboxInfo, SandboxStatus, SingleUse, SnapshotInfo, SnapshotOps,
    StartCommand, Tags, Tool, TunnelInfo, WatchStream, WriteOptions, resolve_directory,
};
use serde_json::{Map, Value, json};

use crate::base::{KeepAliveStream, SandboxBase};
use crate::denial_report::DenialReportingStream;
use crate::pause::{PauseGuard, pause_contexts};
use crate::snapshots::{StoredSnapshot, load_variables};
use crate::system_packages;

/// The files of a sandbox.
type Files = Arc<dyn FileSystem>;

/// Hooks with which a backend changes verbs of a sandbox. Everything else is the same for all backends.
#[async_trait]
pub trait InstanceHooks: fmt::Debug + Sized + Send + Sync + 'static {
    /// Returns the hint how to get those packages of the system, where no sandbox installs them while it runs.
    fn system_packages_hint(names: &[String]) -> String;

    /// Installs packages of the system, whose names have been checked.
    ///
    /// # Errors
    /// `Unsupported` where only the packages of the host or the image can be used.
    async fn install_system_packages(
        instance: &StandardInstance<Self>,
        names: &[String],
    ) -> Result<()> {
        let error = instance.base.unsupported("install_system_packages");
        Err(error.with_hint(Self::system_packages_hint(names)))
    }

    /// Refuses a run with settings that its interpreters do not have.
    ///
    /// # Errors
    /// `Unsupported`, with the setting.
    fn check_run(&self, _place: &SandboxBase, _request: &RunCode) -> Result<()> {
        Ok(())
    }

    /// Refuses a context with settings that its interpreters do not have.
    ///
    /// # Errors
    /// `Unsupported`, with the setting.
    fn check_context(&self, _place: &SandboxBase, _spec: &ContextSpec) -> Result<()> {
        Ok(())
    }

    /// Takes a snapshot of a sandbox that has not ended.
    ///
    /// # Errors
    /// `Unsupported` where there are none.
    async fn create_snapshot(
        instance: &StandardInstance<Self>,
        _name: &str,
        _description: &str,
    ) -> Result<SnapshotInfo> {
        Err(instance.base.unsupported("create_snapshot"))
    }

    /// Restores a snapshot in a sandbox that has not ended.
    ///
    /// # Errors
    /// `Unsupported` where there are none.
    async fn restore_snapshot(
        instance: &StandardInstance<Self>,
        _name: &str,
    ) -> Result<SnapshotInfo> {
        Err(instance.base.unsupported("restore_snapshot"))
    }

    /// Makes a port of a sandbox that has not ended reachable.
    ///
    /// # Errors
    /// `Unsupported` where none can be.
    async fn expose_port(instance: &StandardInstance<Self>, _port: u16) -> Result<TunnelInfo> {
        Err(instance.base.unsupported("expose_port"))
    }

    /// Pauses everything that runs in a sandbox. Verbs are refused until the sandbox is resumed.
    ///
    /// # Errors
    /// The reason why the sandbox could not be paused; it continues to run then.
    async fn pause(instance: &StandardInstance<Self>) -> Result<()> {
        Err(instance.base.unsupported("pause"))
    }

    /// Resumes a sandbox that is paused. A running one is no error.
    ///
    /// # Errors
    /// The reason why the sandbox could not be resumed.
    async fn resume(instance: &StandardInstance<Self>) -> Result<()> {
        Err(instance.base.unsupported("resume"))
    }

    /// Measures what a sandbox that has not ended uses.
    ///
    /// # Errors
    /// `Unsupported` where that cannot be measured.
    async fn metrics(instance: &StandardInstance<Self>) -> Result<Metrics> {
        Err(instance.base.unsupported("metrics"))
    }
}

/// One sandbox.
#[derive(Debug)]
pub struct StandardInstance<K> {
    /// Declared before the contexts: processes of the sandbox end before the contexts are dropped.
    pub base: SandboxBase,
    /// The interpreters.
    pub contexts: Contexts,
    /// The hooks of its backend.
    pub kind: K,
}

impl<K: InstanceHooks> StandardInstance<K> {
    /// Uploads the files of a create, makes the working directory, and starts the default interpreter unless `lazy`.
    ///
    /// # Errors
    /// The first failure; `Terminated` when the lifetime ended meanwhile.
    pub async fn prepare(
        &self,
        files: impl Future<Output = Result<()>> + Send,
        make_working_dir: bool,
        lazy: bool,
    ) -> Result<()> {
        let _in_use = self.base.expiry.in_use();
        let prepared = async {
            files.await?;
            if make_working_dir {
                self.base.make_directory("working_dir", &self.base.cwd).await?;
            }
            if lazy { Ok(()) } else { self.contexts.for_run(None).warm_up().await }
        };
        // When the lifetime ended meanwhile, that is the reason, and not the failure that followed.
        prepared.await.map_err(|error| self.base.ensure_running("create").err().unwrap_or(error))
    }

    /// Prepares the sandbox from the files and variables of a snapshot. `python` is the version of its interpreter.
    ///
    /// # Errors
    /// As [`StandardInstance::prepare`]; `InvalidArgument` for a snapshot that cannot be used here.
    pub async fn prepare_from(
        &self,
        snapshot: Option<&StoredSnapshot>,
        python: Option<&str>,
        spec: &CreateSpec,
        lazy: bool,
    ) -> Result<()> {
        let files = async {
            match snapshot {
                Some(stored) => self.base.load("create", stored, python).await,
                None => Ok(()),
            }
        };
        self.prepare(files, spec.working_dir.is_some(), lazy).await?;
        let Some(stored) = snapshot else { return Ok(()) };
        let StoredSnapshot { info, .. } = stored;
        self.base.describe("snapshot", json!({"id": info.id, "name": info.name}));
        // A sandbox for commands only needs no interpreter.
        match spec.single_use {
            Some(SingleUse::Commands) => Ok(()),
            _ => load_variables(&self.contexts, stored).await,
        }
    }

    /// Starts the lifetime of the sandbox, which may have been made ahead.
    pub fn begin(&self, spec: &CreateSpec) {
        self.base.begin(spec);
    }

    fn check_run(&self, request: &RunCode) -> Result<()> {
        if request.memory.is_some() && !self.base.capabilities.limit_run_memory {
            let variant = self.base.id.variant();
            let message = format!("{variant} has no memory limit for a single run");
            let hint = "limit the memory of the sandbox: an interpreter keeps between runs what it has, so that a limit \
                        of one run would be one of all before it";
            return Err(Error::unsupported("run_code", message).with_hint(hint));
        }
        let capabilities = &self.base.capabilities;
        if request.cpu_time.is_some() && !capabilities.limit_run_cpu_time {
            return Err(self.base.unsupported("limit of CPU time for a single run"));
        }
        if request.context.as_deref().is_some_and(|id| id != DEFAULT_CONTEXT)
            && !capabilities.contexts
        {
            return Err(self.base.unsupported("context but `default`"));
        }
        self.kind.check_run(&self.base, request)
    }

    /// Returns the base of a sandbox that can be paused or resumed.
    fn can_pause(&self, operation: &'static str) -> Result<&SandboxBase> {
        self.base.ensure_not_ended(operation)?;
        let can = self.base.capabilities.pause;
        if can { Ok(&self.base) } else { Err(self.base.unsupported(operation)) }
    }

    /// Refuses an operation whose capability is not declared.
    fn declared(&self, declared: bool, operation: &'static str) -> Result<()> {
        if declared { Ok(()) } else { Err(self.base.unsupported(operation)) }
    }

    /// Refuses an operation of a sandbox that has ended, or whose capability is not declared.
    fn needs(&self, declared: bool, operation: &'static str) -> Result<()> {
        self.base.ensure_running(operation)?;
        self.declared(declared, operation)
    }
}

impl<K: InstanceHooks> Instance for StandardInstance<K> {
    fn info(&self) -> SandboxInfo {
        self.base.info()
    }

    fn status(&self) -> SandboxStatus {
        self.base.status()
    }

    fn capabilities(&self) -> Capabilities {
        self.base.capabilities
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        self.declared(self.base.capabilities.run_code, "run_code")?;
        Ok(self)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        self.declared(self.base.capabilities.commands, "start_command")?;
        Ok(self)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.declared(self.base.capabilities.files, "files")?;
        Ok(self)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        let Capabilities { install_python, install_system, .. } = self.base.capabilities;
        self.declared(install_python || install_system, "install_packages")?;
        Ok(self)
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        let Capabilities { snapshot, restore_snapshot, .. } = self.base.capabilities;
        self.declared(snapshot || restore_snapshot, "create_snapshot")?;
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        self.declared(self.base.capabilities.expose_port, "expose_port")?;
        Ok(self)
    }
}

#[async_trait]
impl<K: InstanceHooks> Life for StandardInstance<K> {
    async fn reset(&self, _call: &CallContext) -> Result<()> {
        self.needs(self.base.capabilities.restart, "reset")?;
        self.contexts.restart_all().await;
        self.base.commands.end_all().await
    }

    async fn set_tags(&self, _call: &CallContext, tags: Tags) -> Result<()> {
        self.base.ensure_not_ended("set_tags")?;
        self.base.set_tags(tags);
        Ok(())
    }

    async fn set_lifetime(&self, _call: &CallContext, lifetime: Duration) -> Result<()> {
        self.base.ensure_not_ended("set_lifetime")?;
        self.base.expiry.set_lifetime(lifetime);
        Ok(())
    }

    async fn terminate(&self, _call: &CallContext) -> Result<()> {
        // Everything is killed; the kernel needs a moment until nothing runs any more.
        self.base.terminate().await;
        Ok(())
    }

    async fn kill(&self, _call: &CallContext) -> Result<()> {
        self.base.end(FailureKind::Terminated);
        Ok(())
    }

    async fn metrics(&self, _call: &CallContext) -> Result<Metrics> {
        self.needs(self.base.capabilities.metrics, "metrics")?;
        K::metrics(self).await
    }

    async fn pause(&self, _call: &CallContext) -> Result<()> {
        let base = self.can_pause("pause")?;
        let _turn = base.pause.turn.lock().await;
        if base.pause.is_paused() {
            return Ok(());
        }
        let contexts = pause_contexts(&self.contexts, "pause").await?;
        base.pause.set(Some(PauseGuard { _contexts: contexts, _in_use: base.expiry.in_use() }));
        // A caller that is cancelled here may have paused the sandbox.
        let paused = K::pause(self).await;
        if paused.is_err() {
            base.pause.set(None);
        }
        paused.map_err(|error| base.ensure_not_ended("pause").err().unwrap_or(error))
    }

    async fn resume(&self, _call: &CallContext) -> Result<()> {
        let base = self.can_pause("resume")?;
        let _turn = base.pause.turn.lock().await;
        if base.pause.is_paused() {
            let resumed = K::resume(self).await;
            resumed.map_err(|error| base.ensure_not_ended("resume").err().unwrap_or(error))?;
            base.pause.set(None);
        }
        Ok(())
    }

    // No backend of this crate has it: the capabilities declare it unsupported.

    async fn fork(&self, _call: &CallContext) -> Result<Arc<dyn Instance>> {
        Err(self.base.unsupported("fork"))
    }

    async fn logs(&self, _call: &CallContext, _follow: bool) -> Result<LogStream> {
        Err(self.base.unsupported("logs"))
    }
}

#[async_trait]
impl<K: InstanceHooks> CodeOps for StandardInstance<K> {
    async fn run_code(&self, call: &CallContext, mut request: RunCode) -> Result<EventStream> {
        self.base.ensure_running("run_code")?;
        self.contexts.check_language("run_code", request.language.as_deref())?;
        self.check_run(&request)?;
        let in_use = self.base.expiry.in_use();
        request.output_limit = self.base.output_limit(request.output_limit);
        let context = self.contexts.for_run(request.context.as_deref());
        let mut request = RunRequest::new(call, request, &context.spec().cwd);
        request.network_hint = self.base.network.hint();
        request.hidden_paths.clone_from(&self.base.hidden_paths);
        let denial_reporter = self.base.network.denial_reporter_for_code();
        match context.run(request).await {
            Ok(inner) => Ok(Box::pin(KeepAliveStream::new(
                DenialReportingStream::new(inner, denial_reporter),
                in_use,
            ))),
            Err(error) => Err(self.base.ensure_running("run_code").err().unwrap_or(error)),
        }
    }

    async fn create_context(&self, _call: &CallContext, mut spec: ContextSpec) -> Result<Context> {
        self.needs(self.base.capabilities.contexts, "create_context")?;
        self.contexts.check(&spec)?;
        self.kind.check_context(&self.base, &spec)?;
        if let Some(path) = &mut spec.cwd {
            *path = resolve_directory(&self.base.cwd, path);
            // Without commands the interpreter makes the directory when it starts.
            if self.base.capabilities.commands {
                self.base.make_directory("cwd", path).await?;
            }
        }
        self.contexts.create(spec)
    }

    async fn list_contexts(&self, _call: &CallContext) -> Result<Vec<Context>> {
        // A sandbox that runs no code has not even the default context.
        self.needs(self.base.capabilities.run_code, "list_contexts")?;
        Ok(self.contexts.list())
    }

    async fn restart_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        self.needs(self.base.capabilities.restart, "restart_context")?;
        self.contexts.existing("restart_context", Some(id))?.restart(false).await;
        Ok(())
    }

    async fn delete_context(&self, _call: &CallContext, id: &str) -> Result<()> {
        self.needs(self.base.capabilities.contexts, "delete_context")?;
        self.contexts.delete(id).await
    }

    async fn get_variable(
        &self,
        _call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        self.needs(self.base.capabilities.variables, "get_variable")?;
        let _in_use = self.base.expiry.in_use();
        self.contexts.existing("get_variable", context)?.get_variable(name).await
    }

    async fn set_variables(
        &self,
        _call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.needs(self.base.capabilities.variables, "set_variables")?;
        let _in_use = self.base.expiry.in_use();
        self.contexts.existing("set_variables", context)?.set_variables(values).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        let id = context.unwrap_or(DEFAULT_CONTEXT);
        self.contexts.find(id).is_some_and(|context| context.is_executing())
    }

    async fn interrupt(&self, _call: &CallContext, context: Option<&str>) -> Result<bool> {
        self.needs(self.base.capabilities.interrupt, "interrupt")?;
        Ok(self.contexts.existing("interrupt", context)?.interrupt())
    }

    async fn register_tool(&self, _call: &CallContext, tool: Tool) -> Result<()> {
        self.needs(self.base.capabilities.tools, "register_tool")?;
        self.contexts.tools.register(tool)
    }
}

#[async_trait]
impl<K: InstanceHooks> CommandOps for StandardInstance<K> {
    async fn start_command(&self, _call: &CallContext, request: StartCommand) -> Result<Command> {
        let capabilities = &self.base.capabilities;
        self.needs(capabilities.commands, "start_command")?;
        if request.cpu_time.is_some() && !capabilities.limit_command_cpu_time {
            return Err(self.base.unsupported("limit of CPU time for a single command"));
        }
        if request.as_root && !capabilities.command_root {
            return Err(self.base.unsupported("command as root"));
        }
        self.base.start_command(request).await
    }

    async fn list_commands(&self, _call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.needs(self.base.capabilities.commands, "list_commands")?;
        Ok(self.base.commands.list())
    }

    async fn connect_command(&self, _call: &CallContext, id: &str) -> Result<Command> {
        self.needs(self.base.capabilities.commands, "connect_command")?;
        self.base.connect_command(id)
    }
}

#[async_trait]
impl<K: InstanceHooks> FileOps for StandardInstance<K> {
    async fn read_file(
        &self,
        _call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream> {
        let read = |files: Files| async move { files.read(path, range).await };
        Ok(self.base.content("read_file", self.base.with_files("read_file", read).await?))
    }

    async fn write_file(
        &self,
        _call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        if !options.attributes.is_empty() {
            self.needs(self.base.capabilities.file_attributes, "write_file")?;
        }
        self.base
            .with_files(
                "write_file",
                |files| async move { files.write(path, content, options).await },
            )
            .await
    }

    async fn list_files(&self, _call: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        self.base.with_files("list_files", |files| async move { files.list(path).await }).await
    }

    async fn stat_file(&self, _call: &CallContext, path: &str) -> Result<FileInfo> {
        self.base.with_files("stat_file", |files| async move { files.stat(path).await }).await
    }

    async fn create_directory(&self, _: &CallContext, path: &str, parents: bool) -> Result<()> {
        self.base
            .with_files("create_directory", |files| async move {
                files.make_directory(path, parents).await
            })
            .await
    }

    async fn remove_file(&self, _: &CallContext, path: &str, recursive: bool) -> Result<()> {
        self.base
            .with_files("remove_file", |files| async move { files.remove(path, recursive).await })
            .await
    }

    async fn rename_file(&self, _call: &CallContext, from: &str, to: &str) -> Result<()> {
        self.base
            .with_files("rename_file", |files| async move { files.rename(from, to).await })
            .await
    }

    async fn copy_file(&self, _call: &CallContext, from: &str, to: &str) -> Result<()> {
        self.base.with_files("copy_file", |files| async move { files.copy(from, to).await }).await
    }

    async fn set_file_mode(&self, _call: &CallContext, path: &str, mode: u32) -> Result<()> {
        self.base
            .with_files("set_file_mode", |files| async move { files.set_mode(path, mode).await })
            .await
    }

    async fn find_files(&self, _call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.base.with_files("find_files", |files| async move { files.find(query).await }).await
    }

    async fn read_archive(&self, _call: &CallContext, path: &str) -> Result<ByteStream> {
        let pack = |files: Files| async move { files.read_archive(path).await };
        Ok(self.base.content("read_archive", self.base.with_files("read_archive", pack).await?))
    }

    async fn write_archive(&self, _: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        self.base
            .with_files("write_archive", |files| async move {
                files.write_archive(path, tar, Links::Inside).await
            })
            .await
    }

    async fn watch_files(
        &self,
        _call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<WatchStream> {
        let watch = |files: Files| async move { files.watch(path, recursive).await };
        Ok(self.base.changes(self.base.with_files("watch_files", watch).await?))
    }
}

#[async_trait]
impl<K: InstanceHooks> PackageOps for StandardInstance<K> {
    async fn install_packages(&self, _: &CallContext, packages: InstallPackages) -> Result<()> {
        let upgrade = matches!(packages, InstallPackages::Upgrade(_));
        match packages {
            InstallPackages::Python(names) | InstallPackages::Upgrade(names) => {
                self.needs(self.base.capabilities.install_python, "install_packages")?;
                self.base.install_python(names, upgrade).await
            }
            InstallPackages::System(names) => {
                self.base.ensure_running("install_packages")?;
                let names = system_packages::checked(names)?;
                if names.is_empty() {
                    return Ok(());
                }
                let _in_use = self.base.expiry.in_use();
                K::install_system_packages(self, &names).await
            }
        }
    }
}

#[async_trait]
impl<K: InstanceHooks> SnapshotOps for StandardInstance<K> {
    async fn create_snapshot(
        &self,
        _call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let _turn = self.base.pause.turn.lock().await;
        self.base.ensure_running("create_snapshot")?;
        K::create_snapshot(self, name, description).await
    }

    async fn restore_snapshot(&self, _call: &CallContext, name: &str) -> Result<SnapshotInfo> {
        let _turn = self.base.pause.turn.lock().await;
        self.base.ensure_running("restore_snapshot")?;
        K::restore_snapshot(self, name).await
    }
}

#[async_trait]
impl<K: InstanceHooks> PortOps for StandardInstance<K> {
    async fn expose_port(&self, _call: &CallContext, port: u16) -> Result<TunnelInfo> {
        self.needs(self.base.capabilities.expose_port, "expose_port")?;
        K::expose_port(self, port).await
    }
}
