//! From a plan to a sandbox that can be used.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, pin_mut};
use sandbox_cloud::http::lines;
use sandbox_cloud::{
    Backoff, Cancellation, Connections, CreateGuard, CreateLocks, RemoteLifetime, create_or_find,
};
use sandbox_core::{
    CallContext, Effect, Error, ErrorKind, FailureKind, Result, Retry, SandboxId, Variant,
    resolve_directory,
};
use sandbox_shell::ShellHost as _;

use crate::api::Api;
use crate::client_factory::ApiFactory;
use crate::error::LEFT_BEHIND;
use crate::plan::{OWNED_EXPIRY, Plan};
use crate::remote::{Handle, RemoteSandbox};
use crate::wire::Sandbox;

/// Lines of a build's log that an error has.
const MAX_LOG_LINES: usize = 20;
const MAX_LOG_LINE: usize = 64 << 10;

/// A sandbox that can be used, and its working directory.
pub(crate) type Created = (Arc<Handle>, String);

/// The end of the log of a build.
type BuildLog = Arc<Mutex<VecDeque<String>>>;

/// Creates a sandbox and waits until it can be used. Dropping the future leaves none, and the locks are held until then.
///
/// # Errors
/// The refusals of the API; `Timeout` or `Unavailable` for a sandbox that does not come up, which is deleted.
pub(crate) async fn create(
    factory: Arc<ApiFactory>,
    call: &CallContext,
    plan: Plan,
    working_dir: Option<String>,
    locks: CreateLocks,
) -> Result<Created> {
    let call = call.clone();
    let work = |cancellation| carry_out(factory, call, plan, working_dir, cancellation);
    CreateGuard::start(work, |created| Box::pin(discard(created)), locks).finish().await
}

async fn discard((handle, _): Created) {
    let error = Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone");
    handle.discard(error, LEFT_BEHIND).await;
}

async fn carry_out(
    factory: Arc<ApiFactory>,
    call: CallContext,
    plan: Plan,
    working_dir: Option<String>,
    mut cancellation: Cancellation,
) -> Result<Created> {
    let api = factory.api_over("create", Connections::Dedicated)?;
    let create = || request(&api, &call, &plan);
    let find = || async { api.find(&call, "create", &plan.name).await };
    let left_behind = "a sandbox may have been made: `Sandbox::list()` lists them";
    let sandbox = create_or_find(create, find, left_behind).await?;
    let timeout = factory.config.ready_timeout();
    let remote = RemoteSandbox::new(factory, sandbox);
    let handle = Arc::new(RemoteLifetime::new(remote, plan.is_owned));
    let ready = cancellation.guard(async {
        until_started(&api, &call, &handle, timeout, plan.has_build).await?;
        if let Some(size) = &plan.resize {
            handle.update(api.resize(&call, &handle.local_id(), size).await?);
            until_started(&api, &call, &handle, timeout, false).await?;
        }
        prepare(&call, &handle, working_dir.as_deref()).await
    });
    match ready.await {
        Ok(cwd) => {
            handle.end_in(plan.lifetime);
            if plan.is_owned {
                handle.renew_every(OWNED_EXPIRY);
            }
            Ok((handle, cwd))
        }
        Err(error) => Err(handle.discard(error, LEFT_BEHIND).await),
    }
}

async fn request(api: &Api, call: &CallContext, plan: &Plan) -> Result<Sandbox> {
    let sandbox = api.create(call, &plan.body).await?;
    if SandboxId::new(Variant::DAYTONA, sandbox.id.as_str()).is_err() {
        let id: String = sandbox.id.chars().take(100).collect();
        let message = format!("the service made a sandbox with the id {id:?}, which is none");
        return Err(Error::new(ErrorKind::Protocol, "create", message).with_effect(Effect::Unknown));
    }
    Ok(sandbox)
}

