//! From what is asked for to a sandbox whose kernels are elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jupyter_protocol::websocket::ServerKernelSpecs;
use jupyter_protocol::{ConnectionError, ConnectionInfo};
use sandbox_core::{
    Capabilities, CreateSpec, Error, ErrorKind, IsolationInfo, IsolationMode, Result, Variant,
};
use sandbox_engine::host::{ProcessHost, WorkerSpec};
use sandbox_engine::interpreter::{Contexts, DEFAULT_CONTEXT};
use sandbox_engine::{Packages, SandboxBase, SandboxBaseSpec};
use sandbox_kernel::server::{KernelEnvironment, bootstrap};
use sandbox_kernel::{KernelHost, is_ipython};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::open::Opened;
use super::server::{kernelspecs, server};
use super::source::Kernels;
use super::{Away, ONLY_CODE, Origin, over};
use crate::config::{DEFAULT_KERNEL, Target};
use crate::instance::{JupyterInstance, Kernel};

/// How long a create that failed waits until nothing is left of it.
const CLEAN_UP_TIMEOUT: Duration = Duration::from_secs(5);

/// What a kernel can do that is elsewhere. Limits are those of its host. Files and programs take one more kernel.
fn capabilities(target: &Target, ipython: bool) -> Capabilities {
    let own = matches!(target, Target::Server { kernel_id: None, .. });
    let program = own && ipython;
    Capabilities {
        run_code: true,
        run_stdin: program,
        run_script: program,
        rich_results: true,
        live_output: true,
        contexts: own,
        variables: program,
        interrupt: true,
        // The program behind a connection file cannot be started again from here.
        restart: !matches!(target, Target::ConnectionFile(_)),
        tools: program,
        commands: program,
        command_stdin: program,
        command_pty: program,
        command_background: program,
        install_python: program,
        files: program,
        watch: program,
        set_tags: true,
        set_lifetime: true,
        lifetime: true,
        idle_timeout: true,
        environments: own,
        limit_output: true,
        network_all: true,
        isolation_off: true,
        ..Capabilities::default()
    }
}

/// Refuses what cannot be had there, before any request.
fn check(spec: &CreateSpec, target: &Target) -> Result<()> {
    capabilities(target, true).check(spec).map_err(|error| {
        let error = error.with_context("variant", Variant::LOCAL_JUPYTER.as_str());
        if spec.isolation == IsolationMode::Off {
            return error.with_hint(
                "its code has the limits of the kernel's host; here only lifetime, idle timeout and output are limited",
            );
        }
        error.with_hint(
            "the code runs where the kernel is, and nothing here keeps it in; say that you want that with \
             `.isolation(IsolationMode::Off)`",
        )
    })
}

/// A sandbox whose kernels are elsewhere.
pub(crate) async fn create(
    spec: &CreateSpec,
    target: &Target,
    kernel: Option<&str>,
    pip: &[String],
) -> Result<JupyterInstance> {
    check(spec, target)?;
    let (origin, facts) = origin(target, kernel).await?;
    let away = Away::new(origin);
    let given_up = GivenUp(Some(Arc::clone(&away)));
    let made = make(spec, target, &away, facts, pip).await;
    given_up.disarm();
    if made.is_err() {
        away.kill();
        // What was started is ended now, when nothing may come after this.
        let _ = timeout(CLEAN_UP_TIMEOUT, away.closed()).await;
    }
    made
}

/// Ends what was started for a create that is dropped half-way, before the process may end.
struct GivenUp(Option<Arc<Away>>);

