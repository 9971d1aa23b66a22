//! A container as a box: the agent in it, and the engine that ends it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::{AttachContainerResults, LogOutput};
use bollard::errors::Error as Cause;
use bollard::models::ContainerCreateBody;
use bollard::query_parameters::{AttachContainerOptionsBuilder, StartContainerOptions};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use sandbox_agent_client::{AgentConnection, AgentFiles, AgentReader, Connecting, Pauser};
use sandbox_core::{ByteSize, Error, ErrorKind, FailureKind, Result, random_hex};
use sandbox_engine::background;
use sandbox_engine::host::{
    PendingCheckpoint, ProcessHost, SideChannel, Spawn, Spawned, WorkerIo, WorkerSpec,
};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::bytecode::AgentBytecode;
use crate::commit::CommittedImage;
use crate::config::{CodeRunner, Options};
use crate::container::{ContainerSpec, Limits, check_open_files, create_request};
use crate::container_guard::{ContainerExit, ContainerGuard, remove};
use crate::engine::Engine;
use crate::error::{check_limits, image_not_found, parse_create_error};
use crate::exit_reason;
use crate::init_process::InitProcess;
use crate::optional_features::{OptionalFeatures, SupportedFeatures};
use crate::owner::Owner;
use crate::{agentless, podman, verify};

/// How long a container may take to end with its connection before the engine is told to end it.
const GRACEFUL_END_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an engine may take to make an image of what is changed in a container.
const COMMIT_TIMEOUT: Duration = Duration::from_mins(15);

/// How long what is looked at before any code runs may take. The interpreter is one of the image, which may be anything.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);

/// What an agent wrote beside its messages, at most.
const MAX_STDERR: usize = 4 << 10;

/// Holds a container, with everything that runs in it, and lets it go on.
#[derive(Debug)]
pub(crate) struct Freezer {
    docker: Docker,
    name: String,
    pauser: Pauser,
    /// Held by whoever has it held or let go on, also when nobody waits for that any more.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Freezer {
    /// The agent does it and not the engine, which would freeze the agent as well: nobody would hear that the owner is gone.
    /// Whoever gives up here may have stopped it.
    pub(crate) async fn freeze(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.pauser.pause().await
    }

    /// One that is not held goes on.
    pub(crate) async fn thaw(&self) -> Result<()> {
        let _turn = self.turn.lock().await;
        self.pauser.resume().await
    }

    /// An image of what is changed in it, for a snapshot of that store. The engine holds it for that moment.
    ///
    /// # Cancellation
    /// The engine goes on, and the image is removed then.
    pub(crate) async fn commit(&self, snapshot: &str, store: String) -> Result<CommittedImage> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let held = self.pauser.mark_paused();
        // It answers when it is done.
        let docker = self.docker.clone().with_timeout(COMMIT_TIMEOUT);
        let committing =
            CommittedImage::create(docker, self.name.clone(), snapshot.to_owned(), store);
        background(async move {
            let _guards = (turn, held);
            committing.await
        })
        .await?
    }
}

/// A container whose first process waits for the agent.
pub(crate) struct StartedContainer {
    pub(crate) made: ContainerGuard,
    pub(crate) attached: AttachContainerResults,
    nonce: String,
    /// What was asked for, where the engine or its runtime may leave some of it out and say nothing.
    to_prove: Option<ContainerCreateBody>,
}

impl StartedContainer {
    async fn start(
        daemon: &Engine,
        wanted: &ContainerSpec<'_>,
        features: OptionalFeatures,
        id: &str,
        name: String,
    ) -> Result<Self> {
        let (options, nonce, docker) = (wanted.options, random_hex(16), &daemon.docker);
        let mut request =
            create_request(wanted, features, id, &nonce, Owner::this_process().as_ref());
        if options.engine == CodeRunner::None {
            agentless::apply(&mut request, options, wanted.spec);
        }
        // What it reads is there until the container has started.
        let files = daemon.is_podman().then(|| podman::apply(&mut request)).transpose()?;
        let is_doubtful =
            daemon.is_podman() || wanted.about.is_rootless || options.runtime.is_some();
        let to_prove = is_doubtful.then(|| request.clone());
        let platform = options.platform.as_deref();
        let (made, created) =
            ContainerGuard::create(docker, name, platform, wanted.origin.cloned(), request).await?;
        let created = created.map_err(|error| {
            let missing = matches!(
                &error,
                Cause::DockerResponseServerError { status_code: 404, message }
                    if message.to_ascii_lowercase().contains("image")
            );
            if missing {
                image_not_found(&options.image)
            } else {
                parse_create_error(error, options)
            }
        })?;
        check_limits(&created.warnings)?;
        let attach = AttachContainerOptionsBuilder::default()
            .stream(true)
            .stdin(true)
            .stdout(true)
            .stderr(true)
            .build();
        let attached = docker
            .attach_container(&made.name, Some(attach))
            .await
            .map_err(|error| parse_create_error(error, options))?;
        // It is not removed while it starts, when nobody waits for it any more: Docker 20.10 would list it for ever.
        let docker = docker.clone();
        let starting = background(async move {
            let started = docker.start_container(&made.name, None::<StartContainerOptions>).await;
            drop(files);
            (made, started)
        });
        let (made, started) = starting.await?;
        started.map_err(|error| parse_create_error(error, options))?;
        Ok(Self { made, attached, nonce, to_prove })
    }
}

