//! One sandbox: every verb.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use sandbox_cloud::{CreateLocks, Remote as _, RemoteLifetime, check_lifetime};
use sandbox_core::{
    ByteRange, ByteStream, CallContext, Capabilities, CodeOps, Command, CommandInfo, CommandOps,
    Context, ContextSpec, Error, ErrorKind, EventStream, FileInfo, FileOps, FindFiles, FoundFile,
    InstallPackages, Instance, Life, LogStream, MAX_DURATION, Metrics, PackageOps, PortOps, Result,
    RunCode, SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps, StartCommand, Tags, Tool,
    TunnelInfo, WatchStream, WriteOptions, resolve_directory, unix_now,
};
use sandbox_engine::host::{FileSystem as _, Links};
use serde_json::{Map, Value};
use tokio::sync::OnceCell;

use crate::agent::FileAgent;
use crate::awake::check_awake;
use crate::capabilities::{commands_only, with_agent, with_interpreter};
use crate::code::{CodeContexts, Interpreter};
use crate::code_agent::CodeAgent;
use crate::envd::{E2bFiles, Envd, EnvdCommands};
use crate::error::{no_code, unsupported};
use crate::records::{self, SnapshotRecord};
use crate::remote::{self, OWNED_EXPIRY, RemoteSandbox, SandboxHandle};
use crate::wire::{Described, LogLine};
use crate::{describe, labels, system};

/// Interval of requests for new log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Most log lines that one request gives. A full answer may have successors at once.
const LOG_PAGE: usize = 1000;

/// One sandbox. Its verbs do not look whether it has ended or is paused: [`open`] does that for all of them.
#[derive(Debug)]
pub(crate) struct E2bInstance {
    handle: Arc<SandboxHandle>,
    envd: Envd,
    commands: EnvdCommands,
    /// What runs code there, as far as that is known.
    runner: Mutex<Runner>,
    parts: OnceCell<Parts>,
}

/// What runs code in a sandbox: its template decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    /// The provider's code interpreter.
    Interpreter,
    /// Our agent, which needs Python.
    Agent,
    /// Nothing.
    Nothing,
}

/// What depends on the working directory.
#[derive(Debug)]
struct Parts {
    cwd: String,
    files: E2bFiles,
    code: Code,
}

/// The code of a sandbox.
#[derive(Debug)]
enum Code {
    Interpreter(CodeContexts),
    /// The agent, once it was used, and the environment of programs.
    Agent(OnceLock<Arc<CodeAgent>>, BTreeMap<String, String>),
    Nothing,
}

impl E2bInstance {
    pub(crate) fn new(handle: Arc<SandboxHandle>) -> Self {
        let envd = Envd::new(Arc::clone(&handle));
        let commands = EnvdCommands::new(envd.clone());
        let (runner, parts) = (Mutex::new(Runner::Interpreter), OnceCell::new());
        Self { handle, envd, commands, runner, parts }
    }

