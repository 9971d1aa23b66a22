//! One sandbox on the other side.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps,
    Context, ContextSpec, Error, ErrorKind, EventStream, FileInfo, FileOps, FindFiles, FoundFile,
    InstallPackages, Instance, Life, LogStream, Metrics, PackageOps, PortOps, Result, RunCode,
    SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps, StartCommand, Tags, Tool, TunnelInfo,
    WatchStream, WriteOptions,
};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::command::started;
use super::streams::{Elements, Events};
use super::{Client, Slot};
use crate::body::{body, broken};
use crate::frame::{Frame, Kind};
use crate::message::{json, parse};
use crate::wire::error::WireError;
use crate::wire::request::{Freight, Verb, WireCommand, WireRun};
use crate::wire::{self, Handed, State};

/// One sandbox on the other side.
#[derive(Debug)]
pub(super) struct RemoteInstance {
    client: Arc<Client>,
    /// The stream that made it.
    handle: u64,
    capabilities: Capabilities,
    /// Why facets are missing, by name.
    missing: BTreeMap<String, WireError>,
    first: State,
    /// What the server told since.
    told: Slot,
}

impl RemoteInstance {
    /// Asks for something that gives a sandbox.
    pub(super) async fn make(
        client: &Arc<Client>,
        operation: &'static str,
        call: &CallContext,
        on: u64,
        verb: Verb,
    ) -> Result<Self> {
        let pending = client.ask(operation, call, on, verb, Freight::default())?;
        let handle = pending.id();
        let told = client.known.expect(handle);
        let Handed { state, capabilities, missing } = pending.last().await?.value;
        let capabilities = wire::capabilities(&capabilities);
        Ok(Self { client: Arc::clone(client), handle, capabilities, missing, first: state, told })
    }

    /// Refuses a facet that the sandbox has not, as its backend does.
    fn facet(&self, name: &str) -> Result<()> {
        self.missing.get(name).map_or(Ok(()), |missing| Err(missing.clone().into()))
    }

    async fn value<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        call: &CallContext,
        verb: Verb,
    ) -> Result<T> {
        self.client.value(operation, call, self.handle, verb).await
    }

    fn state<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        let told = self.told.told.lock().unwrap_or_else(PoisonError::into_inner);
        look(told.as_ref().unwrap_or(&self.first))
    }

    async fn elements<T: DeserializeOwned + 'static>(
        &self,
        operation: &'static str,
        call: &CallContext,
        verb: Verb,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<T>> + Send>>> {
        let pending = self.client.ask(operation, call, self.handle, verb, Freight::default())?;
        let inlet = pending.first::<()>().await?.inlet;
        Ok(Box::pin(Elements::<T>::new(inlet, operation)))
    }

    async fn bytes(
        &self,
        operation: &'static str,
        call: &CallContext,
        verb: Verb,
    ) -> Result<ByteStream> {
        let pending = self.client.ask(operation, call, self.handle, verb, Freight::default())?;
        Ok(body(pending.first::<()>().await?.inlet))
    }
}

impl Instance for RemoteInstance {
    /// As far as the server has told. After the connection broke, a sandbox that had not ended is in status `Error`.
    fn info(&self) -> SandboxInfo {
        let info = self.state(|state| state.info.clone());
        SandboxInfo { status: self.status(), ..info }
    }

    fn status(&self) -> SandboxStatus {
        match self.state(|state| state.info.status) {
            SandboxStatus::Terminated => SandboxStatus::Terminated,
            _ if self.client.link.is_closed() => SandboxStatus::Error,
            told => told,
        }
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        self.facet("code")?;
        Ok(self)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        self.facet("commands")?;
        Ok(self)
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.facet("files")?;
        Ok(self)
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        self.facet("packages")?;
        Ok(self)
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        self.facet("snapshots")?;
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        self.facet("ports")?;
        Ok(self)
    }
}

