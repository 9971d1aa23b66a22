//! `sandboxes serve`

use std::net::SocketAddr;
use std::sync::Arc;

use code_sandboxes::{Backend, CallContext, CreateSpec, DEFAULT_TIMEOUT, Variant, seconds};
use sandbox_server::e2b::{CodeInterpreter, E2bOptions, E2bServer};
use sandbox_server::{AccessKey, Ceiling};
use serde_json::{Map, Value, json};

use super::run::Interrupts;
use crate::args::{CodeInterpreterKind, SandboxArgs, ServeArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;
use crate::terminal::TerminationSignals;

/// Serves the E2B protocol, and MCP beside it if that is asked for, until this process is asked to end.
pub(crate) async fn serve(args: &ServeArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut wanted = args.sandbox.clone();
    if wanted.timeout.is_finite() {
        return Err(CliError::usage(
            "-t limits a run, and `serve` runs nothing by itself",
            "programs set the limits of their runs; --lifetime limits the life of each sandbox",
        ));
    }
    wanted.timeout = DEFAULT_TIMEOUT.as_secs_f64();
    // The lifetime is that of a request, up to this one.
    let lifetime =
        wanted.lifetime.take().map(|lifetime| seconds("lifetime", lifetime)).transpose()?;
    let (backend, spec) = parts(&wanted, args)?;
    let variant = backend.variant();
    let code_interpreter = code_interpreter(&wanted, args, variant).await?;
    let mut ceiling = Ceiling::new(spec);
    ceiling.max_sandboxes = args.max_sandboxes;
    if let Some(lifetime) = lifetime {
        ceiling.max_lifetime = lifetime;
    }
    let mut options = E2bOptions::default();
    options.address = SocketAddr::new(args.host, args.port);
    options.api_key = args.api_key.clone().map(AccessKey::new);
    options.domain.clone_from(&args.domain);
    options.ceiling = ceiling;
    options.keep = args.keep;
    options.code_interpreter = code_interpreter;
    if options.api_key.is_none() && args.host.is_loopback() {
        options.api_key = Some(AccessKey::random("e2b_"));
    }
    // Without a key the address is refused below.
    let mcp = match args.mcp && options.api_key.is_some() {
        true => Some(mcp::Face::new(&backend, &options, lifetime)?),
        false => None,
    };
    let mut interrupts = Interrupts::listen()?;
    let mut termination = TerminationSignals::listen_unless_ignored()?;
    if variant.is_local() {
        // What cannot be had is said now, and not to each client.
        let trial = backend.create(&CallContext::new(), options.ceiling.base.clone()).await?;
        trial.life().kill(&CallContext::new()).await?;
    }
    let kernels = match options.code_interpreter {
        Some(_) => ", and kernels of local-jupyter for code-interpreter-v1,",
        None => "",
    };
    let server = match &mcp {
        Some(mcp) => mcp.start(backend, options).await?,
        None => E2bServer::start(backend, options).await?,
    };
    let path = mcp.as_ref().map(mcp::Face::path);
    let printed = print(&server, path, printer).await;
    if printed.is_ok() {
        printer.note(&format!("{variant}{kernels} at {}; Ctrl-C ends it", server.url()));
        tokio::select! {
            () = interrupts.next() => {}
            _ = termination.next() => {}
        }
    }
    if let Some(mcp) = &mcp {
        mcp.close().await;
    }
    server.shutdown().await;
    printed.map(|()| exit::SUCCESS)
}

/// Returns what makes sandboxes of a variant, and each of them before the wishes of its request.
fn parts(
    wanted: &SandboxArgs,
    args: &ServeArgs,
) -> Result<(Arc<dyn Backend>, CreateSpec), CliError> {
    let mut builder = settings::builder(wanted, None)?;
    if !args.writable.is_empty() {
        if ![Variant::LOCAL_EVAL, Variant::LOCAL_JUPYTER].contains(&settings::variant_of(wanted)?) {
            let message = "--writable is for sandboxes of local-eval and local-jupyter";
            let hint =
                "with containers, --writable-root makes every directory of the image writable";
            return Err(CliError::usage(message, hint));
        }
        builder = builder.provider_option("writable", args.writable.clone());
    }
    Ok(builder.into_parts()?)
}

/// Returns what makes the sandboxes of `code-interpreter-v1`, where they are others than those of `variant`.
async fn code_interpreter(
    wanted: &SandboxArgs,
    args: &ServeArgs,
    variant: Variant,
) -> Result<Option<CodeInterpreter>, CliError> {
    let kind = args.code_interpreter;
    if variant != Variant::LOCAL_EVAL {
        if kind == CodeInterpreterKind::Auto {
            return Ok(None);
        }
        let message = format!("--code-interpreter is for local-eval; {variant} has its own");
        return Err(CliError::usage(message, "leave it out"));
    }
    if kind == CodeInterpreterKind::Worker {
        return Ok(None);
    }
    let mut wanted = wanted.clone();
    wanted.provider.provider = Some(Variant::LOCAL_JUPYTER.to_string());
    let found = async {
        let (backend, base) = parts(&wanted, args)?;
        let kernels = backend.environments(&CallContext::new()).await?;
        let is_there = kernels.iter().any(|kernel| kernel.language == "python");
        Ok::<_, CliError>(is_there.then_some(CodeInterpreter { backend, base }))
    };
    match (kind, found.await) {
        (CodeInterpreterKind::Kernel, Ok(None)) => {
            let message = "no Jupyter kernel for Python is installed";
            Err(CliError::usage(message, "install one: pip install ipykernel"))
        }
        (CodeInterpreterKind::Kernel, found) => found,
        // A build without kernels, or a sandbox that kernels cannot be in, has the interpreter of local-eval.
        (_, found) => Ok(found.ok().flatten()),
    }
}

async fn print(
    server: &E2bServer,
    mcp_path: Option<&str>,
    printer: &Printer,
) -> Result<(), CliError> {
    let mut variables = Vec::from(server.environment());
    let mcp = mcp_path.map(|path| format!("{}{path}", server.url()));
    match printer.format() {
        Format::Text => {
            variables.extend(mcp.map(|url| ("SANDBOXES_MCP_URL", url)));
            let lines = variables.iter().map(|(name, value)| format!("export {name}={value}\n"));
            printer.stdout(lines.collect::<String>().as_bytes()).await
        }
        Format::Json | Format::JsonLines => {
            let variables = variables.into_iter();
            let variables: Map<_, _> =
                variables.map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
            let mut all = json!({ "url": server.url(), "environment": variables });
            if let Some(url) = mcp {
                all["mcp"] = json!({ "url": url, "key": server.api_key().expose() });
            }
            printer.json(&all).await
        }
    }
}

/// MCP beside E2B, on the same port and with the same key.
#[cfg(feature = "mcp")]
mod mcp {
    use std::sync::Arc;
    use std::time::Duration;

    use code_sandboxes::Backend;
    use sandbox_server::e2b::{E2bOptions, E2bServer};
    use sandbox_server::mcp::{MCP_PATH, McpOptions, McpRoutes, Toolset};

    use crate::error::CliError;

    pub(super) struct Face(McpRoutes);

    impl Face {
        pub(super) fn new(
            backend: &Arc<dyn Backend>,
            options: &E2bOptions,
            lifetime: Option<Duration>,
        ) -> Result<Self, CliError> {
            let mut settings = McpOptions::default();
            settings.ceiling = options.ceiling.clone();
            settings.ceiling.base.lifetime = lifetime;
            let tools = Toolset::new(Arc::clone(backend), settings)?;
            Ok(Self(McpRoutes::new(tools, options.address, options.api_key.clone())?))
        }

        pub(super) async fn start(
            &self,
            backend: Arc<dyn Backend>,
            options: E2bOptions,
        ) -> Result<E2bServer, CliError> {
            Ok(E2bServer::start_beside(backend, options, self.0.router()).await?)
        }

        pub(super) fn path(&self) -> &'static str {
            MCP_PATH
        }

        pub(super) async fn close(&self) {
            self.0.close().await;
        }
    }
}

/// The answer of a build without MCP.
#[cfg(not(feature = "mcp"))]
mod mcp {
    use std::sync::Arc;
    use std::time::Duration;

    use code_sandboxes::Backend;
    use sandbox_server::e2b::{E2bOptions, E2bServer};

    use crate::error::CliError;

    pub(super) enum Face {}

    impl Face {
        pub(super) fn new(
            _: &Arc<dyn Backend>,
            _: &E2bOptions,
            _: Option<Duration>,
        ) -> Result<Self, CliError> {
            Err(CliError::absent("--mcp", "mcp"))
        }

        pub(super) async fn start(
            &self,
            _: Arc<dyn Backend>,
            _: E2bOptions,
        ) -> Result<E2bServer, CliError> {
            match *self {}
        }

        pub(super) fn path(&self) -> &'static str {
            match *self {}
        }

        pub(super) async fn close(&self) {
            match *self {}
        }
    }
}
