//! From the request of a user to the body of a create.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_core::{
    ByteSize, CreateSpec, Error, HostPattern, NetworkMode, Result, random_hex, unix_now,
};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::config::{CreateOptions, OnPause};
use crate::describe;

/// Lifetime of a sandbox whose request names none.
pub(crate) const DEFAULT_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// Expiry at the provider of a sandbox that ends with its owner, who renews it.
pub(crate) const OWNED_EXPIRY: Duration = Duration::from_secs(600);

/// The models that the provider has.
const GPUS: [&str; 8] =
    ["H100", "H200", "B200", "B300", "RTX-PRO-6000", "RTX-4090", "RTX-5090", "MI355X"];

/// A create that is decided.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) body: Value,
    /// The name, which no other sandbox of the organization has.
    pub(crate) name: String,
    pub(crate) lifetime: Duration,
    pub(crate) is_owned: bool,
    pub(crate) has_build: bool,
    /// The size that a sandbox of a snapshot gets once it has started.
    pub(crate) resize: Option<Value>,
}

impl Plan {
    /// Gives the sandbox another name.
    pub(crate) fn rename(&mut self, name: String) {
        self.body["name"] = json!(name);
        self.name = name;
    }
}

/// Returns whole minutes, rounded up.
pub(crate) fn minutes(time: Duration) -> u64 {
    time.as_secs_f64().div_euclid(60.0) as u64 + u64::from(time.as_secs_f64() % 60.0 > 0.0)
}