    fn runner(&self) -> Runner {
        *self.runner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_runner(&self, runner: Runner) {
        *self.runner.lock().unwrap_or_else(PoisonError::into_inner) = runner;
    }

    /// Waits until a sandbox that was made before can be used.
    ///
    /// # Errors
    /// What kept the sandbox from answering.
    pub(crate) async fn prepare(&self) -> Result<()> {
        self.parts().await.map(drop)
    }

    /// Makes the working directory of a new sandbox, in which its code starts, and finds out what runs code there. `described`
    /// is done once the service has said what the sandbox is. With the code interpreter of its template and no directory of its
    /// own, a sandbox waits for neither: the first verb that needs more than a process looks for the rest.
    ///
    /// # Errors
    /// `InvalidArgument` for a directory that cannot be made; what kept the sandbox from answering.
    pub(crate) async fn prepare_new(&self, described: impl Future<Output = ()>) -> Result<()> {
        if self.wanted_directory().is_none() && has_interpreter(&self.handle.described()) {
            return Ok(());
        }
        let parts = self.parts.get_or_try_init(|| self.assemble(described)).await?;
        if let (Some(_), Code::Interpreter(code)) = (self.wanted_directory(), &parts.code) {
            code.change_directory(&parts.cwd).await?;
        }
        Ok(())
    }

    fn wanted_directory(&self) -> Option<String> {
        labels::read(self.handle.described().metadata.as_ref()).directory
    }

    async fn parts(&self) -> Result<&Parts> {
        self.parts.get_or_try_init(|| self.assemble(std::future::ready(()))).await
    }

    /// `described` is done once the service has said what the sandbox is.
    async fn assemble(&self, described: impl Future<Output = ()>) -> Result<Parts> {
        let wanted = self.wanted_directory();
        let limit = self.handle.clients.config.ready_timeout();
        let interpreter = Interpreter::new(Arc::clone(&self.handle));
        let has_code = async {
            described.await;
            interpreter.is_there(self.interpreter_limit(&self.handle.described()), limit).await
        };
        let (cwd, has_code) = tokio::try_join!(
            system::working_directory(&self.envd, wanted.as_deref(), limit),
            has_code,
        )?;
        let (runner, code) = if has_code {
            (Runner::Interpreter, Code::Interpreter(CodeContexts::new(interpreter, &cwd)))
        } else {
            match system::python_environment(&self.envd).await? {
                Some(environment) => (Runner::Agent, Code::Agent(OnceLock::new(), environment)),
                None => (Runner::Nothing, Code::Nothing),
            }
        };
        self.set_runner(runner);
        let agent = Arc::new(FileAgent::new(self.envd.clone()));
        let files = E2bFiles::new(self.envd.clone(), agent, &cwd);
        Ok(Parts { cwd, files, code })
    }

    /// Returns the time for a code interpreter to start: none in a template that is not known to have one.
    fn interpreter_limit(&self, described: &Described) -> Duration {
        let limit = self.handle.clients.config.ready_timeout();
        if has_interpreter(described) { limit } else { Duration::ZERO }
    }

    /// Returns the directory that the directory of a command is relative to. Without one of its own, a command starts where
    /// processes of the sandbox do, which need not be known.
    async fn directory_for(&self, cwd: Option<&str>) -> Result<&str> {
        match self.parts.get() {
            Some(parts) => Ok(&parts.cwd),
            None if cwd.is_none() && self.wanted_directory().is_none() => Ok("."),
            None => Ok(&self.parts().await?.cwd),
        }
    }

    /// Returns the verbs of code.
    async fn code_ops(&self, operation: &'static str) -> Result<&dyn CodeOps> {
        let parts = self.parts().await?;
        match &parts.code {
            Code::Interpreter(contexts) => Ok(contexts),
            Code::Agent(used, environment) => self.agent(parts, used, environment)?.code().await,
            Code::Nothing => Err(no_code(operation)),
        }
    }

    fn agent<'a>(
        &self,
        parts: &Parts,
        used: &'a OnceLock<Arc<CodeAgent>>,
        environment: &BTreeMap<String, String>,
    ) -> Result<&'a CodeAgent> {
        if let Some(agent) = used.get() {
            return Ok(agent);
        }
        let agent = CodeAgent::shared(&self.envd, &parts.cwd, environment)?;
        Ok(used.get_or_init(|| agent))
    }

    async fn files(&self) -> Result<&E2bFiles> {
        Ok(&self.parts().await?.files)
    }
}

/// Returns true for a template that is known to have the code interpreter.
fn has_interpreter(described: &Described) -> bool {
    let names = [described.alias.as_deref(), Some(&*described.template_id)];
    names.into_iter().flatten().any(|name| name.contains("code-interpreter"))
}

/// Opens a sandbox.
pub(crate) fn open(instance: E2bInstance) -> Arc<dyn Instance> {
    let handle = Arc::clone(&instance.handle);
    let awake = check_awake(Arc::new(instance), Arc::clone(&handle));
    check_lifetime(awake, handle)
}

impl Drop for E2bInstance {
    fn drop(&mut self) {
        self.handle.release();
    }
}

impl Instance for E2bInstance {
    fn info(&self) -> SandboxInfo {
        remote::info(&self.handle)
    }

    fn status(&self) -> SandboxStatus {
        remote::info(&self.handle).status
    }

    fn capabilities(&self) -> Capabilities {
        match self.runner() {
            Runner::Interpreter => with_interpreter(),
            Runner::Agent => with_agent(),
            Runner::Nothing => commands_only(),
        }
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        match self.runner() {
            Runner::Interpreter | Runner::Agent => Ok(self),
            Runner::Nothing => Err(no_code("run_code")),
        }
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
        Ok(self)
    }
}

