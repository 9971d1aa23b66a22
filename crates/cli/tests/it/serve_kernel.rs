//! `sandboxes serve --code-interpreter kernel`, with a real kernel, through the official SDK of E2B.

use std::path::Path;
use std::process::Command;

use crate::e2b_server::Server;
use crate::support::wanted;

#[test]
fn code_of_sdks_runs_in_a_kernel() {
    let Some(sdk) = wanted("SANDBOX_TEST_E2B_PYTHON") else { return };
    let Some(kernels) = wanted("SANDBOX_TEST_JUPYTER_PYTHON") else { return };
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", kernels.parent().unwrap().display());
    let server = Server::start_with(&["--code-interpreter", "kernel"], &[("PATH", &path)]);
    let mut flows = Command::new(sdk);
    flows.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/kernel.py"));
    let ran = flows.envs(server.environment()).output().unwrap();
    assert_eq!(server.end(), 0);
    let shown = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && ran.stdout == b"all flows\n", "{shown}");
}