impl GivenUp {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for GivenUp {
    fn drop(&mut self) {
        if let Some(away) = self.0.take() {
            away.finish();
        }
    }
}

type Facts = Vec<(&'static str, Value)>;

async fn origin(target: &Target, kernel: Option<&str>) -> Result<(Origin, Facts)> {
    match target {
        Target::ConnectionFile(path) => {
            let info = Box::new(read(path)?);
            Ok((Origin::Connected(info), vec![("connection_file", json!(path))]))
        }
        Target::Server { access, kernel_id } => {
            let server = server(access)?;
            let specs = kernelspecs(&server).await?;
            let mut facts = vec![("server_url", json!(server.url()))];
            if let Some(id) = kernel_id {
                facts.push(("kernel_id", json!(id)));
                let turn = Arc::default();
                return Ok((Origin::Running { server, id: id.clone(), turn }, facts));
            }
            let name = named(&specs, kernel)?;
            facts.push(("kernel", json!(name)));
            Ok((Origin::Started { server, name }, facts))
        }
    }
}

/// The kernel specification that is meant, of those there are.
fn named(specs: &ServerKernelSpecs, kernel: Option<&str>) -> Result<String> {
    let default = specs.default.as_deref().unwrap_or(DEFAULT_KERNEL);
    let name = kernel.unwrap_or(default);
    if specs.kernelspecs.contains_key(name) {
        return Ok(name.to_owned());
    }
    let available: Vec<_> = specs.kernelspecs.keys().map(String::as_str).collect();
    let there = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
    let message = format!("the Jupyter Server has no kernel named {name:?} (available: {there})");
    Err(Error::new(ErrorKind::NotFound, "start_kernel", message))
}

fn read(path: &Path) -> Result<ConnectionInfo> {
    let wrong = |why: String| {
        Error::invalid("connection_file", format!("{} cannot be used: {why}", path.display()))
    };
    ConnectionInfo::read(path).map_err(|error| match error {
        ConnectionError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            let there = match fs::symlink_metadata(path) {
                Ok(_) => "it is a link to nothing",
                Err(_) => "there is no such file; a kernel removes its file when it ends",
            };
            wrong(there.to_owned())
        }
        error @ ConnectionError::PathTooLong { .. } => wrong(error.to_string()),
        // It names the file itself.
        error => Error::invalid("connection_file", error.to_string()),
    })
}

async fn make(
    spec: &CreateSpec,
    target: &Target,
    away: &Arc<Away>,
    facts: Facts,
    pip: &[String],
) -> Result<JupyterInstance> {
    let opened = away.open().await?;
    let ipython = is_ipython(&opened.info);
    let capabilities = capabilities(target, ipython);
    let secrets = spec.secrets.iter().map(|(name, value)| (name.clone(), value.expose().into()));
    let env: BTreeMap<String, String> = spec.env.clone().into_iter().chain(secrets).collect();
    let at = if capabilities.variables {
        Some(bootstrap(&opened.client, &env, spec.working_dir.as_deref()).await?)
    } else if !env.is_empty() || spec.working_dir.is_some() {
        let message = "this kernel takes no environment and no working directory from here";
        return Err(Error::unsupported("create", message)
            .with_hint("kernels of IPython that are started on a Jupyter Server do"));
    } else {
        None
    };
    // One that does not say where it is begins there.
    let cwd = at.as_ref().map_or_else(|| ".".to_owned(), |at| at.cwd.clone());
    let base = SandboxBaseSpec {
        variant: Variant::LOCAL_JUPYTER,
        capabilities,
        create: spec,
        isolation: isolation(target),
        env: at.as_ref().map_or_else(|| env.clone(), KernelEnvironment::program_env),
        cwd: cwd.clone(),
    };
    let mut base = SandboxBase::remote(Arc::clone(away) as Arc<dyn ProcessHost>, None, base);
    if let Some(at) = at.filter(|_| capabilities.files) {
        let (weak, directory) = (Arc::downgrade(away), cwd.clone());
        base = base.with_files_of(move || {
            let (away, directory) = (weak.upgrade(), directory.clone());
            async move { away.ok_or_else(over)?.files(&directory).await }
        });
        base.packages = Some(Packages::inside(at.python.into(), away.site(), pip.to_vec()));
    }
    if !capabilities.commands {
        base.unsupported_hint = Some(ONLY_CODE);
    }
    let language = opened.info.language_info.name.to_lowercase();
    base.describe("language", json!(language));
    facts.into_iter().for_each(|(name, fact)| base.describe(name, fact));
    let ended = Arc::clone(&base.end_reason);
    let worker_spec = WorkerSpec { env, cwd };
    let box_of = box_of(Arc::clone(away), opened);
    let contexts = Contexts::with(Variant::LOCAL_JUPYTER, &language, ended, worker_spec, box_of);
    let kind = Kernel::Away(Arc::clone(away));
    let instance = JupyterInstance { base, contexts, kind };
    instance.prepare(std::future::ready(Ok(())), false, false).await?;
    instance.begin(spec);
    Ok(instance)
}

/// The first kernel is that of the default context.
fn box_of(away: Arc<Away>, opened: Opened) -> impl Fn(&str) -> Arc<dyn ProcessHost> + Send + Sync {
    let first = Arc::new(Mutex::new(Some(opened)));
    move |context: &str| {
        let first = if context == DEFAULT_CONTEXT { Arc::clone(&first) } else { Arc::default() };
        let source = Arc::new(Kernels { away: Arc::clone(&away), first });
        Arc::new(KernelHost::new(Arc::clone(&away) as Arc<dyn ProcessHost>, source))
    }
}

/// What is known of what keeps the code in: nothing.
fn isolation(target: &Target) -> IsolationInfo {
    let boundary = match target {
        Target::Server { .. } => "jupyter-server",
        Target::ConnectionFile(_) => "process",
    };
    IsolationInfo {
        mode: IsolationMode::Off,
        boundary: boundary.to_owned(),
        layers: Vec::new(),
        network: "not restricted from here".to_owned(),
    }
}
