//! A container with an agent as a process host.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as Cause;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use sandbox_agent_client::{
    AgentConnection, AgentFiles, AgentPorts, AgentReader, ConnectError, Connecting,
};
use sandbox_core::{Error, ErrorKind, FailureKind, Result};
use sandbox_engine::host::{
    PendingCheckpoint, ProcessHost, SideChannel, Spawn, Spawned, WorkerIo, WorkerSpec,
};
use tokio::net::UnixStream;

use crate::bytecode::AgentBytecode;
use crate::config::Options;
use crate::container::{ContainerSpec, Limits, check_open_files, open_files};
use crate::container_guard::{ContainerExit, ContainerGuard};
use crate::engine::Engine;
use crate::error::StartError;
use crate::exec::{ContainerLife, Execs, RootShell};
use crate::init_process::InitProcess;
use crate::optional_features::SupportedFeatures;
use crate::pause::ContainerPauser;
use crate::start::{StartedContainer, start_container};
use crate::verify;

/// `PATH` of the scripts that start and end commands of root.
const ROOT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Bytes of an agent's standard error that an error may quote.
const MAX_STDERR: usize = 4 << 10;

/// Knowledge about one engine, and settings, for agents in its containers.
#[derive(Debug, Default)]
pub(crate) struct AgentBootstrap {
    pub(crate) features: SupportedFeatures,
    pub(crate) bytecode: AgentBytecode,
    /// Time without any byte of the agent after which its connection counts as lost.
    pub(crate) silence: Option<Duration>,
}

/// A container with an agent in it.
#[derive(Debug)]
pub(crate) struct ContainerHost {
    agent: AgentConnection,
    guard: Arc<ContainerGuard>,
    pauser: Arc<ContainerPauser>,
    has_limits: bool,
    root: RootShell,
}

/// The end of a container with an agent.
#[derive(Debug)]
struct AgentLife {
    agent: AgentPorts,
    exit: Arc<ContainerExit>,
}

#[async_trait]
impl ContainerLife for AgentLife {
    fn is_closed(&self) -> bool {
        !self.agent.is_open()
    }

    async fn closed(&self) {
        self.agent.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        self.exit.reason().map(|reason| reason.failure())
    }
}

impl ContainerHost {
    /// Starts a container and sends the agent into it.
    pub(crate) async fn start(
        engine: &Engine,
        container: &ContainerSpec<'_>,
        bootstrap: &AgentBootstrap,
        id: &str,
        cwd: &str,
    ) -> std::result::Result<Self, StartError> {
        let ContainerSpec { spec, options, engine: info, .. } = *container;
        let docker = &engine.docker;
        let StartedContainer { guard, attached, nonce, unverified } =
            start_container(engine, container, &bootstrap.features, id, |_| {}).await?;
        let stderr = StderrTail::default();
        let messages = messages(attached.output, Arc::clone(&stderr));
        let reason = find_reason(docker, &guard.name, info.clock_ahead, Arc::clone(&guard.exit));
        let byte_code = |magic| bootstrap.bytecode.get(magic);
        let default = Connecting { byte_code: &byte_code, ..Connecting::default() };
        let silence = bootstrap.silence.unwrap_or(default.silence);
        let agent = AgentConnection::connect_with(
            messages.chain(reason).boxed(),
            attached.input,
            &nonce,
            Connecting { silence, ..default },
        )
        .await
        .map_err(|error| no_agent(error, &guard.exit, &stderr, options))?;
        check_open_files(spec, agent.open_files())?;
        let execs = Execs {
            docker: docker.clone(),
            socket: engine.host.strip_prefix("unix://").map(str::to_owned),
            container: guard.name.clone(),
            user: options.user(),
            path: ROOT_PATH.to_owned(),
            open_files: open_files(spec),
            runtime: guard.runtime.clone(),
            life: Arc::new(AgentLife { agent: agent.ports(), exit: Arc::clone(&guard.exit) }),
        };
        let root = RootShell::new(&execs, cwd);
        let paused_root = options.has_root.then(|| root.shell());
        let (docker, name) = (docker.clone(), guard.name.clone());
        let pauser = ContainerPauser::new(docker, name, agent.pauser(), paused_root);
        let agent = match info.has_cgroups {
            true => agent.with_memory(Limits::from_spec(spec).memory),
            false => agent,
        };
        let has_limits = match unverified {
            Some(request) => verify::verify(&agent, spec, options, &request).await?.limits,
            None => info.has_cgroups,
        };
        Ok(Self { agent, guard: Arc::new(guard), pauser: Arc::new(pauser), has_limits, root })
    }

