//! From the request of a user to a runtime that answers.

use std::sync::Arc;

use sandbox_cloud::{
    Cancellation, Connections, CreateGuard, CreateLocks, RemoteLifetime, create_or_find,
};
use sandbox_core::{CallContext, CreateSpec, Effect, Error, ErrorKind, Result, Secret, random_hex};
use sandbox_kernel::server::KernelEnvironment;

use crate::api::{Api, NewRuntime};
use crate::client_factory::ApiFactory;
use crate::credits::{DEFAULT_LIFETIME, credits, lifetime};
use crate::describe::has_ended;
use crate::environment::choose;
use crate::error::LEFT_BEHIND;
use crate::kernels::first_kernel;
use crate::ready::until_ready;
use crate::records::SandboxRecord;
use crate::resources::Size;
use crate::runtime::{RemoteRuntime, RuntimeHandle};
use crate::wire::{Environment, Runtime};

/// A runtime that can be used, and the surroundings of its first kernel.
pub(crate) type Created = (Arc<RuntimeHandle>, KernelEnvironment);

/// A create whose environment is chosen.
#[derive(Debug)]
struct Plan {
    new: NewRuntime,
    environment: Environment,
    record: SandboxRecord,
    lifetime: std::time::Duration,
    is_owned: bool,
    env: Vec<(String, Secret)>,
}

/// Creates a runtime and waits until it can be used. Dropping the future leaves none, and the locks are held until then.
///
/// # Errors
/// The refusals of the service; `Timeout` or `Unavailable` for a runtime that does not come up, which is deleted.
pub(crate) async fn create(
    factory: Arc<ApiFactory>,
    call: &CallContext,
    spec: &CreateSpec,
    locks: CreateLocks,
) -> Result<Created> {
    let plan = plan(&factory, call, spec).await?;
    let call = call.clone();
    let work = |cancellation| carry_out(factory, call, plan, cancellation);
    CreateGuard::start(work, |created| Box::pin(discard(created)), locks).finish().await
}

async fn discard((handle, _): Created) {
    let error = Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone");
    handle.discard(error, LEFT_BEHIND).await;
}

async fn plan(factory: &ApiFactory, call: &CallContext, spec: &CreateSpec) -> Result<Plan> {
    let api = factory.api().await?;
    let (environments, from, ()) = tokio::try_join!(
        api.environments(call),
        find_snapshot(&api, call, spec.snapshot.as_deref()),
        check_name(&api, call, spec.name.as_deref()),
    )?;
    let wanted = spec.environment.as_deref().or(factory.config.environment.as_deref());
    let size = Size::from_spec(spec);
    let environment = choose(&environments, wanted, spec.gpu.as_deref(), size)?.clone();
    let lifetime = lifetime(spec);
    let is_owned = spec.detached.is_none();
    // An owned sandbox is ended by its owner, who may set a longer lifetime later.
    let reserved = if is_owned { lifetime.max(DEFAULT_LIFETIME) } else { lifetime };
    let new = NewRuntime {
        environment: environment.name.clone(),
        given_name: spec.name.clone().unwrap_or_else(|| format!("sandbox-{}", random_hex(8))),
        credits: credits(environment.rate(), reserved)?,
        from,
    };
    let record = SandboxRecord {
        tags: spec.tags.clone(),
        key: call.idempotency_key.clone(),
        ephemeral: is_owned,
        reuse_key: spec.reuse_key(),
        isolation: spec.isolation,
        network: spec.network.mode,
        gpu: spec.gpu.clone(),
        cwd: spec.working_dir.clone(),
        env: spec.env.clone(),
        ..SandboxRecord::default()
    };
    let env = spec.env.iter().map(|(name, value)| (name.clone(), Secret::new(value.as_str())));
    let secrets = spec.secrets.iter().map(|(name, value)| (name.clone(), value.clone()));
    let env = env.chain(secrets).collect();
    Ok(Plan { new, environment, record, lifetime, is_owned, env })
}

/// Returns the id of a snapshot.
async fn find_snapshot(
    api: &Api,
    call: &CallContext,
    name: Option<&str>,
) -> Result<Option<String>> {
    let Some(name) = name else { return Ok(None) };
    let all = api.snapshots(call, "create").await?;
    let found = all.iter().find(|snapshot| snapshot.name == name || snapshot.uid == name);
    let uid = found.map(|snapshot| snapshot.uid.clone()).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|snapshot| snapshot.name.as_str()).collect();
        let message = format!("snapshot {name:?} not found (available: {})", names.join(", "));
        Error::new(ErrorKind::NotFound, "create", message)
    })?;
    Ok(Some(uid))
}

/// Checks that no runtime has the name: two of one name would be indistinguishable.
async fn check_name(api: &Api, call: &CallContext, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let all = api.runtimes(call, "create").await?;
    match all.iter().find(|other| other.given_name.as_deref() == Some(name) && !has_ended(other)) {
        Some(other) => {
            let id = other.id();
            let message = format!("the name {name:?} is that of datalayer-runtime/{id}");
            Err(Error::new(ErrorKind::AlreadyExists, "create", message).with_hint(format!(
                "use another name, or end datalayer-runtime/{id}: `.terminate()`"
            )))
        }
        None => Ok(()),
    }
}

async fn carry_out(
    factory: Arc<ApiFactory>,
    call: CallContext,
    plan: Plan,
    mut cancellation: Cancellation,
) -> Result<Created> {
    let api = factory.api_over(Connections::Dedicated).await?;
    let create = || request_runtime(&api, &call, &plan.new);
    let find = || find_created(&api, &call, &plan.new.given_name);
    let left_behind = "a runtime may have been made: `Sandbox::list()` lists them";
    let runtime = create_or_find(create, find, left_behind).await?;
    let timeout = factory.config.ready_timeout();
    let cwd = plan.record.cwd.clone();
    let remote = RemoteRuntime::new(factory, runtime, plan.record, Some(&plan.environment));
    let handle = Arc::new(RemoteLifetime::new(remote, plan.is_owned));
    let ready = cancellation.guard(async {
        until_ready(&api, &call, &handle, timeout).await?;
        first_kernel(&handle, &plan.env, cwd.as_deref()).await
    });
    match ready.await {
        Ok(kernel) => {
            handle.end_in(plan.lifetime);
            Ok((handle, kernel))
        }
        Err(error) => Err(handle.discard(error, LEFT_BEHIND).await),
    }
}

async fn request_runtime(api: &Api, call: &CallContext, new: &NewRuntime) -> Result<Runtime> {
    let runtime = api.create(call, new).await?;
    if runtime.name().is_empty() {
        let message = "the service made a runtime without a name";
        return Err(Error::new(ErrorKind::Protocol, "create", message).with_effect(Effect::Unknown));
    }
    Ok(runtime)
}

/// Finds a runtime by the name that no other create has.
async fn find_created(api: &Api, call: &CallContext, given_name: &str) -> Result<Option<Runtime>> {
    let all = api.runtimes(call, "create").await?;
    let is_it = |runtime: &Runtime| {
        runtime.given_name.as_deref() == Some(given_name) && !has_ended(runtime)
    };
    Ok(all.into_iter().find(is_it))
}
