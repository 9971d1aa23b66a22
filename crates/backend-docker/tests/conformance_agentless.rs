//! The behaviour suite over `local-docker` without a runner of code, in an image without Python.

#[path = "support/differences.rs"]
mod differences;
#[expect(dead_code, reason = "one image is enough")]
#[path = "support/without_python.rs"]
mod without_python;

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use backend_docker::DockerBackend;
use differences::{FULL_ONLY, VARIABLE, of_containers};
use sandbox_conformance::Target;
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, Health, Instance, ListQuery, Page,
    Result, SandboxEnvironment, SandboxId, SandboxInfo, SnapshotInfo, Variant,
};
use serde_json::json;
use without_python::{DEBIAN, build_debian};

/// The groups that need no code.
const GROUPS: [&str; 12] = [
    "archives",
    "background",
    "command_root",
    "commands",
    "files",
    "unsupported",
    "slow_reader",
    "orphans",
    "limits_output",
    "terminal",
    "transfer",
    "watch",
];

/// The groups that depend most on engine execs, which run every time.
const ALWAYS: [&str; 6] =
    ["commands", "files", "unsupported", "slow_reader", "orphans", "limits_output"];

const CODE: &str = "about code, which an image without Python does not run";

const INPUT: &str = "an engine does not report that a command has closed its standard input";

const STREAMS: &str = "an engine carries the streams of a command separately, in no common order";

const MANY: &str = "an engine takes a good part of a tenth of a second for each command";

/// The backend with a default image and without a runner.
#[derive(Debug, Default)]
struct WithoutCode(DockerBackend);

#[async_trait]
impl Backend for WithoutCode {
    fn variant(&self) -> Variant {
        self.0.variant()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            commands: true,
            command_stdin: true,
            command_pty: true,
            command_background: true,
            command_root: true,
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

    async fn create(&self, call: &CallContext, mut spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        spec.image.get_or_insert_with(|| DEBIAN.to_owned());
        spec.provider_options.insert("engine".to_owned(), json!("none"));
        let instance = self.0.create(call, spec).await?;
        assert_eq!(instance.capabilities(), self.capabilities(), "its own capabilities");
        Ok(instance)
    }

    async fn attach(&self, call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        self.0.attach(call, id).await
    }

    async fn list(&self, call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        self.0.list(call, query).await
    }

    async fn environments(&self, call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        self.0.environments(call).await
    }

    async fn health(&self, call: &CallContext) -> Result<Health> {
        self.0.health(call).await
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        Err(Error::unsupported("list_snapshots", "there are none without code"))
    }

    async fn delete_snapshot(&self, _call: &CallContext, _name: &str) -> Result<()> {
        Err(Error::unsupported("delete_snapshot", "there are none without code"))
    }
}

fn main() -> ExitCode {
    if std::env::var_os(VARIABLE).is_none() {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    }
    build_debian();
    let target = Target::new("local-docker-agentless", || Arc::new(WithoutCode::default()));
    let target = of_containers(target)
        .only(GROUPS, CODE)
        .differs("background::the_order_of_streams_is_kept", STREAMS)
        .differs("commands::many_one_after_another", MANY)
        .differs(
            "files::many_at_once_are_all_right",
            "tests/plain.rs has as many as an engine does in time",
        )
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT);
    sandbox_conformance::main(target.part(ALWAYS, FULL_ONLY))
}