/// Waits until a sandbox has started. The log of a build is told as it is written.
///
/// # Errors
/// `Timeout` after `timeout`; `Unavailable` for a sandbox that cannot start, with the end of the log where an image could not
/// be built.
pub(crate) async fn until_started(
    api: &Api,
    call: &CallContext,
    handle: &Handle,
    timeout: Duration,
    has_build: bool,
) -> Result<()> {
    let started = Instant::now();
    let mut backoff = Backoff::new(timeout);
    let log = BuildLog::default();
    let mut reading = None;
    let reader = AbortOnDrop::default();
    loop {
        let sandbox = handle.sandbox();
        let seconds = started.elapsed().as_secs_f64();
        let state = sandbox.state.as_deref().unwrap_or_default();
        match state {
            "started" => {
                tracing::info!(id = sandbox.id, seconds, "the sandbox is ready");
                return Ok(());
            }
            "error" | "build_failed" => {
                // The last lines of the log say why.
                if let Some(reading) = reading {
                    let _ = tokio::time::timeout(Duration::from_secs(2), reading).await;
                }
                return Err(failed(&sandbox, state, &log));
            }
            "destroyed" | "destroying" => {
                handle.mark_ended(FailureKind::Terminated);
                let message = "the sandbox ended while it started";
                return Err(Error::new(ErrorKind::Unavailable, "create", message));
            }
            "building_snapshot" | "pending_build" if has_build && reading.is_none() => {
                let task = tokio::spawn(read_log(
                    api.clone(),
                    call.clone(),
                    sandbox.id.clone(),
                    Arc::clone(&log),
                ));
                reader.set(task.abort_handle());
                reading = Some(task);
            }
            _ => {}
        }
        tracing::info!(id = sandbox.id, seconds, state, "the sandbox is starting");
        if !backoff.wait(call).await {
            let message =
                format!("the sandbox was not usable after {seconds:.0} s: it is {state:?}");
            return Err(Error::new(ErrorKind::Timeout, "create", message).with_hint(
                "try again, or wait longer: the provider option `start_timeout`, in seconds",
            ));
        }
        match api.sandbox(call, "create", &sandbox.id).await {
            Ok(found) => handle.update(found),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                handle.mark_ended(FailureKind::Terminated);
                let message = "the sandbox vanished while it started";
                return Err(Error::new(ErrorKind::Unavailable, "create", message));
            }
            Err(error) if error.retry() == Retry::Never => return Err(error),
            Err(error) => tracing::info!(%error, "the state of the sandbox is not known"),
        }
    }
}

/// Ends a task when it is dropped.
#[derive(Default)]
struct AbortOnDrop(Mutex<Option<tokio::task::AbortHandle>>);

impl AbortOnDrop {
    fn set(&self, task: tokio::task::AbortHandle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        if let Some(task) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// Reads the log of a build to its end.
async fn read_log(api: Api, call: CallContext, id: String, log: BuildLog) {
    let body = match api.build_log(&call, &id).await {
        Ok(body) => body,
        Err(error) => return tracing::info!(%error, "there is no log of the build"),
    };
    let lines = lines("create", body, MAX_LOG_LINE);
    pin_mut!(lines);
    while let Some(Ok(line)) = lines.next().await {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        tracing::info!(id, line, "the image is being built");
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_back(line);
        while log.len() > MAX_LOG_LINES {
            log.pop_front();
        }
    }
}

fn failed(sandbox: &Sandbox, state: &str, log: &BuildLog) -> Error {
    let why = sandbox.error_reason.as_deref().unwrap_or("the service does not say why");
    let lines: Vec<String> =
        log.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
    if state != "build_failed" && lines.is_empty() {
        let message = format!("the sandbox could not start: {why}");
        return Error::new(ErrorKind::Unavailable, "create", message);
    }
    let message = format!("the image could not be built: {why}");
    let error = Error::new(ErrorKind::InvalidArgument, "create", message);
    match lines.is_empty() {
        true => error,
        false => error
            .with_context("build_log", lines.join("\n"))
            .with_hint(format!("the end of the log: {}", lines.join(" | "))),
    }
}

/// Makes the working directory and returns it.
async fn prepare(call: &CallContext, handle: &Handle, wanted: Option<&str>) -> Result<String> {
    let cwd = working_directory(call, handle, wanted, Connections::Dedicated).await?;
    if wanted.is_some() {
        let made = handle.programs.run("mkdir -p -- \"$1\"", &[&cwd]).await?;
        if made.status != 0 {
            let message =
                format!("cannot be made in the sandbox, got {cwd:?}: {}", made.last_error());
            return Err(Error::invalid("working_dir", message));
        }
    }
    Ok(cwd)
}

/// Returns the working directory of a sandbox as an absolute path. A wanted one that is relative is below the toolbox's.
pub(crate) async fn working_directory(
    call: &CallContext,
    handle: &Handle,
    wanted: Option<&str>,
    connections: Connections,
) -> Result<String> {
    match wanted {
        Some(path) if path.starts_with('/') => Ok(resolve_directory("/", path)),
        wanted => {
            let toolbox = handle.factory.toolbox("create", &handle.sandbox(), connections)?;
            let own = toolbox.work_dir(call).await?;
            Ok(wanted.map_or(own.clone(), |path| resolve_directory(&own, path)))
        }
    }
}