#[async_trait]
impl Life for E2bInstance {
    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.handle.end("terminate", true).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.handle.end("kill", false).await
    }

    async fn set_tags(&self, _: &CallContext, _: Tags) -> Result<()> {
        Err(unsupported("set_tags").with_hint("tags are set at create, and stay"))
    }

    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()> {
        remote::set_lifetime(&self.handle, call, lifetime).await
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        if self.handle.is_paused() {
            return Ok(());
        }
        self.handle.clients.api()?.pause(call, self.handle.local_id()).await?;
        self.handle.set_paused(true);
        Ok(())
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        let lifetime = remote::time_left(&self.handle).unwrap_or(OWNED_EXPIRY);
        let lifetime =
            if self.handle.is_owned() { remote::owned_expiry(lifetime) } else { lifetime };
        let api = self.handle.clients.api()?;
        let connected = api.connect(call, "resume", self.handle.local_id(), lifetime).await?;
        self.handle.reconnected(connected);
        self.handle.set_end(lifetime);
        self.handle.set_paused(false);
        let limit = self.handle.clients.config.ready_timeout();
        system::working_directory(&self.envd, None, limit).await.map(drop)
    }

    async fn reset(&self, _: &CallContext) -> Result<()> {
        let parts = self.parts().await?;
        match &parts.code {
            Code::Interpreter(contexts) => contexts.restart_all("reset").await?,
            Code::Agent(used, environment) => {
                self.agent(parts, used, environment)?.restart_all().await?;
            }
            Code::Nothing => {}
        }
        self.commands.end_all().await
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        let is_owned = self.handle.is_owned();
        let left = remote::time_left(&self.handle).unwrap_or(OWNED_EXPIRY);
        let lifetime = if is_owned { remote::owned_expiry(left) } else { left };
        let api = self.handle.clients.api()?;
        let made = api.fork(call, self.handle.local_id(), lifetime).await?;
        let id = made.sandbox_id.clone();
        let described = Described { sandbox_id: id.clone(), ..self.handle.described() };
        let clients = Arc::clone(&self.handle.clients);
        let copy = RemoteSandbox::new(clients, made, described, is_owned);
        let handle = Arc::new(RemoteLifetime::new(copy, is_owned));
        start_lifetime(&handle, left);
        if let Ok(described) = api.sandbox(call, "fork", &id).await {
            handle.set_described(described);
        }
        let copy = E2bInstance::new(handle);
        copy.set_runner(self.runner());
        Ok(open(copy))
    }

    async fn metrics(&self, call: &CallContext) -> Result<Metrics> {
        let api = self.handle.clients.api()?;
        let measured = match api.metrics(call, self.handle.local_id()).await? {
            Some(measured) => measured,
            // The service measures every few seconds.
            None => self.envd.measured().await?,
        };
        let mut metrics =
            Metrics { memory: measured.mem_used, disk: measured.disk_used, ..Metrics::default() };
        system::processor(&self.envd, &mut metrics).await?;
        Ok(metrics)
    }

    async fn logs(&self, call: &CallContext, follow: bool) -> Result<LogStream> {
        let api = self.handle.clients.api()?;
        let first = api.logs(call, self.handle.local_id(), None).await?;
        let reader = LogReader { handle: Arc::clone(&self.handle), follow, last: Vec::new() };
        let state = (reader, first.into_iter(), false);
        Ok(Box::pin(stream::unfold(state, |(mut reader, mut lines, is_over)| async move {
            if is_over {
                return None;
            }
            loop {
                if let Some(line) = lines.next() {
                    if is_new(&mut reader.last, &line) {
                        return Some((Ok(show(&line)), (reader, lines, false)));
                    }
                    continue;
                }
                match reader.more().await {
                    Ok(Some(more)) => lines = more.into_iter(),
                    Ok(None) => return None,
                    Err(error) => return Some((Err(error), (reader, lines, true))),
                }
            }
        })))
    }
}

/// Begins the lifetime of a sandbox: its end by the owner, and the renewal of its expiry.
pub(crate) fn start_lifetime(handle: &SandboxHandle, lifetime: Duration) {
    handle.end_in(lifetime.min(MAX_DURATION));
    if handle.is_owned() {
        handle.renew_every(OWNED_EXPIRY);
    }
}

/// Reads log lines, each once.
struct LogReader {
    handle: Arc<SandboxHandle>,
    follow: bool,
    /// The lines of the latest time: the next request gives them again.
    last: Vec<LogLine>,
}

/// Returns true for a line that was not given before. `last` has those of the latest time.
fn is_new(last: &mut Vec<LogLine>, line: &LogLine) -> bool {
    if last.first().is_some_and(|known| known.timestamp < line.timestamp) {
        last.clear();
    }
    let is_new = !last.contains(line);
    if is_new {
        last.push(line.clone());
    }
    is_new
}

