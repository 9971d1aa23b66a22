//! The handle that users hold.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::lock::Mutex as AsyncMutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::backend::Backend;
use crate::builder::{SandboxBuilder, SingleBackend};
use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::commands::Commands;
use crate::error::{Error, ErrorKind, Result};
use crate::files::Files;
use crate::instance::{Instance, Metrics, TunnelInfo};
use crate::json_depth;
use crate::model::{Context, SandboxInfo, SandboxStatus, SnapshotInfo, Tags, Variant};
use crate::request::ContextSpec;
use crate::run::RunCodeBuilder;
use crate::spec::{CreateSpec, check_tags};
use crate::tool::Tool;
use crate::units::{IntoDuration, check_duration, check_lifetime};

/// Default time limit of a run.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle to one sandbox. Cheap to clone; all clones are the same sandbox.
///
/// Dropping the last handle of an attached sandbox kills it.
#[derive(Clone)]
pub struct Sandbox {
    shared: Arc<Shared>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    spec: CreateSpec,
    /// Serializes start and stop.
    lifecycle: AsyncMutex<()>,
    state: Mutex<State>,
}

struct State {
    timeout: Duration,
    tags: Tags,
    tools: Vec<Tool>,
    phase: Phase,
}

enum Phase {
    Running(Arc<dyn Instance>),
    Stopped(SandboxInfo),
    Terminated(SandboxInfo),
}

enum Shutdown {
    Graceful,
    Immediate,
}

impl Sandbox {
    /// Begins a sandbox on one backend.
    pub fn builder(backend: Arc<dyn Backend>) -> SandboxBuilder<SingleBackend> {
        SandboxBuilder::new(SingleBackend(backend))
    }

    /// A handle to a sandbox that has just been made.
    pub(crate) fn started(
        backend: Arc<dyn Backend>,
        instance: Arc<dyn Instance>,
        spec: CreateSpec,
        timeout: Duration,
    ) -> Self {
        let (tags, phase) = (spec.tags.clone(), Phase::Running(instance));
        let state = Mutex::new(State { timeout, tags, tools: Vec::new(), phase });
        Self { shared: Arc::new(Shared { backend, spec, lifecycle: AsyncMutex::new(()), state }) }
    }

