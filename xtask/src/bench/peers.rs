//! What others need for the same. Information; one that is not installed says so.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::row::Row;
use crate::sample::{Measured, alone, apart, median, whole};
use crate::setup::Setup;

const SCRIPT: &str = include_str!("peers.py");

/// Images that are used when they are here already; nothing is pulled.
const IMAGE: &str = "python:3-slim";
const IMAGE_OF_CODE_SANDBOXES: &str = "code-sandboxes-jupyter:latest";

/// The Python package whose code runs in the process of its caller.
pub(crate) fn code_sandboxes(setup: &Setup) -> Vec<Row> {
    let samples = if setup.quick { 10 } else { 50 };
    let label = "code-sandboxes from PyPI, no isolation";
    python_peer(&setup.peers_python, label, "code-sandboxes", samples)
}

/// The same package with containers, whose image is its own.
pub(crate) fn containers_of_code_sandboxes(setup: &Setup) -> Vec<Row> {
    let samples = if setup.quick { 1 } else { 5 };
    let label = "code-sandboxes from PyPI, local-docker";
    if let Err(why) = has_image(IMAGE_OF_CODE_SANDBOXES) {
        return rows(label, Err(why));
    }
    python_peer(&setup.datalayer_python, label, "docker", samples)
}

/// A kernel of its own.
pub(crate) fn jupyter(setup: &Setup) -> Vec<Row> {
    let samples = if setup.quick { 2 } else { 10 };
    python_peer(&setup.peers_python, "jupyter_client with ipykernel", "jupyter", samples)
}

fn python_peer(python: &Path, label: &str, script_name: &str, samples: usize) -> Vec<Row> {
    rows(label, timed_by_script(python, script_name, samples))
}

fn rows(label: &str, measured: Measured<(f64, f64)>) -> Vec<Row> {
    let (first, warm) = apart(measured);
    vec![
        Row::information(format!("peer: {label}, start to first result"), first),
        Row::information(format!("peer: {label}, warm run"), warm),
    ]
}

/// Runs the script that times a Python library; the medians of the first and of later results.
fn timed_by_script(python: &Path, name: &str, samples: usize) -> Measured<(f64, f64)> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT, name, &samples.to_string()]);
    let Ok(output) = command.output() else { return Err("not installed".to_owned()) };
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("it failed");
        let missing = last.starts_with("ModuleNotFoundError");
        return Err(if missing { "not installed".to_owned() } else { last.to_owned() });
    }
    // A library may print too; ours is the last line.
    let printed = String::from_utf8_lossy(&output.stdout);
    let times = printed.lines().last().and_then(|line| serde_json::from_str(line).ok());
    let times: Value = times.ok_or_else(|| "it printed no times".to_owned())?;
    let middle = |kind: &str| -> Measured {
        let list = times[kind].as_array().ok_or_else(|| format!("no times of {kind}"))?;
        Ok(median(&mut list.iter().filter_map(Value::as_f64).collect::<Vec<_>>()))
    };
    Ok((middle("first")?, middle("warm")?))
}

/// A container for one run.
pub(crate) async fn docker(setup: &Setup) -> Row {
    let samples = if setup.quick { 2 } else { 10 };
    let arguments = ["run", "--rm", "--network", "none", IMAGE, "python3", "-c", "1+1"];
    let measured = match has_image(IMAGE) {
        Ok(()) => alone((samples, 1), async || whole(Command::new("docker").args(arguments))).await,
        Err(why) => Err(why),
    };
    Row::information("peer: docker run python3 -c 1+1", measured)
}

fn has_image(name: &str) -> Measured<()> {
    let found = whole(Command::new("docker").args(["image", "inspect", name]));
    found.map(drop).map_err(|_| format!("not installed, or no image {name}"))
}

/// A fresh interpreter in fresh namespaces.
pub(crate) async fn bwrap(setup: &Setup) -> Row {
    let (samples, _) = setup.samples();
    let measured = alone((samples, 1), async || {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
        whole(command.arg(&setup.python).args(["-c", "1+1"]))
    });
    Row::information("peer: bwrap --unshare-all python3 -c 1+1", measured.await)
}
