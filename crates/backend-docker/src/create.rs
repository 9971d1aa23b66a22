//! Creates sandboxes: plans, starts the container, and puts its interpreters around it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandbox_cells::launchers::CellLaunchers;
use sandbox_core::{Capabilities, CreateSpec, IsolationInfo, Result, SandboxId, Variant};
use sandbox_engine::host::{FileSystem, ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::Contexts;
use sandbox_engine::network::Network;
use sandbox_engine::programs::on_path;
use sandbox_engine::{Packages, SandboxBase, SandboxBaseSpec, SnapshotStore, Snapshots};
use sandbox_kernel::KernelHost;
use sandbox_kernel::launch::{KernelLauncher, KernelLimits, TransportSelector};
use serde_json::json;
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::agentless::{self, AgentlessHost, AgentlessInstance};
use crate::capabilities::capabilities;
use crate::config::{CodeRunner, Options};
use crate::container::{ContainerSpec, HOME, Limits, WORKSPACE, layers, open_files};
use crate::container_host::{AgentBootstrap, ContainerHost};
use crate::engine::{Engine, EngineInfo};
use crate::error::StartError;
use crate::gpus::Gpus;
use crate::init_process::InitProcess;
use crate::instance::{ContainerRef, DockerHooks, DockerInstance, ports};
use crate::kernel_dialer::AgentDialer;
use crate::kernelspec::{ResolvedKernel, find_kernel};
use crate::network;
use crate::plan::Plan;

/// Directory of the sockets and files of kernels, in memory like every writable directory.
const KERNEL_DIRECTORY: &str = "/tmp";

/// A sandbox with or without an agent.
pub(crate) enum Sandbox {
    WithAgent(Arc<DockerInstance>),
    WithoutAgent(Arc<AgentlessInstance>),
}

/// Everything of a backend that creates share.
#[derive(Clone, Copy)]
pub(crate) struct Creator<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) bootstrap: &'a AgentBootstrap,
    pub(crate) snapshots: &'a SnapshotStore,
    pub(crate) launchers: &'a CellLaunchers,
}