    /// A handle to a sandbox that runs already.
    pub fn from_instance(backend: Arc<dyn Backend>, instance: Arc<dyn Instance>) -> Self {
        let spec = CreateSpec { tags: instance.info().tags, ..CreateSpec::default() };
        Self::started(backend, instance, spec, DEFAULT_TIMEOUT)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts it again after [`Sandbox::stop`], without its old state. Does nothing when it runs.
    ///
    /// # Errors
    /// `Terminated` after [`Sandbox::terminate`]; otherwise whatever keeps the backend from creating it.
    pub async fn start(&self) -> Result<()> {
        let _one_at_a_time = self.shared.lifecycle.lock().await;
        match &self.state().phase {
            Phase::Running(_) => return Ok(()),
            Phase::Terminated(_) => return Err(terminated("start")),
            Phase::Stopped(_) => {}
        }
        let mut spec = self.shared.spec.clone();
        spec.tags = self.state().tags.clone();
        let call = CallContext::new();
        let instance = self.shared.backend.create(&call, spec).await?;
        let tools = self.state().tools.clone();
        for tool in tools {
            instance.code()?.register_tool(&call, tool).await?;
        }
        self.state().phase = Phase::Running(instance);
        Ok(())
    }

    /// Ends it; the handle may be started again. Idempotent.
    ///
    /// # Errors
    /// Whatever keeps the backend from ending it; it then still runs.
    pub async fn stop(&self) -> Result<()> {
        let _one_at_a_time = self.shared.lifecycle.lock().await;
        let Some(instance) = self.running() else { return Ok(()) };
        instance.life().terminate(&CallContext::new()).await?;
        let info = SandboxInfo { status: SandboxStatus::Stopped, ..instance.info() };
        self.state().phase = Phase::Stopped(info);
        Ok(())
    }

    /// Ends it for good. Idempotent.
    ///
    /// # Errors
    /// Whatever keeps the backend from ending it; it can then be tried again.
    pub async fn terminate(&self) -> Result<()> {
        self.end(Shutdown::Graceful).await
    }

    /// Ends it for good and at once, without waiting for anything. Idempotent.
    ///
    /// # Errors
    /// As [`Sandbox::terminate`].
    pub async fn kill(&self) -> Result<()> {
        self.end(Shutdown::Immediate).await
    }

    async fn end(&self, how: Shutdown) -> Result<()> {
        let _one_at_a_time = self.shared.lifecycle.lock().await;
        if let Some(instance) = self.running() {
            let call = CallContext::new();
            match how {
                Shutdown::Graceful => instance.life().terminate(&call).await?,
                Shutdown::Immediate => instance.life().kill(&call).await?,
            }
        }
        let info = SandboxInfo { status: SandboxStatus::Terminated, ..self.info() };
        self.state().phase = Phase::Terminated(info);
        Ok(())
    }

    fn running(&self) -> Option<Arc<dyn Instance>> {
        match &self.state().phase {
            Phase::Running(instance) => Some(Arc::clone(instance)),
            _ => None,
        }
    }

    /// The instance behind the handle, for verbs that the handle does not have.
    ///
    /// # Errors
    /// `NotStarted`, or `Terminated` after [`Sandbox::terminate`].
    pub fn instance(&self, operation: &'static str) -> Result<Arc<dyn Instance>> {
        match &self.state().phase {
            Phase::Running(instance) => Ok(Arc::clone(instance)),
            Phase::Terminated(_) => Err(terminated(operation)),
            Phase::Stopped(_) => {
                Err(Error::new(ErrorKind::NotStarted, operation, "sandbox has been stopped")
                    .with_hint("call start() to start it again, without its old state"))
            }
        }
    }

    /// Returns its full id, such as `local-eval/3c1f0a9be7d2`. A sandbox that was stopped and started again has another one.
    pub fn id(&self) -> String {
        self.info().id
    }

    /// Returns its variant.
    pub fn variant(&self) -> Variant {
        self.shared.backend.variant()
    }

    /// Returns the facts about the sandbox; of one that has ended, those at its end.
    pub fn info(&self) -> SandboxInfo {
        match &self.state().phase {
            Phase::Running(instance) => instance.info(),
            Phase::Stopped(info) | Phase::Terminated(info) => info.clone(),
        }
    }

    /// Returns true when the sandbox has been started and has not ended.
    pub fn is_started(&self) -> bool {
        self.running().is_some_and(|instance| !instance.status().is_over())
    }

    /// Returns the status.
    pub fn status(&self) -> SandboxStatus {
        match &self.state().phase {
            Phase::Running(instance) => instance.status(),
            Phase::Stopped(info) | Phase::Terminated(info) => info.status,
        }
    }

    /// Returns the capabilities.
    pub fn capabilities(&self) -> Capabilities {
        self.running()
            .map_or_else(|| self.shared.backend.capabilities(), |instance| instance.capabilities())
    }

    /// Runs code: `sandbox.run_code("x + 1").await?`, or `.stream()` for events. See [`RunCodeBuilder`].
    pub fn run_code(&self, code: impl Into<String>) -> RunCodeBuilder<'_> {
        RunCodeBuilder::new(self, code.into())
    }

