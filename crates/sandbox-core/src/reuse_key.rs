//! The reuse key: the settings that a sandbox must share with a request to be reused for it.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::id::random_hex;
use crate::model::{NetworkMode, NetworkPolicy, SandboxInfo};
use crate::spec::CreateSpec;
use crate::units::ByteSize;

/// The metadata key of [`CreateSpec::reuse_key`].
pub const REUSE_KEY: &str = "terms";

/// The key in the metadata of a sandbox that is true when it ends with the process that made it. Such a one is listed where
/// a provider lists it, and never found by its tags.
pub const EPHEMERAL: &str = "ends_with_its_process";

const ISOLATION: &str = "isolation";
const NETWORK: &str = "network";
const NAME: &str = "name";
const MOUNTS: &str = "mounts";
const OPTIONS: &str = "provider_options";

impl CreateSpec {
    /// Returns the settings that were given, and always the isolation: a request that gets this sandbox must agree with
    /// them.
    ///
    /// Without tags, variables, secrets, working directory and times: runs have these of their own. Of the options of a
    /// backend there are salted digests, because some are secret.
    pub fn reuse_key(&self) -> Map<String, Value> {
        let mut terms = Map::new();
        terms.insert(ISOLATION.into(), json!(self.isolation));
        if self.network != NetworkPolicy::default() {
            terms.insert(NETWORK.into(), json!(self.network));
        }
        if !self.mounts.is_empty() {
            terms.insert(MOUNTS.into(), json!(self.mounts));
        }
        if !self.provider_options.is_empty() {
            let salt = random_hex(8);
            let sealed = self.provider_options.iter();
            let sealed = sealed.map(|(key, value)| (key.clone(), seal(&salt, key, value).into()));
            terms.insert(OPTIONS.into(), Value::Object(sealed.collect()));
        }
        let given = [
            (NAME, json!(self.name)),
            ("environment", json!(self.environment)),
            ("image", json!(self.image)),
            ("snapshot", json!(self.snapshot)),
            ("gpu", json!(self.gpu)),
            ("memory", json!(self.memory)),
            ("cpu", json!(self.cpu)),
            ("disk", json!(self.disk)),
            ("processes", json!(self.processes)),
            ("disk_files", json!(self.disk_files)),
            ("open_files", json!(self.open_files)),
            ("output_limit", json!(self.output_limit)),
        ];
        let given = given.into_iter().filter(|(_, value)| !value.is_null());
        terms.extend(given.map(|(key, value)| (key.to_owned(), value)));
        terms
    }

    /// Checks that a sandbox that was found is one that this would have made.
    ///
    /// # Errors
    /// `InvalidArgument` with the first difference. What was not asked for may be anything, but the isolation never
    /// another one, the network never wider, and nothing of the host that was not asked for.
    pub(crate) fn agrees_with(&self, found: &SandboxInfo) -> Result<()> {
        let kept = found.metadata.get(REUSE_KEY).and_then(Value::as_object);
        let mut terms: Vec<_> = self.reuse_key().into_iter().collect();
        // The most important difference is the one that is named.
        terms.sort_by_key(|(field, _)| field != ISOLATION);
        for (field, wanted) in terms {
            let had = match (field.as_str(), &found.isolation) {
                (ISOLATION, Some(isolation)) => Some(json!(isolation.mode)),
                (NAME, _) => found.name.as_ref().map(|name| json!(name)),
                _ => kept.and_then(|kept| kept.get(&field)).cloned(),
            };
            let agrees = match field.as_str() {
                OPTIONS => self.has_options_like(had.as_ref()),
                NETWORK if had.is_none() => kept.is_some() && self.has_no_network_like(found),
                _ => had.as_ref() == Some(&wanted),
            };
            if !agrees {
                return Err(differs(&field, had.as_ref(), &wanted, found));
            }
        }
        let mounts = kept.and_then(|kept| kept.get(MOUNTS)).filter(|_| self.mounts.is_empty());
        if let Some(mounts) = mounts {
            return Err(differs(MOUNTS, Some(mounts), &json!([]), found));
        }
        let network = kept.and_then(|kept| kept.get(NETWORK));
        match network {
            Some(wider) if self.network == NetworkPolicy::default() && !is_narrow(wider) => {
                Err(differs(NETWORK, Some(wider), &json!(self.network), found))
            }
            _ => Ok(()),
        }
    }