/// A container that has started. Its engine is asked for less when it refuses something that not every engine has.
pub(crate) async fn running(
    daemon: &Engine,
    wanted: &ContainerSpec<'_>,
    arrival: &AgentBootstrap,
    id: &str,
) -> Result<StartedContainer> {
    let (mut features, mut name) = (arrival.features.get(), format!("sandbox-{id}"));
    let running = loop {
        match StartedContainer::start(daemon, wanted, features, id, name.clone()).await {
            Ok(running) => break running,
            Err(error) => {
                let Some(fewer) = features.without(error.message()) else { return Err(error) };
                tracing::debug!(%error, "the engine is asked for less");
                // The one before may not have been removed yet.
                (features, name) = (fewer, name + "-again");
            }
        }
    };
    arrival.features.set(features);
    Ok(running)
}

/// What is known of how agents get into containers of an engine, and what is asked of them.
#[derive(Debug, Default)]
pub(crate) struct AgentBootstrap {
    /// What the engine is asked for beyond what every engine has.
    pub(crate) features: SupportedFeatures,
    pub(crate) bytecode: AgentBytecode,
    /// An engine that says nothing for that long is lost.
    pub(crate) silence: Option<Duration>,
}

/// A box that is a container.
#[derive(Debug)]
pub(crate) struct ContainerHost {
    pipe: AgentConnection,
    made: Arc<ContainerGuard>,
    freezer: Arc<Freezer>,
    has_limits: bool,
}

impl ContainerHost {
    /// Makes a container and sends the agent into it.
    pub(crate) async fn start(
        daemon: &Engine,
        wanted: &ContainerSpec<'_>,
        arrival: &AgentBootstrap,
        id: &str,
    ) -> Result<Self> {
        let ContainerSpec { spec, options, about, .. } = *wanted;
        let docker = &daemon.docker;
        let StartedContainer { made, attached, nonce, to_prove } =
            running(daemon, wanted, arrival, id).await?;
        let said = Arc::new(Mutex::new(Vec::new()));
        let from = messages(attached.output, Arc::clone(&said));
        let from =
            from.chain(end_of(docker, &made.name, about.ahead, Arc::clone(&made.end))).boxed();
        let byte_code = |magic| arrival.bytecode.get(magic);
        let usual = Connecting { byte_code: &byte_code, ..Connecting::default() };
        let silence = arrival.silence.unwrap_or(usual.silence);
        let connecting = Connecting { silence, ..usual };
        let pipe = AgentConnection::connect_with(from, attached.input, &nonce, connecting)
            .await
            .map_err(|error| not_arrived(error, &made.end, &said, options))?;
        check_open_files(spec, pipe.open_files())?;
        let memory: Option<ByteSize> = about.has_groups.then(|| Limits::from_spec(spec).memory);
        let freezer = Freezer {
            docker: docker.clone(),
            name: made.name.clone(),
            pauser: pipe.pauser(),
            turn: Arc::default(),
        };
        let pipe = match memory {
            Some(memory) => pipe.with_memory(memory),
            None => pipe,
        };
        let (made, freezer) = (Arc::new(made), Arc::new(freezer));
        let mut made = Self { pipe, made, freezer, has_limits: about.has_groups };
        if let Some(asked) = to_prove {
            made.has_limits = verify::verify(&made, spec, options, &asked).await?.limits;
        }
        Ok(made)
    }

    /// The agent.
    pub(crate) fn pipe(&self) -> &AgentConnection {
        &self.pipe
    }