    /// Commands that run beside the interpreter.
    pub fn commands(&self) -> Commands<'_> {
        Commands::new(self)
    }

    /// The files of the sandbox.
    pub fn files(&self) -> Files<'_> {
        Files::new(self)
    }

    /// Returns the time limit of runs that set none. Default 30 s.
    pub fn timeout(&self) -> Duration {
        self.state().timeout
    }

    /// Sets how long a run may take when it does not say otherwise: a [`Duration`], or text such as `"90s"`.
    ///
    /// # Errors
    /// `InvalidArgument` for zero or more than 365 days, and for text that is no duration.
    pub fn set_timeout(&self, timeout: impl IntoDuration) -> Result<()> {
        self.state().timeout = check_duration("timeout", timeout.into_duration("timeout")?)?;
        Ok(())
    }

    /// Lets it live for that long from now: a [`Duration`], or text such as `"2h"`.
    ///
    /// # Errors
    /// `InvalidArgument` below 0.1 s or above 365 days; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn set_lifetime(&self, lifetime: impl IntoDuration) -> Result<()> {
        let lifetime = check_lifetime("lifetime", lifetime.into_duration("lifetime")?)?;
        self.instance("set_lifetime")?.life().set_lifetime(&CallContext::new(), lifetime).await
    }

    /// Its tags, also called labels.
    pub fn tags(&self) -> Tags {
        self.state().tags.clone()
    }

    /// Sets these tags and keeps the others.
    ///
    /// # Errors
    /// `InvalidArgument` when they would be too many or too long; `Unsupported` when tags do not change after create; `Terminated` when it ended by itself. The tags then stay as
    /// they were. On a handle that does not run, they are kept for the next start.
    pub async fn set_tags<K: Into<String>, V: Into<String>>(
        &self,
        tags: impl IntoIterator<Item = (K, V)>,
    ) -> Result<()> {
        let mut all = self.tags();
        all.extend(tags.into_iter().map(|(key, value)| (key.into(), value.into())));
        check_tags(&all)?;
        if let Some(instance) = self.running() {
            instance.life().set_tags(&CallContext::new(), all.clone()).await?;
        }
        self.state().tags = all;
        Ok(())
    }

    /// Makes a context: an interpreter process of its own. `None`: a random id.
    ///
    /// # Errors
    /// As [`Sandbox::create_context_with`].
    pub async fn create_context(&self, id: Option<&str>) -> Result<Context> {
        let spec = ContextSpec { id: id.map(str::to_owned), ..ContextSpec::default() };
        self.create_context_with(spec).await
    }

    /// Makes a context with a working directory or environment.
    ///
    /// # Errors
    /// `InvalidArgument` with the field that is wrong, `AlreadyExists` when the id is taken;
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn create_context_with(&self, spec: ContextSpec) -> Result<Context> {
        self.instance("create_context")?.code()?.create_context(&CallContext::new(), spec).await
    }

    /// Every context, `default` first.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn list_contexts(&self) -> Result<Vec<Context>> {
        self.instance("list_contexts")?.code()?.list_contexts(&CallContext::new()).await
    }

    /// Ends the interpreter of a context and starts it again, empty.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn restart_context(&self, id: &str) -> Result<()> {
        self.instance("restart_context")?.code()?.restart_context(&CallContext::new(), id).await
    }

    /// Ends a context and whatever it started.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id, `InvalidArgument` for `default`; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn delete_context(&self, id: &str) -> Result<()> {
        self.instance("delete_context")?.code()?.delete_context(&CallContext::new(), id).await
    }

    /// Returns a variable of the default context, which crosses as JSON, in any type that deserializes from it:
    /// `sandbox.get_variable::<Vec<f64>>("xs")`, or `serde_json::Value` for the JSON itself.
    ///
    /// # Errors
    /// `NotFound` when it is not defined; `InvalidArgument` for a name that is no identifier, a value that JSON cannot
    /// hold, or one of another type; `ResourceExhausted` for one that is too large; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn get_variable<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let code = self.instance("get_variable")?;
        let value = code.code()?.get_variable(&CallContext::new(), None, name).await?;
        serde_json::from_value(value).map_err(|error| {
            let wanted = std::any::type_name::<T>();
            Error::new(
                ErrorKind::InvalidArgument,
                "get_variable",
                format!("the variable {name:?} is no {wanted}"),
            )
            .with_context("variable", name)
            .with_source(error)
            .with_hint("get it as serde_json::Value, which every variable is")
        })
    }

    /// Sets a variable of the default context from whatever serializes to JSON.
    ///
    /// # Errors
    /// As [`Sandbox::set_variables`], and `InvalidArgument` for a value that does not serialize.
    pub async fn set_variable(&self, name: &str, value: impl Serialize) -> Result<()> {
        let value = json_depth::to_value(name, value)?;
        self.set_variables(Map::from_iter([(name.to_owned(), value)])).await
    }

    /// Sets variables of the default context.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier, or one of the interpreter's own (`__builtins__`, any `__..__`),
    /// and for values with more than 100 lists and objects in each other; `NotStarted`, `Terminated`, `Unsupported`. Either all are set or none.
    pub async fn set_variables(&self, values: Map<String, Value>) -> Result<()> {
        for (name, value) in &values {
            json_depth::check(name, value)?;
        }
        self.instance("set_variables")?
            .code()?
            .set_variables(&CallContext::new(), None, values)
            .await
    }

    /// Returns true while code runs in the default context.
    pub fn is_executing(&self) -> bool {
        self.running()
            .is_some_and(|instance| instance.code().is_ok_and(|code| code.is_executing(None)))
    }

    /// Interrupts the run in the default context; its state is kept. `false` when nothing runs.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn interrupt(&self) -> Result<bool> {
        self.instance("interrupt")?.code()?.interrupt(&CallContext::new(), None).await
    }

    /// Ends every interpreter and background process; files are kept.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn reset(&self) -> Result<()> {
        self.instance("reset")?.life().reset(&CallContext::new()).await
    }

    /// Registers a tool where it runs, and again with each start. Waits for a start or a stop that is under way.
    pub(crate) async fn add_tool(&self, tool: Tool) -> Result<()> {
        let _one_at_a_time = self.shared.lifecycle.lock().await;
        if let Some(instance) = self.running() {
            instance.code()?.register_tool(&CallContext::new(), tool.clone()).await?;
        }
        let tools = &mut self.state().tools;
        tools.retain(|known| known.name != tool.name);
        tools.push(tool);
        Ok(())
    }

    /// Makes a port of the sandbox reachable.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn expose_port(&self, port: u16) -> Result<TunnelInfo> {
        self.instance("expose_port")?.ports()?.expose_port(&CallContext::new(), port).await
    }

    /// Stores its state under a name, between runs. It goes on; sandboxes that are created with that
    /// [`snapshot_name`](crate::SandboxBuilder::snapshot_name) start from there. The answer says what the snapshot has.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`, `AlreadyExists` when the name is taken, `Unavailable` while code runs.
    pub async fn create_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.instance("create_snapshot")?
            .snapshots()?
            .create_snapshot(&CallContext::new(), name, "")
            .await
    }

    /// Goes back to a snapshot: its files replace those that are there, interpreters are as they were where the snapshot
    /// has them and begin empty otherwise, and commands end. The answer says what came back.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`, `NotFound`, `Unavailable` while code runs.
    pub async fn restore_snapshot(&self, name: &str) -> Result<SnapshotInfo> {
        self.instance("restore_snapshot")?
            .snapshots()?
            .restore_snapshot(&CallContext::new(), name)
            .await
    }

    /// Holds it.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn pause(&self) -> Result<()> {
        self.instance("pause")?.life().pause(&CallContext::new()).await
    }

    /// Resumes it.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn resume(&self) -> Result<()> {
        self.instance("resume")?.life().resume(&CallContext::new()).await
    }

    /// Measures the resources in use now.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn metrics(&self) -> Result<Metrics> {
        self.instance("metrics")?.life().metrics(&CallContext::new()).await
    }
}

fn terminated(operation: &'static str) -> Error {
    Error::new(ErrorKind::Terminated, operation, "sandbox has been terminated")
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox")
            .field("variant", &self.variant())
            .field("id", &self.id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_send<T: Send>(_: T) {}

    #[test]
    fn the_documented_default_holds() {
        assert_eq!(DEFAULT_TIMEOUT, Duration::from_secs(30));
    }

    #[test]
    fn every_future_can_be_spawned() {
        fn check(sandbox: &Sandbox, builder: SandboxBuilder<SingleBackend>) {
            assert_send(sandbox.start());
            assert_send(sandbox.stop());
            assert_send(sandbox.terminate());
            assert_send(sandbox.kill());
            assert_send(sandbox.interrupt());
            assert_send(sandbox.run_code("1").stream());
            assert_send(std::future::IntoFuture::into_future(sandbox.run_code("1")));
            assert_send(sandbox.commands().run("true").start());
            assert_send(sandbox.files().read("x"));
            assert_send(sandbox.files().write("x", "y"));
            assert_send(std::future::IntoFuture::into_future(sandbox.files().upload("x", "y")));
            assert_send(builder.create());
        }
        // Compiling it is the test.
        let _ = check;
    }
}
