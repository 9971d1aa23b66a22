//! Sandboxes without an interpreter: their hooks, and how they are put together.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{Capabilities, CreateSpec, IsolationInfo, Result, RunCode, SandboxId, Variant};
use sandbox_engine::host::{FileSystem, ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::network::Network;
use sandbox_engine::{InstanceHooks, SandboxBase, SandboxBaseSpec, StandardInstance};
use serde_json::json;

use super::host::AgentlessHost;
use crate::capabilities::agentless_capabilities;
use crate::container::{Limits, WORKSPACE, layers};
use crate::error::NEEDS_PYTHON_FOR_MORE;
use crate::plan::Plan;

/// A sandbox without an interpreter.
pub(crate) type AgentlessInstance = StandardInstance<AgentlessHooks>;

/// Hooks of a sandbox whose image has no Python.
#[derive(Debug)]
pub(crate) struct AgentlessHooks;

#[async_trait]
impl InstanceHooks for AgentlessHooks {
    fn system_packages_hint(_: &[String]) -> String {
        "put them into an image of your own, and name it with `.image(..)`".to_owned()
    }

    fn check_run(&self, base: &SandboxBase, _request: &RunCode) -> Result<()> {
        Err(base.unsupported("run_code"))
    }
}

/// Puts a sandbox around a started container, and prepares it.
pub(crate) async fn assemble(
    spec: &CreateSpec,
    plan: &Plan,
    id: SandboxId,
    host: AgentlessHost,
    has_limits: bool,
) -> Result<AgentlessInstance> {
    let Plan { options, image, egress, env, cwd, .. } = plan;
    let network = Network::closed(spec.network.clone());
    // The lifetime starts when the sandbox can be used.
    let mut unlimited = spec.clone();
    unlimited.lifetime = None;
    // The limits that it has without being asked.
    let limits = Limits::from_spec(spec);
    if has_limits {
        unlimited.memory = Some(limits.memory);
    }
    if !options.writable_root {
        unlimited.disk = Some(limits.disk);
    }
    let base = SandboxBaseSpec {
        variant: Variant::LOCAL_DOCKER,
        capabilities: Capabilities {
            command_root: options.has_root,
            ..agentless_capabilities(host.has_terminals())
        },
        create: &unlimited,
        isolation: IsolationInfo {
            mode: spec.isolation,
            boundary: "container".into(),
            layers: layers(options, *egress, has_limits),
            network: network.description(),
        },
        env: env.clone(),
        cwd: cwd.clone(),
    };
    let files: Arc<dyn FileSystem> = Arc::new(host.files(cwd));
    let facts = [
        ("image", options.image.clone()),
        ("image_id", image.clone()),
        ("container", host.name().to_owned()),
        ("user", options.user().to_string()),
        ("engine", options.runner.to_string()),
    ];
    let host: Arc<dyn ProcessHost> = Arc::new(host);
    let mut base =
        SandboxBase::remote(Arc::clone(&host), Some(files), base).with_work_dir(WORKSPACE);
    base.id = id;
    base.network = network;
    base.unsupported_hint = Some(NEEDS_PYTHON_FOR_MORE);
    facts.into_iter().for_each(|(name, fact)| base.describe(name, json!(fact)));
    let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
    let ended = Arc::clone(&base.end_reason);
    let contexts = Contexts::new(Variant::LOCAL_DOCKER, host, ended, worker_spec);
    let instance = AgentlessInstance { base, contexts, kind: AgentlessHooks };
    instance.prepare(async { Ok(()) }, spec.working_dir.is_some(), true).await?;
    instance.begin(spec);
    Ok(instance)
}
