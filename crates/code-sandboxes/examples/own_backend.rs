//! A program brings its own backend: commands as processes of this host, with no isolation, and declared so.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::{Arc, Mutex};
use std::{io::Error as Io, io::ErrorKind::NotFound, mem, process::Stdio, time::Duration};

use async_trait::async_trait;
use code_sandboxes::*;
use futures_util::{Stream, StreamExt as _, stream};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::{process, sync::oneshot, task::JoinSet};

#[tokio::main]
async fn main() -> Result<()> {
    let mine = HostProcesses(Variant::register("host-processes")?);
    let refused = Sandbox::builder().backend(mine).create().await.expect_err("it has no isolation");
    println!("refused by default: {refused}");
    let builder = Sandbox::builder().backend(mine).isolation(IsolationMode::Off);
    let sandbox = builder.env("WHO", "world").create().await?;
    let result = sandbox.commands().run("echo hello $WHO; exit 3").await?;
    println!("{}, status {}", result.stdout.trim_end(), result.exit_code);
    sandbox.terminate().await
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HostProcesses(pub(crate) Variant);

#[derive(Debug)]
struct HostSandbox {
    info: SandboxInfo,
    spec: CreateSpec,
    directory: tempfile::TempDir,
    /// Running or terminated, and a task for each command, which owns its group.
    state: Mutex<(SandboxStatus, JoinSet<()>)>,
}

/// A program and all that it has started. They end with this.
struct Group(Pid);

#[rustfmt::skip]
impl Drop for Group {
    fn drop(&mut self) { let _ = kill_process_group(self.0, Signal::KILL); }
}

#[rustfmt::skip]
fn no<T>(verb: &'static str) -> Result<T> { Err(Error::unsupported(verb, format!("host-processes has no {verb}"))) }

#[async_trait]
#[rustfmt::skip]
impl Backend for HostProcesses {
    fn variant(&self) -> Variant { self.0 }
    fn capabilities(&self) -> Capabilities { Capabilities { commands: true, isolation_off: true, ..Default::default() } }
    async fn create(&self, _: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        if !spec.provider_options.is_empty() || spec.working_dir.is_some() {
            return no("provider option, and no working directory but its own");
        }
        let directory = tempfile::tempdir().map_err(|e| Error::new(ErrorKind::Unavailable, "create", e.to_string()))?;
        let mut info = SandboxInfo::new(&SandboxId::random(self.0));
        (info.name, info.tags) = (spec.name.clone(), spec.tags.clone());
        let state = (SandboxStatus::Running, JoinSet::new()).into();
        Ok(Arc::new(HostSandbox { info, spec, directory, state }))
    }
    async fn attach(&self, _: &CallContext, _: &SandboxId) -> Result<Arc<dyn Instance>> { no("attach") }
    async fn list(&self, _: &CallContext, _: ListQuery) -> Result<Page<SandboxInfo>> { no("list") }
    async fn environments(&self, _: &CallContext) -> Result<Vec<SandboxEnvironment>> { no("environments") }
    async fn health(&self, _: &CallContext) -> Result<Health> { Ok(Health { usable: true, ..Default::default() }) }
    async fn list_snapshots(&self, _: &CallContext) -> Result<Vec<SnapshotInfo>> { no("list_snapshots") }
    async fn delete_snapshot(&self, _: &CallContext, _: &str) -> Result<()> { no("delete_snapshot") }
}

#[rustfmt::skip]
impl Instance for HostSandbox {
    fn info(&self) -> SandboxInfo { SandboxInfo { status: self.status(), ..self.info.clone() } }
    fn status(&self) -> SandboxStatus { self.state.lock().expect("not poisoned").0 }
    fn capabilities(&self) -> Capabilities { HostProcesses(self.info.variant).capabilities() }
    fn life(&self) -> &dyn Life { self }
    fn code(&self) -> Result<&dyn CodeOps> { no("run_code") }
    fn commands(&self) -> Result<&dyn CommandOps> { Ok(self) }
    fn files(&self) -> Result<&dyn FileOps> { no("files") }
    fn packages(&self) -> Result<&dyn PackageOps> { no("install_packages") }
    fn snapshots(&self) -> Result<&dyn SnapshotOps> { no("create_snapshot") }
    fn ports(&self) -> Result<&dyn PortOps> { no("expose_port") }
}

#[async_trait]
#[rustfmt::skip]
impl Life for HostSandbox {
    async fn terminate(&self, call: &CallContext) -> Result<()> { self.kill(call).await }
    async fn kill(&self, _: &CallContext) -> Result<()> {
        let ended = (SandboxStatus::Terminated, JoinSet::new());
        let (_, mut running) = mem::replace(&mut *self.state.lock().expect("not poisoned"), ended);
        running.shutdown().await;
        Ok(())
    }
    async fn set_tags(&self, _: &CallContext, _: Tags) -> Result<()> { no("set_tags") }
    async fn set_lifetime(&self, _: &CallContext, _: Duration) -> Result<()> { no("set_lifetime") }
    async fn pause(&self, _: &CallContext) -> Result<()> { no("pause") }
    async fn resume(&self, _: &CallContext) -> Result<()> { no("resume") }
    async fn reset(&self, _: &CallContext) -> Result<()> { no("reset") }
    async fn fork(&self, _: &CallContext) -> Result<Arc<dyn Instance>> { no("fork") }
    async fn metrics(&self, _: &CallContext) -> Result<Metrics> { no("metrics") }
    async fn logs(&self, _: &CallContext, _: bool) -> Result<LogStream> { no("logs") }
}

#[async_trait]
#[rustfmt::skip]
impl CommandOps for HostSandbox {
    async fn start_command(&self, _: &CallContext, request: StartCommand) -> Result<Command> {
        let StartCommand { command, env, cwd: None, timeout: None, cpu_time: None, output_limit: None,
            stdin: Stdin::Empty, interactive: false, pty: None, background: false, as_root: false, .. } = request
        else { return no("command with more than arguments and variables") };
        let mut program = process::Command::new(&command.argv()[0]);
        program.args(&command.argv()[1..]).current_dir(&self.directory).process_group(0).stdin(Stdio::null());
        let secrets = self.spec.secrets.iter().map(|(name, secret)| (name, secret.expose()));
        program.env_clear().env("PATH", "/usr/bin:/bin").envs(&self.spec.env).envs(secrets).envs(&env);
        let mut state = self.state.lock().expect("not poisoned");
        let over = || Error::new(ErrorKind::Terminated, "start_command", "the sandbox has ended");
        if state.0 != SandboxStatus::Running { return Err(over()) }
        let kind = |missing| if missing { ErrorKind::NotFound } else { ErrorKind::PermissionDenied };
        let failed = |e: Io| Error::new(kind(e.kind() == NotFound), "start_command", e.to_string());
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(failed)?;
        let group = Group(child.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("it is not waited for"));
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let output = stream::select(pieces(OutputStream::Stdout, stdout), pieces(OutputStream::Stderr, stderr));
        let (mut reader, ended) = oneshot::channel();
        state.1.spawn(async move {
            let status = tokio::select! { () = reader.closed() => return, status = child.wait() => status };
            drop(group);
            let _ = reader.send(status);
        });
        let failure = Some(Failure { kind: FailureKind::Terminated, message: over().to_string(), signal: Some(9) });
        let killed = CommandOutcome { exit_code: 137, signal: Some(9), failure, ..Default::default() };
        let outcome = async { ended.await.ok().and_then(Result::ok).map_or(killed, CommandOutcome::from) };
        let finished = stream::once(async { CommandEvent::Finished(outcome.await) });
        Ok(Command::without_control(new_run_id(), output.chain(finished)))
    }
    async fn list_commands(&self, _: &CallContext) -> Result<Vec<CommandInfo>> { no("list_commands") }
    async fn connect_command(&self, _: &CallContext, _: &str) -> Result<Command> { no("connect_command") }
}

#[rustfmt::skip]
fn pieces(stream: OutputStream, pipe: Option<impl AsyncRead + Send + Unpin + 'static>) -> impl Stream<Item = CommandEvent> {
    stream::unfold(pipe, move |pipe| async move {
        let (mut pipe, mut data) = (pipe?, vec![0; 8192]);
        let count = pipe.read(&mut data).await.ok().filter(|count| *count > 0)?;
        data.truncate(count);
        Some((CommandEvent::Output { stream, data: data.into() }, Some(pipe)))
    })
}
