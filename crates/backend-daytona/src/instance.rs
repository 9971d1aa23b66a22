//! One sandbox: every verb.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::{Backoff, Connections, Remote as _, check_lifetime};
use sandbox_core::{
    CallContext, Capabilities, CodeOps, CommandOps, CreateSpec, Effect, Error, ErrorKind, FileOps,
    Instance, Life, LogStream, MAX_DURATION, Metrics, PackageOps, PortOps, Result, SandboxId,
    SandboxInfo, SandboxStatus, SnapshotInfo, SnapshotOps, Tags, TunnelInfo, Variant, random_hex,
};
use sandbox_engine::commands::KeptCommand;
use sandbox_engine::host::{FileSystem, ProcessHost, Spawned, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::{InstanceHooks, Packages, SandboxBase, SandboxBaseSpec, StandardInstance};

use crate::capabilities::capabilities;
use crate::code::Code;
use crate::config::OnPause;
use crate::create::{until_started, working_directory};
use crate::describe;
use crate::error::unsupported;
use crate::files::DaytonaFiles;
use crate::interpreter::Interpreter;
use crate::remote::{self, Handle};
use sandbox_shell::ShellCommands;

/// Time for a change that the API makes after its answer.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(150);

/// Commands, files and packages.
type Programs = StandardInstance<DaytonaHooks>;

/// Differences of these sandboxes from those of this computer.
#[derive(Debug)]
pub(crate) struct DaytonaHooks;

impl InstanceHooks for DaytonaHooks {
    fn system_packages_hint(names: &[String]) -> String {
        let names = names.join(" ");
        format!(
            "run what installs them as a command, such as `apt-get install -y {names}`, or put them into the image"
        )
    }
}

/// One sandbox. Its verbs do not look whether it has ended: [`open`] does that for all of them.
#[derive(Debug)]
struct DaytonaInstance {
    programs: Programs,
    code: Code,
    handle: Arc<Handle>,
}

/// Opens a sandbox with that working directory.
///
/// # Errors
/// `Protocol` for an id that is none.
pub(crate) fn open(handle: Arc<Handle>, cwd: &str, spec: &CreateSpec) -> Result<Arc<dyn Instance>> {
    open_with(handle, cwd, spec, Vec::new())
}

/// Opens a sandbox in which an earlier process has left commands.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_with(
    handle: Arc<Handle>,
    cwd: &str,
    spec: &CreateSpec,
    kept: Vec<(KeptCommand, Spawned)>,
) -> Result<Arc<dyn Instance>> {
    let packages = format!("{}/.packages", cwd.trim_end_matches('/'));
    let interpreter = Interpreter {
        handle: Arc::clone(&handle),
        cwd: cwd.to_owned(),
        packages: packages.clone(),
    };
    let instance = DaytonaInstance {
        programs: programs(&handle, cwd, &packages, spec)?,
        code: Code::new(interpreter, spec.output_limit),
        handle: Arc::clone(&handle),
    };
    let base = &instance.programs.base;
    for (kept, spawned) in kept {
        base.commands.adopt(kept, spawned, Box::new(base.expiry.in_use()));
    }
    Ok(check_lifetime(Arc::new(instance), handle))
}

fn programs(handle: &Handle, cwd: &str, packages: &str, spec: &CreateSpec) -> Result<Programs> {
    let info = remote::info(handle);
    let mut create = CreateSpec::default();
    // The handle ends the sandbox.
    create.lifetime = Some(MAX_DURATION);
    create.output_limit = spec.output_limit;
    let base = SandboxBaseSpec {
        variant: Variant::DAYTONA,
        capabilities: capabilities(),
        create: &create,
        isolation: info.isolation.unwrap_or_default(),
        // Those of the create are the sandbox's own.
        env: std::collections::BTreeMap::new(),
        cwd: cwd.to_owned(),
    };
    let host: Arc<dyn ProcessHost> = Arc::new(ShellCommands(Arc::clone(&handle.programs)));
    let files: Arc<dyn FileSystem> = Arc::new(DaytonaFiles::new(Arc::clone(&handle.programs), cwd));
    let ended = Arc::clone(handle.end_reason());
    let mut base =
        SandboxBase::remote_with_end(Arc::clone(&ended), Arc::clone(&host), Some(files), base);
    base.id = info.id.parse::<SandboxId>()?;
    base.packages = Some(Packages::inside("python3".into(), packages.to_owned(), Vec::new()));
    let worker = WorkerSpec { env: base.env.clone(), cwd: cwd.to_owned() };
    let contexts = Contexts::new(Variant::DAYTONA, host, ended, worker);
    Ok(StandardInstance { base, contexts, kind: DaytonaHooks })
}

