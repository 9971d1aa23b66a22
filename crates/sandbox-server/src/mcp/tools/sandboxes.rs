//! `create_sandbox`, `list_sandboxes`, `stop_sandbox`, `snapshot` and `restore`

use std::collections::BTreeMap;

use sandbox_core::{CallContext, Error, ErrorKind, Result, SnapshotInfo};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::super::reply::ToolReply;
use super::super::sandboxes::Entry;
use super::super::toolset::Call;

/// Arguments of `create_sandbox`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(in super::super) struct CreateSandbox {
    /// Name, by which the other tools find it, too.
    pub(in super::super) name: Option<String>,
    /// Name of a snapshot of this server to start from.
    pub(in super::super) snapshot: Option<String>,
    /// Environment variables of everything that runs in it.
    pub(in super::super) env: Option<BTreeMap<String, String>>,
    /// Memory, such as "512m". At most that of the server.
    pub(in super::super) memory: Option<String>,
    /// CPU cores. At most those of the server.
    pub(in super::super) cpu: Option<f64>,
    /// Seconds that it lives at most. At most those of the server.
    pub(in super::super) lifetime: Option<f64>,
    /// Hosts that its code may reach, among those of the server; an empty list: none. Default: those of the server.
    pub(in super::super) network: Option<Vec<String>>,
}

/// A sandbox.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SandboxAnswer {
    /// Id, for the argument `sandbox` of the other tools.
    sandbox: String,
    /// Name.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Place that it runs in, such as local-eval.
    variant: String,
    /// Status, such as running.
    status: String,
    /// True for the sandbox that tools use without an id.
    session: bool,
    /// Seconds until it ends by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<f64>,
    /// Network of its code.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<String>,
}

impl SandboxAnswer {
    fn new(entry: &Entry, session: bool) -> Self {
        let info = entry.sandbox.info();
        let isolation = info.isolation.as_ref();
        Self {
            sandbox: entry.id.clone(),
            name: entry.name.clone(),
            variant: entry.sandbox.variant().to_string(),
            status: entry.sandbox.status().as_str().to_owned(),
            session,
            remaining: info.remaining_time().map(|left| left.as_secs_f64()),
            network: isolation.map(|isolation| isolation.network.clone()),
        }
    }

    fn line(&self) -> String {
        let name = self.name.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
        let session = if self.session { ", used without an id" } else { "" };
        format!("{}{name}: {}, {}{session}", self.sandbox, self.variant, self.status)
    }
}

/// Makes a sandbox.
pub(in super::super) async fn create_sandbox(
    call: &Call<'_>,
    arguments: CreateSandbox,
) -> Result<ToolReply> {
    if let Some(name) = &arguments.name
        && call.owned().iter().any(|entry| entry.name.as_ref() == Some(name))
    {
        let message = format!("there is a sandbox with the name {name:?} already");
        return Err(Error::new(ErrorKind::AlreadyExists, "create", message));
    }
    let entry = call.create(&arguments).await?;
    let answer = SandboxAnswer::new(&entry, false);
    let text =
        format!("created {}; give `sandbox`: \"{}\" to the other tools", answer.line(), entry.id);
    Ok(ToolReply::new(text, &answer))
}

/// Arguments of `list_sandboxes`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ListSandboxes {}

/// Answer of `list_sandboxes`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SandboxesAnswer {
    /// The sandboxes of this session.
    sandboxes: Vec<SandboxAnswer>,
    /// Names of the snapshots of this server.
    snapshots: Vec<String>,
}

/// Lists the sandboxes of the session.
pub(in super::super) async fn list_sandboxes(
    call: &Call<'_>,
    _: ListSandboxes,
) -> Result<ToolReply> {
    let session = call.session_id();
    let sandboxes: Vec<_> = call
        .owned()
        .iter()
        .map(|entry| SandboxAnswer::new(entry, Some(&entry.id) == session.as_ref()))
        .collect();
    let snapshots = call.snapshots();
    let mut lines: Vec<_> = sandboxes.iter().map(SandboxAnswer::line).collect();
    if lines.is_empty() {
        lines.push("none; the first tool that needs one makes it".to_owned());
    }
    if !snapshots.is_empty() {
        lines.push(format!("snapshots: {}", snapshots.join(", ")));
    }
    Ok(ToolReply::new(lines.join("\n"), &SandboxesAnswer { sandboxes, snapshots }))
}

