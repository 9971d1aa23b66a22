//! The hostile suite over `local-eval` with strict isolation.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;

fn main() -> ExitCode {
    let target = Target::new("local-eval", || Arc::new(EvalBackend::default()));
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
