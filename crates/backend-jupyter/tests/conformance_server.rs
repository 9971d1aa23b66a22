//! The groups of the suite that are about kernels, files and programs, over kernels of a real Jupyter Server.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::{Backend, IsolationMode};
use support::differences::{KERNELS, LATER, of_kernels, of_servers};
use support::server::{JupyterServer, TOKEN, named};

fn main() -> ExitCode {
    if named().is_none() && std::env::var_os("CI").is_none() {
        return sandbox_conformance::ignored("SANDBOX_TEST_JUPYTER_PYTHON is not set");
    }
    let Some(server) = JupyterServer::start() else { return ExitCode::FAILURE };
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    let (url, folder) = (server.url.clone(), server.folder().to_owned());
    let sandboxes = AtomicU32::new(0);
    let target = Target::new("local-jupyter-server", make).isolation(IsolationMode::Off).configure(
        move |builder| {
            // Sandboxes on one server share its files; each has a directory of its own here.
            let own = folder.join(sandboxes.fetch_add(1, Ordering::Relaxed).to_string());
            builder
                .isolation(IsolationMode::Off)
                .working_dir(own.display().to_string())
                .provider_option("server_url", url.clone())
                .provider_option("token", TOKEN)
        },
    );
    let target = of_servers(of_kernels(target));
    let groups = KERNELS.into_iter().chain(BESIDE).chain(PROMISES);
    sandbox_conformance::main(target.only(groups, ELSEWHERE).part(GROUPS, LATER))
}

/// Why other groups are left out.
const ELSEWHERE: &str = "it is not about servers, and run with kernels in cells";

/// The groups in which a server is most in the way. `backend-datalayer` runs others of them over servers every time.
const GROUPS: [&str; 6] = ["files", "models", "rich", "streams", "variables", "watch"];

/// The groups about what every backend promises, where a server is in the way of it.
const PROMISES: [&str; 8] = [
    "cancellation",
    "config",
    "errors",
    "unsupported",
    "slow_reader",
    "lifecycle",
    "limits_output",
    "models",
];

/// The groups about what the kernel beside the others does.
const BESIDE: [&str; 10] = [
    "archives",
    "background",
    "commands",
    "files",
    "files_hostile",
    "lost_directory",
    "packages",
    "terminal",
    "transfer",
    "watch",
];