/// Arguments of `stop_sandbox`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct StopSandbox {
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session, of which the next tool makes a new one.
    pub(in super::super) sandbox: Option<String>,
}

/// Answer of `stop_sandbox`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct StoppedAnswer {
    /// Id of the sandbox that has ended.
    sandbox: String,
}

/// Ends a sandbox.
pub(in super::super) async fn stop_sandbox(
    call: &Call<'_>,
    arguments: StopSandbox,
) -> Result<ToolReply> {
    let entry = call.existing(arguments.sandbox.as_deref()).await?;
    entry.end(true).await?;
    call.forget(&entry.id).await;
    let text = format!("ended {}; its files are gone", entry.id);
    Ok(ToolReply::new(text, &StoppedAnswer { sandbox: entry.id.clone() }))
}

/// Arguments of `snapshot`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Snapshot {
    /// Name of the snapshot.
    name: String,
    /// Description of the state.
    description: Option<String>,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Answer of `snapshot` and `restore`.
#[derive(Debug, Serialize, JsonSchema)]
pub(in super::super) struct SnapshotAnswer {
    /// Name of the snapshot.
    name: String,
    /// Directories whose files it has.
    directories: Vec<String>,
    /// Contexts whose variables it has.
    contexts: Vec<String>,
    /// Parts of the state that it does not have.
    left_out: Vec<String>,
    /// Bytes of its files.
    size: u64,
    /// Id of the sandbox.
    sandbox: String,
}

fn snapshot_reply(done: &str, info: SnapshotInfo, entry: &Entry) -> ToolReply {
    let mut contexts = info.contexts;
    contexts.extend(info.variables);
    contexts.sort_unstable();
    contexts.dedup();
    let mut text =
        format!("{done} \"{}\": the files below {}", info.name, info.directories.join(", "));
    match contexts.is_empty() {
        true => text.push_str(", without variables"),
        false => text.push_str(&format!(", and the variables of {}", contexts.join(", "))),
    }
    if !info.left_out.is_empty() {
        text.push_str(&format!("; not in it: {}", info.left_out.join(", ")));
    }
    let answer = SnapshotAnswer {
        name: info.name,
        directories: info.directories,
        contexts,
        left_out: info.left_out,
        size: info.size,
        sandbox: entry.id.clone(),
    };
    ToolReply::new(text, &answer)
}

/// Stores the state of a sandbox.
pub(in super::super) async fn snapshot(call: &Call<'_>, arguments: Snapshot) -> Result<ToolReply> {
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let instance = entry.sandbox.instance("create_snapshot")?;
    let description = arguments.description.unwrap_or_default();
    let snapshots = instance.snapshots()?;
    let stored =
        snapshots.create_snapshot(&CallContext::new(), &arguments.name, &description).await?;
    call.note_snapshot(&stored.name);
    Ok(snapshot_reply("stored", stored, &entry))
}

/// Arguments of `restore`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Restore {
    /// Name of a snapshot from the tool snapshot.
    pub(in super::super) name: String,
    /// Id of a sandbox from create_sandbox. Default: the sandbox of this session.
    sandbox: Option<String>,
}

/// Puts a sandbox back to a snapshot.
pub(in super::super) async fn restore(call: &Call<'_>, arguments: Restore) -> Result<ToolReply> {
    call.check_snapshot(&arguments.name)?;
    let entry = call.sandbox(arguments.sandbox.as_deref()).await?;
    let restored = entry.sandbox.restore_snapshot(&arguments.name).await?;
    Ok(snapshot_reply("restored", restored, &entry))
}
