//! The speed and memory table: figures of this library against yardsticks measured in the same run.
//!
//! A figure is the median of samples that take turns with those of its yardstick; the round with the best ratio
//! counts. Started by `cargo xtask bench`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "the table goes to the terminal")]

mod bare;
mod clouds;
mod codec;
mod commands;
mod create;
mod detached;
mod docker;
mod e2b_stub;
mod echo;
mod end;
mod files;
mod host;
mod interleaved;
mod jupyter;
mod layers;
mod mcp;
mod memory;
#[path = "../../../crates/backend-modal/tests/support/mod.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "a server of the tests, which use the rest")]
mod modal_service;
mod network;
mod output;
mod peers;
mod program;
mod row;
mod sample;
mod sandboxes;
mod serve;
mod setup;
mod snapshot;
mod table;
mod warm;

use std::collections::BTreeSet;
use std::process::ExitCode;

use crate::row::Row;
use crate::setup::{Arguments, Setup};

/// What can be measured, in the order of the table.
#[derive(Clone, Copy, Debug)]
enum Measurement {
    Memory,
    Create,
    CreatePooled,
    CreateImported,
    CreateOff,
    Warm,
    Layers,
    Mcp,
    Lines,
    Bytes,
    Run,
    RunOff,
    Exec,
    CommandStart,
    CommandEcho,
    FilesSmall,
    FilesLarge,
    FilesInterrupt,
    NetworkGet,
    Snapshot,
    End,
    Codec,
    Jupyter,
    Serve,
    Docker,
    Clouds,
    PeerCodeSandboxes,
    PeerJupyter,
    PeerDocker,
    PeerContainers,
    PeerBwrap,
}

impl Measurement {
    const ALL: [Self; 31] = [
        // First, while no interpreter of another row is there.
        Self::Memory,
        Self::Create,
        Self::CreatePooled,
        Self::CreateImported,
        Self::CreateOff,
        Self::Warm,
        Self::Layers,
        Self::Mcp,
        Self::Lines,
        Self::Bytes,
        Self::Run,
        Self::RunOff,
        Self::Exec,
        Self::CommandStart,
        Self::CommandEcho,
        Self::FilesSmall,
        Self::FilesLarge,
        Self::FilesInterrupt,
        Self::NetworkGet,
        Self::Snapshot,
        Self::End,
        Self::Codec,
        Self::Jupyter,
        Self::Serve,
        Self::Docker,
        Self::Clouds,
        Self::PeerCodeSandboxes,
        Self::PeerJupyter,
        Self::PeerDocker,
        Self::PeerContainers,
        Self::PeerBwrap,
    ];

