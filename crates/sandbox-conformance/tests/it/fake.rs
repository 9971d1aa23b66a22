//! A backend that runs nothing. It declares what a test wants, and may lie about one verb.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream;
use sandbox_core::*;
use serde_json::{Map, Value};

/// What the fake says and does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Behaviour {
    pub(crate) capabilities: Capabilities,
    /// Answers `set_tags` although it is not declared.
    pub(crate) lies_about_tags: bool,
    /// Answers `metrics` with another error than `Unsupported`.
    pub(crate) fails_at_metrics: bool,
    /// Runs are started and nothing is ever heard of them.
    pub(crate) runs_are_silent: bool,
    /// Takes every command, as one that is older than a limit does, and finds no such program.
    pub(crate) takes_commands: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Fake(pub(crate) Behaviour);

fn no<T>(verb: &'static str) -> Result<T> {
    Err(Error::unsupported(verb, format!("{verb} is not supported")))
}

#[async_trait]
impl Backend for Fake {
    fn variant(&self) -> Variant {
        Variant::E2B
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    async fn create(&self, _: &CallContext, _: CreateSpec) -> Result<Arc<dyn Instance>> {
        Ok(Arc::new(*self))
    }

    async fn attach(&self, _: &CallContext, _: &SandboxId) -> Result<Arc<dyn Instance>> {
        no("attach")
    }

    async fn list(&self, _: &CallContext, _: ListQuery) -> Result<Page<SandboxInfo>> {
        Ok(Page::last(Vec::new()))
    }

    async fn environments(&self, _: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        Ok(Vec::new())
    }

    async fn health(&self, _: &CallContext) -> Result<Health> {
        Ok(Health { usable: true, detail: "a fake".into(), ..Health::default() })
    }

    async fn list_snapshots(&self, _: &CallContext) -> Result<Vec<SnapshotInfo>> {
        no("list_snapshots")
    }

    async fn delete_snapshot(&self, _: &CallContext, _: &str) -> Result<()> {
        no("delete_snapshot")
    }
}

impl Instance for Fake {
    fn info(&self) -> SandboxInfo {
        SandboxInfo::new(&"e2b/fake".parse().expect("it is an id"))
    }

    fn status(&self) -> SandboxStatus {
        SandboxStatus::Running
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        if self.0.capabilities.run_code { Ok(self) } else { no("run_code") }
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        if self.0.capabilities.commands { Ok(self) } else { no("start_command") }
    }

    fn files(&self) -> Result<&dyn FileOps> {
        if self.0.capabilities.files { Ok(self) } else { no("files") }
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        let Capabilities { install_python, install_system, .. } = self.0.capabilities;
        if install_python || install_system { Ok(self) } else { no("install_packages") }
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        let Capabilities { snapshot, restore_snapshot, .. } = self.0.capabilities;
        if snapshot || restore_snapshot { Ok(self) } else { no("create_snapshot") }
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        if self.0.capabilities.expose_port { Ok(self) } else { no("expose_port") }
    }
}

#[async_trait]
impl Life for Fake {
    async fn reset(&self, _: &CallContext) -> Result<()> {
        no("reset")
    }

    async fn set_tags(&self, _: &CallContext, _: Tags) -> Result<()> {
        if self.0.lies_about_tags { Ok(()) } else { no("set_tags") }
    }

    async fn set_lifetime(&self, _: &CallContext, _: Duration) -> Result<()> {
        no("set_lifetime")
    }

    async fn pause(&self, _: &CallContext) -> Result<()> {
        no("pause")
    }

    async fn resume(&self, _: &CallContext) -> Result<()> {
        no("resume")
    }

    async fn fork(&self, _: &CallContext) -> Result<Arc<dyn Instance>> {
        no("fork")
    }

    async fn metrics(&self, _: &CallContext) -> Result<Metrics> {
        if self.0.fails_at_metrics {
            return Err(Error::new(ErrorKind::Unavailable, "metrics", "not now"));
        }
        no("metrics")
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        no("logs")
    }

    async fn terminate(&self, _: &CallContext) -> Result<()> {
        Ok(())
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        Ok(())
    }
}

#[async_trait]
impl CodeOps for Fake {
    async fn run_code(&self, _: &CallContext, _: RunCode) -> Result<EventStream> {
        if self.0.runs_are_silent { Ok(Box::pin(stream::empty())) } else { no("run_code") }
    }