impl Drop for DaytonaInstance {
    fn drop(&mut self) {
        self.handle.release();
    }
}

impl DaytonaInstance {
    /// Waits until the API reports one of these states.
    async fn until_state(
        &self,
        call: &CallContext,
        operation: &'static str,
        wanted: &[&str],
    ) -> Result<()> {
        let api = self.handle.factory.api(operation)?;
        let mut backoff = Backoff::new(CHANGE_TIMEOUT);
        loop {
            let found = api.sandbox(call, operation, &self.handle.local_id()).await?;
            let state = found.state.clone().unwrap_or_default();
            let reason = found.error_reason.clone();
            self.handle.update(found);
            if wanted.contains(&state.as_str()) {
                return Ok(());
            }
            if matches!(state.as_str(), "error" | "build_failed" | "destroyed") {
                let why = reason.unwrap_or(state);
                let message = format!("the service could not {operation} the sandbox: {why}");
                return Err(Error::new(ErrorKind::Unavailable, operation, message));
            }
            if !backoff.wait(call).await {
                break;
            }
        }
        Err(Error::new(ErrorKind::Timeout, operation, "the service has not finished in time")
            .with_effect(Effect::Unknown))
    }

    /// Returns what a pause does, as the create has chosen it.
    fn on_pause(&self) -> OnPause {
        let labels = self.handle.sandbox().labels;
        labels.get(describe::ON_PAUSE).and_then(|word| OnPause::parse(word)).unwrap_or_default()
    }

    /// Stops the sandbox, which keeps its files alone, and archives it where that was chosen.
    async fn stop(&self, call: &CallContext, on_pause: OnPause) -> Result<()> {
        let api = self.handle.factory.api("pause")?;
        let id = self.handle.local_id();
        self.programs.base.commands.end_all().await?;
        self.handle.programs.hold(true);
        // Otherwise the stop would delete it.
        api.set_auto_delete(call, "pause", &id, -1).await?;
        api.act(call, "pause", &id, "stop").await?;
        self.code.mark_gone();
        self.until_state(call, "pause", &["stopped"]).await?;
        if on_pause == OnPause::Archive {
            api.act(call, "pause", &id, "archive").await?;
            self.until_state(call, "pause", &["archived"]).await?;
        }
        Ok(())
    }

    fn ensure_awake(&self, operation: &'static str) -> Result<()> {
        if !self.handle.is_paused() {
            return Ok(());
        }
        let message = format!("{operation} is not possible while the sandbox is held");
        Err(Error::new(ErrorKind::Unavailable, operation, message).with_hint("resume it first"))
    }
}

/// Turns the refusal of a state change into what it means: some classes of sandboxes cannot do it.
fn of_class(error: Error, operation: &'static str) -> Error {
    if !matches!(error.kind(), ErrorKind::InvalidArgument | ErrorKind::Unavailable) {
        return error;
    }
    let message = format!("this sandbox cannot {operation}: {}", error.message());
    Error::unsupported(operation, message)
        .with_hint(
            "Daytona pauses and forks sandboxes of snapshots of the class linux-vm alone; with the provider option \
             `on_pause` a pause stops or archives the sandbox, which keeps its files",
        )
}

impl Instance for DaytonaInstance {
    fn info(&self) -> SandboxInfo {
        remote::info(&self.handle)
    }