impl Creator<'_> {
    /// Creates a sandbox. Obstacles are reported before its container is created, where they can be known.
    pub(crate) async fn create(self, spec: &CreateSpec, options: Options) -> Result<Sandbox> {
        let engine = self.engine;
        engine.check_options(&options)?;
        let info = engine.info().await?;
        info.check_limits(spec)?;
        if options.gpus.is_some() {
            Gpus::check(&engine.name, engine.is_podman(), info.has_gpus)?;
        }
        let mut plan = Plan::new(engine, spec, options, self.snapshots, self.launchers).await?;
        if plan.options.runner == CodeRunner::None {
            return self.create_agentless(spec, &plan, info).await;
        }
        // Queried while the container starts, by the first sandbox of a program.
        tokio::spawn(pip_interpreter());
        let id = SandboxId::random(Variant::LOCAL_DOCKER);
        let base_image = plan.base_image(self.snapshots);
        let container = ContainerSpec {
            spec,
            options: &plan.options,
            image: &plan.image,
            files: &plan.files,
            egress: plan.egress,
            engine: info,
            base_image: base_image.as_ref(),
        };
        let host = match ContainerHost::start(
            engine,
            &container,
            self.bootstrap,
            id.local(),
            &plan.cwd,
        )
        .await
        {
            Err(StartError { error, failure })
                if agentless::can_fall_back(failure, spec, &plan.options) =>
            {
                tracing::debug!(%error, "the image has no Python: the sandbox has only commands and files");
                plan.options.runner = CodeRunner::None;
                // The reason for the missing agent explains more than a missing shell.
                return self.create_agentless(spec, &plan, info).await.map_err(|_| error);
            }
            started => started?,
        };
        let python = &plan.options.python;
        // Before any code runs in the container.
        plan.files.compare(host.agent(), python).await?;
        let (network, egress) = network::open(
            plan.egress,
            spec.network.clone(),
            InitProcess::new(&engine.docker, host.name()),
            host.agent(),
            self.launchers,
            python,
        )
        .await?;
        plan.egress = egress;
        for (name, value) in network.variables() {
            // The caller's environment takes precedence.
            if !spec.env.contains_key(&name) && !spec.secrets.contains_key(&name) {
                plan.env.insert(name, value);
            }
        }
        let instance = self.assemble(spec, &plan, id, host, network).await?;
        let python = instance.kind.snapshots.python();
        instance.prepare_from(plan.snapshot.as_ref(), python, spec, plan.options.lazy).await?;
        instance.begin(spec);
        Ok(Sandbox::WithAgent(Arc::new(instance)))
    }

    /// Creates a sandbox with only commands and files.
    async fn create_agentless(
        self,
        spec: &CreateSpec,
        plan: &Plan,
        info: EngineInfo,
    ) -> Result<Sandbox> {
        let id = SandboxId::random(Variant::LOCAL_DOCKER);
        let container = ContainerSpec {
            spec,
            options: &plan.options,
            image: &plan.image,
            files: &plan.files,
            egress: plan.egress,
            engine: info,
            base_image: None,
        };
        let features = &self.bootstrap.features;
        let host = AgentlessHost::start(
            self.engine,
            &container,
            features,
            id.local(),
            &plan.env,
            &plan.cwd,
        )
        .await?;
        let instance = agentless::assemble(spec, plan, id, host, info.has_cgroups).await?;
        Ok(Sandbox::WithoutAgent(Arc::new(instance)))
    }

    /// Puts interpreters, packages and network around a started container.
    async fn assemble(
        self,
        spec: &CreateSpec,
        plan: &Plan,
        id: SandboxId,
        host: ContainerHost,
        network: Network,
    ) -> Result<DockerInstance> {
        let Plan { options, image, egress, env, cwd, .. } = plan;
        let kernel = match &options.runner {
            CodeRunner::Python | CodeRunner::None => None,
            CodeRunner::Jupyter { kernel, transport } => {
                Some((find_kernel(host.agent(), options, kernel, env).await?, *transport))
            }
        };
        let resolved = kernel.as_ref().map(|(resolved, _)| resolved);
        let ipython = resolved.is_none_or(|kernel| kernel.command.looks_like_ipython());
        // Packages are installed for the interpreter of the agent, in which code has to run then.
        let installs = ipython && resolved.is_none_or(|kernel| kernel.runs_in_agent_python);
        let pip = if installs { pip_for(host.agent().python()).await } else { None };
        let capabilities = Capabilities {
            install_python: pip.is_some(),
            install_system: options.writable_root,
            command_root: options.has_root,
            ..capabilities(&options.runner, ipython)
        };
        // The lifetime starts when the sandbox can be used, however long its interpreter takes to start.
        let mut unlimited = spec.clone();
        unlimited.lifetime = None;
        // The limits that it has without being asked.
        let limits = Limits::from_spec(spec);
        if host.has_limits() {
            unlimited.memory = Some(limits.memory);
        }
        if !options.writable_root {
            unlimited.disk = Some(limits.disk);
        }
        let base = SandboxBaseSpec {
            variant: Variant::LOCAL_DOCKER,
            capabilities,
            create: &unlimited,
            isolation: IsolationInfo {
                mode: spec.isolation,
                boundary: "container".into(),
                layers: layers(options, *egress, host.has_limits()),
                network: network.description(),
            },
            env: env.clone(),
            cwd: cwd.clone(),
        };
        let files: Arc<dyn FileSystem> = Arc::new(host.files(cwd, self.engine));
        let agent_ports = host.agent().ports();
        let hooks = self.hooks(&host, options);
        let fewer_files = host.agent().open_files().filter(|limit| *limit < open_files(spec).hard);
        let facts = [
            ("image", options.image.clone()),
            ("image_id", image.clone()),
            ("container", host.name().to_owned()),
            ("python", host.agent().python().to_owned()),
            ("user", options.user().to_string()),
            ("engine", options.runner.to_string()),
        ];
        let host: Arc<dyn ProcessHost> = Arc::new(host);
        let mut base = SandboxBase::remote(Arc::clone(&host), Some(Arc::clone(&files)), base)
            .with_work_dir(WORKSPACE);
        base.id = id;
        base.network = network;
        base.packages = pip
            .map(|pip| Packages::between(pip, options.python.clone().into(), options.pip.clone()));
        facts.into_iter().for_each(|(name, fact)| base.describe(name, json!(fact)));
        if let Some(gpus) = options.gpus {
            base.describe("gpu", json!(gpus.as_str()));
        }
        if let Some(limit) = fewer_files {
            base.describe("open_files", json!(limit));
        }
        let (mut language, mut interpreters) = ("python".to_owned(), host);
        if let Some((ResolvedKernel { command, .. }, transport)) = kernel {
            base.describe("kernel", json!(command.name));
            base.describe("language", json!(command.language));
            language.clone_from(&command.language);
            let launcher = KernelLauncher {
                fork_server: None,
                host: Arc::clone(&interpreters),
                files,
                command,
                dialer: Box::new(AgentDialer { ports: agent_ports }),
                transport: TransportSelector::new(transport),
                runtime_parent: KERNEL_DIRECTORY.to_owned(),
                home: env.get("HOME").map_or(HOME, String::as_str).to_owned(),
                limits: KernelLimits::from_spec(spec),
            };
            interpreters = Arc::new(KernelHost::new(interpreters, Arc::new(launcher)));
        }
        let worker_spec = WorkerSpec { env: env.clone(), cwd: cwd.clone() };
        let ended = Arc::clone(&base.end_reason);
        let contexts =
            Contexts::with(Variant::LOCAL_DOCKER, &language, ended, worker_spec, move |_| {
                Arc::clone(&interpreters)
            });
        Ok(DockerInstance { base, contexts, kind: hooks })
    }

    fn hooks(self, host: &ContainerHost, options: &Options) -> DockerHooks {
        let python = host.agent().python().to_owned();
        DockerHooks {
            snapshots: Snapshots::new(self.snapshots.clone(), Some(python), Vec::new()),
            ports: ports(host.agent().ports()),
            usage: host.agent().usage(),
            pauser: host.pauser(),
            writable_root: options.writable_root,
            engine: self.engine.host.clone(),
            container: ContainerRef {
                docker: self.engine.docker.clone(),
                name: host.name().to_owned(),
            },
        }
    }
}

