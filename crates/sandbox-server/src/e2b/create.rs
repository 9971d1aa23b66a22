//! Creating sandboxes: from a request to a spec below the ceiling, once for each idempotency key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use chrono::Utc;
use sandbox_core::{
    Backend, CallContext, CreateSpec, HostPattern, NetworkMode, NetworkPolicy, SandboxId, Variant,
    random_hex,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::app::{App, ENVD_VERSION, Owner};
use super::error::ApiError;
use super::extract::JsonBody;
use super::log::{Level, SandboxLog};
use super::process::ProcessTable;
use super::record::{Clock, Record};
use super::templates::{Origin, resolve};
use super::user::{Root, User};
use super::watchers::Watchers;
use crate::AccessKey;

/// Lifetime of a sandbox whose request names none, by the version of the route.
const LIFETIME_V1: u64 = 15;
const LIFETIME_V2: u64 = 300;

/// Most idempotency keys that are remembered.
const MAX_KEYS: usize = 1024;

/// The name and the home of the user, where the backend lets them be chosen.
const USER: &str = "user";
const HOME: &str = "/home/user";

/// The creates with an idempotency key, by their keys.
#[derive(Debug, Default)]
pub(super) struct Creates(Mutex<Keys>);

#[derive(Debug, Default)]
struct Keys {
    by_key: HashMap<String, Arc<OnceCell<String>>>,
    order: VecDeque<String>,
}

impl Creates {
    /// Returns the place of the sandbox that is, or will be, made for a key.
    fn place(&self, key: &str) -> Arc<OnceCell<String>> {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = keys.by_key.get(key) {
            return Arc::clone(place);
        }
        if keys.order.len() >= MAX_KEYS
            && let Some(oldest) = keys.order.pop_front()
        {
            keys.by_key.remove(&oldest);
        }
        let place = Arc::<OnceCell<String>>::default();
        keys.by_key.insert(key.to_owned(), Arc::clone(&place));
        keys.order.push_back(key.to_owned());
        place
    }
}

/// A request for a sandbox. Absent and null are the same; what this server does not know is ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    secure: Option<bool>,
    auto_pause: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    mcp: Option<Value>,
    iam: Option<Value>,
    volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AutoResume {
    enabled: bool,
}

/// The wish about the network that this server can enforce.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NetworkWish {
    allow_public_traffic: Option<bool>,
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<Value>>,
    egress_proxy: Option<Value>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<Value>>,
    rules: Option<serde_json::Map<String, Value>>,
}

/// `POST /sandboxes`
pub(super) async fn create_v1(
    state: State<Arc<App>>,
    owner: Owner,
    headers: HeaderMap,
    JsonBody(request): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    let secure = request.secure.unwrap_or(false);
    answer(state, owner, headers, request, secure, LIFETIME_V1).await
}

/// `POST /v2/sandboxes`
pub(super) async fn create_v2(
    state: State<Arc<App>>,
    owner: Owner,
    headers: HeaderMap,
    JsonBody(request): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    answer(state, owner, headers, request, true, LIFETIME_V2).await
}

async fn answer(
    State(app): State<Arc<App>>,
    _: Owner,
    headers: HeaderMap,
    request: NewSandbox,
    secure: bool,
    lifetime: u64,
) -> Result<Response, ApiError> {
    let most = app.ceiling.max_lifetime;
    let lifetime =
        request.timeout.map_or(Duration::from_secs(lifetime).min(most), Duration::from_secs);
    let record = match headers.get("idempotency-key").and_then(|value| value.to_str().ok()) {
        None => create(&app, request, secure, lifetime).await?,
        Some(key) => {
            check_key(key)?;
            let place = app.creates.place(key);
            let make = || async {
                create(&app, request, secure, lifetime).await.map(|record| record.id.clone())
            };
            let id = place.get_or_try_init(make).await?;
            app.table.get(id).ok_or_else(|| {
                let message = format!("the sandbox {id} of this idempotency key has ended");
                ApiError::new(StatusCode::CONFLICT, message)
            })?
        }
    };
    Ok((StatusCode::CREATED, Json(sandbox_json(&app, &record))).into_response())
}

fn check_key(key: &str) -> Result<(), ApiError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=255).contains(&key.len()) && key.bytes().all(plain) {
        return Ok(());
    }
    Err(ApiError::bad_request("Idempotency-Key must be 1 to 255 of `a-z 0-9 -`"))
}

/// The answer to creating, connecting to and forking a sandbox.
pub(super) fn sandbox_json(app: &App, record: &Record) -> Value {
    let mut shown = json!({
        "templateID": record.template,
        "sandboxID": record.id,
        "clientID": "local",
        "alias": record.template,
        "envdVersion": ENVD_VERSION,
        "domain": app.domain,
        "trafficAccessToken": record.traffic_token.as_ref().map(AccessKey::expose),
    });
    if let Some(token) = &record.envd_token {
        shown["envdAccessToken"] = token.expose().into();
    }
    shown
}

