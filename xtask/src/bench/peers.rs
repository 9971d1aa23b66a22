//! What others need for the same. Information; one that is not installed says so.

use std::process::Command;

use serde_json::Value;

use crate::row::Row;
use crate::sample::{Measured, alone, apart, median, whole};
use crate::setup::Setup;

const SCRIPT: &str = include_str!("peers.py");

/// An image that is used when it is here already; nothing is pulled.
const IMAGE: &str = "python:3-slim";

/// The Python package whose code runs in the process of its caller.
pub(crate) fn code_sandboxes(setup: &Setup) -> Vec<Row> {
    let samples = if setup.quick { 10 } else { 50 };
    python_peer(setup, "code-sandboxes from PyPI, no isolation", "code-sandboxes", samples)
}

/// A kernel of its own.
pub(crate) fn jupyter(setup: &Setup) -> Vec<Row> {
    let samples = if setup.quick { 2 } else { 10 };
    python_peer(setup, "jupyter_client with ipykernel", "jupyter", samples)
}

fn python_peer(setup: &Setup, label: &str, script_name: &str, samples: usize) -> Vec<Row> {
    let (first, warm) = apart(timed_by_script(setup, script_name, samples));
    vec![
        Row::information(format!("peer: {label}, start to first result"), first),
        Row::information(format!("peer: {label}, warm run"), warm),
    ]
}

/// Runs the script that times a Python library; the medians of the first and of later results.
fn timed_by_script(setup: &Setup, name: &str, samples: usize) -> Measured<(f64, f64)> {
    let mut command = Command::new(&setup.peers_python);
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
    let measured = match whole(Command::new("docker").args(["image", "inspect", IMAGE])) {
        Ok(_) => alone((samples, 1), async || whole(Command::new("docker").args(arguments))).await,
        Err(_) => Err(format!("not installed, or no image {IMAGE}")),
    };
    Row::information("peer: docker run python3 -c 1+1", measured)
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
