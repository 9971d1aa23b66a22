//! What sandboxes without an interpreter do in their own way, and how one is put together.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_core::{Capabilities, CreateSpec, IsolationInfo, Result, RunCode, SandboxId, Variant};
use sandbox_engine::host::{FileSystem, ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::network::Network;
use sandbox_engine::{InstanceHooks, SandboxBase, SandboxBaseSpec, StandardInstance};
use serde_json::json;

use super::{AgentlessHost, HINT};
use crate::container::{WORKSPACE, layers};
use crate::create::Plan;

/// One sandbox.
pub(crate) type AgentlessInstance = StandardInstance<AgentlessHooks>;

/// A sandbox in a container of an image without Python.
#[derive(Debug)]
pub(crate) struct AgentlessHooks;

#[async_trait]
impl InstanceHooks for AgentlessHooks {
    fn system_packages_hint(_: &[String]) -> String {
        "put them into an image of your own, and name it with `--image`; in Rust: .image(..)"
            .to_owned()
    }

    fn check_run(&self, base: &SandboxBase, _request: &RunCode) -> Result<()> {
        Err(base.unsupported("run_code"))
    }
}

/// What a sandbox can do without an interpreter. Only an engine of this host gives it terminals.
pub(crate) fn capabilities(terminals: bool) -> Capabilities {
    Capabilities {
        commands: true,
        command_stdin: true,
        command_pty: terminals,
        command_background: true,
        files: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
        images: true,
        limit_memory: true,
        limit_cpu: true,
        limit_disk: true,
        limit_processes: true,
        limit_open_files: true,
        limit_output: true,
        network_none: true,
        isolation_strict: true,
        ..Capabilities::default()
    }
}

/// Puts a sandbox together around a container that has started, and makes it ready.
pub(crate) async fn assemble(
    spec: &CreateSpec,
    plan: &Plan,
    id: SandboxId,
    made: AgentlessHost,
    has_limits: bool,
) -> Result<AgentlessInstance> {
    let Plan { options, image, way, env, cwd, .. } = plan;
    let network = Network::closed(spec.network.clone());
    // It lives from when it can be used.
    let mut unlimited = spec.clone();
    unlimited.lifetime = None;
    let base = SandboxBaseSpec {
        variant: Variant::LOCAL_DOCKER,
        capabilities: capabilities(made.has_terminals()),
        create: &unlimited,
        isolation: IsolationInfo {
            mode: spec.isolation,
            boundary: "container".into(),
            layers: layers(options, *way, has_limits),
            network: network.description(),
        },
        env: env.clone(),
        cwd: cwd.clone(),
    };
    let files: Arc<dyn FileSystem> = Arc::new(made.files(cwd));
    let facts = [
        ("image", options.image.clone()),
        ("image_id", image.clone()),
        ("container", made.name().to_owned()),
        ("user", options.user().to_string()),
        ("engine", options.engine.to_string()),
    ];
    let host: Arc<dyn ProcessHost> = Arc::new(made);
    let mut base =
        SandboxBase::remote(Arc::clone(&host), Some(files), base).with_work_dir(WORKSPACE);
    base.id = id;
    base.network = network;
    base.unsupported_hint = Some(HINT);
    facts.into_iter().for_each(|(name, fact)| base.describe(name, json!(fact)));
    let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
    let ended = Arc::clone(&base.end_reason);
    let contexts = Contexts::new(Variant::LOCAL_DOCKER, host, ended, worker_spec);
    let instance = AgentlessInstance { base, contexts, kind: AgentlessHooks };
    instance.prepare(async { Ok(()) }, spec.working_dir.is_some(), true).await?;
    instance.begin(spec);
    Ok(instance)
}
