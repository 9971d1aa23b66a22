//! The speed and memory table: figures of this library against yardsticks measured in the same run.
//!
//! A figure is the median of interleaved samples; a ratio is the best of the rounds. Started by `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table goes to the terminal")]

mod latency;
mod memory;
mod peers;
mod program;
mod row;
mod sample;
mod throughput;

use std::path::PathBuf;
use std::process::ExitCode;

use code_sandboxes::{IsolationMode, Registry, Sandbox, SandboxBuilder};

use crate::row::{Row, print_table, to_json};

/// How a run of the table is set up.
pub(crate) struct Setup {
    /// The interpreter of the sandboxes, with numpy and pandas.
    pub(crate) python: PathBuf,
    /// The `sandboxes` program, optimized.
    pub(crate) cli: PathBuf,
    /// An interpreter that may have the peers.
    pub(crate) peers_python: PathBuf,
    /// Fewer samples, for a first impression.
    pub(crate) quick: bool,
    json: Option<PathBuf>,
}

impl Setup {
    fn parse() -> Result<Self, lexopt::Error> {
        use lexopt::prelude::*;

        let mut setup = Self {
            python: "python3".into(),
            cli: "sandboxes".into(),
            peers_python: PathBuf::new(),
            quick: false,
            json: None,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("python") => setup.python = parser.value()?.into(),
                Long("cli") => setup.cli = parser.value()?.into(),
                Long("peers-python") => setup.peers_python = parser.value()?.into(),
                Long("json") => setup.json = Some(parser.value()?.into()),
                Long("quick") => setup.quick = true,
                other => return Err(other.unexpected()),
            }
        }
        Ok(setup)
    }

    /// A builder of sandboxes as the table measures them.
    pub(crate) fn builder(&self, isolation: IsolationMode) -> SandboxBuilder<Registry> {
        let python = self.python.to_string_lossy().into_owned();
        Sandbox::builder().isolation(isolation).provider_option("python", python)
    }

    /// Samples of something that takes about that many milliseconds, and rounds of them.
    pub(crate) fn samples(&self, milliseconds: f64) -> (usize, usize) {
        let full = if milliseconds < 100.0 { 200 } else { 15 };
        if self.quick { (full / 5, 1) } else { (full, 3) }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let setup = match Setup::parse() {
        Ok(setup) => setup,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let rows = measure(&setup).await;
    print_table(&rows);
    if let Some(path) = &setup.json
        && let Err(error) = std::fs::write(path, to_json(&rows))
    {
        eprintln!("error: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    let missed: Vec<_> = rows.iter().filter(|row| row.misses()).map(|row| &*row.name).collect();
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("bars missed: {}", missed.join("; "));
    ExitCode::FAILURE
}

async fn measure(setup: &Setup) -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(latency::rows(setup).await);
    rows.extend(throughput::rows(setup).await);
    rows.extend(memory::rows(setup).await);
    rows.extend(program::rows(setup).await);
    rows.extend(peers::rows(setup).await);
    rows
}