    pub(crate) fn agent(&self) -> &AgentConnection {
        &self.agent
    }

    /// Returns the files of the container; see [`AgentConnection::files`]. Large files do not pass through an engine of this
    /// host.
    pub(crate) fn files(&self, base: &str, engine: &Engine) -> AgentFiles {
        let files = self.agent.files(base);
        if !engine.has_local_socket() {
            return files;
        }
        files.taken_from(Arc::new(InitProcess::new(&engine.docker, self.name())))
    }

    pub(crate) fn pauser(&self) -> Arc<ContainerPauser> {
        Arc::clone(&self.pauser)
    }

    /// Returns true if the limits of memory, processes and CPU are enforced, as far as is known.
    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits
    }

    /// Returns the container's name.
    pub(crate) fn name(&self) -> &str {
        &self.guard.name
    }
}

/// The last of an agent's standard error.
type StderrTail = Arc<Mutex<Vec<u8>>>;

/// Splits the output of a container: standard output is the agent's messages, standard error is kept for errors.
fn messages(
    output: impl Stream<Item = std::result::Result<LogOutput, Cause>> + Send + 'static,
    stderr: StderrTail,
) -> AgentReader {
    let messages = output.map_err(std::io::Error::other).try_filter_map(move |output| {
        future::ready(Ok(match output {
            LogOutput::StdErr { message } => {
                let mut stderr = stderr.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_STDERR.saturating_sub(stderr.len()).min(message.len());
                stderr.extend_from_slice(&message[..room]);
                None
            }
            other => Some(other.into_bytes()),
        }))
    });
    messages.boxed()
}

