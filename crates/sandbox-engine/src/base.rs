//! A sandbox without its interpreters: its host, its files, its commands, and the end of its life.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::commands::Commands;
use crate::host::{FileSystem, ProcessHost, Spawn};
use crate::process::EndReason;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use sandbox_core::{
    ByteSize, Capabilities, CodeMode, Command, CreateSpec, Error, ErrorKind, Event, FailureKind,
    IsolationInfo, Mount, ResourceConfig, Result, RunCode, SandboxId, SandboxInfo, SandboxStatus,
    StartCommand, Stdin, Tags, Variant, unix_now,
};
use serde_json::{Map, Value};

use crate::denial_report::report_denials;
use crate::expiry::{ActivityGuard, Expiry};
use crate::network::Network;
use crate::packages::Packages;
use crate::pause::PauseState;

/// Lifetime of a sandbox whose creator asked for none.
pub(crate) const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// How long `terminate` waits for the processes that it killed. Only a process that hangs in the kernel takes longer, and
/// runs no code of the sandbox any more.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// Names the sandboxes that can be reached, paused and measured.
const IN_A_BOUNDARY: &str = "sandboxes of this host have it, in cells and in containers with Python: `-p local-eval`, \
    `-p local-jupyter` or `-p local-docker`";

/// Gives the file system of a sandbox, once the file system is there.
pub type Files = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<dyn FileSystem>>> + Send + Sync>;

/// Makes a future that ends when the sandbox has ended. The future does not keep the host alive.
pub type ClosedSignal = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// One sandbox without its interpreters.
pub struct SandboxBase {
    /// The id of the sandbox.
    pub id: SandboxId,
    /// The capabilities of the sandbox.
    pub capabilities: Capabilities,
    /// The host of its processes.
    pub host: Arc<dyn ProcessHost>,
    /// The reason of its end, once it has ended.
    pub end_reason: Arc<EndReason>,
    /// Ends the sandbox by itself.
    pub expiry: Expiry,
    /// The metadata that listings show.
    pub metadata: Mutex<SandboxMetadata>,
    /// The whole environment of every process in the sandbox.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub cwd: String,
    /// The working directory of sandboxes of this backend, which is the one in a snapshot.
    pub(crate) work_dir: String,
    /// The output limit of each run and each command.
    pub output_limit: Option<ByteSize>,
    /// The network, with what may leave the sandbox.
    pub network: Network,
    /// The commands.
    pub commands: Commands,
    /// Python packages, where they can be installed.
    pub packages: Option<Packages>,
    /// The hint of `Unsupported` errors.
    pub unsupported_hint: Option<&'static str>,
    /// Directories of this host in which the interpreter looks for modules, and which code does not see.
    pub hidden_paths: Vec<PathBuf>,
    pub(crate) pause: PauseState,
    pub(crate) files: Option<Files>,
    pub(crate) closed: ClosedSignal,
}

/// Describes a sandbox that is about to be made.
#[derive(Debug)]
pub struct SandboxBaseSpec<'a> {
    /// The variant of its backend.
    pub variant: Variant,
    /// The capabilities of the sandbox.
    pub capabilities: Capabilities,
    /// The request to create the sandbox.
    pub create: &'a CreateSpec,
    /// The isolation of the code.
    pub isolation: IsolationInfo,
    /// The whole environment of every process in the sandbox.
    pub env: BTreeMap<String, String>,
    /// The working directory.
    pub cwd: String,
}

/// The metadata that listings show of a sandbox.
#[derive(Clone, Debug, Default)]
pub struct SandboxMetadata {
    /// The name.
    pub name: Option<String>,
    /// The tags.
    pub tags: Tags,
    /// The time of creation, in Unix seconds.
    pub created_at: f64,
    /// The limits that hold.
    pub resources: Option<ResourceConfig>,
    /// The isolation of the code.
    pub isolation: IsolationInfo,
    /// What the sandbox is given of this host.
    pub mounts: Vec<Mount>,
    /// Facts of its backend.
    pub facts: Map<String, Value>,
}

