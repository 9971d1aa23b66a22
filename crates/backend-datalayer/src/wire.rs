//! Answers of the services, in the forms of all their versions.

use sandbox_cloud::http::ServiceClock;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::{Map, Value};

/// A page of environments.
#[derive(Debug, Deserialize)]
pub(crate) struct Environments {
    pub(crate) environments: Vec<Environment>,
    #[serde(default, rename = "nextCursor")]
    pub(crate) next: Option<String>,
}

/// An environment that runtimes are created from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Environment {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) title: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) language: Option<String>,
    pub(crate) owner: Option<String>,
    pub(crate) visibility: Option<String>,
    /// Credits per second.
    #[serde(deserialize_with = "number")]
    pub(crate) burning_rate: Option<f64>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) resources: Map<String, Value>,
    #[serde(flatten)]
    pub(crate) more: Map<String, Value>,
}

/// The answer with one runtime.
#[derive(Debug, Deserialize)]
pub(crate) struct RuntimeResponse {
    #[serde(alias = "kernel")]
    pub(crate) runtime: Runtime,
}

/// All runtimes of an account.
#[derive(Debug, Deserialize)]
pub(crate) struct Runtimes {
    pub(crate) runtimes: Vec<Runtime>,
}

/// One runtime.
#[derive(Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Runtime {
    runtime_name: Option<String>,
    pod_name: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid: String,
    pub(crate) given_name: Option<String>,
    environment_name: Option<String>,
    environment: Option<Value>,
    /// Address of its Jupyter Server.
    pub(crate) ingress: Option<String>,
    /// Token of that server.
    pub(crate) token: Option<sandbox_core::Secret>,
    #[serde(deserialize_with = "number")]
    pub(crate) burning_rate: Option<f64>,
    pub(crate) reservation_id: Option<String>,
    #[serde(deserialize_with = "number")]
    pub(crate) started_at: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) expired_at: Option<f64>,
    pub(crate) status: Option<String>,
}

impl Runtime {
    /// Reads the times of an answer, which are those of the service's clock.
    pub(crate) fn with_clock(mut self, clock: &ServiceClock) -> Self {
        for time in [&mut self.started_at, &mut self.expired_at].into_iter().flatten() {
            *time = clock.to_local(*time);
        }
        self
    }

    /// Returns the name that requests have it by.
    pub(crate) fn name(&self) -> &str {
        self.runtime_name.as_deref().or(self.pod_name.as_deref()).unwrap_or_default()
    }

    /// Returns the environment it was created from.
    pub(crate) fn environment(&self) -> Option<&str> {
        let nested = || match self.environment.as_ref()? {
            Value::String(name) => Some(name.as_str()),
            other => other.get("name")?.as_str(),
        };
        self.environment_name.as_deref().or_else(nested)
    }

    /// Returns the id for users: the unique one, or the name where there is none.
    pub(crate) fn id(&self) -> &str {
        if self.uid.is_empty() { self.name() } else { &self.uid }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Runtime");
        shown.field("name", &self.name()).field("uid", &self.uid);
        shown.field("given_name", &self.given_name).finish_non_exhaustive()
    }
}

/// All snapshots of an account.
#[derive(Debug, Deserialize)]
pub(crate) struct Snapshots {
    pub(crate) snapshots: Vec<Snapshot>,
}

/// A stored state.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    #[serde(deserialize_with = "or_default")]
    pub(crate) uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    #[serde(deserialize_with = "number")]
    pub(crate) size: Option<f64>,
    pub(crate) status: Option<String>,
    #[serde(deserialize_with = "moment")]
    pub(crate) updated_at: Option<f64>,
}

/// The answer to a pause or a resume.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct AcceptedOperation {
    pub(crate) checkpoint_id: Option<String>,
}

/// Progress of a pause or a resume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Checkpoint {
    #[serde(deserialize_with = "or_default")]
    pub(crate) id: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) runtime_uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) status: String,
    pub(crate) status_message: Option<String>,
}

/// Records of pausing and resuming.
#[derive(Debug, Deserialize)]
pub(crate) struct Checkpoints {
    pub(crate) checkpoints: Vec<Checkpoint>,
}