impl LogReader {
    /// Asks for further lines. `None`: there are none, and none will come.
    async fn more(&self) -> Result<Option<Vec<LogLine>>> {
        let since = self.last.first().map(|line| line.timestamp.timestamp_millis());
        // A page that was not full was the last one.
        if !self.follow && self.last.len() < LOG_PAGE {
            return Ok(None);
        }
        tokio::time::sleep(LOG_INTERVAL).await;
        if self.handle.has_ended() {
            return Ok(None);
        }
        let api = self.handle.clients.api()?;
        let found = api.logs(&CallContext::new(), self.handle.local_id(), since).await;
        match found {
            Err(error) => Err(self.handle.map_error("logs", error).await),
            Ok(lines) => Ok(Some(lines)),
        }
    }
}

fn show(line: &LogLine) -> String {
    let time = line.timestamp.format("%Y-%m-%dT%H:%M:%S%.3fZ");
    match line.level.as_str() {
        "" => format!("{time} {}", line.message),
        level => format!("{time} {level} {}", line.message),
    }
}

#[async_trait]
impl CodeOps for E2bInstance {
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let events = self.code_ops("run_code").await?.run_code(call, request).await?;
        match self.runner() {
            Runner::Agent => Ok(self.handle.explain_run(events)),
            _ => Ok(events),
        }
    }

    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context> {
        let parts = self.parts().await?;
        if let Code::Interpreter(_) = &parts.code {
            CodeContexts::check(&spec)?;
            if let Some(cwd) = &spec.cwd {
                let path = resolve_directory(&parts.cwd, cwd);
                parts.files.make_directory(&path, true).await?;
            }
        }
        self.code_ops("create_context").await?.create_context(call, spec).await
    }

    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>> {
        self.code_ops("list_contexts").await?.list_contexts(call).await
    }

    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.code_ops("restart_context").await?.restart_context(call, id).await
    }

    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()> {
        self.code_ops("delete_context").await?.delete_context(call, id).await
    }

    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        self.code_ops("get_variable").await?.get_variable(call, context, name).await
    }

    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        self.code_ops("set_variables").await?.set_variables(call, context, values).await
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        match self.parts.get().map(|parts| &parts.code) {
            Some(Code::Interpreter(contexts)) => CodeOps::is_executing(contexts, context),
            Some(Code::Agent(used, _)) => {
                let code = used.get().and_then(|agent| agent.started());
                code.is_some_and(|code| code.is_executing(context))
            }
            Some(Code::Nothing) | None => false,
        }
    }

    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool> {
        self.code_ops("interrupt").await?.interrupt(call, context).await
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        self.code_ops("register_tool").await?.register_tool(call, tool).await
    }
}

#[async_trait]
impl CommandOps for E2bInstance {
    async fn start_command(&self, _: &CallContext, request: StartCommand) -> Result<Command> {
        if request.cpu_time.is_some() {
            let message = "e2b has no limit of CPU time for a single command";
            return Err(Error::unsupported("start_command", message));
        }
        if request.output_limit.is_some() {
            return Err(Error::unsupported("start_command", "e2b has no limit of output"));
        }
        if request.as_root {
            let message = "commands on e2b run as the user of the template";
            return Err(Error::unsupported("start_command", message));
        }
        let directory = self.directory_for(request.cwd.as_deref()).await?;
        self.commands.start(directory, request).await
    }

    async fn list_commands(&self, _: &CallContext) -> Result<Vec<CommandInfo>> {
        self.commands.list().await
    }

    async fn connect_command(&self, _: &CallContext, id: &str) -> Result<Command> {
        self.commands.connect(id).await
    }
}

#[async_trait]
impl FileOps for E2bInstance {
    async fn read_file(&self, _: &CallContext, path: &str, range: ByteRange) -> Result<ByteStream> {
        let content = self.files().await?.read(path, range).await?;
        // What has arrived may outlast the sandbox, and the reader has to learn of the end.
        let handle = Arc::clone(&self.handle);
        Ok(Box::pin(content.map(move |chunk| handle.ensure_running("read_file").and(chunk))))
    }

    async fn write_file(
        &self,
        _: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        self.files().await?.write(path, content, options).await
    }

    async fn list_files(&self, _: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        self.files().await?.list(path).await
    }

