//! From what is asked for to a sandbox that can be used: what it shall be, its container, its interpreters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_core::{
    Capabilities, CreateSpec, Error, IsolationInfo, Result, SandboxId, Variant, resolve_directory,
};
use sandbox_engine::environment::add_defaults;
use sandbox_engine::host::{FileSystem, ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::network::Network;
use sandbox_engine::programs::on_path;
use sandbox_kernel::KernelHost;
use sandbox_kernel::launch::{KernelLauncher, KernelLimits, TransportSelector};

use sandbox_engine::{Packages, SandboxBase, SandboxBaseSpec, Snapshots, StoredSnapshot};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::agentless::{self, AgentlessHost, AgentlessInstance};
use crate::backend::{DockerBackend, capabilities, check, image};
use crate::commit::BaseImage;
use crate::config::{CodeRunner, Options, User};
use crate::container::{ContainerSpec, HOME, WORKSPACE, in_memory, layers, open_files};
use crate::container_host::ContainerHost;
use crate::engine::{Engine, EngineInfo};
use crate::gpus::Gpus;
use crate::images::Images;
use crate::instance::{ContainerRef, DockerHooks, DockerInstance};
use crate::kernel_dialer::AgentDialer;
use crate::kernelspec::{ResolvedKernel, find_kernel};
use crate::label::engine_label;
use crate::mounts::HostFiles;
use crate::network::{self, EgressMode};
use crate::podman;
use crate::ports::ports;

/// Where kernels have their sockets and files: a directory in memory, as all that can be written to.
const KERNEL_DIRECTORY: &str = "/tmp";

/// What a sandbox shall be, looked at from here: nothing has been made yet.
pub(crate) struct Plan {
    pub(crate) options: Options,
    /// What was looked at: its name may be another image's by now.
    pub(crate) image: String,
    files: HostFiles,
    pub(crate) way: EgressMode,
    snapshot: Option<StoredSnapshot>,
    /// The environment of everything in it.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) cwd: String,
}

/// A sandbox, with or without something that runs code.
pub(crate) enum Sandbox {
    WithAgent(Arc<DockerInstance>),
    WithoutAgent(Arc<AgentlessInstance>),
}

impl DockerBackend {
    /// Makes a sandbox. What keeps it from being made is known before its container is, as far as that can be.
    pub(crate) async fn make(
        &self,
        daemon: &Engine,
        spec: &CreateSpec,
        options: Options,
    ) -> Result<Sandbox> {
        daemon.check_options(&options)?;
        let about = daemon.about().await?;
        about.check_limits(spec)?;
        if options.gpus.is_some() {
            Gpus::check(daemon, about.has_gpus)?;
        }
        let mut plan = self.plan(daemon, spec, options).await?;
        if plan.options.engine == CodeRunner::None {
            return self.make_agentless(daemon, spec, &plan, about).await;
        }
        // While the container starts: what it says is needed after that, by the first one of a program.
        tokio::spawn(interpreter_here());
        let id = SandboxId::random(Variant::LOCAL_DOCKER);
        let Plan { options, image: of, files, way, .. } = &plan;
        let image = plan.snapshot.as_ref().and_then(StoredSnapshot::image).map(str::to_owned);
        let origin = image.map(|image| BaseImage { image, snapshots: self.snapshots.clone() });
        let origin = origin.as_ref();
        let wanted = ContainerSpec { spec, options, image: of, files, way: *way, about, origin };
        let made = match ContainerHost::start(daemon, &wanted, &self.arrival, id.local()).await {
            Err(error) if agentless::can_fall_back(&error, spec, options) => {
                tracing::debug!(%error, "it has commands and files alone");
                plan.options.engine = CodeRunner::None;
                // Why there is none without either says more than that there is no shell.
                return self.make_agentless(daemon, spec, &plan, about).await.map_err(|_| error);
            }
            made => made?,
        };
        // Before any code runs there: what is mounted, and what may leave.
        files.compare(&made, &options.python).await?;
        let (network, way) =
            network::open(*way, spec, &daemon.docker, &made, &self.launchers, &options.python)
                .await?;
        plan.way = way;
        for (name, value) in network.variables() {
            // What the caller says of the environment holds all the same.
            if !spec.env.contains_key(&name) && !spec.secrets.contains_key(&name) {
                plan.env.insert(name, value);
            }
        }
        let instance = self.assemble(daemon, spec, &plan, id, made, network).await?;
        let python = instance.kind.snapshots.python();
        instance.prepare_from(plan.snapshot.as_ref(), python, spec, plan.options.lazy).await?;
        instance.begin(spec);
        Ok(Sandbox::WithAgent(Arc::new(instance)))
    }

    /// The same without anything that runs code.
    async fn make_agentless(
        &self,
        daemon: &Engine,
        spec: &CreateSpec,
        plan: &Plan,
        about: EngineInfo,
    ) -> Result<Sandbox> {
        let id = SandboxId::random(Variant::LOCAL_DOCKER);
        let Plan { options, image, files, way, env, .. } = plan;
        let wanted = ContainerSpec { spec, options, image, files, way: *way, about, origin: None };
        let made = AgentlessHost::start(daemon, &wanted, &self.arrival, id.local(), env).await?;
        let instance = agentless::assemble(spec, plan, id, made, about.has_groups).await?;
        Ok(Sandbox::WithoutAgent(Arc::new(instance)))
    }

    async fn plan(&self, daemon: &Engine, spec: &CreateSpec, mut options: Options) -> Result<Plan> {
        let docker = &daemon.docker;
        let files = HostFiles::open(daemon, spec, self.snapshots.directory()).await?;
        options.user = options.user.or_else(|| files.owner());
        let way = EgressMode::for_spec(spec, &options, daemon, &self.launchers).await;
        let find = |name: &String| self.snapshots.find("create", name);
        let snapshot = spec.snapshot.as_ref().map(find).transpose()?;
        if let Some(image) = snapshot.as_ref().and_then(StoredSnapshot::image) {
            if spec.image.is_some() {
                let message = "is one of this sandbox, and the snapshot has another one";
                return Err(Error::invalid("image", message.to_owned()));
            }
            image.clone_into(&mut options.image);
        }
        // The image of a snapshot is in no registry.
        if options.pull && snapshot.as_ref().and_then(StoredSnapshot::image).is_none() {
            let progress = |step: &str| tracing::info!(image = options.image, "{step}");
            Images::new(docker).pull_missing(&options.image, progress).await?;
        }
        let image = image(docker, &options.image).await;
        let image = image.map_err(|error| match &snapshot {
            Some(stored) if stored.image().is_some() => error.with_hint(format!(
                "it is part of the snapshot, and of the engine that this was taken with ({}); take another one here",
                stored.engine().unwrap_or("nobody knows where")
            )),
            _ => error,
        })?;
        if daemon.is_podman() {
            podman::check_platform(&image, &options)?;
        }
        let id = image.id.unwrap_or_else(|| options.image.clone());
        let image = image.config.unwrap_or_default();
        // Snapshots are of workers.
        if !options.names_engine && snapshot.is_none() {
            options.engine =
                engine_label(&options.image, image.labels.as_ref())?.unwrap_or_default();
            check(spec, &options.engine)?;
        }
        if snapshot.as_ref().and_then(StoredSnapshot::image).is_some() {
            options.user = options.user.or_else(|| owner_in(image.user.as_deref()));
        }
        files.check(options.user())?;
        check_disk(spec, &options, &files, &image.volumes.unwrap_or_default())?;
        let env = environment(spec, &image.env.unwrap_or_default());
        let cwd = resolve_directory(WORKSPACE, spec.working_dir.as_deref().unwrap_or("."));
        Ok(Plan { options, image: id, files, way, snapshot, env, cwd })
    }

    /// Puts a sandbox together around a container that has started.
    async fn assemble(
        &self,
        daemon: &Engine,
        spec: &CreateSpec,
        plan: &Plan,
        id: SandboxId,
        made: ContainerHost,
        network: Network,
    ) -> Result<DockerInstance> {
        let Plan { options, image, way, env, cwd, .. } = plan;
        let kernel = match &options.engine {
            CodeRunner::Python | CodeRunner::None => None,
            CodeRunner::Jupyter { kernel, transport } => {
                Some((find_kernel(made.pipe(), options, kernel, env).await?, *transport))
            }
        };
        let installed = kernel.as_ref().map(|(installed, _)| installed);
        let ipython = installed.is_none_or(|kernel| kernel.command.looks_like_ipython());
        // Packages are for one interpreter, which has to be the one that code runs in.
        let installs = ipython && installed.is_none_or(|kernel| kernel.is_of_the_python);
        let here = if installs { installer(made.pipe().python()).await } else { None };
        let capabilities = Capabilities {
            install_python: here.is_some(),
            install_system: options.writable_root,
            ..capabilities(&options.engine, ipython)
        };
        // It lives from when it can be used, however long its interpreter takes to start.
        let mut unlimited = spec.clone();
        unlimited.lifetime = None;
        let base = SandboxBaseSpec {
            variant: Variant::LOCAL_DOCKER,
            capabilities,
            create: &unlimited,
            isolation: IsolationInfo {
                mode: spec.isolation,
                boundary: "container".into(),
                layers: layers(options, *way, made.has_limits()),
                network: network.description(),
            },
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let files: Arc<dyn FileSystem> = Arc::new(made.files(cwd, daemon));
        let there = made.pipe().ports();
        let kind = self.container(daemon, &made, options);
        let fewer_files = made.pipe().open_files().filter(|most| *most < open_files(spec).max);
        let facts = [
            ("image", options.image.clone()),
            ("image_id", image.clone()),
            ("container", made.name().to_owned()),
            ("python", made.pipe().python().to_owned()),
            ("user", options.user().to_string()),
            ("engine", options.engine.to_string()),
        ];
        let host: Arc<dyn ProcessHost> = Arc::new(made);
        let mut base = SandboxBase::remote(Arc::clone(&host), Some(Arc::clone(&files)), base)
            .with_work_dir(WORKSPACE);
        base.id = id;
        base.network = network;
        base.packages = here.map(|here| {
            Packages::between(here, options.python.clone().into(), options.pip.clone())
        });
        facts.into_iter().for_each(|(name, fact)| base.describe(name, json!(fact)));
        if let Some(gpus) = options.gpus {
            base.describe("gpu", json!(gpus.as_str()));
        }
        if let Some(most) = fewer_files {
            base.describe("open_files", json!(most));
        }
        let (mut language, mut interpreters) = ("python".to_owned(), host);
        if let Some((ResolvedKernel { command, .. }, transport)) = kernel {
            base.describe("kernel", json!(command.name));
            base.describe("language", json!(command.language));
            language.clone_from(&command.language);
            let kernels = KernelLauncher {
                fork_server: None,
                host: Arc::clone(&interpreters),
                files,
                command,
                dialer: Box::new(AgentDialer { there }),
                transport: TransportSelector::new(transport),
                runtime_parent: KERNEL_DIRECTORY.to_owned(),
                home: env.get("HOME").map_or(HOME, String::as_str).to_owned(),
                limits: KernelLimits::from_spec(spec),
            };
            interpreters = Arc::new(KernelHost::new(interpreters, Arc::new(kernels)));
        }
        let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
        let ended = Arc::clone(&base.end_reason);
        let contexts =
            Contexts::with(Variant::LOCAL_DOCKER, &language, ended, worker_spec, move |_| {
                Arc::clone(&interpreters)
            });
        Ok(DockerInstance { base, contexts, kind })
    }

    fn container(&self, daemon: &Engine, made: &ContainerHost, options: &Options) -> DockerHooks {
        let python = made.pipe().python().to_owned();
        DockerHooks {
            snapshots: Snapshots::new(self.snapshots.clone(), Some(python), Vec::new()),
            ports: ports(made.pipe().ports()),
            usage: made.pipe().usage(),
            freezer: made.freezer(),
            writable_root: options.writable_root,
            engine: daemon.host.clone(),
            container: ContainerRef { docker: daemon.docker.clone(), name: made.name().to_owned() },
        }
    }
}

/// The user whose files the image of a snapshot has, if it was made of a container of that one. Nobody becomes root by it.
fn owner_in(user: Option<&str>) -> Option<User> {
    user.and_then(User::parse).filter(|user| user.id != 0 && user.group != 0)
}

/// The environment of everything in the container: the image's, with ours and the caller's over it.
fn environment(spec: &CreateSpec, image: &[String]) -> BTreeMap<String, String> {
    let usual = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = BTreeMap::from(
        [("PATH", usual), ("LANG", "C.UTF-8"), ("SHELL", "/bin/sh")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let pairs = image.iter().filter_map(|pair| pair.split_once('='));
    env.extend(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let own = [("HOME", HOME), ("USER", "sandbox"), ("LOGNAME", "sandbox")];
    env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    let secrets = spec.secrets.iter();
    env.extend(secrets.map(|(name, value)| (name.clone(), value.expose().to_owned())));
    add_defaults(&mut env, spec);
    env
}

/// An interpreter of this host that fetches packages for one of that version: wheels are made for one version.
async fn installer(version: &str) -> Option<PathBuf> {
    let (here, its) = interpreter_here().await?;
    let minor = |version: &str| version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    (minor(its) == minor(version)).then(|| here.clone())
}

/// One of this host that has pip, and its version. Asked once.
async fn interpreter_here() -> Option<&'static (PathBuf, String)> {
    static HERE: OnceCell<Option<(PathBuf, String)>> = OnceCell::const_new();
    let found = HERE.get_or_init(|| async {
        let here = on_path("python3")?;
        let asked = version_of(&here).await?;
        Some((here, asked))
    });
    found.await.as_ref()
}

async fn version_of(python: &Path) -> Option<String> {
    let code = "import pip, sys; print('%d.%d' % sys.version_info[:2])";
    let output = Command::new(python)
        .args(["-I", "-c", code])
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| version.trim().to_owned())
}

/// Refuses what would be written to the engine's disk, where no limit counts it, when nobody has asked for that.
fn check_disk(
    spec: &CreateSpec,
    options: &Options,
    files: &HostFiles,
    volumes: &[String],
) -> Result<()> {
    if spec.disk.is_some() && options.writable_root {
        let message =
            "cannot be limited with `writable_root`: the image's files are on the engine's disk";
        return Err(Error::invalid("disk", message.to_owned()));
    }
    // One that is mounted at the same path takes the place of a volume, and one above it does not.
    let covered = |path: &str| in_memory().any(|known| known == path) || files.has_target(path);
    let Some(volume) = volumes.iter().find(|path| !covered(path)) else {
        return Ok(());
    };
    let message = format!("the image keeps {volume} in a volume, which no limit counts");
    Err(Error::unsupported("create", message)
        .with_hint("build it without `VOLUME`, or mount a directory of yours there"))
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Backend as _, CallContext, ErrorKind};
    use serde_json::json;

    use super::*;
    use crate::config::DockerConfig;
    use crate::fake_engine::{Answer, FakeEngine};

    /// A name can be given to another image after the first one was looked at.
    #[tokio::test]
    async fn a_container_is_of_the_image_that_was_looked_at() {
        let engine = FakeEngine::start(|request, said| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "version") => Answer::now(200, json!({"ApiVersion": "1.41"})),
                ("GET", "info") => Answer::now(200, json!({"CgroupDriver": "systemd"})),
                ("GET", "images/json" | "containers/json") => Answer::now(200, json!([])),
                ("GET", _) => Answer::now(200, json!({"Id": "sha256:one", "Config": {}})),
                ("POST", _) => {
                    let (image, labels) = (&request.body["Image"], &request.body["Labels"]);
                    said.add(&format!("{image} called {}", labels["code-sandboxes.image"]));
                    Answer::now(404, json!({"message": "No such image: sha256:one"}))
                }
                _ => Answer::now(404, json!({"message": "No such container"})),
            }
        });
        let folder = tempfile::tempdir().unwrap();
        let config = DockerConfig {
            host: Some(engine.address()),
            snapshot_directory: Some(folder.path().join("snapshots")),
            ..DockerConfig::default()
        };
        let mut spec = CreateSpec::default();
        spec.image = Some("named:latest".into());
        let backend = DockerBackend::new(config);
        let error = backend.create(&CallContext::new(), spec).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.message().contains("named:latest"), "{error:?}");
        assert_eq!(engine.said(), [r#""sha256:one" called "named:latest""#]);
    }
}