#[async_trait]
impl Life for RemoteInstance {
    async fn reset(&self, call: &CallContext) -> Result<()> {
        self.value("reset", call, Verb::Reset).await
    }

    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()> {
        self.value("set_tags", call, Verb::SetTags { tags }).await
    }

    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()> {
        self.value("set_lifetime", call, Verb::SetLifetime { lifetime }).await
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        self.value("pause", call, Verb::Pause).await
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        self.value("resume", call, Verb::Resume).await
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        let copy = Self::make(&self.client, "fork", call, self.handle, Verb::Fork).await?;
        Ok(Arc::new(copy))
    }

    async fn metrics(&self, call: &CallContext) -> Result<Metrics> {
        self.value("metrics", call, Verb::Metrics).await
    }

    async fn logs(&self, call: &CallContext, follow: bool) -> Result<LogStream> {
        self.elements("logs", call, Verb::Logs { follow }).await
    }

    async fn terminate(&self, call: &CallContext) -> Result<()> {
        self.end("terminate", call, Verb::Terminate).await
    }

    async fn kill(&self, call: &CallContext) -> Result<()> {
        self.end("kill", call, Verb::Kill).await
    }
}

#[async_trait]
impl CodeOps for RemoteInstance {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let (run, freight) = WireRun::pack(request);
        let verb = Verb::RunCode(run);
        let pending = self.client.ask("run_code", call, self.handle, verb, freight)?;
        let inlet = pending.first::<()>().await?.inlet;
        Ok(Box::pin(Events::new(inlet, call.run_id.clone())))
    }

    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context> {
        self.value("create_context", call, Verb::CreateContext(spec.into())).await
    }

    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>> {
        self.value("list_contexts", call, Verb::ListContexts).await
    }

    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.value("restart_context", call, Verb::RestartContext { id: id.into() }).await
    }

    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.value("delete_context", call, Verb::DeleteContext { id: id.into() }).await
    }

    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        let verb = Verb::GetVariable { context: context.map(str::to_owned), name: name.into() };
        let pending =
            self.client.ask("get_variable", call, self.handle, verb, Freight::default())?;
        parse(&pending.last::<()>().await?.tail).map_err(|violation| broken(&violation))
    }

    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        let verb = Verb::SetVariables { context: context.map(str::to_owned) };
        let freight = Freight::tail(json(&values));
        let pending = self.client.ask("set_variables", call, self.handle, verb, freight)?;
        pending.last::<()>().await.map(drop)
    }

    /// As far as the server has told, which it does when code starts, when it ends, and otherwise within 25 ms, or 250 ms
    /// for what others do.
    fn is_executing(&self, context: Option<&str>) -> bool {
        let context = context.unwrap_or("default");
        let executing = self.state(|state| state.executing.iter().any(|id| id == context));
        executing && !self.client.link.is_closed()
    }

    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool> {
        let verb = Verb::Interrupt { context: context.map(str::to_owned) };
        self.value("interrupt", call, verb).await
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        let Tool { name, description, parameters, call: function } = tool;
        let verb = Verb::RegisterTool { name, description, parameters };
        let pending =
            self.client.ask("register_tool", call, self.handle, verb, Freight::default())?;
        // Known before the reply: code may call it at once.
        self.client.known.keep_tool(pending.id(), function);
        pending.last::<()>().await.map(drop)
    }
}

#[async_trait]
impl CommandOps for RemoteInstance {
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let background = request.background;
        let (start, freight) = WireCommand::pack(request);
        let verb = Verb::StartCommand(start);
        let pending = self.client.ask("start_command", call, self.handle, verb, freight)?;
        started(&self.client, pending, background).await
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        self.value("list_commands", call, Verb::ListCommands).await
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let verb = Verb::ConnectCommand { id: id.into() };
        let pending =
            self.client.ask("connect_command", call, self.handle, verb, Freight::default())?;
        started(&self.client, pending, true).await
    }
}