    /// The files in it; see [`AgentConnection::files`]. Large ones need not come through an engine that is on this host.
    pub(crate) fn files(&self, base: &str, daemon: &Engine) -> AgentFiles {
        let files = self.pipe.files(base);
        if !daemon.has_local_socket() {
            return files;
        }
        files.taken_from(Arc::new(InitProcess::new(&daemon.docker, self.name())))
    }

    /// What holds it.
    pub(crate) fn freezer(&self) -> Arc<Freezer> {
        Arc::clone(&self.freezer)
    }

    /// Whether somebody keeps the limits of memory, processes and CPU, as far as is known.
    pub(crate) fn has_limits(&self) -> bool {
        self.has_limits
    }

    /// Runs a Python program there before any code does; its exit status.
    ///
    /// # Errors
    /// `Unavailable` when it takes longer than twenty seconds.
    pub(crate) async fn run(
        &self,
        python: &str,
        program: &str,
        arguments: Vec<String>,
    ) -> Result<Option<i32>> {
        let mut argv: Vec<String> = [python, "-I", "-S", "-c", program].map(str::to_owned).into();
        argv.extend(arguments);
        let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned();
        let env = [("PATH".to_owned(), path)].into();
        let spec = Spawn { argv, env, cwd: "/".into(), stdin: false, terminal: None };
        let looked = async { self.pipe.spawn(spec).await?.process.exit().await };
        let exit = timeout(PROBE_TIMEOUT, looked).await.map_err(|_| {
            let message = format!("`{python}` of the image has not ended in {PROBE_TIMEOUT:?}");
            Error::new(ErrorKind::Unavailable, "create", message).with_hint(
                "it looks at the container before any code runs; it has to be a Python that works",
            )
        })??;
        Ok(exit.code)
    }

    /// The container's name.
    pub(crate) fn name(&self) -> &str {
        &self.made.name
    }
}

/// What is said of an interpreter that does not run.
const ENDED_EARLY: &str = "the interpreter ended before the agent had arrived";

type StderrTail = Arc<Mutex<Vec<u8>>>;

/// Standard output is the agent's messages; standard error is remembered, for when it fails.
fn messages(
    output: impl Stream<Item = std::result::Result<LogOutput, Cause>> + Send + 'static,
    said: StderrTail,
) -> AgentReader {
    let messages = output.map_err(std::io::Error::other).try_filter_map(move |output| {
        future::ready(Ok(match output {
            LogOutput::StdErr { message } => {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_STDERR.saturating_sub(said.len()).min(message.len());
                said.extend_from_slice(&message[..room]);
                None
            }
            other => Some(other.into_bytes()),
        }))
    });
    messages.boxed()
}

/// Nothing, once it is known why the messages have ended.
fn end_of(
    docker: &Docker,
    name: &str,
    ahead: i64,
    end: Arc<ContainerExit>,
) -> impl Stream<Item = std::io::Result<bytes::Bytes>> + Send + 'static {
    let (docker, name) = (docker.clone(), name.to_owned());
    let asked = async move {
        if !end.is_ours.load(Ordering::Acquire)
            && let Some(reason) = exit_reason::query(&docker, &name, ahead).await
        {
            let _ = end.reason.set(reason);
        }
        None
    };
    stream::once(asked).filter_map(future::ready)
}

/// Why the agent is not there: what has ended the container, if that is known and was not the image.
fn not_arrived(error: Error, end: &ContainerExit, said: &StderrTail, options: &Options) -> Error {
    let reason = end.reason.get().filter(|reason| !exit_reason::is_by_itself(reason));
    let Some((kind, why)) = reason else { return with_words(error, said, options) };
    let (kind, hint) = match kind {
        FailureKind::OutOfMemory => (ErrorKind::ResourceExhausted, Some("give it more `memory`")),
        FailureKind::ConnectionLost => (ErrorKind::ConnectionLost, None),
        _ => (ErrorKind::Terminated, None),
    };
    let told = Error::new(kind, "create", format!("no agent has arrived: {why}"))
        .with_effect(error.effect())
        .with_context("image", options.image.clone())
        .with_source(error);
    match hint {
        Some(hint) => told.with_hint(hint),
        None => told,
    }
}

fn with_words(error: Error, said: &StderrTail, options: &Options) -> Error {
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    let error = match last {
        Some(last) => error.with_context("said", last.trim().to_owned()),
        None => error,
    };
    // It did not answer at all, and has not merely been slow.
    let has_ended = error.message().starts_with(ENDED_EARLY);
    let (name, what) = agentless::NO_PYTHON;
    let error = if has_ended { error.with_context(name, what) } else { error };
    error.with_context("image", options.image.clone()).with_hint(format!(
        "the image must have Python 3.9 or later as `{}` and be for the engine's processor",
        options.python
    ))
}

