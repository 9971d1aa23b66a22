//! Answers of the control plane, as far as they are read. Unknown fields are left out, missing ones have defaults.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use sandbox_cloud::http::ServiceClock;
use sandbox_core::Secret;
use serde::Deserialize;

/// A sandbox that was created, connected to or forked.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Connected {
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    /// The other name of the template, where it has one.
    pub(crate) alias: Option<String>,
    pub(crate) envd_version: String,
    /// The token of the daemon in the sandbox.
    pub(crate) envd_access_token: Option<Secret>,
    /// The token of the sandbox's ports, where they are not public.
    pub(crate) traffic_access_token: Option<Secret>,
    /// The domain of the sandbox's addresses, where it is another one than the configured.
    pub(crate) domain: Option<String>,
}

/// A sandbox in a list, or by itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Described {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    pub(crate) alias: Option<String>,
    pub(crate) started_at: Option<DateTime<Utc>>,
    pub(crate) end_at: Option<DateTime<Utc>>,
    pub(crate) cpu_count: Option<f64>,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: Option<u64>,
    #[serde(rename = "diskSizeMB")]
    pub(crate) disk_size_mb: Option<u64>,
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    pub(crate) state: String,
    pub(crate) envd_version: String,
    /// Only where a sandbox is described by itself.
    pub(crate) envd_access_token: Option<Secret>,
    pub(crate) domain: Option<String>,
}

impl Described {
    /// Reads the times of an answer, which are those of the service's clock.
    pub(crate) fn with_clock(mut self, clock: &ServiceClock) -> Self {
        for time in [&mut self.started_at, &mut self.end_at].into_iter().flatten() {
            let shift = TimeDelta::milliseconds((clock.to_local(0.0) * 1e3) as i64);
            *time = time.checked_add_signed(shift).unwrap_or(*time);
        }
        self
    }

    /// Returns true for a sandbox that is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.state == "paused"
    }
}

/// One outcome of a fork.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Forked {
    pub(crate) sandbox: Option<Connected>,
    pub(crate) error: Option<ReportedError>,
}

/// An error within an answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReportedError {
    pub(crate) code: i64,
    pub(crate) message: String,
}

/// A stored snapshot, which is a template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    #[serde(rename = "snapshotID")]
    pub(crate) snapshot_id: String,
    /// Full names, such as `team/name:tag`.
    pub(crate) names: Vec<String>,
}

impl Snapshot {
    /// Returns the name that the snapshot was given, without team and default tag.
    pub(crate) fn short_name(&self) -> &str {
        let full = self.names.first().unwrap_or(&self.snapshot_id);
        let name = full.rsplit_once('/').map_or(full.as_str(), |(_, name)| name);
        name.strip_suffix(":default").unwrap_or(name)
    }

    /// Returns true for a snapshot that users call by this word: its name or its id.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        self.snapshot_id == name
            || self.short_name() == name
            || self.names.iter().any(|full| full == name)
    }
}

/// A template.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Template {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    pub(crate) names: Vec<String>,
    pub(crate) aliases: Vec<String>,
    pub(crate) public: bool,
    pub(crate) cpu_count: Option<f64>,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: Option<u64>,
    #[serde(rename = "diskSizeMB")]
    pub(crate) disk_size_mb: Option<u64>,
    pub(crate) description: Option<String>,
    pub(crate) build_status: Option<String>,
}

/// Resources in use at one moment.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Measured {
    pub(crate) timestamp_unix: i64,
    pub(crate) mem_used: u64,
    pub(crate) disk_used: u64,
}

/// A page of log lines.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct LogPage {
    pub(crate) logs: Vec<LogLine>,
}

/// One log line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct LogLine {
    pub(crate) timestamp: DateTime<Utc>,
    #[serde(default)]
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) level: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn times_are_read_on_the_clock_of_this_computer() {
        let found = r#"{"startedAt": "2026-01-02T03:04:05Z", "endAt": "2026-01-02T03:09:05Z"}"#;
        let found: Described = serde_json::from_str(found).unwrap();
        let local = found.with_clock(&ServiceClock::ahead_of_service(3600.0));
        assert_eq!(local.started_at.unwrap().to_rfc3339(), "2026-01-02T04:04:05+00:00");
        assert_eq!(local.end_at.unwrap().to_rfc3339(), "2026-01-02T04:09:05+00:00");
    }

    #[test]
    fn nulls_and_unknown_fields_are_no_errors() {
        let made: Connected = from_value(json!({
            "templateID": "t", "sandboxID": "i1", "clientID": "c", "envdVersion": "0.6.13",
            "envdAccessToken": "token", "trafficAccessToken": null, "domain": null, "new": [1],
        }))
        .unwrap();
        assert_eq!(made.sandbox_id, "i1");
        assert!(made.traffic_access_token.is_none() && made.domain.is_none());
        assert!(!format!("{made:?}").contains("token\""), "{made:?}");
        let listed: Described = from_value(json!({
            "templateID": "t", "sandboxID": "i1", "startedAt": "2026-01-02T03:04:05.678Z",
            "endAt": "2026-01-02T03:09:05Z", "cpuCount": 2, "memoryMB": 512, "metadata": null, "state": "paused",
        }))
        .unwrap();
        assert!(listed.is_paused() && listed.metadata.is_none());
        assert_eq!((listed.cpu_count, listed.memory_mb), (Some(2.0), Some(512)));
    }

    #[test]
    fn a_snapshot_is_known_by_its_short_name_and_its_id() {
        let snapshot = Snapshot {
            snapshot_id: "team/mine:default".into(),
            names: vec!["team/mine:default".into()],
        };
        assert_eq!(snapshot.short_name(), "mine");
        assert!(["mine", "team/mine:default"].iter().all(|name| snapshot.is_called(name)));
        assert!(!snapshot.is_called("min"));
        let unnamed = Snapshot { snapshot_id: "abc:default".into(), names: Vec::new() };
        assert_eq!(unnamed.short_name(), "abc");
    }
}
