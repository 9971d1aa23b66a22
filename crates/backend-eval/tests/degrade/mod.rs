//! This program once more, on a host that lacks something.

use std::env;
use std::path::Path;
use std::process::Command;

/// Says what the host lacks, in the process that lacks it.
pub(crate) const LACKS: &str = "SANDBOX_TEST_LACKS";

/// What this process lacks by design of the test.
pub(crate) fn lacking() -> Option<String> {
    env::var(LACKS).ok()
}

/// This executable under a filter that denies `what`, without arguments.
pub(crate) fn again_without(what: &str) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/degrade/deny.py");
    let text = std::fs::read_to_string(&script);
    // Where the sources are elsewhere, such as for a copy of this program, they are beside its working directory.
    let text = text.or_else(|_| std::fs::read_to_string("tests/degrade/deny.py"));
    let python = env::var("SANDBOX_TEST_PYTHON").unwrap_or_else(|_| "/usr/bin/python3".to_owned());
    let mut command = Command::new(python);
    command.args(["-I", "-c"]).arg(text.expect("the filter")).args(what.split(' ')).arg("--");
    command.arg(env::current_exe().expect("this program")).env(LACKS, what);
    command
}
