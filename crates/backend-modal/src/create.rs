//! From the request of a user to a sandbox that answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use sandbox_cloud::{Cancellation, CreateGuard, CreateLocks, RemoteLifetime, create_or_find};
use sandbox_core::{
    CallContext, CreateSpec, Error, ErrorKind, NetworkMode, Result, SandboxId, Secret, SingleUse,
    Tags, Variant, random_hex, resolve_directory, unix_now,
};
use sha2::{Digest as _, Sha256};
use tokio::runtime::{Handle, Id};

use crate::agent::{AgentLink, ModalRoute};
use crate::api::{self, Api, Created, SecretOf, from_tags, to_tags};
use crate::capabilities::MAX_LIFETIME;
use crate::client_factory::ApiFactory;
use crate::config::{CreateOptions, Generation};
use crate::describe::{self, AGENT, ATTACHED, CREATE, KEY};
use crate::error::{LEFT_BEHIND, unsupported};
use crate::image;
use crate::part::{AgentPart, Setup, shared};
use crate::records::{self, SandboxRecord};
use crate::sandbox::{RemoteSandbox, SandboxHandle};
use crate::wire::{
    Definition, GpuConfig, HeaderReplacement, ListedSandbox, NetworkAccess, OutboundPolicy,
    PortSpec, PortSpecs, Resources, SandboxCreateRequest, SandboxCreateV2Request,
    SchedulerPlacement, SecretSource, Source, StringMap, TaskInfo, network,
};

/// Delay before the agent is started in the background, so that a command that follows the create has the sandbox to itself.
const START_DELAY: Duration = Duration::from_millis(50);

/// Time without use after which the provider ends a sandbox whose owner is gone.
const ORPHAN_TIMEOUT: Duration = Duration::from_secs(600);

/// The directory that code starts in, where the create names none.
const WORK_DIR: &str = "/workspace";

/// A sandbox that can be used, and the agent in it.
pub(crate) type Opened = (Arc<SandboxHandle>, Arc<AgentPart>);

/// A create whose image is there.
#[derive(Debug)]
struct Plan {
    generation: Generation,
    app_id: String,
    definition: Definition,
    env: HashMap<String, String>,
    tags: Tags,
    record: SandboxRecord,
    lifetime: Duration,
    is_owned: bool,
    spec: CreateSpec,
    server: String,
    /// The image is the default one, which has Python.
    has_python: bool,
    /// The runtime of the caller, which the connection to the agent belongs to.
    runtime: Id,
}

/// Creates a sandbox that runs commands, with that name at the service. Its agent is started in the background, or by the
/// first verb that needs it. Dropping the future leaves none, and the locks are held until then.
///
/// # Errors
/// `AlreadyExists` for a name that a running sandbox has; other refusals of the service; `Timeout` or `Unavailable` for a sandbox that does not come up, which is terminated.
pub(crate) async fn create(
    factory: Arc<ApiFactory>,
    call: &CallContext,
    spec: &CreateSpec,
    options: &CreateOptions,
    name: Option<String>,
    locks: CreateLocks,
) -> Result<Opened> {
    let mut plan = plan(&factory, call, spec, options).await?;
    plan.definition.name = name;
    carry_out(factory, call, plan, locks).await
}

/// A sandbox of which a copy is made.
#[derive(Debug)]
pub(crate) struct Original {
    pub(crate) sandbox_id: String,
    pub(crate) app_id: String,
    /// Its definition, with the image of its files now.
    pub(crate) definition: Definition,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) record: SandboxRecord,
    /// Its create as far as this process knows it, with its tags.
    pub(crate) spec: CreateSpec,
    pub(crate) is_owned: bool,
    pub(crate) left: Duration,
}