#[async_trait]
impl ProcessHost for ContainerHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        self.pipe.spawn(spec).await
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        self.pipe.start_worker(spec).await
    }

    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        self.pipe.begin_checkpoint().await
    }

    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        self.pipe.open_channel()
    }

    async fn paused_by_others(&self) {
        self.made.paused_by_others(|| self.freezer.turn.try_lock().is_err()).await;
    }

    fn kill(&self) {
        self.made.end.is_ours.store(true, Ordering::Release);
        self.pipe.kill();
        // The end of the connection is the end of everything inside. The engine sees to what does not end with it.
        let made = Arc::clone(&self.made);
        self.made.runtime.spawn(async move {
            tokio::time::sleep(GRACEFUL_END_TIMEOUT).await;
            remove(&made.docker, &made.name).await;
        });
    }

    async fn closed(&self) {
        self.pipe.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        let known = self.made.end.reason.get().cloned();
        known.or_else(|| Some((FailureKind::ConnectionLost, self.pipe.lost_reason()?)))
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

    /// As one without privileges, whose kernel has one kind of addresses.
    fn refuses(body: &Value) -> Option<&'static str> {
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

    /// Whoever has ended it, that was not the image.
    #[tokio::test]
    async fn the_end_of_a_container_is_not_blamed_on_its_image() {
        let event = |action: &str, attributes: Value| json!({"Type": "container", "Action": action, "Actor": {"ID": "x", "Attributes": attributes}});
        let died = |status: &str| event("die", json!({"exitCode": status}));
        let of = async |events: Vec<Value>| {
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
            let (spec, files) = (CreateSpec::default(), HostFiles::default());
            let options = &Options::from_spec(&DockerConfig::default(), &spec).unwrap();
            let (way, about, image, origin) =
                (EgressMode::Closed, EngineInfo::DEFAULT, "image", None);
            let wanted =
                ContainerSpec { spec: &spec, options, image, files: &files, way, about, origin };
            let (daemon, arrival) = (engine.daemon(), AgentBootstrap::default());
            ContainerHost::start(&daemon, &wanted, &arrival, "one").await.unwrap_err()
        };
        let killed = event("kill", json!({"signal": "9"}));
        let error = of(vec![killed, died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
        assert!(error.message().contains("through the engine"), "{error:?}");
        assert_eq!(error.hint(), None, "{error:?}");
        let error = of(vec![event("oom", json!({})), died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("memory")), "{error:?}");
        // By nobody's signal: the host's memory may have run out.
        let error = of(vec![died("137")]).await;
        assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
        // One that is for another processor, or has no such Python.
        for events in [vec![died("1")], Vec::new()] {
            let error = of(events).await;
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
        }
    }

    #[tokio::test]
    async fn what_an_engine_refuses_it_is_not_asked_for_again() {
        let asked = Arc::new(Mutex::new(Value::Null));
        let engine = FakeEngine::start(move |request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            let mut asked = asked.lock().unwrap();
            if path == "containers/create" {
                said.add("created");
                *asked = request.body.clone();
                return Answer::now(201, json!({"Id": "x", "Warnings": []}));
            }
            if path.ends_with("/attach") {
                return Answer::now(101, Value::Null);
            }
            if path.ends_with("/start") {
                let refused = refuses(&asked);
                said.add(refused.map_or("started", |_| "refused"));
                return match refused {
                    Some(why) => Answer::now(500, json!({"message": why})),
                    None => Answer::now(204, Value::Null),
                };
            }
            Answer::now(404, json!({"message": "No such container"}))
        });
        let (spec, files, arrival) =
            (CreateSpec::default(), HostFiles::default(), AgentBootstrap::default());
        let options = &Options::from_spec(&DockerConfig::default(), &spec).unwrap();
        let (way, origin) = (EgressMode::Closed, None);
        let about = EngineInfo::DEFAULT;
        let image = "image";
        let wanted =
            ContainerSpec { spec: &spec, options, image, files: &files, way, about, origin };
        let started = async |id| {
            let daemon = engine.daemon();
            let error = ContainerHost::start(&daemon, &wanted, &arrival, id).await.unwrap_err();
            // There is no agent in it.
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        };
        started("one").await;
        let first = ["created", "refused", "created", "refused", "created", "started"];
        assert_eq!(engine.said(), first);
        started("two").await;
        assert_eq!(engine.said()[first.len()..], ["created", "started"]);
    }
}