/// Default disk of a sandbox whose files are private to it.
const DEFAULT_DISK: ByteSize = ByteSize::gib(1);

/// Returns the limits that hold: those that were asked for, because a limit that is not enforced is refused, and the disk of
/// a private root. `None`: there is none.
fn limits_in_force(create: &CreateSpec, isolation: &IsolationInfo) -> Option<ResourceConfig> {
    let is_private = isolation.layers.iter().any(|layer| layer == "private-root");
    // Files are memory: without a limit of their own they get half of it at most.
    let half = create.memory.map_or(u64::MAX, |memory| memory.as_u64() / 2);
    let default = ByteSize::bytes(DEFAULT_DISK.as_u64().min(half));
    let disk = create.disk.or_else(|| is_private.then_some(default));
    let limits = ResourceConfig {
        cpu: create.cpu,
        memory: create.memory.map(|memory| memory.as_u64().div_ceil(1 << 20)),
        gpu: create.gpu.clone(),
        gpu_count: u32::from(create.gpu.is_some()),
        disk: disk.map(|disk| disk.as_u64() as f64 / f64::from(1 << 30)),
    };
    (limits != ResourceConfig::default()).then_some(limits)
}

impl fmt::Debug for SandboxBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxBase")
            .field("id", &self.id)
            .field("host", &self.host)
            .finish_non_exhaustive()
    }
}

impl SandboxBase {
    /// Makes a sandbox on another host. `files` are its files.
    pub fn remote(
        host: Arc<dyn ProcessHost>,
        files: Option<Arc<dyn FileSystem>>,
        spec: SandboxBaseSpec<'_>,
    ) -> Self {
        Self::remote_with_end(Arc::default(), host, files, spec)
    }

    /// Makes a sandbox on another host, whose end is reported by `ended`.
    pub fn remote_with_end(
        ended: Arc<EndReason>,
        host: Arc<dyn ProcessHost>,
        files: Option<Arc<dyn FileSystem>>,
        spec: SandboxBaseSpec<'_>,
    ) -> Self {
        let closing: ClosedSignal = {
            let watched = Arc::clone(&host);
            Arc::new(move || {
                let watched = Arc::clone(&watched);
                Box::pin(async move { watched.closed().await })
            })
        };
        let files = files.map(|files| -> Files {
            Arc::new(move || Box::pin(std::future::ready(Ok(Arc::clone(&files)))))
        });
        let network = Network::unrestricted(spec.create.network.clone());
        Self::new(ended, host, files, closing, network, spec)
    }

    /// Has snapshots save that directory, whatever the working directory is.
    #[must_use]
    pub fn with_work_dir(mut self, directory: &str) -> Self {
        directory.clone_into(&mut self.work_dir);
        self
    }