    async fn stat_file(&self, _: &CallContext, path: &str) -> Result<FileInfo> {
        self.files().await?.stat(path).await
    }

    async fn create_directory(&self, _: &CallContext, path: &str, parents: bool) -> Result<()> {
        self.files().await?.make_directory(path, parents).await
    }

    async fn remove_file(&self, _: &CallContext, path: &str, recursive: bool) -> Result<()> {
        self.files().await?.remove(path, recursive).await
    }

    async fn rename_file(&self, _: &CallContext, from: &str, to: &str) -> Result<()> {
        self.files().await?.rename(from, to).await
    }

    async fn copy_file(&self, _: &CallContext, from: &str, to: &str) -> Result<()> {
        self.files().await?.copy(from, to).await
    }

    async fn set_file_mode(&self, _: &CallContext, path: &str, mode: u32) -> Result<()> {
        self.files().await?.set_mode(path, mode).await
    }

    async fn find_files(&self, _: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        self.files().await?.find(query).await
    }

    async fn read_archive(&self, _: &CallContext, path: &str) -> Result<ByteStream> {
        self.files().await?.read_archive(path).await
    }

    async fn write_archive(&self, _: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        self.files().await?.write_archive(path, tar, Links::Inside).await
    }

    async fn watch_files(
        &self,
        _: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<WatchStream> {
        self.files().await?.watch(path, recursive).await
    }
}

#[async_trait]
impl PackageOps for E2bInstance {
    async fn install_packages(&self, _: &CallContext, packages: InstallPackages) -> Result<()> {
        let (names, upgrade) = match packages {
            InstallPackages::System(names) => {
                return system::install_system(&self.envd, names).await;
            }
            InstallPackages::Python(names) => (names, false),
            InstallPackages::Upgrade(names) => (names, true),
        };
        system::install_python(&self.envd, &names, upgrade).await?;
        match &self.parts().await?.code {
            Code::Interpreter(code) if !names.is_empty() => code.refresh_packages().await,
            // A worker of the agent looks for new packages of the user by itself.
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl SnapshotOps for E2bInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let operation = "create_snapshot";
        let clients = &self.handle.clients;
        let (directory, key) = (records::directory(&clients.config), format!("snapshot:{name}"));
        let _locks = CreateLocks::acquire(directory.as_deref(), call, operation, [key]).await?;
        let api = clients.api()?;
        let all = api.snapshots(call, operation).await?;
        if all.iter().any(|snapshot| snapshot.is_called(name)) {
            let message = format!("there is a snapshot {name:?} already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message));
        }
        let made = api.create_snapshot(call, self.handle.local_id(), name).await?;
        let records = records::snapshots(&clients.config);
        let record = SnapshotRecord {
            sandbox_id: self.handle.id(),
            created_at: unix_now(),
            description: description.to_owned(),
        };
        records.write(&records::key(&made.snapshot_id), &record);
        let info = describe::snapshot(&made, &records);
        Ok(SnapshotInfo {
            name: name.to_owned(),
            sandbox_id: record.sandbox_id,
            created_at: record.created_at,
            description: record.description,
            ..info
        })
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(unsupported("restore_snapshot").with_hint("create a sandbox from the snapshot"))
    }
}

#[async_trait]
impl PortOps for E2bInstance {
    async fn expose_port(&self, _: &CallContext, port: u16) -> Result<TunnelInfo> {
        if port == 0 {
            return Err(Error::invalid("port", "must be from 1 to 65535, got 0"));
        }
        self.handle.tunnel(port)
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;

    fn line(milliseconds: i64, message: &str) -> LogLine {
        let timestamp = DateTime::<Utc>::from_timestamp_millis(milliseconds).unwrap();
        LogLine { timestamp, message: message.into(), level: "info".into() }
    }

    #[test]
    fn each_line_is_given_once_however_the_pages_overlap() {
        let mut last = Vec::new();
        let pages = [
            vec![line(1, "a"), line(2, "b"), line(2, "c")],
            vec![line(2, "b"), line(2, "c"), line(2, "d"), line(3, "b")],
            vec![line(3, "b")],
        ];
        let given = pages.iter().flatten().filter(|line| is_new(&mut last, line));
        let given: Vec<_> = given.map(|line| line.message.as_str()).collect();
        assert_eq!(given, ["a", "b", "c", "d", "b"]);
        assert_eq!(show(&line(2, "b")), "1970-01-01T00:00:00.002Z info b");
    }
}
