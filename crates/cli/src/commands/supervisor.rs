//! `sandboxes supervisor`

use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::Registry;
use sandbox_supervisor::server;

use crate::args::SupervisorArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::Printer;

/// Runs as the supervisor of this user, or starts it in the background.
pub(crate) async fn supervise(args: &SupervisorArgs, printer: &Printer) -> Result<u8, CliError> {
    if args.launch {
        server::launch().map_err(|error| CliError::host("starting the supervisor", error))?;
        return Ok(exit::SUCCESS);
    }
    let registry = Registry::new();
    let backends = Arc::new(move |variant: Option<_>| {
        registry.in_process_backend(variant.unwrap_or_else(|| registry.default_variant()))
    });
    let idle = Duration::try_from_secs_f64(args.idle).unwrap_or(Duration::MAX);
    if !server::supervise(backends, idle).await? {
        printer.note("another supervisor is running");
    }
    Ok(exit::SUCCESS)
}