/// Creates a sandbox like another one, from an image of the files of that one. What holds for it holds for the copy.
///
/// # Errors
/// As [`create`].
pub(crate) async fn copy(
    factory: Arc<ApiFactory>,
    call: &CallContext,
    original: Original,
) -> Result<Opened> {
    let Original { sandbox_id, app_id, mut definition, env, record, mut spec, is_owned, left } =
        original;
    (definition.name, spec.name) = (None, None);
    definition.timeout_secs = seconds(left);
    spec.detached = (!is_owned).then_some(left);
    // The copy is no second attempt of the create of the original.
    let mut own_call = call.clone();
    own_call.idempotency_key = None;
    let server = factory.api()?.account.server.to_string();
    let plan = Plan {
        generation: api::generation(&sandbox_id),
        app_id,
        definition,
        env: env.into_iter().collect(),
        tags: tags(&own_call, &spec, is_owned),
        record,
        lifetime: left,
        is_owned,
        spec,
        server,
        has_python: false,
        runtime: Handle::current().id(),
    };
    let records = records::sandboxes(&factory.config);
    let locks = CreateLocks::acquire(records.directory(), call, "fork", []).await?;
    carry_out(factory, call, plan, locks).await
}

async fn carry_out(
    factory: Arc<ApiFactory>,
    call: &CallContext,
    plan: Plan,
    locks: CreateLocks,
) -> Result<Opened> {
    let (started, call) = (Arc::clone(&factory), call.clone());
    let needs_look = !plan.has_python || plan.spec.working_dir.is_some();
    let work = |cancellation| request(started, call, plan, cancellation);
    let (handle, part, spec) =
        CreateGuard::start(work, |created| Box::pin(discard(created)), locks).finish().await?;
    // On the runtime of the caller, which the connection to the sandbox belongs to.
    if needs_look && let Err(error) = part.look().await {
        return Err(handle.discard(error, LEFT_BEHIND).await);
    }
    if spec.single_use != Some(SingleUse::Commands) {
        part.start_ahead(START_DELAY);
    }
    Ok((handle, part))
}

type Requested = (Arc<SandboxHandle>, Arc<AgentPart>, CreateSpec);

async fn discard((handle, ..): Requested) {
    let error = Error::new(ErrorKind::Cancelled, "create", "the caller of the create is gone");
    handle.discard(error, LEFT_BEHIND).await;
}

async fn plan(
    factory: &ApiFactory,
    call: &CallContext,
    spec: &CreateSpec,
    options: &CreateOptions,
) -> Result<Plan> {
    let generation = generation(spec, options)?;
    let api = factory.api()?;
    let app_id = factory.app(&api, call, "create").await?;
    let image_id = image::resolve(factory, &api, call, &app_id, spec, options).await?;
    let asked = [spec.lifetime, spec.detached].into_iter().flatten().min();
    let lifetime = asked.unwrap_or(MAX_LIFETIME);
    let is_owned = spec.detached.is_none();
    let env = spec.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let secrets = spec.secrets.iter();
    let secrets = secrets.map(|(name, value)| (name.clone(), value.expose().to_owned()));
    let cwd = resolve_directory(WORK_DIR, spec.working_dir.as_deref().unwrap_or("."));
    let mut definition = definition(spec, options, image_id, lifetime, is_owned);
    definition.outbound_policy = outbound_policy(&api, call, &app_id, options).await?;
    let record = SandboxRecord {
        definition: Some(STANDARD.encode(definition.encode_to_vec())),
        reuse_key: spec.reuse_key(),
        isolation: spec.isolation,
        network: spec.network.mode,
        cwd: Some(cwd),
    };
    Ok(Plan {
        generation,
        app_id,
        definition,
        env: env.chain(secrets).collect(),
        tags: tags(call, spec, is_owned),
        record,
        lifetime,
        is_owned,
        spec: spec.clone(),
        server: api.account.server.to_string(),
        has_python: image::is_default(factory, spec, options),
        runtime: Handle::current().id(),
    })
}

