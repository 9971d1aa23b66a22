//! `cargo xtask bench`: builds the measurements with optimization and runs them.

use std::path::PathBuf;
use std::process::Command;

use crate::command::shown;
use crate::environment::Environment;
use crate::setup;
use crate::suites::cargo;
use crate::workspace;

/// Python packages that are compared with.
const PEERS: [&str; 3] = ["code-sandboxes", "ipykernel", "jupyter_client"];

/// Runs the table; whether every bar was met.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    let install_peers = arguments.iter().any(|argument| argument == "--peers");
    let missing = setup::install();
    if !missing.is_empty() {
        println!("missing: {}", missing.join(", "));
    }
    let (environment, _) = Environment::prepare();
    let python = environment.python.ok_or("there is no Python with numpy and pandas")?;
    let peers = workspace::target().join("test-env/peers");
    if install_peers {
        make_peers(&peers)?;
    }
    let build = ["build", "--release", "--package", "code-sandboxes-cli", "--bin", "sandboxes"];
    let bench = ["build", "--release", "--package", "xtask", "--features", "bench"];
    if !(shown(&mut cargo(&build)) && shown(cargo(&bench).args(["--bin", "xtask-bench"]))) {
        return Err("the release build failed".to_owned());
    }
    let release = workspace::target().join("release");
    let mut command = Command::new(release.join("xtask-bench"));
    command.arg("--python").arg(python);
    command.arg("--cli").arg(release.join("sandboxes"));
    command.arg("--peers-python").arg(peers.join("bin/python"));
    command.args(arguments.iter().filter(|argument| *argument != "--peers"));
    Ok(shown(&mut command))
}

fn make_peers(folder: &PathBuf) -> Result<(), String> {
    let made = shown(Command::new(setup::system_python()).args(["-m", "venv"]).arg(folder))
        && shown(
            Command::new(folder.join("bin/python"))
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(PEERS),
        );
    if made { Ok(()) } else { Err("the peers could not be installed".to_owned()) }
}