/// Returns an interpreter of this host that fetches packages for one of that version: wheels are built for one minor version.
async fn pip_for(version: &str) -> Option<PathBuf> {
    let (python, found) = pip_interpreter().await?;
    let minor = |version: &str| version.splitn(3, '.').take(2).collect::<Vec<_>>().join(".");
    (minor(found) == minor(version)).then(|| python.clone())
}

/// Returns the interpreter of this host that has pip, with its version. The interpreter is queried once.
async fn pip_interpreter() -> Option<&'static (PathBuf, String)> {
    static INTERPRETER: OnceCell<Option<(PathBuf, String)>> = OnceCell::const_new();
    let found = INTERPRETER.get_or_init(|| async {
        let python = on_path("python3")?;
        let version = version_with_pip(&python).await?;
        Some((python, version))
    });
    found.await.as_ref()
}

async fn version_with_pip(python: &Path) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use sandbox_core::{Backend as _, CallContext, ErrorKind};
    use serde_json::json;

    use super::*;
    use crate::DockerBackend;
    use crate::config::DockerConfig;
    use crate::fake_engine::{Answer, FakeEngine};

    /// A name can be given to another image after the first image was inspected.
    #[tokio::test]
    async fn a_container_is_created_from_the_inspected_image() {
        let engine = FakeEngine::start(|request, log| {
            let path = request.path.split('?').next().unwrap_or_default();
            match (request.method.as_str(), path) {
                ("GET", "version") => Answer::now(200, json!({"ApiVersion": "1.41"})),
                ("GET", "info") => Answer::now(200, json!({"CgroupDriver": "systemd"})),
                ("GET", "images/json" | "containers/json") => Answer::now(200, json!([])),
                ("GET", _) => Answer::now(200, json!({"Id": "sha256:one", "Config": {}})),
                ("POST", _) => {
                    let (image, labels) = (&request.body["Image"], &request.body["Labels"]);
                    log.add(&format!("{image} called {}", labels["code-sandboxes.image"]));
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
        assert_eq!(engine.events(), [r#""sha256:one" called "named:latest""#]);
    }
}
