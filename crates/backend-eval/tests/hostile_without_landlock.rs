//! What depends on Landlock in the hostile suite, over strict isolation on a host that has none: mounts and the filter of
//! system calls hold by themselves.

mod degrade;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_conformance::Target;

/// Parts of the names of what is run: ways to files, mounts, and memory, for which a device is kept from being written.
const PARTS: [&str; 3] = ["escape_files", "mounts::", "memory"];

fn main() -> ExitCode {
    if degrade::lacking().is_none() {
        let arguments: Vec<_> = env::args_os().skip(1).collect();
        let first = arguments.first().map(|argument| argument.to_string_lossy());
        let is_asked =
            first.is_some_and(|argument| argument == "--exact" || !argument.starts_with('-'));
        let parts = if is_asked { &[][..] } else { &PARTS };
        let run = |part: &[&str]| {
            let again = degrade::again_without("landlock").args(part).args(&arguments).status();
            again.is_ok_and(|status| status.success())
        };
        let mut ran: Vec<bool> = parts.iter().map(|part| run(&[*part])).collect();
        ran.extend(is_asked.then(|| run(&[])));
        return if ran.contains(&false) { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let target = Target::new("local-eval-without-landlock", || Arc::new(EvalBackend::default()));
    sandbox_conformance::hostile(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