    /// What `--only` is compared with.
    const fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::CreatePooled => "create-pooled",
            Self::CreateImported => "create-imported",
            Self::CreateOff => "create-off",
            Self::Warm => "warm",
            Self::Layers => "layers",
            Self::Mcp => "mcp",
            Self::Lines => "lines",
            Self::Bytes => "bytes",
            Self::Memory => "memory",
            Self::Run => "run",
            Self::RunOff => "run-off",
            Self::Exec => "exec",
            Self::CommandStart => "command-start",
            Self::CommandEcho => "command-echo",
            Self::FilesSmall => "files-small",
            Self::FilesLarge => "files-large",
            Self::FilesInterrupt => "files-interrupt",
            Self::NetworkGet => "network-get",
            Self::Snapshot => "snapshot",
            Self::End => "end",
            Self::Codec => "codec",
            Self::Jupyter => "jupyter",
            Self::Serve => "serve",
            Self::Docker => "docker",
            Self::Clouds => "clouds",
            Self::PeerCodeSandboxes => "peer-code-sandboxes",
            Self::PeerJupyter => "peer-jupyter",
            Self::PeerDocker => "peer-docker",
            Self::PeerContainers => "peer-containers",
            Self::PeerBwrap => "peer-bwrap",
        }
    }

    /// What it needs besides this program, as the flags that name them.
    const fn needs(self) -> &'static [&'static str] {
        match self {
            Self::CreateImported | Self::Snapshot => &["packages-python"],
            Self::Mcp | Self::Run | Self::RunOff | Self::Exec => &["cli"],
            Self::Serve => &["cli", "e2b-python"],
            Self::Jupyter => &["jupyter-python"],
            _ => &[],
        }
    }

    /// Those of a name, or of names that begin with it and a hyphen.
    fn chosen(only: Option<&str>) -> Vec<Self> {
        let wanted = |measurement: &Self| {
            only.is_none_or(|only| {
                let rest = measurement.name().strip_prefix(only);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
            })
        };
        Self::ALL.into_iter().filter(wanted).collect()
    }

    async fn rows(self, setup: &Setup) -> Vec<Row> {
        match self {
            Self::Create => vec![create::strict(setup).await, create::unlike(setup).await],
            Self::CreatePooled => vec![create::pooled(setup).await],
            Self::CreateImported => vec![create::imported(setup).await],
            Self::CreateOff => vec![create::off(setup).await],
            Self::Warm => warm::rows(setup).await,
            Self::Layers => layers::rows(setup).await,
            Self::Mcp => mcp::rows(setup).await,
            Self::Lines => vec![output::lines(setup).await],
            Self::Bytes => output::bytes(setup).await,
            Self::Memory => memory::rows(setup).await,
            Self::Run => vec![program::run(setup).await],
            Self::RunOff => vec![program::run_off(setup).await],
            Self::Exec => vec![detached::exec(setup).await],
            Self::CommandStart => vec![commands::start(setup).await],
            Self::CommandEcho => vec![commands::echo(setup).await],
            Self::FilesSmall => vec![files::small().await],
            Self::FilesLarge => files::large(setup).await,
            Self::FilesInterrupt => vec![files::interrupt(setup).await],
            Self::NetworkGet => vec![network::get(setup).await],
            Self::Snapshot => snapshot::rows(setup).await,
            Self::End => end::rows(setup).await,
            Self::Codec => vec![codec::row(setup).await],
            Self::Jupyter => jupyter::rows(setup).await,
            Self::Serve => serve::rows(setup).await,
            Self::Docker => docker::rows(setup).await,
            Self::Clouds => clouds::rows(setup).await,
            Self::PeerCodeSandboxes => peers::code_sandboxes(setup),
            Self::PeerJupyter => peers::jupyter(setup),
            Self::PeerDocker => vec![peers::docker(setup).await],
            Self::PeerContainers => peers::containers_of_code_sandboxes(setup),
            Self::PeerBwrap => vec![peers::bwrap(setup).await],
        }
    }
}

/// One thread runs both the caller and the library, as in a small program.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // The yardstick of the MCP server is this program.
    let is_echo = std::env::args().nth(1).is_some_and(|argument| argument == mcp::ECHO_FLAG);
    let done = if is_echo { mcp::echo().await.map(|()| true) } else { table().await };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}

/// Measures and prints; whether every bar was met. A quick run is for a first impression and misses nothing.
async fn table() -> Result<bool, String> {
    let arguments = Arguments::parse().map_err(|error| error.to_string())?;
    let chosen = Measurement::chosen(arguments.only.as_deref());
    if chosen.is_empty() {
        let names: Vec<_> = Measurement::ALL.map(Measurement::name).into();
        return Err(format!("nothing has that name; there are: {}", names.join(", ")));
    }
    if arguments.needs {
        let all: BTreeSet<_> = chosen.iter().flat_map(|one| one.needs()).collect();
        all.into_iter().for_each(|need| println!("{need}"));
        return Ok(true);
    }
    let setup = Setup::find(&arguments).await?;
    let mut rows: Vec<Row> = Vec::new();
    for measurement in chosen {
        eprintln!("measuring {}", measurement.name());
        rows.extend(measurement.rows(&setup).await);
    }
    let text = if arguments.markdown { table::markdown(&rows) } else { table::plain(&rows) };
    print!("{text}");
    if let Some(path) = &arguments.json {
        let json = table::json(&host::describe(&setup), &rows);
        std::fs::write(path, json).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let missed: Vec<_> = rows.iter().filter(|row| row.misses()).map(|row| &*row.name).collect();
    if !missed.is_empty() {
        eprintln!("bars missed: {}", missed.join("; "));
    }
    Ok(setup.quick || missed.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_chooses_by_name() {
        let names = |only| -> Vec<_> {
            Measurement::chosen(only).into_iter().map(Measurement::name).collect()
        };
        assert_eq!(names(None).len(), Measurement::ALL.len());
        assert_eq!(names(Some("run")), ["run", "run-off"]);
        assert_eq!(names(Some("run-off")), ["run-off"]);
        assert_eq!(names(Some("ru")), [""; 0]);
    }

    #[test]
    fn only_what_a_measurement_uses_is_prepared() {
        let needs = |only| -> Vec<_> {
            Measurement::chosen(Some(only)).into_iter().flat_map(Measurement::needs).collect()
        };
        assert!(needs("layers").is_empty());
        assert_eq!(needs("run"), [&"cli", &"cli"]);
        assert_eq!(needs("serve"), [&"cli", &"e2b-python"]);
    }
}