/// Delays the end of the messages until the reason of the exit is known. The stream has no item.
fn find_reason(
    docker: &Docker,
    name: &str,
    clock_ahead: i64,
    exit: Arc<ContainerExit>,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static {
    let (docker, name) = (docker.clone(), name.to_owned());
    let query = async move {
        exit.find_reason(&docker, &name, clock_ahead).await;
        None
    };
    stream::once(query).filter_map(future::ready)
}

/// Explains why no agent answered, by the reason of the container's exit unless that lies in its image.
fn no_agent(
    failed: ConnectError,
    exit: &ContainerExit,
    stderr: &StderrTail,
    options: &Options,
) -> StartError {
    let reason = exit.reason().filter(|reason| !reason.is_by_itself());
    let Some((kind, why)) = reason.map(|reason| reason.failure()) else {
        return unusable_image(failed, stderr, options);
    };
    let (kind, hint) = match kind {
        FailureKind::OutOfMemory => (ErrorKind::ResourceExhausted, Some("give it more `memory`")),
        FailureKind::ConnectionLost => (ErrorKind::ConnectionLost, None),
        _ => (ErrorKind::Terminated, None),
    };
    let source = Error::from(failed);
    let error = Error::new(kind, "create", format!("the agent did not start: {why}"))
        .with_effect(source.effect())
        .with_context("image", options.image.clone())
        .with_source(source);
    match hint {
        Some(hint) => error.with_hint(hint).into(),
        None => error.into(),
    }
}

fn unusable_image(failed: ConnectError, stderr: &StderrTail, options: &Options) -> StartError {
    let interpreter_ended = failed.interpreter_ended();
    let stderr = stderr.lock().unwrap_or_else(PoisonError::into_inner);
    let stderr = String::from_utf8_lossy(&stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    let error = Error::from(failed);
    let error = match last {
        Some(last) => error.with_context("said", last.trim().to_owned()),
        None => error,
    };
    let error = error.with_context("image", options.image.clone()).with_hint(format!(
        "the image must have Python 3.9 or later as `{}` and be for the engine's processor",
        options.python
    ));
    // An interpreter that was merely slow is no missing one.
    if interpreter_ended { StartError::missing_python(error) } else { error.into() }
}

#[async_trait]
impl ProcessHost for ContainerHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        match spec.as_root {
            true => {
                self.pauser.expect_root();
                self.root.start(spec).await
            }
            false => self.agent.spawn(spec).await,
        }
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        self.agent.start_worker(spec).await
    }

    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        self.agent.begin_checkpoint().await
    }

    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        self.agent.open_channel()
    }

    async fn paused_by_others(&self) {
        self.guard.paused_by_others(|| self.pauser.is_busy()).await;
    }

    fn kill(&self) {
        self.guard.exit.set_own();
        // The end of the connection ends everything inside. The engine ends what does not end with it.
        self.agent.kill();
        self.guard.end();
    }

    async fn closed(&self) {
        self.agent.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        let known = self.guard.exit.reason().map(|reason| reason.failure());
        known.or_else(|| Some((FailureKind::ConnectionLost, self.agent.lost_reason()?)))
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::CreateSpec;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::DockerConfig;
    use crate::engine::EngineInfo;
    use crate::fake_engine::{Answer, FakeEngine};
    use crate::mounts::HostFiles;
    use crate::network::EgressMode;

    /// Starts a container of the default options, and returns the error: no fake engine has an agent.
    async fn start(engine: &FakeEngine, bootstrap: &AgentBootstrap, id: &str) -> Error {
        let (spec, files) = (CreateSpec::default(), HostFiles::default());
        let options = &Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        let container = ContainerSpec {
            spec: &spec,
            options,
            image: "image",
            files: &files,
            egress: EgressMode::Closed,
            engine: EngineInfo::DEFAULT,
            base_image: None,
        };
        ContainerHost::start(&engine.engine(), &container, bootstrap, id, "/workspace")
            .await
            .unwrap_err()
            .error
    }

    /// Answers like an engine without privileges, whose kernel has one kind of addresses.
    fn refusal(body: &Value) -> Option<&'static str> {
        let host = &body["HostConfig"];
        if host["Sysctls"].as_object().is_some_and(|sysctls| !sysctls.is_empty()) {
            return Some("open /proc/sys/net/ipv6/conf/lo/disable_ipv6: no such file or directory");
        }
        let limits = host["Ulimits"].as_array().into_iter().flatten();
        let mut names = limits.map(|limit| limit["Name"].as_str().unwrap());
        names.any(|name| name == "nofile").then_some(
            "error setting rlimits for ready process: error setting rlimit type 7: operation not permitted",
        )
    }

    #[tokio::test]
    async fn an_exit_with_another_reason_is_not_blamed_on_the_image() {
        let event = |action: &str, attributes: Value| json!({"Type": "container", "Action": action, "Actor": {"ID": "x", "Attributes": attributes}});
        let died = |status: &str| event("die", json!({"exitCode": status}));
        let error_after = async |events: Vec<Value>| {
            let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
            let engine = FakeEngine::start(move |request, _| {
                let path = request.path.split('?').next().unwrap_or_default();
                match path {
                    "containers/create" => Answer::now(201, json!({"Id": "x", "Warnings": []})),
                    "events" => Answer::now(200, lines.clone().into()),
                    path if path.ends_with("/attach") => Answer::now(101, Value::Null),
                    path if path.ends_with("/start") => Answer::now(204, Value::Null),
                    _ => Answer::now(404, json!({"message": "No such container"})),
                }
            });
            start(&engine, &AgentBootstrap::default(), "one").await
        };
        let killed = event("kill", json!({"signal": "9"}));
        let error = error_after(vec![killed, died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
        assert!(error.message().contains("through the engine"), "{error:?}");
        assert_eq!(error.hint(), None, "{error:?}");
        let error = error_after(vec![event("oom", json!({})), died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("memory")), "{error:?}");
        // Without a signal through the engine: the host's memory may have run out.
        let error = error_after(vec![died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
        // An image for another processor, or without such a Python.
        for events in [vec![died("1")], Vec::new()] {
            let error = error_after(events).await;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn a_refused_feature_is_not_requested_again() {
        let last_request = Arc::new(Mutex::new(Value::Null));
        let engine = FakeEngine::start(move |request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            let mut last_request = last_request.lock().unwrap();
            if path == "containers/create" {
                log.add("created");
                *last_request = request.body.clone();
                return Answer::now(201, json!({"Id": "x", "Warnings": []}));
            }
            if path.ends_with("/attach") {
                return Answer::now(101, Value::Null);
            }
            if path.ends_with("/start") {
                let refused = refusal(&last_request);
                log.add(refused.map_or("started", |_| "refused"));
                return match refused {
                    Some(why) => Answer::now(500, json!({"message": why})),
                    None => Answer::now(204, Value::Null),
                };
            }
            Answer::now(404, json!({"message": "No such container"}))
        });
        let bootstrap = AgentBootstrap::default();
        let error = start(&engine, &bootstrap, "one").await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "there is no agent: {error:?}");
        let first = ["created", "refused", "created", "refused", "created", "started"];
        assert_eq!(engine.events(), first);
        let error = start(&engine, &bootstrap, "two").await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert_eq!(engine.events()[first.len()..], ["created", "started"]);
    }
}