async fn create(
    app: &Arc<App>,
    request: NewSandbox,
    secure: bool,
    lifetime: Duration,
) -> Result<Arc<Record>, ApiError> {
    for (is_asked, what) in [
        (request.mcp.as_ref().is_some_and(is_set), "the MCP gateway"),
        (request.iam.as_ref().is_some_and(is_set), "an identity for sandboxes"),
        (request.volume_mounts.as_ref().is_some_and(|mounts| !mounts.is_empty()), "a volume"),
    ] {
        if is_asked {
            return Err(ApiError::not_here(what));
        }
    }
    let template = request.template_id.filter(|name| !name.is_empty());
    let template = template.ok_or_else(|| ApiError::bad_request("templateID is missing"))?;
    if lifetime.is_zero() {
        return Err(ApiError::bad_request("timeout must be at least 1 second"));
    }
    let lifetime = app.ceiling.lifetime(lifetime)?;
    let wish: NetworkWish = match &request.network {
        Some(value) if is_set(value) => serde_json::from_value(value.clone())
            .map_err(|error| ApiError::bad_request(format!("network: {error}")))?,
        _ => NetworkWish::default(),
    };
    let Origin { backend, mut spec } = resolve(app, &template).await?;
    spec.network = app.ceiling.network(wish.policy(request.allow_internet_access)?)?;
    spec.env.extend(request.env_vars.unwrap_or_default());
    let metadata = request.metadata.unwrap_or_default();
    spec.tags.extend(metadata.clone());
    let wanted = Wanted {
        template,
        metadata,
        secure,
        lifetime,
        public_ports: wish.allow_public_traffic.unwrap_or(true),
        network: request.network.unwrap_or(Value::Null),
        allow_internet_access: request.allow_internet_access,
        pauses_at_end: request.auto_pause.unwrap_or(false),
        auto_resume: request.auto_resume.is_some_and(|resume| resume.enabled),
    };
    start(app, backend, spec, wanted).await
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

/// What a sandbox of the server has besides its spec.
pub(super) struct Wanted {
    pub(super) template: String,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) secure: bool,
    pub(super) lifetime: Duration,
    pub(super) public_ports: bool,
    pub(super) network: Value,
    pub(super) allow_internet_access: Option<bool>,
    pub(super) pauses_at_end: bool,
    pub(super) auto_resume: bool,
}

/// Makes a sandbox of a spec, and ends it when its time is over.
pub(super) async fn start(
    app: &Arc<App>,
    backend: Arc<dyn Backend>,
    mut spec: CreateSpec,
    wanted: Wanted,
) -> Result<Arc<Record>, ApiError> {
    app.forget_ended();
    let room = app.table.reserve()?;
    let (name, home) = user_of(backend.variant(), &mut spec);
    if app.keep {
        spec.detached = Some(wanted.lifetime);
    } else if backend.capabilities().lifetime {
        // A sandbox of this server has its own clock, which a pause stops. This is the end that nothing moves.
        spec.lifetime.get_or_insert(app.ceiling.max_lifetime.saturating_mul(2));
    }
    spec.validate()?;
    backend.capabilities().check(&spec)?;
    let instance = backend.create(&CallContext::new(), spec.clone()).await?;
    let root = Root::new(backend.variant(), instance.capabilities().command_root);
    let user = User { name, home, root };
    let token = || AccessKey::random("");
    let record = Arc::new(Record {
        id: id_of(&instance.info().id),
        template: wanted.template,
        backend,
        instance,
        spec,
        user,
        started_at: Utc::now(),
        metadata: wanted.metadata,
        envd_token: wanted.secure.then(token),
        traffic_token: (!wanted.public_ports).then(token),
        network: wanted.network,
        allow_internet_access: wanted.allow_internet_access,
        pauses_at_end: wanted.pauses_at_end,
        auto_resume: wanted.auto_resume,
        log: SandboxLog::default(),
        processes: ProcessTable::default(),
        watchers: Watchers::default(),
        envs: Mutex::default(),
        measured: Mutex::default(),
        last_figures: Mutex::default(),
        execution_counts: Mutex::default(),
        clock: Clock::new(wanted.lifetime),
    });
    let fields = json!({ "template": record.template });
    record.log.add(Level::Info, "Sandbox created", fields);
    room.insert(record.id.clone(), Arc::clone(&record));
    watch_the_clock(app, &record);
    Ok(record)
}

/// Returns the network that a request for another one asks for.
///
/// # Errors
/// `400` for what is no such request, `403` for more than the ceiling has, `501` for what this server cannot enforce.
pub(super) fn network_of(app: &App, request: &Value) -> Result<NetworkPolicy, ApiError> {
    let wish: NetworkWish = serde_json::from_value(request.clone())
        .map_err(|error| ApiError::bad_request(format!("network: {error}")))?;
    let internet = request["allow_internet_access"].as_bool();
    Ok(app.ceiling.network(wish.policy(internet)?)?)
}

/// Ends or pauses a sandbox when its time is over.
fn watch_the_clock(app: &Arc<App>, record: &Arc<Record>) {
    let (app, record) = (Arc::downgrade(app), Arc::clone(record));
    tokio::spawn(async move {
        while record.clock.wait().await {
            if record.pauses_at_end && matches!(record.pause().await, Ok(true)) {
                continue;
            }
            if let Some(app) = app.upgrade() {
                app.table.remove(&record.id);
            }
            if let Err(error) = record.kill().await {
                tracing::warn!(id = record.id, %error, "a sandbox whose time is over could not be ended");
            }
            return;
        }
    });
}

