//! Hooks around every operation of a backend and of its sandboxes.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::lock::Mutex;
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Map, Value};

use crate::backend::{Backend, Health};
use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::command::{Command, CommandEvent, CommandInfo};
use crate::error::{Error, Result};
use crate::id::SandboxId;
use crate::instance::{EventStream, Instance, LogStream, Metrics, TunnelInfo, WatchStream};
use crate::model::{
    Context, Event, FileInfo, SandboxEnvironment, SandboxInfo, SandboxStatus, SnapshotInfo, Tags,
};
use crate::request::{
    ByteRange, ByteStream, CodeMode, CommandSpec, ContextSpec, FindFiles, FoundFile,
    InstallPackages, ListQuery, Page, RunCode, StartCommand, WriteOptions,
};
use crate::spec::CreateSpec;
use crate::tool::Tool;
use crate::wrapper::{BackendWrapper, InstanceWrapper, wrap_backend, wrap_instance};

/// Looks at every operation: audit, scans, tracing, errors explained.
#[async_trait]
pub trait Hooks: fmt::Debug + Send + Sync + 'static {
    /// Called before an operation begins. The observer follows that operation.
    ///
    /// # Errors
    /// An error refuses the operation: the backend does not see it.
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>>;
}

/// Follows one operation. It is dropped when the operation is over, also when its caller gave up.
#[async_trait]
pub trait Observer: Send + 'static {
    /// Called when the operation failed, at its beginning or in a stream that came of it. The returned error is what the
    /// caller gets.
    async fn failed(&mut self, error: Error) -> Error;

    /// Called for what happens in the operation.
    ///
    /// # Errors
    /// An error ends a transfer of [`OperationEvent::Content`] before this chunk. It has no effect on other events, which
    /// have happened already.
    fn event(&mut self, event: OperationEvent<'_>) -> Result<()>;
}

/// An operation that is about to begin.
#[derive(Debug)]
#[non_exhaustive]
pub struct Operation<'a> {
    /// The name of the method, such as `run_code`.
    pub name: &'static str,
    /// Deadline, identity and trace of the call.
    pub call: &'a CallContext,
    /// The sandbox. `None` for operations of the backend.
    pub sandbox: Option<&'a Arc<dyn Instance>>,
    /// The request.
    pub request: OperationRequest<'a>,
}

