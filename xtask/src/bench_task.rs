//! `cargo xtask bench`: builds the measurements with optimization and runs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::shown;
use crate::environment::{PYTHON_PACKAGES, folder_of, jupyter_environment, virtual_environment};
use crate::setup::system_python;
use crate::suites::cargo;
use crate::test_plan::TestPlan;
use crate::{docker, image, workspace};

/// Python packages that are compared with.
const PEERS: [&str; 3] = ["code-sandboxes", "ipykernel", "jupyter_client"];

/// The interpreter with the library before this one, which is compared with too.
const DATALAYER: &str = "SANDBOX_TEST_DATALAYER_PYTHON";

/// The interpreter with the official SDK of E2B, which is a client of the server.
const E2B: &str = "SANDBOX_TEST_E2B_PYTHON";

/// Arguments that are for what is prepared, and not for the table.
const OWN: [&str; 2] = ["--peers", "--containers"];

/// Runs the table; whether every bar was met.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    let target = workspace::target();
    let Some(packages_python) =
        virtual_environment(&target.join("test-env/python"), &PYTHON_PACKAGES)
    else {
        return Err("a Python with numpy and pandas could not be made".to_owned());
    };
    let Some(jupyter_python) = jupyter_environment(&target.join("test-env/jupyter")) else {
        return Err("a Python with Jupyter could not be made".to_owned());
    };
    let Some(e2b_python) = requested(E2B)? else {
        return Err("a Python with the SDK of E2B could not be made".to_owned());
    };
    let (peers, datalayer) = (target.join("bench-env"), folder_of(DATALAYER));
    if arguments.iter().any(|argument| argument == "--peers") {
        install_peers(&peers)?;
        requested(DATALAYER)?.ok_or("a Python with code-sandboxes 0.0.11 could not be made")?;
    }
    let cli = ["build", "--profile", "optimized", "--package", "code-sandboxes-cli"];
    let cli = [&cli[..], &["--features", "full"]].concat();
    let bench = ["build", "--profile", "optimized", "--package", "xtask", "--features", "bench"];
    if !(shown(&mut cargo(&cli)) && shown(cargo(&bench).args(["--bin", "xtask-bench"]))) {
        return Err("the release build failed".to_owned());
    }
    let mut command = Command::new(target.join("optimized/xtask-bench"));
    command.arg("--packages-python").arg(packages_python);
    command.arg("--jupyter-python").arg(jupyter_python);
    command.arg("--datalayer-python").arg(datalayer.join("bin/python"));
    command.arg("--e2b-python").arg(e2b_python);
    command.arg("--peers-python").arg(peers.join("bin/python"));
    command.arg("--cli").arg(target.join("optimized/sandboxes"));
    let engine = arguments.iter().any(|argument| argument == "--containers");
    // It lives as long as this.
    let engine = engine.then(docker::engine).transpose()?;
    if let Some(engine) = &engine {
        command.args(["--image", image::IMAGE]);
        command.envs(engine.host().map(|host| ("DOCKER_HOST", host)));
    }
    // Snapshots of the user are none of our business.
    command.env("CODE_SANDBOXES_STATE_DIR", target.join("bench-state"));
    command.arg("--json").arg(target.join("bench.json"));
    command.args(arguments.iter().filter(|argument| !OWN.contains(&argument.as_str())));
    Ok(shown(&mut command))
}

/// The interpreter that a test asks for by that variable. `None`: it could not be made.
fn requested(variable: &str) -> Result<Option<PathBuf>, String> {
    let plan = TestPlan::get()?;
    let packages = plan.pythons().find(|(asked, _)| *asked == variable);
    Ok(packages.and_then(|(_, packages)| virtual_environment(&folder_of(variable), packages)))
}

/// A virtual environment with the peers. Nothing is done when it is there.
fn install_peers(folder: &Path) -> Result<(), String> {
    let stamp = folder.join("installed");
    if stamp.exists() {
        return Ok(());
    }
    let made = shown(Command::new(system_python()).args(["-m", "venv", "--clear"]).arg(folder))
        && shown(
            Command::new(folder.join("bin/python"))
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(PEERS),
        )
        && std::fs::write(stamp, PEERS.join("\n")).is_ok();
    if made { Ok(()) } else { Err("the peers could not be installed".to_owned()) }
}
