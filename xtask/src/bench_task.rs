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
    let bench = ["build", "--profile", "optimized", "--package", "xtask", "--features", "bench"];
    if !shown(cargo(&bench).args(["--bin", "xtask-bench"])) {
        return Err("the optimized build failed".to_owned());
    }
    let program = target.join("optimized/xtask-bench");
    let own = |argument: &&String| OWN.contains(&argument.as_str());
    let passed: Vec<_> = arguments.iter().filter(|argument| !own(argument)).collect();
    let mut command = Command::new(&program);
    for need in needs(&program, &passed)? {
        command.arg(format!("--{need}")).arg(prepared(&need, &target)?);
    }
    let (peers, datalayer) = (target.join("bench-env"), folder_of(DATALAYER));
    if arguments.iter().any(|argument| argument == "--peers") {
        install_peers(&peers)?;
        requested(DATALAYER)?.ok_or("a Python with code-sandboxes 0.0.11 could not be made")?;
    }
    command.arg("--datalayer-python").arg(datalayer.join("bin/python"));
    command.arg("--peers-python").arg(peers.join("bin/python"));
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
    command.args(passed);
    Ok(shown(&mut command))
}

/// Asks the measurements what they need besides their program.
fn needs(program: &Path, arguments: &[&String]) -> Result<Vec<String>, String> {
    let output = Command::new(program).arg("--needs").args(arguments).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned());
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// Builds or installs what the measurements need, and returns its path.
fn prepared(need: &str, target: &Path) -> Result<PathBuf, String> {
    match need {
        "cli" => {
            let build = ["build", "--profile", "optimized", "--package", "code-sandboxes-cli"];
            let is_built = shown(cargo(&build).args(["--features", "full"]));
            is_built.then(|| target.join("optimized/sandboxes")).ok_or("the optimized build failed")
        }
        "packages-python" => virtual_environment(&target.join("test-env/python"), &PYTHON_PACKAGES)
            .ok_or("a Python with numpy and pandas could not be made"),
        "jupyter-python" => jupyter_environment(&target.join("test-env/jupyter"))
            .ok_or("a Python with Jupyter could not be made"),
        "e2b-python" => requested(E2B)?.ok_or("a Python with the SDK of E2B could not be made"),
        _ => Err("the measurements need something that has no recipe"),
    }
    .map_err(|why| format!("{need}: {why}"))
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