/// The request of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum OperationRequest<'a> {
    /// No further data.
    Empty,
    /// To make a sandbox.
    Create(&'a CreateSpec),
    /// To run code.
    RunCode {
        /// The code.
        code: &'a str,
        /// A cell, or a script with its arguments.
        mode: &'a CodeMode,
        /// The language, when the request names one.
        language: Option<&'a str>,
        /// The context, when the request names one.
        context: Option<&'a str>,
    },
    /// To start a command.
    StartCommand {
        /// The line for the shell, or the program and its arguments.
        command: &'a CommandSpec,
        /// The working directory, when the request names one.
        cwd: Option<&'a str>,
        /// Environment variables beside those of the sandbox.
        env: &'a BTreeMap<String, String>,
        /// True when the command outlives its caller.
        background: bool,
        /// True when the command runs as root of the sandbox.
        as_root: bool,
    },
    /// Something about one path in the sandbox.
    Path(&'a str),
    /// To rename or copy.
    Paths {
        /// The path that there is.
        from: &'a str,
        /// The new path.
        to: &'a str,
    },
    /// To find files.
    FindFiles(&'a FindFiles),
    /// To install packages.
    InstallPackages(&'a InstallPackages),
    /// To let code call a function of the host.
    Tool(&'a Tool),
    /// To set variables.
    Variables(&'a Map<String, Value>),
    /// To replace the tags.
    Tags(&'a Tags),
    /// To change the lifetime.
    Lifetime(Duration),
    /// Something about a port of the sandbox.
    Port(u16),
    /// Something with that id or name: a context, a command, a variable, a snapshot, a sandbox.
    Name(&'a str),
}

fn run_request(request: &RunCode) -> OperationRequest<'_> {
    let RunCode { code, mode, .. } = request;
    let (language, context) = (request.language.as_deref(), request.context.as_deref());
    OperationRequest::RunCode { code, mode, language, context }
}

fn command_request(request: &StartCommand) -> OperationRequest<'_> {
    let StartCommand { command, env, background, as_root, .. } = request;
    let cwd = request.cwd.as_deref();
    OperationRequest::StartCommand { command, cwd, env, background: *background, as_root: *as_root }
}

/// An event of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum OperationEvent<'a> {
    /// The sandbox that the call has made, attached to or copied; [`OperationEvent::Succeeded`] follows.
    Made(&'a SandboxInfo),
    /// The call succeeded. Events of what it began may follow.
    Succeeded,
    /// An event of a run.
    Run(&'a Event),
    /// An event of a command.
    Command(&'a CommandEvent),
    /// A chunk of a file or an archive, on its way to the sandbox or from there.
    Content(&'a Bytes),
}

/// Puts hooks around a sandbox, and around the copies that are made of it.
pub fn intercept(instance: Arc<dyn Instance>, hooks: Arc<dyn Hooks>) -> Arc<dyn Instance> {
    wrap_instance(Arc::new(Intercepted { inner: instance, hooks }))
}

/// Puts hooks around a backend and its sandboxes.
pub fn intercept_backend(backend: Arc<dyn Backend>, hooks: Arc<dyn Hooks>) -> Arc<dyn Backend> {
    wrap_backend(Arc::new(Intercepted { inner: backend, hooks }))
}

/// A backend or a sandbox with hooks.
#[derive(Debug)]
struct Intercepted<T: ?Sized> {
    inner: Arc<T>,
    hooks: Arc<dyn Hooks>,
}

type Following = Box<dyn Observer>;

/// Tells an observer how the call ended.
async fn end<T>(observer: &mut Following, answer: Result<T>) -> Result<T> {
    match answer {
        Ok(value) => {
            // It has happened, so there is nothing to refuse.
            let _ = observer.event(OperationEvent::Succeeded);
            Ok(value)
        }
        Err(error) => Err(observer.failed(error).await),
    }
}

/// Tells an observer which sandbox the call has given, and how it ended.
async fn end_with_sandbox(
    observer: &mut Following,
    answer: Result<Arc<dyn Instance>>,
) -> Result<Arc<dyn Instance>> {
    if let Ok(made) = &answer {
        // It has happened, so there is nothing to refuse.
        let _ = observer.event(OperationEvent::Made(&made.info()));
    }
    end(observer, answer).await
}

/// Shows an observer every item of a stream, and lets it explain a failure, which ends the stream.
fn follow<T: Send + 'static>(
    observer: Following,
    items: impl Stream<Item = Result<T>> + Send + 'static,
    look: impl FnMut(&mut Following, &T) -> Result<()> + Send + 'static,
) -> impl Stream<Item = Result<T>> + Send + 'static {
    stream::unfold(Some((observer, Box::pin(items), look)), |state| async move {
        let (mut observer, mut items, mut look) = state?;
        match items.next().await? {
            Ok(item) => match look(&mut observer, &item) {
                Ok(()) => Some((Ok(item), Some((observer, items, look)))),
                Err(refused) => Some((Err(refused), None)),
            },
            Err(error) => Some((Err(observer.failed(error).await), None)),
        }
    })
}

/// Shows an observer every chunk.
fn follow_content(observer: Following, content: ByteStream) -> ByteStream {
    Box::pin(follow(observer, content, |observer, chunk| {
        observer.event(OperationEvent::Content(chunk))
    }))
}

/// Shows an observer every event of a command.
fn follow_command(mut observer: Following, command: Command) -> Command {
    let events = command.events.inspect(move |event| {
        // It has happened, so there is nothing to refuse.
        let _ = observer.event(OperationEvent::Command(event));
    });
    Command { events: Box::pin(events), ..command }
}

/// Lets the observer see the content that a call writes, and hear how the call ends.
fn share(observer: Following, content: ByteStream) -> (Arc<Mutex<Following>>, ByteStream) {
    let shared = Arc::new(Mutex::new(observer));
    let looking = Arc::clone(&shared);
    let content = content.map(move |chunk| {
        let chunk = chunk?;
        // Only the call itself has the lock otherwise, after it has ended.
        let looked =
            looking.try_lock().map(|mut observer| observer.event(OperationEvent::Content(&chunk)));
        looked.unwrap_or(Ok(())).map(|()| chunk)
    });
    (shared, Box::pin(content))
}

impl Intercepted<dyn Instance> {
    async fn before(
        &self,
        name: &'static str,
        call: &CallContext,
        request: OperationRequest<'_>,
    ) -> Result<Following> {
        let sandbox = Some(&self.inner);
        self.hooks.before(&Operation { name, call, sandbox, request }).await
    }

    /// An operation whose answer is the end of it.
    async fn single<T>(
        &self,
        name: &'static str,
        call: &CallContext,
        request: OperationRequest<'_>,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let mut observer = self.before(name, call, request).await?;
        end(&mut observer, work.await).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl InstanceWrapper for Intercepted<dyn Instance> {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.inner
    }

    fn info(&self) -> SandboxInfo {
        self.inner.info()
    }

    fn status(&self) -> SandboxStatus {
        self.inner.status()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn is_executing(&self, context: Option<&str>) -> bool {
        self.inner.code().is_ok_and(|code| code.is_executing(context))
    }

    async fn terminate(&self, call: &CallContext) -> Result<()> {
        let work = async { self.inner.life().terminate(call).await };
        self.single("terminate", call, OperationRequest::Empty, work).await
    }

    async fn kill(&self, call: &CallContext) -> Result<()> {
        let work = async { self.inner.life().kill(call).await };
        self.single("kill", call, OperationRequest::Empty, work).await
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        let work = async { self.inner.life().pause(call).await };
        self.single("pause", call, OperationRequest::Empty, work).await
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        let work = async { self.inner.life().resume(call).await };
        self.single("resume", call, OperationRequest::Empty, work).await
    }

    async fn reset(&self, call: &CallContext) -> Result<()> {
        let work = async { self.inner.life().reset(call).await };
        self.single("reset", call, OperationRequest::Empty, work).await
    }

    async fn metrics(&self, call: &CallContext) -> Result<Metrics> {
        let work = async { self.inner.life().metrics(call).await };
        self.single("metrics", call, OperationRequest::Empty, work).await
    }

    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()> {
        let mut observer = self.before("set_tags", call, OperationRequest::Tags(&tags)).await?;
        let work = async { self.inner.life().set_tags(call, tags).await };
        end(&mut observer, work.await).await
    }

    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()> {
        let work = async { self.inner.life().set_lifetime(call, lifetime).await };
        self.single("set_lifetime", call, OperationRequest::Lifetime(lifetime), work).await
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        let mut observer = self.before("fork", call, OperationRequest::Empty).await?;
        let work = async { self.inner.life().fork(call).await };
        let copy = end_with_sandbox(&mut observer, work.await).await?;
        Ok(intercept(copy, Arc::clone(&self.hooks)))
    }

    async fn logs(&self, call: &CallContext, follow_them: bool) -> Result<LogStream> {
        let mut observer = self.before("logs", call, OperationRequest::Empty).await?;
        let work = async { self.inner.life().logs(call, follow_them).await };
        let lines = end(&mut observer, work.await).await?;
        Ok(Box::pin(follow(observer, lines, |_, _| Ok(()))))
    }

    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream> {
        let mut observer = self.before("run_code", call, run_request(&request)).await?;
        let work = async { self.inner.code()?.run_code(call, request).await };
        let events = end(&mut observer, work.await).await?;
        Ok(Box::pin(events.inspect(move |event| {
            // It has happened, so there is nothing to refuse.
            let _ = observer.event(OperationEvent::Run(event));
        })))
    }

    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context> {
        let mut observer = self
            .before(
                "create_context",
                call,
                OperationRequest::Name(spec.id.as_deref().unwrap_or_default()),
            )
            .await?;
        let work = async { self.inner.code()?.create_context(call, spec).await };
        end(&mut observer, work.await).await
    }

    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>> {
        let work = async { self.inner.code()?.list_contexts(call).await };
        self.single("list_contexts", call, OperationRequest::Empty, work).await
    }

    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()> {
        let work = async { self.inner.code()?.restart_context(call, id).await };
        self.single("restart_context", call, OperationRequest::Name(id), work).await
    }

    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()> {
        let work = async { self.inner.code()?.delete_context(call, id).await };
        self.single("delete_context", call, OperationRequest::Name(id), work).await
    }

    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value> {
        let work = async { self.inner.code()?.get_variable(call, context, name).await };
        self.single("get_variable", call, OperationRequest::Name(name), work).await
    }

    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()> {
        let mut observer =
            self.before("set_variables", call, OperationRequest::Variables(&values)).await?;
        let work = async { self.inner.code()?.set_variables(call, context, values).await };
        end(&mut observer, work.await).await
    }

    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool> {
        let work = async { self.inner.code()?.interrupt(call, context).await };
        self.single("interrupt", call, OperationRequest::Name(context.unwrap_or_default()), work)
            .await
    }

    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()> {
        let mut observer =
            self.before("register_tool", call, OperationRequest::Tool(&tool)).await?;
        let work = async { self.inner.code()?.register_tool(call, tool).await };
        end(&mut observer, work.await).await
    }

    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command> {
        let asked = command_request(&request);
        let mut observer = self.before("start_command", call, asked).await?;
        let work = async { self.inner.commands()?.start_command(call, request).await };
        let command = end(&mut observer, work.await).await?;
        Ok(follow_command(observer, command))
    }

    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>> {
        let work = async { self.inner.commands()?.list_commands(call).await };
        self.single("list_commands", call, OperationRequest::Empty, work).await
    }

    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command> {
        let mut observer = self.before("connect_command", call, OperationRequest::Name(id)).await?;
        let work = async { self.inner.commands()?.connect_command(call, id).await };
        let command = end(&mut observer, work.await).await?;
        Ok(follow_command(observer, command))
    }

    async fn read_file(
        &self,
        call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream> {
        let mut observer = self.before("read_file", call, OperationRequest::Path(path)).await?;
        let work = async { self.inner.files()?.read_file(call, path, range).await };
        let content = end(&mut observer, work.await).await?;
        Ok(follow_content(observer, content))
    }

    async fn write_file(
        &self,
        call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64> {
        let observer = self.before("write_file", call, OperationRequest::Path(path)).await?;
        let (observer, content) = share(observer, content);
        let work = async { self.inner.files()?.write_file(call, path, content, options).await };
        let answer = work.await;
        end(&mut *observer.lock().await, answer).await
    }

    async fn list_files(&self, call: &CallContext, path: &str) -> Result<Vec<FileInfo>> {
        let work = async { self.inner.files()?.list_files(call, path).await };
        self.single("list_files", call, OperationRequest::Path(path), work).await
    }

    async fn stat_file(&self, call: &CallContext, path: &str) -> Result<FileInfo> {
        let work = async { self.inner.files()?.stat_file(call, path).await };
        self.single("stat_file", call, OperationRequest::Path(path), work).await
    }

    async fn create_directory(&self, call: &CallContext, path: &str, parents: bool) -> Result<()> {
        let work = async { self.inner.files()?.create_directory(call, path, parents).await };
        self.single("create_directory", call, OperationRequest::Path(path), work).await
    }

    async fn remove_file(&self, call: &CallContext, path: &str, recursive: bool) -> Result<()> {
        let work = async { self.inner.files()?.remove_file(call, path, recursive).await };
        self.single("remove_file", call, OperationRequest::Path(path), work).await
    }

    async fn rename_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let work = async { self.inner.files()?.rename_file(call, from, to).await };
        self.single("rename_file", call, OperationRequest::Paths { from, to }, work).await
    }

    async fn copy_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()> {
        let work = async { self.inner.files()?.copy_file(call, from, to).await };
        self.single("copy_file", call, OperationRequest::Paths { from, to }, work).await
    }

    async fn set_file_mode(&self, call: &CallContext, path: &str, mode: u32) -> Result<()> {
        let work = async { self.inner.files()?.set_file_mode(call, path, mode).await };
        self.single("set_file_mode", call, OperationRequest::Path(path), work).await
    }

    async fn find_files(&self, call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>> {
        let mut observer =
            self.before("find_files", call, OperationRequest::FindFiles(&query)).await?;
        let work = async { self.inner.files()?.find_files(call, query).await };
        end(&mut observer, work.await).await
    }

    async fn read_archive(&self, call: &CallContext, path: &str) -> Result<ByteStream> {
        let mut observer = self.before("read_archive", call, OperationRequest::Path(path)).await?;
        let work = async { self.inner.files()?.read_archive(call, path).await };
        let content = end(&mut observer, work.await).await?;
        Ok(follow_content(observer, content))
    }

    async fn write_archive(&self, call: &CallContext, path: &str, tar: ByteStream) -> Result<()> {
        let observer = self.before("write_archive", call, OperationRequest::Path(path)).await?;
        let (observer, tar) = share(observer, tar);
        let work = async { self.inner.files()?.write_archive(call, path, tar).await };
        let answer = work.await;
        end(&mut *observer.lock().await, answer).await
    }

    async fn watch_files(
        &self,
        call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<WatchStream> {
        let mut observer = self.before("watch_files", call, OperationRequest::Path(path)).await?;
        let work = async { self.inner.files()?.watch_files(call, path, recursive).await };
        let changes = end(&mut observer, work.await).await?;
        Ok(Box::pin(follow(observer, changes, |_, _| Ok(()))))
    }

    async fn install_packages(&self, call: &CallContext, packages: InstallPackages) -> Result<()> {
        let mut observer = self
            .before("install_packages", call, OperationRequest::InstallPackages(&packages))
            .await?;
        let work = async { self.inner.packages()?.install_packages(call, packages).await };
        end(&mut observer, work.await).await
    }

    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        let work = async { self.inner.snapshots()?.create_snapshot(call, name, description).await };
        self.single("create_snapshot", call, OperationRequest::Name(name), work).await
    }

    async fn restore_snapshot(&self, call: &CallContext, name: &str) -> Result<SnapshotInfo> {
        let work = async { self.inner.snapshots()?.restore_snapshot(call, name).await };
        self.single("restore_snapshot", call, OperationRequest::Name(name), work).await
    }

    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo> {
        let work = async { self.inner.ports()?.expose_port(call, port).await };
        self.single("expose_port", call, OperationRequest::Port(port), work).await
    }
}

impl Intercepted<dyn Backend> {
    async fn before(
        &self,
        name: &'static str,
        call: &CallContext,
        request: OperationRequest<'_>,
    ) -> Result<Following> {
        self.hooks.before(&Operation { name, call, sandbox: None, request }).await
    }

    async fn single<T>(
        &self,
        name: &'static str,
        call: &CallContext,
        request: OperationRequest<'_>,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let mut observer = self.before(name, call, request).await?;
        end(&mut observer, work.await).await
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl BackendWrapper for Intercepted<dyn Backend> {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.inner
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let mut observer = self.before("create", call, OperationRequest::Create(&spec)).await?;
        let made = end_with_sandbox(&mut observer, self.inner.create(call, spec).await).await?;
        Ok(intercept(made, Arc::clone(&self.hooks)))
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let mut observer = self.before("attach", call, OperationRequest::Name(id.local())).await?;
        let found = end_with_sandbox(&mut observer, self.inner.attach(call, id).await).await?;
        Ok(intercept(found, Arc::clone(&self.hooks)))
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        self.single("list", call, OperationRequest::Empty, self.inner.list(call, query)).await
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let work = self.inner.environments(call);
        self.single("environments", call, OperationRequest::Empty, work).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.single("health", call, OperationRequest::Empty, self.inner.health(call)).await
    }

    async fn list_snapshots(&self, call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let work = self.inner.list_snapshots(call);
        self.single("list_snapshots", call, OperationRequest::Empty, work).await
    }

    async fn delete_snapshot(&self, call: &CallContext, name: &str) -> Result<()> {
        let work = self.inner.delete_snapshot(call, name);
        self.single("delete_snapshot", call, OperationRequest::Name(name), work).await
    }
}
