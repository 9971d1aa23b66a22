//! `sandboxes mcp` and `sandboxes tools`

use std::env;
use std::fs;
use std::io::{self, ErrorKind as IoKind};
use std::path::Path;

use code_sandboxes::{Error, ErrorKind, Registry, seconds};
use sandbox_server::mcp::{
    McpHttpServer, McpOptions, SKILL, Toolset, connect_servers, serve_stdio,
};
use sandbox_server::{AccessKey, Ceiling};
use serde_json::json;
use tokio::net::TcpListener;

use super::run::Interrupts;
use crate::args::{self, McpArgs, McpCommand, McpInstallArgs, McpServeArgs, ToolsArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;
use crate::terminal::TerminationSignals;

/// Serves MCP clients, or adds the server to a client.
pub(crate) async fn mcp(args: McpArgs, printer: &Printer) -> Result<u8, CliError> {
    match args.command {
        Some(McpCommand::Install(args)) => install(&args, printer).await,
        None => serve(args.serve, printer).await,
    }
}

/// Serves until the client leaves, or this process is asked to end. The sandboxes end first.
async fn serve(args: McpServeArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut options = McpOptions::default();
    let builder = settings::server_builder(&args.sandbox)?;
    #[cfg(feature = "docker")]
    super::image::pull_missing(&args.sandbox, printer).await?;
    let (backend, spec) = builder.into_parts()?;
    let mut ceiling = Ceiling::new(spec);
    ceiling.max_sandboxes = args.max_sandboxes;
    if let Some(lifetime) = ceiling.base.lifetime {
        ceiling.max_lifetime = lifetime;
    }
    options.ceiling = ceiling;
    options.timeout = seconds("timeout", args.sandbox.timeout)?;
    options.tools = (!args.tools.is_empty()).then(|| args.tools.iter().cloned().collect());
    (options.read_only, options.confirm) = (args.read_only, args.confirm);
    options.keep = args.keep.then_some(args.name);
    options.task_after = seconds("task-after", args.task_after)?;
    // They end when this is dropped.
    let others = match &args.tools_from {
        Some(file) => Some(connect_servers(file).await?),
        None => None,
    };
    options.host_tools = others.as_ref().map(|others| others.host_tools()).unwrap_or_default();
    let tools = Toolset::new(backend, options)?;
    let mut interrupts = Interrupts::listen()?;
    let mut termination = TerminationSignals::listen_unless_ignored()?;
    let Some(address) = args.http else {
        return tokio::select! {
            served = serve_stdio(tools.clone()) => Ok(served.map(|()| exit::SUCCESS)?),
            () = interrupts.next() => {
                tools.close().await;
                Err(super::run::interrupted())
            }
            ending = termination.next() => {
                tools.close().await;
                Err(ending)
            }
        };
    };
    let key = match (args.key, args.no_key) {
        (Some(key), _) => Some(AccessKey::new(key)),
        (None, true) => None,
        (None, false) => Some(AccessKey::random("mcp_")),
    };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        let message = format!("{address} cannot be served");
        Error::new(ErrorKind::Unavailable, "serve", message).with_source(error)
    })?;
    let server = McpHttpServer::start(tools, listener, key.clone())?;
    announce(&server, key.as_ref(), printer).await?;
    let ending = tokio::select! {
        () = interrupts.next() => super::run::interrupted(),
        ending = termination.next() => ending,
    };
    server.shutdown().await;
    Err(ending)
}

async fn announce(
    server: &McpHttpServer,
    key: Option<&AccessKey>,
    printer: &Printer,
) -> Result<(), CliError> {
    let (url, key) = (server.url(), key.map(AccessKey::expose));
    if printer.format() != Format::Text {
        return printer.json(&json!({"url": url, "key": key})).await;
    }
    let key = key.map(|key| format!("Authorization: Bearer {key}\n")).unwrap_or_default();
    printer.stdout(format!("{url}\n{key}").as_bytes()).await
}

