//! From the request of a user to a sandbox that answers.

use std::sync::{Arc, Weak};
use std::time::Duration;

use chrono::Utc;
use sandbox_cloud::{
    Cancellation, Connections, CreateGuard, CreateLocks, RemoteLifetime, create_or_find,
};
use sandbox_core::{CallContext, CreateSpec, Error, ErrorKind, Result, Tags, unix_now};
use serde_json::{Map, Value};

use crate::api::{Api, NewSandbox};
use crate::client_factory::E2bClients;
use crate::error::{LEFT_BEHIND, MAYBE_CREATED};
use crate::instance::{E2bInstance, start_lifetime};
use crate::labels;
use crate::network;
use crate::remote::{RemoteSandbox, SandboxHandle, owned_expiry};
use crate::wire::{Connected, Described};

/// Lifetime of a sandbox whose create names none.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A sandbox that can be used, and its handle.
pub(crate) type Created = (Arc<SandboxHandle>, E2bInstance);

/// A create that is checked.
#[derive(Debug)]
struct Plan {
    new: NewSandbox,
    lifetime: Duration,
    is_owned: bool,
}

/// Creates a sandbox and waits until it can be used. Dropping the future leaves none, and the locks are held until then.
///
/// # Errors
/// The refusals of the service; `Timeout` or `Unavailable` for a sandbox that does not come up, which is ended.
pub(crate) async fn create(
    clients: Arc<E2bClients>,
    call: &CallContext,
    spec: &CreateSpec,
    locks: CreateLocks,
) -> Result<Created> {
    let plan = plan(&clients, call, spec).await?;
    let call = call.clone();
    let work = |cancellation| carry_out(clients, call, plan, cancellation);
    CreateGuard::start(work, |created| Box::pin(discard(created)), locks).finish().await
}

async fn discard((handle, instance): Created) {
    let error = Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone");
    handle.discard(error, LEFT_BEHIND).await;
    drop(instance);
}

async fn plan(clients: &E2bClients, call: &CallContext, spec: &CreateSpec) -> Result<Plan> {
    let api = clients.api()?;
    let template = match &spec.snapshot {
        Some(name) => find_snapshot(&api, call, name).await?,
        None => spec.environment.clone().unwrap_or_else(|| clients.config.template().to_owned()),
    };
    if let Some(name) = &spec.name {
        check_name(&api, call, name).await?;
    }
    let is_owned = spec.detached.is_none();
    let lifetime = match (spec.detached, spec.lifetime) {
        (Some(detached), Some(lifetime)) => detached.min(lifetime),
        (detached, lifetime) => detached.or(lifetime).unwrap_or(DEFAULT_LIFETIME),
    };
    // A sandbox that ends with its owner must not outlive a dead owner for long.
    let reserved = if is_owned { owned_expiry(lifetime) } else { lifetime };
    let made = labels::of_create(call, spec, unix_now() + lifetime.as_secs_f64());
    let text = |(name, value): (&String, &str)| (name.clone(), Value::from(value));
    let mut env: Map<String, Value> =
        spec.env.iter().map(|(name, value)| text((name, value.as_str()))).collect();
    env.extend(spec.secrets.iter().map(|(name, value)| text((name, value.expose()))));
    let new = NewSandbox {
        template,
        lifetime: reserved,
        metadata: made.metadata,
        env,
        network: network::fields(&spec.network)?,
        request: made.request,
    };
    Ok(Plan { new, lifetime, is_owned })
}

/// Returns the id of a snapshot.
async fn find_snapshot(api: &Api, call: &CallContext, name: &str) -> Result<String> {
    let all = api.snapshots(call, "create").await?;
    let found = all.iter().find(|snapshot| snapshot.is_called(name));
    found.map(|snapshot| snapshot.snapshot_id.clone()).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|snapshot| snapshot.short_name()).collect();
        let message = format!("snapshot {name:?} not found (available: {})", names.join(", "));
        Error::new(ErrorKind::NotFound, "create", message)
    })
}

/// Checks that no sandbox has the name: two of one name would be indistinguishable.
async fn check_name(api: &Api, call: &CallContext, name: &str) -> Result<()> {
    match api.all(call, "create", &labels::with_name(name)).await?.first() {
        Some(other) => {
            let id = &other.sandbox_id;
            let message = format!("the name {name:?} is that of e2b/{id}");
            Err(Error::new(ErrorKind::AlreadyExists, "create", message)
                .with_hint(format!("use another name, or end e2b/{id}: `.terminate()`")))
        }
        None => Ok(()),
    }
}

async fn carry_out(
    clients: Arc<E2bClients>,
    call: CallContext,
    plan: Plan,
    mut cancellation: Cancellation,
) -> Result<Created> {
    let api = clients.api_over(Connections::Dedicated)?;
    let create = || api.create(&call, &plan.new);
    let find = || find_created(&api, &call, &plan.new);
    let connected = create_or_find(create, find, MAYBE_CREATED).await?;
    let described = Described {
        sandbox_id: connected.sandbox_id.clone(),
        template_id: plan.new.template.clone(),
        alias: connected.alias.clone(),
        envd_version: connected.envd_version.clone(),
        started_at: Some(Utc::now()),
        metadata: Some(plan.new.metadata.clone()),
        state: "running".to_owned(),
        ..Described::default()
    };
    let remote = RemoteSandbox::new(clients, connected, described, plan.is_owned);
    let handle = Arc::new(RemoteLifetime::new(remote, plan.is_owned));
    start_lifetime(&handle, plan.lifetime);
    let instance = E2bInstance::new(Arc::clone(&handle));
    // The service says the rest of a sandbox while the first commands run in it.
    let describing = tokio::spawn(describe(api, call, Arc::downgrade(&handle)));
    let described = async { drop(describing.await) };
    match cancellation.guard(instance.prepare_new(described)).await {
        Ok(()) => Ok((handle, instance)),
        Err(error) => {
            let error = handle.map_error("create", error).await;
            Err(handle.discard(error, LEFT_BEHIND).await)
        }
    }
}

/// Takes what the service says of a new sandbox: nice to have, and no reason to give the sandbox up.
async fn describe(api: Api, call: CallContext, handle: Weak<SandboxHandle>) {
    let Some(id) = handle.upgrade().map(|handle| handle.local_id().to_owned()) else { return };
    let described = api.sandbox(&call, "create", &id).await;
    match (described, handle.upgrade()) {
        (Ok(described), Some(handle)) => handle.complete(described),
        (Err(error), _) => tracing::debug!(%error, "the sandbox is not described"),
        _ => {}
    }
}

/// Finds the sandbox of a create whose answer was lost.
async fn find_created(
    api: &Api,
    call: &CallContext,
    new: &NewSandbox,
) -> Result<Option<Connected>> {
    let all = api.all(call, "create", &labels::with_request(&new.request)).await?;
    let Some(found) = all.into_iter().find(|found| has_request(found, &new.request)) else {
        return Ok(None);
    };
    api.connect(call, "create", &found.sandbox_id, new.lifetime).await.map(Some)
}

/// Returns true for the sandbox of that create, also where the service takes no notice of filters.
fn has_request(found: &Described, request: &str) -> bool {
    let wanted: Tags = labels::with_request(request);
    let metadata = found.metadata.as_ref();
    wanted.iter().all(|(key, value)| metadata.is_some_and(|own| own.get(key) == Some(value)))
}
