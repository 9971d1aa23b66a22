//! The behaviour suite over sandboxes of the supervisor: the real binary, with a directory of its own.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use code_sandboxes::detached::{RUNTIME_DIRECTORY_VARIABLE, SUPERVISOR_VARIABLE};
use code_sandboxes::{Registry, Variant};
use sandbox_conformance::Target;

/// Groups in which a supervisor between caller and sandbox can make a difference.
const GROUPS: [&str; 19] = [
    "background",
    "cancellation",
    "concurrency",
    "contexts",
    "detached",
    "exec",
    "files",
    "unsupported",
    "interrupt",
    "lifecycle",
    "models",
    "pause",
    "ports",
    "snapshots",
    "streams",
    "terminal",
    "timeout",
    "tools",
    "transfer",
];

/// Longer than any case of the suite.
const DETACHED_TTL: Duration = Duration::from_secs(600);

fn main() -> ExitCode {
    if env::var_os(RUNTIME_DIRECTORY_VARIABLE).is_none() {
        return with_a_directory();
    }
    let backend = || Registry::new().backend(Variant::LOCAL_EVAL).expect("local-eval is built in");
    let target = Target::new("local-eval-detached", backend).stays();
    let python = env::var("SANDBOX_TEST_PYTHON").ok();
    let target = target.part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::main(target.configure(move |builder| {
        let builder = builder.detached(DETACHED_TTL);
        match &python {
            Some(python) => builder.provider_option("python", python.as_str()),
            None => builder,
        }
    }))
}

/// Runs this program once more with a directory, and so a supervisor, of its own.
fn with_a_directory() -> ExitCode {
    let directory = tempfile::tempdir().expect("a directory");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(directory.path(), private).expect("a private directory");
    let status = Command::new(env::current_exe().expect("a path"))
        .args(env::args_os().skip(1))
        .env(RUNTIME_DIRECTORY_VARIABLE, directory.path())
        .env("CODE_SANDBOXES_STATE_DIR", directory.path())
        .env(SUPERVISOR_VARIABLE, env!("CARGO_BIN_EXE_sandboxes"))
        .env("CODE_SANDBOXES_SUPERVISOR_IDLE", "1")
        .status()
        .expect("this program starts");
    if status.success() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}