    fn has_options_like(&self, sealed: Option<&Value>) -> bool {
        self.provider_options.iter().all(|(key, value)| {
            let had = sealed.and_then(|sealed| sealed.get(key)).and_then(Value::as_str);
            had.is_some_and(|had| {
                had.split_once(':').is_some_and(|(salt, _)| had == seal(salt, key, value))
            })
        })
    }

    /// No network is wanted, and that is what the sandbox has without having been asked.
    fn has_no_network_like(&self, found: &SandboxInfo) -> bool {
        let none = NetworkMode::None.as_str();
        self.network.mode == NetworkMode::None
            && found.isolation.as_ref().is_some_and(|isolation| isolation.network == none)
    }
}

/// Returns true when a policy allows no more than the default does.
fn is_narrow(policy: &Value) -> bool {
    [NetworkMode::Inherit, NetworkMode::None].iter().any(|mode| policy["mode"] == mode.as_str())
}

/// A digest that shows whether two values are equal, without either of them.
fn seal(salt: &str, key: &str, value: &Value) -> String {
    let digest = Sha256::digest(format!("{salt}:{key}:{value}"));
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{salt}:{digest}")
}

fn differs(field: &str, had: Option<&Value>, wanted: &Value, found: &SandboxInfo) -> Error {
    let field = ["isolation", "network", "name", "environment", "image", "snapshot", "gpu"]
        .into_iter()
        .chain(["memory", "cpu", "disk", "processes", "disk_files", "open_files", "output_limit"])
        .chain([MOUNTS])
        .find(|known| *known == field)
        .unwrap_or(OPTIONS);
    let id = &found.id;
    let problem = if field == OPTIONS {
        format!("are others in {id}, which has these labels")
    } else {
        let shown = |value: &Value| match (field, value.as_u64()) {
            ("memory" | "disk" | "output_limit", Some(bytes)) => ByteSize::bytes(bytes).to_string(),
            _ => shown(value),
        };
        let (had, wanted) = (had.map_or_else(|| "not set".to_owned(), shown), shown(wanted));
        format!("is {had} in {id}, which has these labels; wanted is {wanted}")
    };
    Error::invalid(field, problem)
        .with_context("sandbox_id", id.as_str())
        .with_hint(format!("use another label, or end {id}: `.terminate()`"))
}

/// A value as a user would write it.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(mounts) if mounts.is_empty() => "none".to_owned(),
        Value::Array(mounts) => mounts.iter().map(mounted).collect::<Vec<_>>().join(", "),
        Value::Object(policy) if policy.contains_key("mode") => {
            let list = |key: &str| {
                let hosts = policy.get(key).and_then(Value::as_array).into_iter().flatten();
                let hosts: Vec<_> = hosts.filter_map(Value::as_str).collect();
                if hosts.is_empty() {
                    String::new()
                } else {
                    format!(" ({key} {})", hosts.join(", "))
                }
            };
            let mode = policy.get("mode").and_then(Value::as_str).unwrap_or_default();
            format!("{mode}{}{}", list("allow"), list("deny"))
        }
        other => other.to_string(),
    }
}

