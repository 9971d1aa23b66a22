//! `sandboxes serve`

use std::net::SocketAddr;

use code_sandboxes::{CallContext, DEFAULT_TIMEOUT, seconds};
use sandbox_server::e2b::{E2bOptions, E2bServer};
use sandbox_server::{AccessKey, Ceiling};
use serde_json::{Map, Value, json};

use super::run::Interrupts;
use crate::args::ServeArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::settings;
use crate::terminal::TerminationSignals;

/// Serves the E2B protocol until this process is asked to end.
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
    let lifetime = wanted.lifetime.take();
    let (backend, spec) = settings::builder(&wanted, None)?.into_parts()?;
    let variant = backend.variant();
    let mut ceiling = Ceiling::new(spec);
    ceiling.max_sandboxes = args.max_sandboxes;
    if let Some(lifetime) = lifetime {
        ceiling.max_lifetime = seconds("lifetime", lifetime)?;
    }
    let mut options = E2bOptions::default();
    options.address = SocketAddr::new(args.host, args.port);
    options.api_key = args.api_key.clone().map(AccessKey::new);
    options.domain.clone_from(&args.domain);
    options.ceiling = ceiling;
    options.keep = args.keep;
    let mut interrupts = Interrupts::listen()?;
    let mut termination = TerminationSignals::listen_unless_ignored()?;
    if variant.is_local() {
        // What cannot be had is said now, and not to each client.
        let trial = backend.create(&CallContext::new(), options.ceiling.base.clone()).await?;
        trial.life().kill(&CallContext::new()).await?;
    }
    let server = E2bServer::start(backend, options).await?;
    let printed = print(&server, printer).await;
    if printed.is_ok() {
        printer.note(&format!("{variant} at {}; Ctrl-C ends it", server.url()));
        tokio::select! {
            () = interrupts.next() => {}
            _ = termination.next() => {}
        }
    }
    server.shutdown().await;
    printed.map(|()| exit::SUCCESS)
}

async fn print(server: &E2bServer, printer: &Printer) -> Result<(), CliError> {
    let variables = server.environment();
    match printer.format() {
        Format::Text => {
            let lines = variables.map(|(name, value)| format!("export {name}={value}\n"));
            printer.stdout(lines.concat().as_bytes()).await
        }
        Format::Json | Format::JsonLines => {
            let variables = variables.map(|(name, value)| (name.to_owned(), Value::from(value)));
            let variables: Map<_, _> = variables.into_iter().collect();
            printer.json(&json!({ "url": server.url(), "environment": variables })).await
        }
    }
}
