//! The hostile suite where there are no user namespaces, and so no cells: what is left of isolation still holds.

mod degrade;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;
use sandbox_core::IsolationMode;

fn main() -> ExitCode {
    if degrade::lacking().is_none() {
        let status =
            degrade::again_without("user-namespaces").args(env::args_os().skip(1)).status();
        let code = status.ok().and_then(|status| u8::try_from(status.code()?).ok());
        return code.map_or(ExitCode::FAILURE, ExitCode::from);
    }
    let target = Target::new("local-eval-best-effort", || Arc::new(EvalBackend::default()))
        .isolation(IsolationMode::BestEffort);
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
