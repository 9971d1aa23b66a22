//! The objects of the API and the toolbox, as far as they are used.

use std::collections::BTreeMap;

use sandbox_cloud::http::ServiceClock;
use serde::Deserialize;
use serde_json::Value;

/// A sandbox of the API. Entries of lists have no `env`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) snapshot: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) target: Option<String>,
    pub(crate) network_block_all: bool,
    pub(crate) network_allow_list: Option<String>,
    pub(crate) domain_allow_list: Option<String>,
    pub(crate) cpu: Option<f64>,
    /// GiB.
    pub(crate) memory: Option<f64>,
    /// GiB.
    pub(crate) disk: Option<f64>,
    pub(crate) gpu: Option<f64>,
    pub(crate) gpu_type: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) error_reason: Option<String>,
    pub(crate) sandbox_class: Option<String>,
    pub(crate) created_at: Option<String>,
    pub(crate) auto_destroy_at: Option<String>,
    pub(crate) auto_stop_interval: Option<f64>,
    pub(crate) toolbox_proxy_url: Option<String>,
    /// When it was created and when the provider ends it, in unix seconds on the clock of this computer.
    #[serde(skip)]
    pub(crate) created: Option<f64>,
    #[serde(skip)]
    pub(crate) ends: Option<f64>,
}

impl Sandbox {
    /// Reads the times of an answer, which are those of the service's clock.
    pub(crate) fn with_clock(mut self, clock: &ServiceClock) -> Self {
        let local = |text: &Option<String>| unix_time(text.as_deref()).map(|t| clock.to_local(t));
        (self.created, self.ends) = (local(&self.created_at), local(&self.auto_destroy_at));
        self
    }
}

/// A page of sandboxes.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Sandboxes {
    pub(crate) items: Vec<Sandbox>,
    pub(crate) next_cursor: Option<String>,
}

/// A snapshot: what sandboxes are created from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Snapshot {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) image_name: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) general: bool,
    /// GiB.
    pub(crate) size: Option<f64>,
    pub(crate) cpu: Option<f64>,
    /// GiB.
    pub(crate) mem: Option<f64>,
    pub(crate) gpu: Option<f64>,
    pub(crate) error_reason: Option<String>,
    pub(crate) created_at: Option<String>,
    pub(crate) source_sandbox_id: Option<String>,
}

/// A page of snapshots.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Snapshots {
    pub(crate) items: Vec<Snapshot>,
    pub(crate) page: u64,
    pub(crate) total_pages: u64,
}

/// An address that an answer names.
#[derive(Debug, Deserialize)]
pub(crate) struct NamedUrl {
    pub(crate) url: String,
}

/// The address of a port.
#[derive(Debug, Deserialize)]
pub(crate) struct PreviewUrl {
    pub(crate) url: String,
    pub(crate) token: Option<String>,
}

/// The answer of a command that was waited for.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Executed {
    pub(crate) exit_code: Option<i64>,
    pub(crate) result: Option<String>,
}

/// A command of a session that was started.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SessionCommand {
    pub(crate) cmd_id: String,
}

/// The state of a command of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct CommandState {
    pub(crate) exit_code: Option<i64>,
}

/// A session of the toolbox, with its commands.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Session {
    pub(crate) session_id: String,
    pub(crate) commands: Option<Vec<ListedCommand>>,
}

/// A command in the list of a session.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct ListedCommand {
    pub(crate) id: String,
    pub(crate) command: String,
    pub(crate) exit_code: Option<i64>,
}

/// A volume of the organization.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) error_reason: Option<String>,
}

/// A directory that an answer names.
#[derive(Debug, Deserialize)]
pub(crate) struct Directory {
    pub(crate) dir: String,
}

/// A context of the interpreter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InterpreterContext {
    pub(crate) id: String,
    pub(crate) cwd: Option<String>,
}

/// The contexts that were made, without the default one.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InterpreterContexts {
    pub(crate) contexts: Option<Vec<InterpreterContext>>,
}

/// A message of the interpreter about a run.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct InterpreterMessage {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) traceback: String,
}

/// A control message of a terminal.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct PtyControl {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) error: Option<Value>,
}

/// Returns the time that a text of the API names, in unix seconds.
pub(crate) fn unix_time(text: Option<&str>) -> Option<f64> {
    let time = chrono::DateTime::parse_from_rfc3339(text?).ok()?;
    Some(time.timestamp_millis() as f64 / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_a_later_version_is_read() {
        let text = r#"{"id": "a", "name": "b", "labels": {"x": "y"}, "state": "started", "cpu": 2, "newer": {"z": 1},
                       "gpuType": null, "createdAt": "2026-01-02T03:04:05.500Z"}"#;
        let sandbox: Sandbox = serde_json::from_str(text).unwrap();
        assert_eq!((sandbox.cpu, sandbox.labels["x"].as_str()), (Some(2.0), "y"));
        assert_eq!(unix_time(sandbox.created_at.as_deref()), Some(1_767_323_045.5));
        assert_eq!(unix_time(Some("yesterday")), None);
    }
}