/// Returns the headers that the provider puts into requests, with the ids of their secrets.
async fn outbound_policy(
    api: &Api,
    call: &CallContext,
    app_id: &str,
    options: &CreateOptions,
) -> Result<Option<OutboundPolicy>> {
    let mut header_replacements = Vec::new();
    for asked in &options.outbound_headers {
        let secret_id = match &asked.secret {
            Some(name) => api.secret(call, app_id, SecretOf::Name(name)).await?,
            None => String::new(),
        };
        let (domain, headers) = (asked.domain.clone(), asked.headers.clone());
        header_replacements.push(HeaderReplacement { domain, secret_id, headers });
    }
    Ok((!header_replacements.is_empty()).then_some(OutboundPolicy { header_replacements }))
}

/// Returns the generation of a create: a GPU is only in the older one.
fn generation(spec: &CreateSpec, options: &CreateOptions) -> Result<Generation> {
    match (options.generation, &spec.gpu) {
        (Some(Generation::V2), Some(_)) => {
            Err(unsupported("gpu with generation 2").with_hint("leave the generation out"))
        }
        (Some(generation), _) => Ok(generation),
        (None, Some(_)) => Ok(Generation::V1),
        (None, None) => Ok(Generation::V2),
    }
}

/// Returns the tags of a new sandbox: those of the user, and those by which this library finds it again.
fn tags(call: &CallContext, spec: &CreateSpec, is_owned: bool) -> Tags {
    let mut tags = spec.tags.clone();
    let mut put = |name: &str, value: String| drop(tags.insert(name.to_owned(), value));
    put(CREATE, random_hex(16));
    put(AGENT, random_hex(16));
    if is_owned {
        put(ATTACHED, "true".into());
    }
    if let Some(key) = &call.idempotency_key {
        put(KEY, key_digest(key));
    }
    tags
}

/// Returns the form of an idempotency key that a tag can have.
pub(crate) fn key_digest(key: &str) -> String {
    Sha256::digest(key).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn definition(
    spec: &CreateSpec,
    options: &CreateOptions,
    image_id: String,
    lifetime: Duration,
    is_owned: bool,
) -> Definition {
    let idle = spec.idle_timeout.or(is_owned.then_some(ORPHAN_TIMEOUT));
    let ports = options.ports.iter();
    let ports = ports.map(|port| PortSpec { port: (*port).into(), unencrypted: false });
    Definition {
        image_id,
        resources: Some(resources(spec)),
        timeout_secs: seconds(lifetime),
        block_network: spec.network.mode == NetworkMode::None,
        network_access: Some(network_access(spec)),
        scheduler_placement: (!options.regions.is_empty())
            .then(|| SchedulerPlacement { regions: options.regions.clone() }),
        open_ports: (!options.ports.is_empty()).then(|| PortSpecs { ports: ports.collect() }),
        cloud_provider: options.cloud.clone().unwrap_or_default(),
        idle_timeout_secs: idle.map(seconds),
        direct_sandbox_commands_enabled: true,
        ..Definition::default()
    }
}

/// Returns whole seconds, never fewer than asked for.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis().div_ceil(1000)).unwrap_or(u32::MAX)
}

/// Returns the resources. Those that are asked for are reserved, and are limits too.
fn resources(spec: &CreateSpec) -> Resources {
    let mebibytes = |size: sandbox_core::ByteSize| {
        u32::try_from(size.as_u64().div_ceil(1 << 20)).unwrap_or(u32::MAX)
    };
    let memory = spec.memory.map(mebibytes).unwrap_or_default();
    let cpu = spec.cpu.map_or(0, |cores| (cores * 1000.0).round().max(1.0) as u32);
    let gpu = spec.gpu.as_ref().map(|gpu| {
        let (kind, count) = gpu.rsplit_once(':').unwrap_or((gpu, "1"));
        let (kind, count) = count.parse().map_or((gpu.as_str(), 1), |count| (kind, count));
        GpuConfig { count, gpu_type: kind.to_uppercase() }
    });
    Resources {
        memory_mb: memory,
        memory_mb_max: memory,
        milli_cpu: cpu,
        milli_cpu_max: cpu,
        gpu_config: gpu,
        ephemeral_disk_mb: 0,
    }
}

