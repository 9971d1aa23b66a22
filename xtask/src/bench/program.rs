//! The `sandboxes` program as a whole process, against the interpreter alone.

use std::process::Command;

use crate::row::{Bar, Row};
use crate::sample::{compare, settle, whole};
use crate::setup::Setup;

/// In a cell.
pub(crate) async fn run(setup: &Setup) -> Row {
    row(setup, "sandboxes run --lang python 1+1", &[], 2.2).await
}

/// Without one.
pub(crate) async fn run_off(setup: &Setup) -> Row {
    let flags = ["--isolation", "off", "--quiet"];
    row(setup, "sandboxes run --isolation off --lang python 1+1", &flags, 1.4).await
}

async fn row(setup: &Setup, name: &str, flags: &[&str], most: f64) -> Row {
    let ours = async || {
        let mut command = Command::new(&setup.cli);
        let took = whole(command.arg("run").args(flags).args(["--lang", "python", "1+1"]));
        settle().await;
        took
    };
    let alone = async || {
        let took = whole(Command::new(&setup.python).args(["-c", "1+1"]));
        settle().await;
        took
    };
    let measured = compare(setup.samples(), "python3 -c 1+1", ours, alone);
    Row::compared(name, measured.await, Bar::Ratio(most))
}
