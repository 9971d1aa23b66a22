//! Where containers come from.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as Cause;
use bollard::query_parameters::ListContainersOptionsBuilder;
use sandbox_agent::box_io::{BoxFiles, BoxIo, WorkerSpec};
use sandbox_agent::interpreter::Contexts;
use sandbox_core::{
    Backend, CallContext, Capabilities, CreateSpec, Error, ErrorKind, Health, Instance,
    IsolationInfo, ListQuery, Page, Result, SandboxEnvironment, SandboxId, SandboxInfo, SingleUse,
    SnapshotInfo, Variant, resolve_directory,
};
use sandbox_kernel::KernelBox;
use sandbox_kernel::launch::Kernels;
use sandbox_local::checks::{check_of, check_size, health_of};
use sandbox_local::makers::Makers;
use sandbox_local::programs::on_path;
use sandbox_local::{
    Made, Packages, Place, PlaceSpec, SnapshotStore, Snapshots, Stored, load_variables,
};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::boxed::{DockerBox, remove};
use crate::committed;
use crate::config::{DockerConfig, Engine, Options};
use crate::container::{HOME, WORKSPACE, layers};
use crate::engine::{address, connect, no_image, refused};
use crate::installed::{Installed, find_kernel};
use crate::instance::{Container, DockerInstance};
use crate::kernels::Tunnels;
use crate::mounts::HostFiles;
use crate::network::{self, Way};
use crate::owner::{OWNER_LABEL, Owner};
use crate::ports::Ports;

/// Where kernels have their sockets and files: a directory in memory, as all that can be written to.
const KERNEL_FILES: &str = "/tmp";

/// Makes sandboxes in containers. The connection with the engine is shared by all of them.
#[derive(Debug, Default)]
pub struct DockerBackend {
    config: DockerConfig,
    swept: OnceCell<()>,
    snapshots: SnapshotStore,
    /// What opens gates.
    makers: Makers,
    made: Made<DockerInstance>,
}

impl DockerBackend {
    /// A backend with defaults of its own.
    pub fn new(config: DockerConfig) -> Self {
        let snapshots = SnapshotStore::new(config.snapshot_directory.clone());
        Self { config, snapshots, ..Self::default() }
    }