/// A mount as the command line has it.
fn mounted(mount: &Value) -> String {
    let text = |key: &str| mount[key].as_str().unwrap_or_default();
    let rights = if mount["writable"] == true { ":rw" } else { "" };
    format!("{}:{}{rights}", text("source"), text("target"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{IsolationInfo, Mount, SandboxStatus, Variant};
    use crate::spec::IsolationMode;

    fn made_from(spec: &CreateSpec) -> SandboxInfo {
        let isolation = IsolationInfo { mode: spec.isolation, ..IsolationInfo::default() };
        SandboxInfo {
            id: "local-eval/abc".into(),
            variant: Variant::LOCAL_EVAL,
            status: SandboxStatus::Running,
            created_at: 0.0,
            end_at: None,
            name: spec.name.clone(),
            tags: spec.tags.clone(),
            resources: None,
            isolation: Some(isolation),
            mounts: spec.mounts.clone(),
            metadata: Map::from_iter([(REUSE_KEY.to_owned(), spec.reuse_key().into())]),
        }
    }

    fn spec() -> CreateSpec {
        CreateSpec::default()
    }

    #[test]
    fn every_difference_is_refused_and_named() {
        let options = Map::from_iter([("python".to_owned(), json!("3.12"))]);
        let none = NetworkPolicy::none();
        let all = NetworkPolicy { mode: NetworkMode::All, ..NetworkPolicy::default() };
        let cases = [
            ("isolation", CreateSpec { isolation: IsolationMode::Off, ..spec() }),
            ("isolation", CreateSpec { isolation: IsolationMode::BestEffort, ..spec() }),
            ("network", CreateSpec { network: none.clone(), ..spec() }),
            ("network", CreateSpec { network: all.clone(), ..spec() }),
            ("name", CreateSpec { name: Some("a".into()), ..spec() }),
            ("environment", CreateSpec { environment: Some("a".into()), ..spec() }),
            ("image", CreateSpec { image: Some("a".into()), ..spec() }),
            ("snapshot", CreateSpec { snapshot: Some("a".into()), ..spec() }),
            ("gpu", CreateSpec { gpu: Some("T4".into()), ..spec() }),
            ("memory", CreateSpec { memory: Some(ByteSize::mib(64)), ..spec() }),
            ("cpu", CreateSpec { cpu: Some(0.5), ..spec() }),
            ("disk", CreateSpec { disk: Some(ByteSize::mib(5)), ..spec() }),
            ("processes", CreateSpec { processes: Some(9), ..spec() }),
            ("disk_files", CreateSpec { disk_files: Some(5000), ..spec() }),
            ("open_files", CreateSpec { open_files: Some(200), ..spec() }),
            ("output_limit", CreateSpec { output_limit: Some(ByteSize::mib(1)), ..spec() }),
            ("mounts", CreateSpec { mounts: vec![Mount::new("/srv", "/data")], ..spec() }),
            ("provider_options", CreateSpec { provider_options: options, ..spec() }),
        ];
        let plain = made_from(&spec());
        for (field, wanted) in cases {
            let error = wanted.agrees_with(&plain).unwrap_err();
            assert!(error.to_string().contains(&format!("`{field}`")), "{field}: {error}");
            assert!(error.hint().unwrap().contains("end local-eval/abc"));
            wanted.agrees_with(&made_from(&wanted)).unwrap();
        }
    }

    #[test]
    fn what_was_not_asked_for_is_never_weaker() {
        let limited = CreateSpec {
            disk: Some(ByteSize::mib(5)),
            network: NetworkPolicy::none(),
            name: Some("a".into()),
            ..spec()
        };
        spec().agrees_with(&made_from(&limited)).unwrap();
        let off = CreateSpec { isolation: IsolationMode::Off, ..spec() };
        let error = spec().agrees_with(&made_from(&off)).unwrap_err();
        assert!(error.to_string().contains("is off in local-eval/abc"), "{error}");
        let all = NetworkPolicy { mode: NetworkMode::All, ..NetworkPolicy::default() };
        let open = CreateSpec { network: all, ..spec() };
        assert!(spec().agrees_with(&made_from(&open)).is_err());
        let shared = CreateSpec { mounts: vec![Mount::new("/srv", "/m").writable()], ..spec() };
        let error = spec().agrees_with(&made_from(&shared)).unwrap_err();
        assert!(error.to_string().contains("is /srv:/m:rw in local-eval/abc"), "{error}");
    }

    #[test]
    fn what_nobody_noted_is_not_taken_for_granted() {
        let mut found = made_from(&spec());
        found.metadata.clear();
        spec().agrees_with(&found).unwrap();
        let wanted = CreateSpec { disk: Some(ByteSize::mib(5)), ..spec() };
        assert!(wanted.agrees_with(&found).is_err());
    }

    #[test]
    fn options_are_compared_and_not_told() {
        let with = |token: &str| {
            let options = Map::from_iter([("token".to_owned(), json!(token))]);
            CreateSpec { provider_options: options, ..spec() }
        };
        let found = made_from(&with("hunter2"));
        with("hunter2").agrees_with(&found).unwrap();
        let error = with("hunter3").agrees_with(&found).unwrap_err();
        let told = format!("{error:?} {}", json!(found));
        assert!(!told.contains("hunter"), "{told}");
        spec().agrees_with(&found).unwrap();
    }

    #[test]
    fn no_network_is_no_network() {
        let mut found = made_from(&spec());
        found.isolation =
            found.isolation.map(|has| IsolationInfo { network: "none".into(), ..has });
        let wanted = CreateSpec { network: NetworkPolicy::none(), ..spec() };
        wanted.agrees_with(&found).unwrap();
        // What was asked for counts more than how it is brought about.
        let all = NetworkPolicy { mode: NetworkMode::All, ..NetworkPolicy::default() };
        let open = CreateSpec { network: all, ..spec() };
        found.metadata.insert(REUSE_KEY.into(), open.reuse_key().into());
        assert!(wanted.agrees_with(&found).is_err());
    }
}