/// Adds the server to the configuration of a client, and the skill beside it.
async fn install(args: &McpInstallArgs, printer: &Printer) -> Result<u8, CliError> {
    let program =
        env::current_exe().map_err(|error| CliError::host("finding this program", error))?;
    let Some(program) = program.to_str() else {
        let message = format!("the path of this program is not UTF-8: {}", program.display());
        return Err(CliError::usage(message, "move it to another directory"));
    };
    let mut command = vec![program.to_owned(), "mcp".to_owned()];
    command.extend(args.flags.iter().cloned());
    let argv: Vec<_> = command.iter().map(Into::into).collect();
    if let Err(error) = args::parse(&argv) {
        let message = error.to_string();
        let line = message.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let message = format!("after `--` are flags for `sandboxes mcp`: {line}");
        return Err(CliError::usage(message, "`sandboxes mcp --help` lists them"));
    }
    if args.dry_run {
        let config = args.client.configure(args.project, None, &command)?;
        printer.note(&format!("the entry for {}", config.path.display()));
        printer.stdout(config.text.as_bytes()).await?;
        return Ok(exit::SUCCESS);
    }
    let base = match args.project {
        true => {
            env::current_dir().map_err(|error| CliError::host("finding the directory", error))?
        }
        false => env::home_dir().ok_or_else(|| {
            CliError::usage("the home directory of this user is not known", "set HOME")
        })?,
    };
    let file = base.join(args.client.path(args.project));
    let existing = match fs::read_to_string(&file) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == IoKind::NotFound => None,
        Err(error) => return Err(about(&file, "read", error)),
    };
    let config = args.client.configure(args.project, existing.as_deref(), &command)?;
    replace(&file, &config.text).map_err(|error| about(&file, "written", error))?;
    let mut written = vec![file.display().to_string()];
    if let Some(skill) = config.skill.filter(|_| !args.no_skill) {
        let file = base.join(skill);
        replace(&file, SKILL).map_err(|error| about(&file, "written", error))?;
        written.push(file.display().to_string());
    }
    match printer.format() {
        Format::Text => {
            let lines: String = written.iter().map(|path| format!("{path}\n")).collect();
            printer.stdout(lines.as_bytes()).await?;
        }
        Format::Json | Format::JsonLines => printer.json(&json!({"written": written})).await?,
    }
    Ok(exit::SUCCESS)
}

fn about(file: &Path, what: &str, error: io::Error) -> CliError {
    let message = format!("{} cannot be {what}", file.display());
    Error::new(ErrorKind::PermissionDenied, "install", message).with_source(error).into()
}

/// Replaces a file as a whole, with the permissions that it had. What a link leads to is replaced, and not the link.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let directory = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut fresh = tempfile::NamedTempFile::new_in(directory)?;
    io::Write::write_all(&mut fresh, text.as_bytes())?;
    if let Ok(metadata) = fs::metadata(&file) {
        fresh.as_file().set_permissions(metadata.permissions())?;
    }
    fresh.persist(&file)?;
    Ok(())
}

/// Prints the definitions of the tools that a variant has.
pub(crate) async fn tools(args: &ToolsArgs, printer: &Printer) -> Result<u8, CliError> {
    let backend = Registry::new().backend(settings::variant(&args.provider)?)?;
    let tools = Toolset::new(backend, McpOptions::default())?;
    if let Some(format) = args.format {
        printer.json(&format.write(tools.definitions())).await?;
        return Ok(exit::SUCCESS);
    }
    if printer.format() != Format::Text {
        let all: Vec<_> = tools
            .definitions()
            .iter()
            .map(|tool| {
                json!({
                    "name": tool.name,
                    "description": tool.description,
                    "input_schema": tool.input_schema,
                    "output_schema": tool.output_schema,
                    "read_only": tool.read_only,
                    "destructive": tool.destructive,
                    "idempotent": tool.idempotent,
                    "open_world": tool.open_world,
                })
            })
            .collect();
        printer.json(&json!(all)).await?;
        return Ok(exit::SUCCESS);
    }
    let mut text = String::new();
    for tool in tools.definitions() {
        let first = tool.description.split_inclusive(". ").next().unwrap_or_default();
        text.push_str(&format!("{:<17} {}\n", tool.name, first.trim_end()));
    }
    printer.stdout(text.as_bytes()).await?;
    Ok(exit::SUCCESS)
}