    async fn make(&self, docker: &Docker, spec: &CreateSpec) -> Result<DockerInstance> {
        let mut options = Options::of_create(&self.config, spec)?;
        let files = HostFiles::open(docker, &address(&self.config), spec).await?;
        options.user = options.user.or_else(|| files.owner());
        files.check(options.uid_and_gid())?;
        let way = Way::of(spec, &options, &address(&self.config), &self.makers).await?;
        let find = |name: &String| self.snapshots.find("create", name);
        let snapshot = spec.snapshot.as_ref().map(find).transpose()?;
        if let Some(image) = snapshot.as_ref().and_then(Stored::image) {
            if spec.image.is_some() {
                let message = "is one of this sandbox, and the snapshot has another one";
                return Err(Error::invalid("image", message.to_owned()));
            }
            image.clone_into(&mut options.image);
        }
        let image = image(docker, &options.image).await?;
        let id = SandboxId::random(Variant::LocalDocker);
        let made = DockerBox::start(docker, spec, &options, id.local(), &files, way).await?;
        files.compare(&made, &options.python).await?;
        let network =
            network::open(way, spec, docker, &made, &self.makers, &options.python).await?;
        let cwd = resolve_directory(WORKSPACE, spec.working_dir.as_deref().unwrap_or("."));
        let env = environment(spec, &image);
        let isolation = IsolationInfo {
            mode: spec.isolation,
            boundary: "container".into(),
            layers: layers(&options, way),
            network: network.description(),
        };
        let kernel = match &options.engine {
            Engine::Python => None,
            Engine::Jupyter { kernel, transport } => {
                Some((find_kernel(made.pipe(), &options, kernel, &env).await?, *transport))
            }
        };
        let installed = kernel.as_ref().map(|(installed, _)| installed);
        let ipython = installed.is_none_or(|kernel| kernel.command.looks_like_ipython());
        // Packages are for one interpreter, which has to be the one that code runs in.
        let installs = ipython && installed.is_none_or(|kernel| kernel.is_of_the_python);
        let here = if installs { installer(made.pipe().python()).await } else { None };
        let capabilities = Capabilities {
            install_python: here.is_some(),
            ..capabilities(&options.engine, ipython)
        };
        // It lives from when it can be used, however long its interpreter takes to start.
        let mut unlimited = spec.clone();
        unlimited.lifetime = None;
        let place = PlaceSpec {
            variant: Variant::LocalDocker,
            capabilities,
            create: &unlimited,
            isolation,
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let files: Arc<dyn BoxFiles> = Arc::new(made.pipe().files(&cwd));
        let python = made.pipe().python().to_owned();
        let container = made.name().to_owned();
        let snapshots = Snapshots::new(self.snapshots.clone(), Some(python.clone()), Vec::new());
        let ports = made.pipe().ports();
        let kind = Container {
            snapshots,
            ports: Ports::new(ports.clone()),
            usage: made.pipe().usage(),
            freezer: made.freezer(),
            writable_root: options.writable_root,
        };
        let box_io: Arc<dyn BoxIo> = Arc::new(made);
        let mut place = Place::elsewhere(Arc::clone(&box_io), Some(Arc::clone(&files)), place);
        place.id = id;
        place.network = network;
        place.packages = here.map(|here| {
            Packages::between(here, options.python.clone().into(), options.pip.clone())
        });
        place.describe("image", json!(options.image));
        place.describe("container", json!(container));
        place.describe("python", json!(python));
        place.describe("user", json!(options.user()));
        place.describe("engine", json!(options.engine.to_string()));
        if let Some(Stored { info, .. }) = &snapshot {
            place.describe("snapshot", json!({"id": info.id, "name": info.name}));
        }
        let (mut language, mut interpreters) = ("python".to_owned(), box_io);
        if let Some((Installed { command, .. }, transport)) = kernel {
            place.describe("kernel", json!(command.name));
            place.describe("language", json!(command.language));
            language.clone_from(&command.language);
            let kernels = Kernels {
                box_io: Arc::clone(&interpreters),
                files,
                command,
                way: Box::new(Tunnels { there: ports, transport }),
                parent: KERNEL_FILES.to_owned(),
                home: env.get("HOME").map_or(HOME, String::as_str).to_owned(),
                isolated: place.network.hint().is_some(),
            };
            interpreters = Arc::new(KernelBox::new(interpreters, Arc::new(kernels)));
        }
        let base = WorkerSpec { env, cwd };
        let ended = Arc::clone(&place.ended);
        let contexts = Contexts::with(Variant::LocalDocker, &language, ended, base, move |_| {
            Arc::clone(&interpreters)
        });
        let instance = DockerInstance { place, contexts, kind };
        let files = async {
            match &snapshot {
                Some(stored) => {
                    let python = instance.kind.snapshots.python();
                    instance.place.load("create", stored, python).await
                }
                None => Ok(()),
            }
        };
        instance.prepare(files, spec.working_dir.is_some(), options.lazy).await?;
        // Commands alone need no interpreter.
        if let Some(stored) = &snapshot
            && spec.single_use != Some(SingleUse::Commands)
        {
            load_variables(&instance.contexts, stored).await?;
        }
        instance.begin(spec);
        Ok(instance)
    }
}

/// What a sandbox can do. Some of it takes workers, and some the program that runs in kernels of IPython.
fn capabilities(engine: &Engine, ipython: bool) -> Capabilities {
    let workers = *engine == Engine::Python;
    Capabilities {
        run_code: true,
        run_stdin: ipython,
        run_script: ipython,
        rich_results: true,
        live_output: true,
        contexts: true,
        variables: ipython,
        interrupt: true,
        restart: true,
        tools: ipython,
        commands: true,
        command_stdin: true,
        command_pty: true,
        command_background: true,
        install_python: ipython,
        files: true,
        watch: true,
        expose_port: true,
        metrics: true,
        pause: true,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: true,
        snapshot: workers,
        restore_snapshot: workers,
        images: true,
        mounts: true,
        limit_memory: true,
        limit_cpu: true,
        limit_disk: true,
        limit_processes: true,
        limit_open_files: true,
        limit_output: true,
        network_none: true,
        network_allowlist: true,
        network_all: true,
        isolation_strict: true,
        ..Capabilities::default()
    }
}

fn check(spec: &CreateSpec, engine: &Engine) -> Result<()> {
    capabilities(engine, true).check(spec).map_err(|error| {
        error.with_context("variant", Variant::LocalDocker.as_str()).with_hint(
            "local-docker enforces memory, cpu, disk, processes, lifetime, idle timeout, mounts and the network",
        )
    })?;
    check_size(spec)?;
    let own = |name: &str| matches!(name, "local-docker" | "docker" | "python-cpu-env");
    match spec.environment.as_deref().filter(|name| !own(name)) {
        Some(name) => Err(Error::new(
            ErrorKind::NotFound,
            "create",
            format!("environment {name:?} not found (available: local-docker)"),
        )
        .with_hint("an image is named with `--image` or .image(..)")),
        None => Ok(()),
    }
}

/// The variables of an image. An image that is not there is an error that says how to get it.
async fn image(docker: &Docker, name: &str) -> Result<Vec<String>> {
    let image = docker.inspect_image(name).await.map_err(|error| match error {
        Cause::DockerResponseServerError { status_code: 404, .. } => no_image(name),
        error => refused("create", error),
    })?;
    Ok(image.config.and_then(|config| config.env).unwrap_or_default())
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
    env
}

/// An interpreter of this host that fetches packages for one of that version: wheels are made for one version.
async fn installer(version: &str) -> Option<PathBuf> {
    static HERE: OnceCell<Option<(PathBuf, String)>> = OnceCell::const_new();
    let found = HERE.get_or_init(|| async {
        let here = on_path("python3")?;
        let asked = version_of(&here).await?;
        Some((here, asked))
    });
    let (here, its) = found.await.as_ref()?;
    let minor = |version: &str| version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    (minor(its) == minor(version)).then(|| here.clone())
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

/// Removes the containers whose owners are dead.
async fn sweep(docker: &Docker) {
    let filters = HashMap::from([("label".to_owned(), vec![OWNER_LABEL.to_owned()])]);
    let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
    let Ok(containers) = docker.list_containers(Some(options)).await else { return };
    for container in containers {
        let owner = container.labels.as_ref().and_then(|labels| labels.get(OWNER_LABEL));
        let dead = owner.and_then(|owner| Owner::parse(owner)).is_some_and(|owner| owner.is_dead());
        if let (true, Some(id)) = (dead, &container.id) {
            remove(docker, id).await;
        }
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn variant(&self) -> Variant {
        Variant::LocalDocker
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(&Engine::Python, true)
    }

    async fn create(&self, _call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        check(&spec, &Options::of_create(&self.config, &spec)?.engine)?;
        let docker = connect(&self.config).await?;
        self.swept.get_or_init(|| sweep(&docker)).await;
        let instance = Arc::new(self.make(&docker, &spec).await?);
        self.made.add(&instance);
        Ok(instance)
    }

    async fn attach(&self, _call: &CallContext, id: &SandboxId) -> Result<Arc<dyn Instance>> {
        let message = format!("{id} cannot be attached to: its container ends with its process");
        Err(Error::unsupported("attach", message))
    }

    async fn list(&self, _call: &CallContext, query: ListQuery) -> Result<Page<SandboxInfo>> {
        Ok(self.made.list(&query))
    }

    async fn environments(&self, _call: &CallContext) -> Result<Vec<SandboxEnvironment>> {
        let mut environment = SandboxEnvironment::local("local-docker", "Local Docker");
        environment.metadata.insert("variant".into(), json!("local-docker"));
        environment.metadata.insert("image".into(), json!(self.config.image()));
        Ok(vec![environment])
    }

    async fn health(&self, _call: &CallContext) -> Result<Health> {
        let checks = match connect(&self.config).await {
            Ok(docker) => {
                let version = docker.version().await.ok().and_then(|version| version.version);
                let version = version.unwrap_or_else(|| "an engine".into());
                let engine = format!("{version} at {}", address(&self.config));
                let name = self.config.image();
                let image = image(&docker, &name).await.map(|_| name);
                vec![check_of("engine", Ok(engine)), check_of("image", image)]
            }
            Err(error) => vec![check_of("engine", Err(error))],
        };
        let what = "Python workers or Jupyter kernels in hardened containers";
        let mut health = health_of(checks, what);
        // Told, and no reason against the variant: most sandboxes have no network.
        if health.usable {
            let way = network::check(&self.config, &self.makers).await;
            health.checks.push(way);
        }
        Ok(health)
    }

    async fn list_snapshots(&self, _call: &CallContext) -> Result<Vec<SnapshotInfo>> {
        let all = self.snapshots.list("list_snapshots")?;
        Ok(all.into_iter().map(|stored| stored.info).collect())
    }

    async fn delete_snapshot(&self, _call: &CallContext, name: &str) -> Result<()> {
        let deleted = self.snapshots.delete("delete_snapshot", name)?;
        if let Some(image) = deleted.image() {
            committed::remove(&connect(&self.config).await?, image).await;
        }
        Ok(())
    }
}