    fn status(&self) -> SandboxStatus {
        remote::info(&self.handle).status
    }

    fn capabilities(&self) -> Capabilities {
        capabilities()
    }

    fn life(&self) -> &dyn Life {
        self
    }

    fn code(&self) -> Result<&dyn CodeOps> {
        self.ensure_awake("run_code")?;
        Ok(&self.code)
    }

    fn commands(&self) -> Result<&dyn CommandOps> {
        self.ensure_awake("start_command")?;
        self.programs.commands()
    }

    fn files(&self) -> Result<&dyn FileOps> {
        self.ensure_awake("files")?;
        self.programs.files()
    }

    fn packages(&self) -> Result<&dyn PackageOps> {
        self.ensure_awake("install_packages")?;
        self.programs.packages()
    }

    fn snapshots(&self) -> Result<&dyn SnapshotOps> {
        Ok(self)
    }

    fn ports(&self) -> Result<&dyn PortOps> {
        Ok(self)
    }
}

#[async_trait]
impl Life for DaytonaInstance {
    async fn reset(&self, _: &CallContext) -> Result<()> {
        self.ensure_awake("reset")?;
        self.code.restart_all().await?;
        self.programs.base.commands.end_all().await
    }

    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()> {
        let labels = describe::with_tags(&self.handle.sandbox().labels, tags);
        let api = self.handle.factory.api("set_tags")?;
        api.set_labels(call, &self.handle.local_id(), &labels).await?;
        self.handle.set_labels(labels);
        Ok(())
    }

    async fn set_lifetime(&self, _: &CallContext, lifetime: Duration) -> Result<()> {
        if self.handle.is_owned() {
            // The provider's own expiry is renewed until then.
            self.handle.end_in(lifetime);
            return Ok(());
        }
        self.handle.expire_in("set_lifetime", lifetime, Connections::Shared).await?;
        let left = self.handle.expires_at().map(|end| end - sandbox_core::unix_now());
        let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
        self.handle.end_in(left.unwrap_or(lifetime));
        Ok(())
    }

    async fn pause(&self, call: &CallContext) -> Result<()> {
        if self.handle.is_paused() {
            return Ok(());
        }
        self.handle.programs.hold(true);
        let on_pause = self.on_pause();
        if on_pause != OnPause::Pause {
            return self.stop(call, on_pause).await;
        }
        let api = self.handle.factory.api("pause")?;
        let paused = api.act(call, "pause", &self.handle.local_id(), "pause").await;
        paused.map_err(|error| of_class(error, "pause"))?;
        self.until_state(call, "pause", &["paused"]).await
    }

    async fn resume(&self, call: &CallContext) -> Result<()> {
        if !self.handle.is_paused() {
            return Ok(());
        }
        let api = self.handle.factory.api("resume")?;
        api.act(call, "resume", &self.handle.local_id(), "start").await?;
        self.until_state(call, "resume", &["started"]).await?;
        self.handle.programs.hold(false);
        match self.on_pause() {
            OnPause::Pause => Ok(()),
            _ => api.set_auto_delete(call, "resume", &self.handle.local_id(), 0).await,
        }
    }

    async fn terminate(&self, _: &CallContext) -> Result<()> {
        self.handle.end("terminate", true).await
    }

