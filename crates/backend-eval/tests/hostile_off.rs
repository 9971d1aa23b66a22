//! The hostile suite without isolation: what is promised even then, such as ends and limits of time.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;
use sandbox_core::IsolationMode;

fn main() -> ExitCode {
    let target = Target::new("local-eval-off", || Arc::new(EvalBackend::default()))
        .isolation(IsolationMode::Off);
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
