//! What others need from nothing to a first result. Information; one that is not installed says so.

use tokio::process::Command;

use crate::Setup;
use crate::row::{Bar, Row};
use crate::sample::{Measured, alone, median, program};

const SCRIPT: &str = include_str!("peers.py");

/// An image that is used when it is here already; nothing is pulled.
const IMAGE: &str = "python:3-slim";

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let row =
        |name: &str, value| Row::plain(format!("peer: {name}"), "ms", value, Bar::Information);
    vec![
        row(
            "code-sandboxes (in its own process, no isolation)",
            in_python(setup, "code_sandboxes", "code-sandboxes", 50).await,
        ),
        row(
            "jupyter_client with ipykernel",
            in_python(
                setup,
                "jupyter_client, ipykernel",
                "jupyter",
                if setup.quick { 2 } else { 10 },
            )
            .await,
        ),
        row("docker run", docker(setup).await),
        row("bwrap --unshare-all python3 -c 1+1", bwrap(setup).await),
    ]
}

/// Runs the script that times a Python library; the median of what it prints.
async fn in_python(setup: &Setup, modules: &str, name: &str, samples: usize) -> Measured {
    let mut probe = Command::new(&setup.peers_python);
    if program(probe.args(["-c", &format!("import {modules}")])).await.is_err() {
        return Err("not installed".to_owned());
    }
    let mut command = Command::new(&setup.peers_python);
    command.args(["-c", SCRIPT, name, &samples.to_string()]);
    let output = command.output().await.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut times: Vec<f64> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    if times.len() == samples {
        return Ok(median(&mut times));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it failed").to_owned())
}

async fn docker(setup: &Setup) -> Measured {
    if program(Command::new("docker").args(["image", "inspect", IMAGE])).await.is_err() {
        return Err(format!("not installed (no engine, or no image {IMAGE})"));
    }
    let samples = if setup.quick { 2 } else { 10 };
    let arguments = ["run", "--rm", "--network", "none", IMAGE, "python3", "-c", "1+1"];
    alone((samples, 1), async || program(Command::new("docker").args(arguments)).await).await
}

async fn bwrap(setup: &Setup) -> Measured {
    if program(Command::new("bwrap").arg("--version")).await.is_err() {
        return Err("not installed".to_owned());
    }
    let (samples, _) = setup.samples(20.0);
    alone((samples, 1), async || {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-all", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]);
        program(command.arg(&setup.python).args(["-c", "1+1"])).await
    })
    .await
}