fn network_access(spec: &CreateSpec) -> NetworkAccess {
    let of = |kind| NetworkAccess { network_access_type: kind, ..NetworkAccess::default() };
    match spec.network.mode {
        NetworkMode::Inherit | NetworkMode::All => of(network::OPEN),
        NetworkMode::None => of(network::BLOCKED),
        NetworkMode::Allowlist => {
            let (cidrs, domains): (Vec<_>, Vec<_>) =
                spec.network.allow.iter().partition(|host| host.is_address());
            NetworkAccess {
                allowed_cidrs: cidrs.into_iter().map(|host| to_range(&host.to_string())).collect(),
                allowed_domains: domains.into_iter().map(ToString::to_string).collect(),
                ..of(network::ALLOWLIST)
            }
        }
    }
}

/// Returns a single address as a range.
fn to_range(address: &str) -> String {
    match (address.contains('/'), address.contains(':')) {
        (true, _) => address.to_owned(),
        (false, true) => format!("{address}/128"),
        (false, false) => format!("{address}/32"),
    }
}

/// Requests the sandbox. When its answer is lost, it is looked for by a tag that only this create has.
async fn request(
    factory: Arc<ApiFactory>,
    call: CallContext,
    mut plan: Plan,
    mut cancellation: Cancellation,
) -> Result<Requested> {
    let api = factory.api()?;
    if plan.generation == Generation::V1 && !plan.env.is_empty() {
        let secret = api.secret(&call, &plan.app_id, SecretOf::Variables(&plan.env));
        let secret = cancellation.guard(secret).await?;
        plan.definition.secret_ids.push(secret);
    }
    let create = || request_once(&api, &call, &plan);
    let find = || find_created(&api, &call, &plan);
    let left_behind = "a sandbox may have been made: `Sandbox::list()` lists them";
    let created = create_or_find(create, find, left_behind).await?;
    let listed = ListedSandbox {
        id: created.sandbox_id.clone(),
        created_at: unix_now(),
        app_id: plan.app_id.clone(),
        tags: to_tags(&plan.tags),
        name: plan.definition.name.clone().unwrap_or_default(),
        image_id: plan.definition.image_id.clone(),
        timeout_secs: plan.definition.timeout_secs,
        task_info: created.task_id.clone().map(|id| TaskInfo { id, ..TaskInfo::default() }),
        ..ListedSandbox::default()
    };
    let (handle, part) = open(
        &factory,
        listed,
        plan.record,
        plan.spec.clone(),
        plan.is_owned,
        (&plan.server, plan.runtime),
        created,
    )?;
    handle.keep_record();
    handle.end_in(plan.lifetime);
    Ok((handle, part, plan.spec))
}

/// Puts a handle around a sandbox of the service.
///
/// # Errors
/// `Protocol` for an id that no sandbox can have here.
pub(crate) fn open(
    factory: &Arc<ApiFactory>,
    listed: ListedSandbox,
    record: SandboxRecord,
    spec: CreateSpec,
    is_owned: bool,
    (server, runtime): (&str, Id),
    created: Created,
) -> Result<Opened> {
    let id: SandboxId = format!("{}/{}", Variant::MODAL, listed.id).parse().map_err(|_| {
        let message = format!("the service made a sandbox with the id {:?}", listed.id);
        Error::new(ErrorKind::Protocol, "create", message)
    })?;
    let isolation = describe::sandbox(&listed, Some(&record)).isolation.unwrap_or_default();
    let cwd = record.cwd.clone().unwrap_or_else(|| WORK_DIR.to_owned());
    let sandbox_id = listed.id.clone();
    let part = shared((server, &sandbox_id, runtime), || {
        // A sandbox of another program has no such tag. Its id is as good: only this user enters the agent's directory.
        let token = from_tags(&listed.tags).remove(AGENT).unwrap_or_else(|| sandbox_id.clone());
        let factory = Arc::clone(factory);
        let (task_id, access) = (created.task_id, created.access);
        let route = ModalRoute::new(factory, &sandbox_id, &cwd, task_id, access);
        let link = AgentLink::new(route, Secret::new(token));
        AgentPart::new(link, Setup { id, cwd, is_owned, spec, isolation })
    });
    let remote = RemoteSandbox::new(Arc::clone(factory), listed, record, Arc::clone(&part.link));
    remote.set_tunnels(created.tunnels);
    let handle = Arc::new(RemoteLifetime::new(remote, is_owned));
    part.link.end_reason(handle.end_reason());
    Ok((handle, part))
}