/// Returns an id that can be a part of a host name: that of the backend where it can, else a new one.
fn id_of(full: &str) -> String {
    let local = full.parse::<SandboxId>().map(|id| id.local().to_owned()).unwrap_or_default();
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (8..=40).contains(&local.len()) && local.bytes().all(plain) {
        return local;
    }
    format!("i{}", random_hex(10))
}

/// Sets the user where the backend lets it be chosen, and returns the name and the home.
fn user_of(variant: Variant, spec: &mut CreateSpec) -> (String, String) {
    let chosen = variant == Variant::LOCAL_EVAL || variant == Variant::LOCAL_JUPYTER;
    if !chosen || spec.isolation != sandbox_core::IsolationMode::Strict {
        let home = spec.working_dir.clone().unwrap_or_else(|| "/workspace".to_owned());
        return (USER.to_owned(), home);
    }
    spec.provider_options.entry("user").or_insert_with(|| USER.into());
    spec.working_dir.get_or_insert_with(|| HOME.to_owned());
    (USER.to_owned(), spec.working_dir.clone().unwrap_or_default())
}

impl NetworkWish {
    /// Returns the policy that was asked for; `None` when there was no wish.
    fn policy(&self, internet: Option<bool>) -> Result<Option<NetworkPolicy>, ApiError> {
        for (is_asked, what) in [
            (
                self.dns_servers.as_ref().is_some_and(|list| !list.is_empty()),
                "a DNS server of your own",
            ),
            (self.egress_proxy.as_ref().is_some_and(is_set), "an egress proxy"),
            (self.mask_request_host.is_some(), "a mask for the host of requests"),
            (
                self.https_ports.as_ref().is_some_and(|list| !list.is_empty()),
                "a list of HTTPS ports",
            ),
            (
                self.rules.as_ref().is_some_and(|rules| !rules.is_empty()),
                "a transformation of requests",
            ),
        ] {
            if is_asked {
                return Err(ApiError::not_here(what));
            }
        }
        let hosts = |list: &Option<Vec<String>>| {
            let texts = list.iter().flatten();
            texts.map(|text| text.parse::<HostPattern>()).collect::<Result<Vec<_>, _>>()
        };
        let all = |text: &String| text == "0.0.0.0/0" || text == "::/0";
        let closed = internet == Some(false) || self.deny_out.iter().flatten().any(all);
        let allow = hosts(&self.allow_out)?;
        let deny: Vec<_> =
            self.deny_out.iter().flatten().filter(|text| !all(text)).cloned().collect();
        let deny = hosts(&Some(deny))?;
        let mode = match (closed, internet, allow.is_empty(), deny.is_empty()) {
            (true, _, true, _) => NetworkMode::None,
            (true, _, false, _) => NetworkMode::Allowlist,
            (false, Some(_), ..) | (false, None, false, _) | (false, None, true, false) => {
                NetworkMode::All
            }
            (false, None, true, true) => return Ok(None),
        };
        let policy = NetworkPolicy {
            mode,
            allow: if mode == NetworkMode::Allowlist { allow } else { Vec::new() },
            deny: if mode == NetworkMode::None { Vec::new() } else { deny },
        };
        policy.validate()?;
        Ok(Some(policy))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(wish: Value, internet: Option<bool>) -> Option<NetworkPolicy> {
        serde_json::from_value::<NetworkWish>(wish).unwrap().policy(internet).ok().unwrap()
    }

    #[test]
    fn wishes_about_the_network_are_policies() {
        assert_eq!(policy(json!({}), None), None);
        assert_eq!(policy(json!({}), Some(false)), Some(NetworkPolicy::none()));
        assert_eq!(policy(json!({}), Some(true)), Some(NetworkPolicy::all()));
        let only = json!({ "denyOut": ["0.0.0.0/0"], "allowOut": ["pypi.org"] });
        assert_eq!(policy(only, None), Some(NetworkPolicy::allowlist(["pypi.org"]).unwrap()));
        let without = policy(json!({ "denyOut": ["203.0.113.0/24"] }), None).unwrap();
        assert_eq!((without.mode, without.deny.len()), (NetworkMode::All, 1));
        let proxy = json!({ "egressProxy": { "address": "x:1" } });
        let wish: NetworkWish = serde_json::from_value(proxy).unwrap();
        wish.policy(None).unwrap_err();
    }

    #[test]
    fn keys_and_ids_are_plain() {
        check_key("a-1").unwrap();
        for key in ["", "A", "a_b", &"x".repeat(256)] {
            check_key(key).unwrap_err();
        }
        assert_eq!(id_of("local-eval/0123456789ab"), "0123456789ab");
        for other in ["local-docker/ABC", "e2b/a.b", "nonsense"] {
            let id = id_of(other);
            assert!(id.starts_with('i') && id.len() == 21, "{id}");
        }
    }
}