    async fn kill(&self, _: &CallContext) -> Result<()> {
        self.handle.end("kill", false).await
    }

    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>> {
        self.ensure_awake("fork")?;
        let factory = &self.handle.factory;
        let api = factory.api("fork")?;
        let name = format!("sandbox-{}", random_hex(8));
        let forked = api.fork(call, &self.handle.local_id(), &name).await;
        let forked = match forked {
            // A lost answer: the copy has a name that no other sandbox has.
            Err(error) if error.effect() == Effect::Unknown => {
                api.find(call, "fork", &name).await?.ok_or(error)?
            }
            Err(error) => return Err(of_class(error, "fork")),
            Ok(forked) => forked,
        };
        let remote = remote::RemoteSandbox::new(Arc::clone(factory), forked);
        let handle = Arc::new(Handle::new(remote, self.handle.is_owned()));
        let timeout = factory.config.ready_timeout();
        let ready = async {
            until_started(&api, call, &handle, timeout, false).await?;
            let own = handle.sandbox().labels.get(describe::DIRECTORY).cloned();
            working_directory(call, &handle, own.as_deref(), Connections::Shared).await
        };
        match ready.await {
            Ok(cwd) => {
                if handle.is_owned() {
                    handle.renew_every(crate::plan::OWNED_EXPIRY);
                }
                let end = self.handle.end_at();
                let left = end.map(|end| end - sandbox_core::unix_now());
                let left = left.and_then(|left| Duration::try_from_secs_f64(left).ok());
                handle.end_in(left.unwrap_or(crate::plan::DEFAULT_LIFETIME));
                open(handle, &cwd, &CreateSpec::default())
            }
            Err(error) => Err(handle.discard(error, crate::error::LEFT_BEHIND).await),
        }
    }

    async fn metrics(&self, _: &CallContext) -> Result<Metrics> {
        Err(unsupported("metrics"))
    }

    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> {
        Err(unsupported("logs")
            .with_hint("the API has none of one sandbox: commands have their own output"))
    }
}

#[async_trait]
impl SnapshotOps for DaytonaInstance {
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        _description: &str,
    ) -> Result<SnapshotInfo> {
        let operation = "create_snapshot";
        sandbox_engine::check_snapshot_name(name)?;
        let api = self.handle.factory.api(operation)?;
        let all = api.snapshots(call, operation).await?;
        if all.iter().any(|snapshot| snapshot.name == name) {
            let message = format!("there is a snapshot {name:?} already");
            return Err(Error::new(ErrorKind::AlreadyExists, operation, message).with_hint(
                "choose another name, or delete that one: `Sandbox::delete_snapshot()`",
            ));
        }
        api.create_snapshot(call, &self.handle.local_id(), name).await?;
        self.until_state(call, operation, &["started", "stopped", "paused"]).await?;
        let mut backoff = Backoff::new(CHANGE_TIMEOUT);
        loop {
            let all = api.snapshots(call, operation).await?;
            match all.into_iter().find(|snapshot| snapshot.name == name) {
                Some(found) if found.state.as_deref() == Some("error") => {
                    let why = found.error_reason.unwrap_or_default();
                    let message =
                        format!("the service could not take the snapshot {name:?}: {why}");
                    return Err(Error::new(ErrorKind::Unavailable, operation, message));
                }
                Some(found) if found.state.as_deref().is_none_or(|state| state == "active") => {
                    let sandbox_id = remote::info(&self.handle).id;
                    return Ok(SnapshotInfo { sandbox_id, ..describe::snapshot(&found) });
                }
                _ => {}
            }
            if !backoff.wait(call).await {
                break;
            }
        }
        Err(Error::new(ErrorKind::Timeout, operation, "the service has not finished in time")
            .with_effect(Effect::Unknown))
    }

    async fn restore_snapshot(&self, _: &CallContext, _: &str) -> Result<SnapshotInfo> {
        Err(unsupported("restore_snapshot"))
    }
}

#[async_trait]
impl PortOps for DaytonaInstance {
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo> {
        if port == 0 {
            return Err(Error::invalid("port", "must be from 1 to 65535, got 0"));
        }
        let api = self.handle.factory.api("expose_port")?;
        let preview = api.preview_url(call, &self.handle.local_id(), port).await?;
        let token = preview.token.filter(|token| !token.is_empty());
        let headers = token.map(|token| ("X-Daytona-Preview-Token".to_owned(), token));
        let protocol = if preview.url.starts_with("http:") { "http" } else { "https" };
        Ok(TunnelInfo {
            port,
            url: preview.url,
            protocol: protocol.to_owned(),
            headers: headers.into_iter().collect(),
        })
    }
}
