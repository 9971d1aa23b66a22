//! The hostile suite where there are no user namespaces, and so no cells: what is left of isolation still holds.
//!
//! For an ordinary user. Root has no sandbox there, which is all that there is to try.

mod degrade;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use libtest_mimic::{Arguments, Failed, Trial};
use sandbox_conformance::Target;
use sandbox_core::{ErrorKind, IsolationMode, Sandbox};

fn main() -> ExitCode {
    if degrade::lacking().is_none() {
        let status =
            degrade::again_without("user-namespaces").args(env::args_os().skip(1)).status();
        let code = status.ok().and_then(|status| u8::try_from(status.code()?).ok());
        return code.map_or(ExitCode::FAILURE, ExitCode::from);
    }
    if rustix::process::geteuid().is_root() {
        return root_is_refused();
    }
    let target = Target::new("local-eval-best-effort", || Arc::new(EvalBackend::default()))
        .isolation(IsolationMode::BestEffort);
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}

/// One test in place of the suite: without a cell there is no sandbox for root, and the error says who can have one.
fn root_is_refused() -> ExitCode {
    let test = Trial::test("best_effort_is_refused_to_root", || {
        let runtime = tokio::runtime::Runtime::new()?;
        let builder = Sandbox::builder(Arc::new(EvalBackend::default()));
        let create = builder.isolation(IsolationMode::BestEffort).create().into_future();
        let Err(error) = runtime.block_on(create) else {
            return Err(Failed::from("root got a sandbox"));
        };
        let hint = error.hint().unwrap_or_default();
        if error.kind() == ErrorKind::IsolationUnavailable && hint.contains("an ordinary user") {
            Ok(())
        } else {
            Err(Failed::from(format!("{error:?}")))
        }
    });
    libtest_mimic::run(&Arguments::from_args(), vec![test]).exit_code()
}
