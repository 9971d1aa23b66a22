//! `sandboxes supervisor`

use std::sync::Arc;
use std::time::Duration;

use code_sandboxes::Registry;
use sandbox_supervisor::server;

use crate::args::SupervisorArgs;
use crate::exit;
use crate::printer::Printer;
use crate::problem::Problem;

/// Is the supervisor of this user, or starts one.
pub(crate) async fn supervise(args: &SupervisorArgs, printer: &Printer) -> Result<u8, Problem> {
    if args.launch {
        server::launch().map_err(|error| Problem::host("starting the supervisor", error))?;
        return Ok(exit::SUCCESS);
    }
    let registry = Registry::new();
    let backends = Arc::new(move |variant: Option<_>| {
        registry.backend_of_process(variant.unwrap_or_else(|| registry.default_variant()))
    });
    let idle = Duration::try_from_secs_f64(args.idle).unwrap_or(Duration::MAX);
    if !server::supervise(backends, idle).await? {
        printer.note("there is a supervisor already");
    }
    Ok(exit::SUCCESS)
}
