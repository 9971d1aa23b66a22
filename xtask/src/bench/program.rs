//! The `sandboxes` program as a whole process, against the interpreter alone.

use std::path::PathBuf;

use tokio::process::Command;

use crate::Setup;
use crate::row::{Bar, Row};
use crate::sample::{Measured, compare, compared, program};

pub(crate) async fn rows(setup: &Setup) -> Vec<Row> {
    let python = match resolved().await {
        Ok(python) => python,
        Err(why) => return vec![Row::plain("sandboxes run", "ms", Err(why), Bar::Ratio(2.2))],
    };
    vec![
        row(setup, &python, "sandboxes run --lang python 1+1", &[], 2.2).await,
        row(
            setup,
            &python,
            "sandboxes run --isolation off --lang python 1+1",
            &["--isolation", "off", "--quiet"],
            1.4,
        )
        .await,
    ]
}

async fn row(setup: &Setup, python: &PathBuf, name: &str, flags: &[&str], bar: f64) -> Row {
    let ours = async || {
        let mut command = Command::new(&setup.cli);
        program(command.arg("run").args(flags).args(["--lang", "python", "1+1"])).await
    };
    let measured = compare(setup.samples(20.0), ours, async || {
        program(Command::new(python).args(["-c", "1+1"])).await
    });
    compared(name, "python3 -c 1+1", measured.await, Bar::Ratio(bar))
}

/// The interpreter that `python3` stands for, without the shim that may be in front of it.
async fn resolved() -> Measured<PathBuf> {
    let mut command = Command::new("python3");
    let output = command.args(["-c", "import sys; print(sys.executable)"]).output().await;
    let output = output.map_err(|error| format!("python3: {error}"))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}
