//! The hostile suite without isolation: what is promised even then, such as ends and limits of time.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;
use sandbox_core::IsolationMode;

/// The groups about ends and limits of time, which hold without isolation, too.
const GROUPS: [&str; 3] = ["settings", "unkillable", "interpreter_tampering"];

fn main() -> ExitCode {
    let target = Target::new("local-eval-off", || Arc::new(EvalBackend::default()))
        .isolation(IsolationMode::Off)
        .part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
