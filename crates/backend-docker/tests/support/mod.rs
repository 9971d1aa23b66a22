//! Helpers of the tests with containers.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use backend_docker::DEFAULT_IMAGE;
use serde_json::json;
use tokio::process::Command;

/// Limits a step of a test, with time for an engine on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Interpreter in those images without any package, and so without a kernel.
pub(crate) const BARE_PYTHON: &str = "bare-python";

pub(crate) fn has_engine() -> bool {
    std::env::var_os("SANDBOX_TEST_DOCKER").is_some()
}

pub(crate) async fn docker(arguments: &[&str]) -> String {
    let output = Command::new("docker").args(arguments).output().await.expect("docker runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {arguments:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Kernel that prints its code.
const ECHO: &str = "
import time
from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

class Echo(Kernel):
    implementation, implementation_version, banner = 'echo', '1', ''
    language_info = {'name': 'echo', 'mimetype': 'text/plain', 'file_extension': '.txt'}

    def do_execute(self, code, silent, *arguments, **more):
        if code == 'sleep':
            time.sleep(100)
        self.send_response(self.iopub_socket, 'stream', {'name': 'stdout', 'text': code})
        return {'status': 'ok', 'execution_count': 1, 'payload': [], 'user_expressions': {}}

IPKernelApp.launch_instance(kernel_class=Echo)
";

/// Builds an image with kernels that start, and others that do not. Nothing has to be fetched for it.
pub(crate) async fn build_with_kernels(name: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let sh = |script: &str| json!(["/bin/sh", "-c", script]);
    let echo = "/usr/share/jupyter/kernels/echo/echo.py";
    for (kernel, argv) in [
        ("echo", json!(["python3", echo, "-f", "{connection_file}"])),
        ("broken", sh("echo the reason >&2; exit 3")),
        ("missing", json!(["no-such-program"])),
        ("odd", json!("no list")),
    ] {
        let own = folder.path().join("kernels").join(kernel);
        std::fs::create_dir_all(&own).expect("a folder");
        let spec = json!({"argv": argv, "display_name": kernel, "language": kernel});
        std::fs::write(own.join("kernel.json"), spec.to_string()).expect("a specification");
    }
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("a file");
    write(&folder.path().join("kernels/echo/echo.py"), ECHO);
    let bare = folder.path().join(BARE_PYTHON);
    write(&bare, "#!/bin/sh\nexec python3 -S \"$@\"\n");
    std::fs::set_permissions(&bare, Permissions::from_mode(0o755)).expect("a program");
    // The label distinguishes it from another image with the same files.
    let recipe = format!(
        "FROM {DEFAULT_IMAGE}\nLABEL test=\"{name}\"\nCOPY kernels /usr/share/jupyter/kernels\n\
         COPY {BARE_PYTHON} /usr/local/bin/\n"
    );
    build(name, &recipe, folder.path()).await;
}

/// Builds an image without any network.
pub(crate) async fn build(name: &str, recipe: &str, folder: &Path) {
    std::fs::write(folder.join("Dockerfile"), recipe).expect("a file");
    let folder = folder.to_str().expect("a name");
    let output = docker(&["build", "--network", "none", "--tag", name, folder]).await;
    assert!(!docker(&["image", "ls", "--quiet", name]).await.is_empty(), "{output}");
}

/// Lists the images of all containers.
pub(crate) async fn images_in_use() -> Vec<String> {
    let listed = docker(&["ps", "--all", "--format", "{{.Image}}"]).await;
    listed.lines().map(str::to_owned).collect()
}