    async fn create_context(&self, _: &CallContext, _: ContextSpec) -> Result<Context> {
        no("create_context")
    }

    async fn list_contexts(&self, _: &CallContext) -> Result<Vec<Context>> {
        no("list_contexts")
    }

    async fn restart_context(&self, _: &CallContext, _: &str) -> Result<()> {
        no("restart_context")
    }

    async fn delete_context(&self, _: &CallContext, _: &str) -> Result<()> {
        no("delete_context")
    }

    async fn get_variable(&self, _: &CallContext, _: Option<&str>, _: &str) -> Result<Value> {
        no("get_variable")
    }

    async fn set_variables(
        &self,
        _: &CallContext,
        _: Option<&str>,
        _: Map<String, Value>,
    ) -> Result<()> {
        no("set_variables")
    }

    fn is_executing(&self, _: Option<&str>) -> bool {
        false
    }

    async fn interrupt(&self, _: &CallContext, _: Option<&str>) -> Result<bool> {
        no("interrupt")
    }

    async fn register_tool(&self, _: &CallContext, _: Tool) -> Result<()> {
        no("register_tool")
    }
}

#[async_trait]
impl CommandOps for Fake {
    async fn start_command(&self, _: &CallContext, _: StartCommand) -> Result<Command> {
        let taken = Error::new(ErrorKind::NotFound, "start_command", "no such program");
        if self.0.takes_commands { Err(taken) } else { no("start_command") }
    }

    async fn list_commands(&self, _: &CallContext) -> Result<Vec<CommandInfo>> {
        no("list_commands")
    }

    async fn connect_command(&self, _: &CallContext, _: &str) -> Result<Command> {
        no("connect_command")
    }
}

#[async_trait]
impl FileOps for Fake {
    async fn read_file(&self, _: &CallContext, _: &str, _: ByteRange) -> Result<ByteStream> {
        no("read_file")
    }

    async fn write_file(
        &self,
        _: &CallContext,
        _: &str,
        _: ByteStream,
        _: WriteOptions,
    ) -> Result<u64> {
        no("write_file")
    }

    async fn list_files(&self, _: &CallContext, _: &str) -> Result<Vec<FileInfo>> {
        no("list_files")
    }

    async fn stat_file(&self, _: &CallContext, _: &str) -> Result<FileInfo> {
        no("stat_file")
    }

    async fn create_directory(&self, _: &CallContext, _: &str, _: bool) -> Result<()> {
        no("create_directory")
    }

    async fn remove_file(&self, _: &CallContext, _: &str, _: bool) -> Result<()> {
        no("remove_file")
    }

    async fn rename_file(&self, _: &CallContext, _: &str, _: &str) -> Result<()> {
        no("rename_file")
    }

    async fn copy_file(&self, _: &CallContext, _: &str, _: &str) -> Result<()> {
        no("copy_file")
    }

    async fn set_file_mode(&self, _: &CallContext, _: &str, _: u32) -> Result<()> {
        no("set_file_mode")
    }

    async fn find_files(&self, _: &CallContext, _: FindFiles) -> Result<Vec<FoundFile>> {
        no("find_files")
    }

    async fn read_archive(&self, _: &CallContext, _: &str) -> Result<ByteStream> {
        no("read_archive")
    }

    async fn write_archive(&self, _: &CallContext, _: &str, _: ByteStream) -> Result<()> {
        no("write_archive")
    }

    async fn watch_files(&self, _: &CallContext, _: &str, _: bool) -> Result<WatchStream> {
        no("watch_files")
    }
}

#[async_trait]
impl PackageOps for Fake {
    async fn install_packages(&self, _: &CallContext, _: InstallPackages) -> Result<()> {
        no("install_packages")
    }
}

#[async_trait]
impl SnapshotOps for Fake {
    async fn create_snapshot(&self, _: &CallContext, _: &str, _: &str) -> Result<SnapshotInfo> {
        no("create_snapshot")
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        no("restore_snapshot")
    }
}

#[async_trait]
impl PortOps for Fake {
    async fn expose_port(&self, _: &CallContext, _: u16) -> Result<TunnelInfo> {
        no("expose_port")
    }
}