    /// Sets where the files come from when the first file verb is called.
    #[must_use]
    pub fn with_files_of<F>(mut self, files: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Arc<dyn FileSystem>>> + Send + 'static,
    {
        self.files = Some(Arc::new(move || Box::pin(files())));
        self
    }

    /// Makes a sandbox on a host of this computer.
    pub fn new(
        ended: Arc<EndReason>,
        host: Arc<dyn ProcessHost>,
        files: Option<Files>,
        closing: ClosedSignal,
        network: Network,
        spec: SandboxBaseSpec<'_>,
    ) -> Self {
        let SandboxBaseSpec { variant, capabilities, create, isolation, env, cwd } = spec;
        let commands = Commands::new(Arc::clone(&host), Arc::clone(&ended));
        let lifetime = create.lifetime.unwrap_or(DEFAULT_LIFETIME);
        let expiry =
            Expiry::start(Arc::clone(&host), Arc::clone(&ended), lifetime, create.idle_timeout);
        let metadata = SandboxMetadata {
            name: create.name.clone(),
            tags: create.tags.clone(),
            created_at: unix_now(),
            resources: limits_in_force(create, &isolation),
            isolation,
            mounts: create.mounts.clone(),
            facts: Map::new(),
        };
        Self {
            id: SandboxId::random(variant),
            capabilities,
            host,
            end_reason: ended,
            expiry,
            metadata: Mutex::new(metadata),
            env,
            work_dir: cwd.clone(),
            cwd,
            output_limit: create.output_limit,
            network,
            commands,
            packages: None,
            unsupported_hint: None,
            hidden_paths: Vec::new(),
            pause: PauseState::default(),
            files,
            closed: closing,
        }
    }

    /// Checks that the sandbox has not ended and is not paused.
    ///
    /// # Errors
    /// `Terminated`; `Unavailable` while the sandbox is paused.
    pub fn ensure_running(&self, operation: &'static str) -> Result<()> {
        self.ensure_not_ended(operation)?;
        self.pause.check(operation)
    }

    /// Checks that the sandbox has not ended. A paused one passes.
    ///
    /// # Errors
    /// `Terminated`.
    pub fn ensure_not_ended(&self, operation: &'static str) -> Result<()> {
        ended(operation, &self.id, &self.end_reason).map_or(Ok(()), Err)
    }

    /// Returns true until the sandbox ends.
    pub fn is_running(&self) -> bool {
        self.end_reason.get().is_none()
    }

    /// Makes the error of a verb that this sandbox does not have.
    pub fn unsupported(&self, operation: &'static str) -> Error {
        let variant = self.id.variant();
        let error =
            Error::unsupported(operation, format!("{variant} does not support {operation} here"))
                .with_context("variant", variant.as_str());
        let elsewhere = matches!(operation, "expose_port" | "pause" | "resume" | "metrics");
        match self.unsupported_hint.or_else(|| elsewhere.then_some(IN_A_BOUNDARY)) {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    /// Refuses a run that needs our program in the Jupyter kernel, where the kernel has none.
    ///
    /// # Errors
    /// `Unsupported`, with what the run needs.
    pub fn check_run_of_kernel(&self, request: &RunCode) -> Result<()> {
        let capabilities = &self.capabilities;
        let is_script = matches!(request.mode, CodeMode::Script { .. });
        let own = !request.env.is_empty() || request.cwd.is_some();
        let has_stdin = !matches!(request.stdin, Stdin::Empty);
        let what = if is_script && !capabilities.run_script {
            "scripts"
        } else if has_stdin && !capabilities.run_stdin {
            "standard input"
        } else if own && !capabilities.variables {
            "environment and no directory for a single run"
        } else {
            return Ok(());
        };
        let message = format!("this kernel of {} has no {what}", self.id.variant());
        Err(Error::unsupported("run_code", message)
            .with_hint("kernels of IPython have it; or run it as a command"))
    }

    pub(crate) fn metadata(&self) -> MutexGuard<'_, SandboxMetadata> {
        self.metadata.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the sandbox as it is now.
    pub fn info(&self) -> SandboxInfo {
        let metadata = self.metadata();
        SandboxInfo {
            id: self.id.to_string(),
            variant: self.id.variant(),
            status: self.status(),
            created_at: metadata.created_at,
            end_at: Some(self.expiry.end_at()),
            name: metadata.name.clone(),
            tags: metadata.tags.clone(),
            resources: metadata.resources.clone(),
            isolation: Some(metadata.isolation.clone()),
            mounts: metadata.mounts.clone(),
            metadata: metadata.facts.clone(),
        }
    }

    /// Returns the current status.
    pub fn status(&self) -> SandboxStatus {
        match self.end_reason.get() {
            None if self.pause.is_paused() => SandboxStatus::Paused,
            None => SandboxStatus::Running,
            Some(_) => SandboxStatus::Terminated,
        }
    }

    /// Adds a fact of its backend.
    pub fn describe(&self, name: &str, fact: Value) {
        self.metadata().facts.insert(name.to_owned(), fact);
    }

    /// Replaces the tags.
    pub fn set_tags(&self, tags: Tags) {
        self.metadata().tags = tags;
    }

    /// Starts the lifetime of the sandbox, which may have been made ahead.
    pub fn begin(&self, spec: &CreateSpec) {
        self.expiry.set_lifetime(spec.lifetime.unwrap_or(DEFAULT_LIFETIME));
        drop(self.expiry.in_use());
        let mut metadata = self.metadata();
        metadata.name.clone_from(&spec.name);
        metadata.tags.clone_from(&spec.tags);
        metadata.created_at = unix_now();
    }

    /// Makes a directory that a caller has named, with all missing ones above it.
    ///
    /// # Errors
    /// `InvalidArgument` with the field.
    pub async fn make_directory(&self, field: &'static str, path: &str) -> Result<()> {
        let spec = Spawn {
            argv: vec!["mkdir".into(), "-p".into(), "--".into(), path.into()],
            env: self.env.clone(),
            cwd: "/".into(),
            stdin: false,
            terminal: None,
            label: None,
            as_root: false,
            limit: None,
        };
        let exit = self.host.spawn(spec).await?.process.exit().await?;
        if exit.code == Some(0) {
            return Ok(());
        }
        Err(Error::invalid(field, format!("cannot be made in the sandbox, got {path:?}")))
    }

    /// Starts a command. Its end reports what the network refused meanwhile.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, and as [`Commands::start`].
    pub async fn start_command(&self, mut request: StartCommand) -> Result<Command> {
        self.ensure_running("start_command")?;
        request.output_limit = self.output_limit(request.output_limit);
        let in_use = Box::new(self.expiry.in_use());
        let (env, denial_reporter) = (self.command_env(), self.network.denial_reporter());
        let started = self.commands.start(env, &self.cwd, request, in_use).await;
        let started = started.map(|command| report_denials(command, denial_reporter));
        started.map_err(|error| self.ensure_running("start_command").err().unwrap_or(error))
    }

    /// Returns the output limit that holds when `asked` was asked for: the smaller one of both.
    pub fn output_limit(&self, asked: Option<ByteSize>) -> Option<ByteSize> {
        self.output_limit.into_iter().chain(asked).min()
    }

    /// Connects to a command that was started before. Its end reports what the network refuses from now on.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, and as [`Commands::connect`].
    pub fn connect_command(&self, id: &str) -> Result<Command> {
        self.ensure_running("connect_command")?;
        let command = self.commands.connect(id, Box::new(self.expiry.in_use()))?;
        Ok(report_denials(command, self.network.denial_reporter()))
    }

    /// Ends the sandbox and closes its network.
    pub fn end(&self, kind: FailureKind) {
        self.end_reason.set(kind);
        self.host.kill();
        self.network.close();
    }

    /// Ends the sandbox and waits until nothing runs in it any more.
    pub async fn terminate(&self) {
        self.end_reason.set(FailureKind::Terminated);
        let _ = tokio::time::timeout(END_TIMEOUT, self.host.end()).await;
        self.end(FailureKind::Terminated);
    }
}

impl Drop for SandboxBase {
    fn drop(&mut self) {
        self.end(FailureKind::Terminated);
    }
}

/// Makes the error of every verb of a sandbox that has ended. `None`: it has not ended.
pub(crate) fn ended(operation: &'static str, id: &SandboxId, reason: &EndReason) -> Option<Error> {
    let message = match reason.get()? {
        FailureKind::Expired => "the sandbox has expired".to_owned(),
        _ => reason.explain("the sandbox has been terminated"),
    };
    let error = Error::new(ErrorKind::Terminated, operation, message);
    Some(error.with_context("sandbox_id", id.to_string()))
}

/// A stream that counts as activity of its sandbox.
pub struct KeepAliveStream<S> {
    inner: S,
    _in_use: ActivityGuard,
}

impl<S> KeepAliveStream<S> {
    /// Wraps a stream with the guard of its activity.
    pub fn new(inner: S, in_use: ActivityGuard) -> Self {
        Self { inner, _in_use: in_use }
    }
}

impl<S> fmt::Debug for KeepAliveStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeepAliveStream").finish_non_exhaustive()
    }
}

impl<S: Stream<Item = Event> + Unpin> Stream for KeepAliveStream<S> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        Pin::new(&mut self.inner).poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_default_holds() {
        assert_eq!(DEFAULT_LIFETIME, Duration::from_secs(24 * 3600));
    }
}