#[async_trait]
impl FileOps for RemoteInstance {
    async fn read_file(
        &self,
        call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream> {
        self.bytes("read_file", call, Verb::read_file(path, range)).await
    }

    async fn write_file(
        &self,
        call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let verb = Verb::WriteFile { path: path.into(), options: options.into() };
        self.client.send("write_file", call, self.handle, verb, content).await
    }

    async fn list_files(&self, call: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        self.value("list_files", call, Verb::ListFiles { path: path.into() }).await
    }

    async fn stat_file(&self, call: &CallContext, path: &str) -> Result<FileInfo> {
        self.value("stat_file", call, Verb::StatFile { path: path.into() }).await
    }

    async fn create_directory(&self, call: &CallContext, path: &str, parents: bool) -> Result<()> {
        let verb = Verb::CreateDirectory { path: path.into(), parents };
        self.value("create_directory", call, verb).await
    }

    async fn remove_file(&self, call: &CallContext, path: &str, recursive: bool) -> Result<()> {
        let verb = Verb::RemoveFile { path: path.into(), recursive };
        self.value("remove_file", call, verb).await
    }

    async fn rename_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let verb = Verb::RenameFile { from: from.into(), to: to.into() };
        self.value("rename_file", call, verb).await
    }

    async fn copy_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let verb = Verb::CopyFile { from: from.into(), to: to.into() };
        self.value("copy_file", call, verb).await
    }

    async fn set_file_mode(&self, call: &CallContext, path: &str, mode: u32) -> Result<()> {
        self.value("set_file_mode", call, Verb::SetFileMode { path: path.into(), mode }).await
    }

    async fn find_files(&self, call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.value("find_files", call, Verb::FindFiles(query.into())).await
    }

    async fn read_archive(&self, call: &CallContext, path: &str) -> Result<ByteStream> {
        self.bytes("read_archive", call, Verb::ReadArchive { path: path.into() }).await
    }

    async fn write_archive(&self, call: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        let verb = Verb::WriteArchive { path: path.into() };
        self.client.send("write_archive", call, self.handle, verb, tar).await
    }

    async fn watch_files(
        &self,
        call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<WatchStream> {
        let verb = Verb::WatchFiles { path: path.into(), recursive };
        self.elements("watch_files", call, verb).await
    }
}

#[async_trait]
impl PackageOps for RemoteInstance {
    async fn install_packages(&self, call: &CallContext, packages: InstallPackages) -> Result<()> {
        self.value("install_packages", call, Verb::install(packages)).await
    }
}

#[async_trait]
impl SnapshotOps for RemoteInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let verb = Verb::CreateSnapshot { name: name.into(), description: description.into() };
        self.value("create_snapshot", call, verb).await
    }

    async fn restore_snapshot(&self, call: &CallContext, name: &str) -> Result<SnapshotInfo> {
        let verb = Verb::RestoreSnapshot { name: name.into() };
        self.value("restore_snapshot", call, verb).await
    }
}

#[async_trait]
impl PortOps for RemoteInstance {
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo> {
        self.value("expose_port", call, Verb::ExposePort { port }).await
    }
}

impl RemoteInstance {
    async fn end(&self, operation: &'static str, call: &CallContext, verb: Verb) -> Result<()> {
        let ended: Result<()> = self.value(operation, call, verb).await;
        match ended {
            // What has ended stays so, whatever became of the connection.
            Err(error) if self.has_ended() && is_lost(&error) => Ok(()),
            ended => ended,
        }
    }

    fn has_ended(&self) -> bool {
        self.state(|state| state.info.status == SandboxStatus::Terminated)
    }
}

fn is_lost(error: &Error) -> bool {
    error.kind() == ErrorKind::ConnectionLost
}

impl Drop for RemoteInstance {
    fn drop(&mut self) {
        self.client.link.send(Frame::bare(Kind::Release, self.handle));
    }
}