async fn request_once(api: &Api, call: &CallContext, plan: &Plan) -> Result<Created> {
    let (app_id, definition) = (plan.app_id.clone(), Some(plan.definition.clone()));
    let tags = to_tags(&plan.tags);
    match plan.generation {
        Generation::V1 => {
            api.create_v1(call, &SandboxCreateRequest { app_id, definition, tags }).await
        }
        Generation::V2 => {
            let env = StringMap { contents: plan.env.clone() };
            let source = SecretSource { source: Some(Source::Env(env)) };
            let secret_sources = if plan.env.is_empty() { Vec::new() } else { vec![source] };
            let request = SandboxCreateV2Request { app_id, definition, tags, secret_sources };
            api.create_v2(call, &request).await
        }
    }
}

/// Finds a sandbox by the tag that no other create has.
async fn find_created(api: &Api, call: &CallContext, plan: &Plan) -> Result<Option<Created>> {
    let all = api.list(call, "create", &plan.app_id).await?;
    let wanted = plan.tags.get(CREATE);
    let found = all.into_iter().find(|listed| from_tags(&listed.tags).get(CREATE) == wanted);
    Ok(found.map(|listed| Created {
        task_id: listed.task_info.map(|task| task.id).filter(|id| !id.is_empty()),
        sandbox_id: listed.id,
        ..Created::default()
    }))
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ByteSize, NetworkPolicy};

    use super::*;

    #[test]
    fn restrictions_are_in_the_definition() {
        let mut spec = CreateSpec::default();
        (spec.memory, spec.cpu) = (Some(ByteSize::gib(1)), Some(0.5));
        spec.gpu = Some("h100:2".into());
        spec.network =
            NetworkPolicy::allowlist(["pypi.org", "203.0.113.7", "198.51.100.0/24"]).unwrap();
        let made = definition(
            &spec,
            &CreateOptions::default(),
            "im-1".into(),
            Duration::from_millis(1500),
            true,
        );
        let resources = made.resources.unwrap();
        assert_eq!((resources.memory_mb, resources.memory_mb_max), (1024, 1024));
        assert_eq!((resources.milli_cpu, resources.milli_cpu_max), (500, 500));
        assert_eq!(resources.gpu_config, Some(GpuConfig { count: 2, gpu_type: "H100".into() }));
        let access = made.network_access.unwrap();
        assert_eq!(access.allowed_domains, ["pypi.org"]);
        assert_eq!(access.allowed_cidrs, ["203.0.113.7/32", "198.51.100.0/24"]);
        assert_eq!((made.timeout_secs, made.idle_timeout_secs), (2, Some(600)));
    }

    #[test]
    fn a_gpu_needs_the_older_generation() {
        let mut spec = CreateSpec::default();
        let options = |generation| CreateOptions { generation, ..CreateOptions::default() };
        assert_eq!(generation(&spec, &options(None)).unwrap(), Generation::V2);
        assert_eq!(generation(&spec, &options(Some(Generation::V1))).unwrap(), Generation::V1);
        spec.gpu = Some("T4".into());
        assert_eq!(generation(&spec, &options(None)).unwrap(), Generation::V1);
        generation(&spec, &options(Some(Generation::V2))).unwrap_err();
    }

    #[test]
    fn a_create_is_found_by_what_only_it_has() {
        let call = CallContext::new().with_idempotency_key("tags:{}");
        let spec = CreateSpec::default();
        let made = || tags(&call, &spec, true);
        let (one, other) = (made(), made());
        assert_ne!(one[CREATE], other[CREATE]);
        assert_eq!(one[KEY], other[KEY]);
        assert_ne!(one[AGENT], other[AGENT]);
    }
}