/// Returns the fingerprint of an idempotency key, which a label has.
pub(crate) fn fingerprint(key: &str) -> String {
    Sha256::digest(key).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Decides a create.
///
/// # Errors
/// `InvalidArgument` and `Unsupported` for what the provider does not have in that form.
pub(crate) fn plan(
    spec: &CreateSpec,
    options: &CreateOptions,
    key: Option<&str>,
    target: Option<&str>,
) -> Result<Plan> {
    let is_owned = spec.detached.is_none();
    let asked = spec.lifetime.unwrap_or(DEFAULT_LIFETIME);
    let lifetime = spec.detached.map_or(asked, |stay| stay.min(asked));
    let expiry = if is_owned { lifetime.min(OWNED_EXPIRY) } else { lifetime };
    let fingerprint = key.map(fingerprint);
    let name = spec.name.clone().unwrap_or_else(|| match &fingerprint {
        Some(fingerprint) => format!("sandbox-{}", &fingerprint[..16]),
        None => format!("sandbox-{}", random_hex(8)),
    });
    let mut body = Map::new();
    let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
    put("name", json!(name));
    let expires_at = unix_now() + lifetime.as_secs_f64();
    let mut labels = describe::labels(spec, fingerprint.as_deref(), expires_at);
    if options.on_pause != OnPause::Pause {
        labels.insert(describe::ON_PAUSE.to_owned(), options.on_pause.as_str().to_owned());
    }
    put("labels", json!(labels));
    put("env", env(spec));
    // A stopped sandbox still costs its disk.
    put("autoDeleteInterval", json!(0));
    put("autoStopInterval", json!(auto_stop(spec)?));
    put("ttlMinutes", json!(minutes(expiry).max(1)));
    let has_build = image(spec, options)?.map(|dockerfile| {
        put("buildInfo", json!({"dockerfileContent": dockerfile}));
    });
    let has_build = has_build.is_some();
    match (spec.snapshot.as_deref(), spec.environment.as_deref()) {
        (Some(_), Some(_)) => return Err(two_origins("`snapshot` and `environment`")),
        (Some(_), None) | (None, Some(_)) if has_build => {
            return Err(two_origins("an image and a snapshot or an environment"));
        }
        (Some(name), None) | (None, Some(name)) => put("snapshot", json!(name)),
        (None, None) => {}
    }
    let resources = resources(spec, has_build, options.resize)?;
    let is_resized = !has_build && !resources.is_empty();
    let resize = is_resized.then(|| json!(resources.iter().cloned().collect::<BTreeMap<_, _>>()));
    if !is_resized {
        resources.into_iter().for_each(|(name, value)| put(name, value));
    }
    for (name, value) in network(spec)? {
        put(name, value);
    }
    for (name, value) in [
        ("target", target.map(Value::from)),
        ("user", options.user.as_deref().map(Value::from)),
        ("public", options.public.map(Value::from)),
        ("spot", options.spot.map(Value::from)),
        ("autoArchiveInterval", options.auto_archive_minutes.map(Value::from)),
        ("volumes", (!options.volumes.is_empty()).then(|| json!(options.volumes))),
    ] {
        value.into_iter().for_each(|value| put(name, value));
    }
    Ok(Plan { body: Value::Object(body), name, lifetime, is_owned, has_build, resize })
}

fn env(spec: &CreateSpec) -> Value {
    let secrets = spec.secrets.iter().map(|(name, value)| (name.clone(), json!(value.expose())));
    let env = spec.env.iter().map(|(name, value)| (name.clone(), json!(value)));
    Value::Object(env.chain(secrets).collect())
}

/// Returns the minutes without use after which the provider ends the sandbox; 0: never.
fn auto_stop(spec: &CreateSpec) -> Result<u64> {
    let Some(idle) = spec.idle_timeout else { return Ok(0) };
    if idle.is_zero() || idle.as_secs() % 60 != 0 || idle.subsec_nanos() != 0 {
        let message = "daytona counts the time without use in whole minutes";
        return Err(Error::unsupported("create", message)
            .with_context("field", "idle_timeout")
            .with_hint("ask for whole minutes"));
    }
    Ok(minutes(idle))
}

fn image(spec: &CreateSpec, options: &CreateOptions) -> Result<Option<String>> {
    match (&spec.image, &options.dockerfile) {
        (Some(_), Some(_)) => Err(two_origins("`image` and the option `dockerfile`")),
        (Some(image), None) => Ok(Some(format!("FROM {image}\n"))),
        (None, dockerfile) => Ok(dockerfile.clone()),
    }
}

fn two_origins(what: &str) -> Error {
    Error::invalid(
        "image",
        format!("cannot be chosen twice: {what} both say what a sandbox starts from"),
    )
}

fn resources(
    spec: &CreateSpec,
    has_build: bool,
    resize: bool,
) -> Result<Vec<(&'static str, Value)>> {
    let mut found = Vec::new();
    if let Some(cpu) = spec.cpu {
        if cpu.fract() != 0.0 || cpu < 1.0 {
            return Err(not_whole("cpu", "whole cores"));
        }
        found.push(("cpu", json!(cpu as u64)));
    }
    for (name, size) in [("memory", spec.memory), ("disk", spec.disk)] {
        let Some(size) = size else { continue };
        let gib = ByteSize::gib(1).as_u64();
        if size.as_u64() == 0 || !size.as_u64().is_multiple_of(gib) {
            return Err(not_whole(name, "whole GiB"));
        }
        found.push((name, json!(size.as_u64() / gib)));
    }
    if let Some(gpu) = &spec.gpu {
        found.push(("gpu", json!(1)));
        if !gpu.eq_ignore_ascii_case("any") {
            let known = GPUS.into_iter().find(|known| known.eq_ignore_ascii_case(gpu));
            let known = known.ok_or_else(|| {
                Error::unsupported("create", format!("daytona has no GPU {gpu:?}"))
                    .with_context("field", "gpu")
                    .with_hint(format!("it has {}, and `any`", GPUS.join(", ")))
            })?;
            found.push(("gpuType", json!([known])));
        }
    }
    let is_fixed = |field: &str| !(has_build || resize && matches!(field, "cpu" | "memory"));
    if let Some((field, _)) = found.iter().find(|(field, _)| is_fixed(field)) {
        let message =
            format!("`{field}` can be chosen for an image only: a snapshot has its own size");
        return Err(Error::unsupported("create", message)
            .with_context("field", (*field).to_owned())
            .with_hint(
                "name an image too (`.image(..)`), or a snapshot of that size \
                 (`Backend::environments()`); the provider option `resize` gives a sandbox of a snapshot \
                 more cpu and memory",
            ));
    }
    Ok(found)
}

fn not_whole(field: &'static str, unit: &str) -> Error {
    Error::unsupported("create", format!("daytona gives {field} in {unit}"))
        .with_context("field", field)
        .with_hint(format!("ask for {unit}"))
}

fn network(spec: &CreateSpec) -> Result<Vec<(&'static str, Value)>> {
    let policy = &spec.network;
    let refuse = |what: String| {
        Err(Error::unsupported("create", what)
            .with_context("field", "network")
            .with_hint("name whole hosts and networks, and none to deny"))
    };
    if !policy.deny.is_empty() {
        return refuse("daytona has no list of hosts to deny".to_owned());
    }
    if let Some(host) = policy.allow.iter().find(|host| host.port().is_some()) {
        return refuse(format!(
            "daytona allows all ports of a host or none, and `{host}` names one"
        ));
    }
    let listed = |of_addresses: bool| {
        let hosts = policy.allow.iter().filter(|host| host.is_address() == of_addresses);
        hosts.map(HostPattern::to_string).collect::<Vec<_>>().join(",")
    };
    Ok(match policy.mode {
        NetworkMode::None => vec![("networkBlockAll", json!(true))],
        NetworkMode::Allowlist => {
            let lists = [("networkAllowList", listed(true)), ("domainAllowList", listed(false))];
            let given = lists.into_iter().filter(|(_, hosts)| !hosts.is_empty());
            given.map(|(name, hosts)| (name, json!(hosts))).collect()
        }
        NetworkMode::Inherit | NetworkMode::All => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, NetworkPolicy};

    use super::*;

    fn planned(change: impl FnOnce(&mut CreateSpec)) -> Result<Value> {
        let mut spec = CreateSpec::default();
        change(&mut spec);
        plan(&spec, &CreateOptions::default(), None, None).map(|plan| plan.body)
    }

    #[test]
    fn an_owned_sandbox_expires_soon_and_a_detached_one_when_it_was_asked_for() {
        let body = planned(|_| ()).unwrap();
        assert_eq!((&body["ttlMinutes"], &body["autoDeleteInterval"]), (&json!(10), &json!(0)));
        let body = planned(|spec| spec.detached = Some(Duration::from_secs(90))).unwrap();
        assert_eq!(body["ttlMinutes"], json!(2));
        let body = planned(|spec| spec.idle_timeout = Some(Duration::from_secs(300))).unwrap();
        assert_eq!(body["autoStopInterval"], json!(5));
        let error = planned(|spec| spec.idle_timeout = Some(Duration::from_secs(90))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn an_image_is_built_and_has_the_size_that_is_asked_for() {
        let body = planned(|spec| {
            spec.image = Some("debian:12".into());
            spec.cpu = Some(2.0);
            spec.memory = Some(ByteSize::gib(4));
            spec.gpu = Some("h100".into());
        });
        let body = body.unwrap();
        assert_eq!(body["buildInfo"]["dockerfileContent"], json!("FROM debian:12\n"));
        assert_eq!((&body["cpu"], &body["memory"]), (&json!(2), &json!(4)));
        assert_eq!((&body["gpu"], &body["gpuType"]), (&json!(1), &json!(["H100"])));
        for change in [
            |spec: &mut CreateSpec| spec.cpu = Some(2.0),
            |spec: &mut CreateSpec| (spec.image, spec.cpu) = (Some("a".into()), Some(0.5)),
            |spec: &mut CreateSpec| {
                (spec.image, spec.memory) = (Some("a".into()), Some(ByteSize::mib(512)));
            },
            |spec: &mut CreateSpec| (spec.image, spec.gpu) = (Some("a".into()), Some("T4".into())),
        ] {
            assert_eq!(planned(change).unwrap_err().kind(), ErrorKind::Unsupported);
        }
        let both = |spec: &mut CreateSpec| {
            (spec.image, spec.snapshot) = (Some("a".into()), Some("b".into()));
        };
        assert_eq!(planned(both).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn networks_are_closed_or_listed_and_ports_refused() {
        let body = planned(|spec| spec.network = NetworkPolicy::none()).unwrap();
        assert_eq!(body["networkBlockAll"], json!(true));
        let hosts = |hosts: &'static [&'static str]| {
            planned(move |spec| spec.network = NetworkPolicy::allowlist(hosts).unwrap())
        };
        let body = hosts(&["203.0.113.0/24", "pypi.org", "*.example.com"]).unwrap();
        assert_eq!(body["networkAllowList"], json!("203.0.113.0/24"));
        assert_eq!(body["domainAllowList"], json!("pypi.org,*.example.com"));
        assert_eq!(hosts(&["pypi.org:443"]).unwrap_err().kind(), ErrorKind::Unsupported);
    }

    #[test]
    fn a_key_gives_the_same_name_everywhere() {
        let spec = CreateSpec::default();
        let named = |key| plan(&spec, &CreateOptions::default(), key, None).unwrap().name;
        assert_eq!(named(Some("k")), named(Some("k")));
        assert_ne!(named(None), named(None));
    }
}