/// Credits of an account, used and reserved.
#[derive(Debug, Deserialize)]
pub(crate) struct Usage {
    pub(crate) credits: Credits,
    #[serde(default)]
    pub(crate) reservations: Vec<Reservation>,
}

/// Credits of an account.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Credits {
    #[serde(deserialize_with = "number")]
    pub(crate) credits: Option<f64>,
    #[serde(deserialize_with = "number")]
    pub(crate) quota: Option<f64>,
}

/// Credits that are set aside for a runtime.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reservation {
    #[serde(deserialize_with = "number")]
    pub(crate) credits: Option<f64>,
}

impl Usage {
    /// Returns the credits that are neither used nor set aside.
    pub(crate) fn left(&self) -> f64 {
        let used = self.credits.credits.unwrap_or_default();
        let had = self.credits.quota.map_or(used, |quota| quota - used);
        let reserved: f64 = self.reservations.iter().filter_map(|reserved| reserved.credits).sum();
        (had - reserved).max(0.0)
    }
}

/// Reads a field that may be `null` as its default: one odd record hides no other.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads a number, or a number as text.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let number = match &value {
        Value::Null => return Ok(None),
        Value::String(text) if text.trim().is_empty() => return Ok(None),
        Value::String(text) => text.trim().parse().ok(),
        other => other.as_f64(),
    };
    let finite = number.filter(|number: &f64| number.is_finite());
    finite.map(Some).ok_or_else(|| D::Error::custom("a field that must be a number is not one"))
}

/// Reads a time as a number, or as ISO 8601. Anything else is unknown.
fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let Some(text) = value.as_str() else { return Ok(value.as_f64()) };
    let date = || chrono::DateTime::parse_from_rfc3339(text).ok();
    Ok(text.parse().ok().or_else(|| Some(date()?.timestamp_micros() as f64 / 1e6)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn both_forms_of_a_runtime_are_read() {
        let old = json!({
            "pod_name": "p", "uid": "U", "environment_name": "e", "ingress": "https://x", "token": "t",
            "burning_rate": 0.5, "started_at": "1000.5", "expired_at": "1600",
        });
        let new = json!({
            "runtime_name": "p", "uid": "U", "environment": {"name": "e", "version": 2}, "burning_rate": "0.5",
            "started_at": 1000.5, "expired_at": 1600, "unmetered": false, "ingress": null,
        });
        for value in [old, new] {
            let runtime: Runtime = serde_json::from_value(value).unwrap();
            assert_eq!(
                (runtime.name(), runtime.id(), runtime.environment()),
                ("p", "U", Some("e"))
            );
            assert_eq!(runtime.burning_rate, Some(0.5));
            assert_eq!((runtime.started_at, runtime.expired_at), (Some(1000.5), Some(1600.0)));
        }
        serde_json::from_value::<Runtime>(json!({"burning_rate": "a lot"})).unwrap_err();
    }

    #[test]
    fn times_are_read_on_the_clock_of_this_computer() {
        let runtime = json!({"started_at": 1000.0, "expired_at": 1600.0});
        let runtime: Runtime = serde_json::from_value(runtime).unwrap();
        let clock = ServiceClock::ahead_of_service(3600.0);
        let local = runtime.with_clock(&clock);
        assert_eq!((local.started_at, local.expired_at), (Some(4600.0), Some(5200.0)));
    }

    #[test]
    fn a_token_is_never_shown() {
        let runtime: Runtime =
            serde_json::from_value(json!({"uid": "U", "token": "hunter2"})).unwrap();
        assert!(!format!("{runtime:?}").contains("hunter2"));
    }

    #[test]
    fn what_is_left_is_neither_used_nor_reserved() {
        let left = |value: Value| serde_json::from_value::<Usage>(value).unwrap().left();
        assert_eq!(left(json!({"credits": {"credits": 10}})), 10.0);
        assert_eq!(
            left(json!({"credits": {"credits": 4, "quota": 10}, "reservations": [{"credits": 5}]})),
            1.0
        );
        assert_eq!(
            left(json!({"credits": {"credits": 1}, "reservations": [{"credits": "5"}]})),
            0.0
        );
    }
}
