//! Automation for this workspace: `cargo xtask <task>`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks talk on their terminal")]

mod bench_task;
mod command;
mod dist;
mod environment;
mod graph;
mod ordinary_user;
mod setup;
mod suites;
mod tally;
mod test_task;
mod tidy;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <task>

Tasks:
  test     everything: installs what it needs, then format, lints, tests, the dependency graph,
           and as root the test programs once more as an ordinary user
           (--no-setup: install nothing; --as-user: only the run as an ordinary user)
  tidy     the house rules about files
  bench    the speed and memory table (--quick, --only NAME, --peers, --markdown, --json FILE)
  dist     the program as people download it: archive, completions, manual pages, checksums
  ci       what continuous integration runs: `test`, where nothing may be missing
  help     this text
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let outcome = match task.as_str() {
        "test" => test_task::run(&rest, test_task::Missing::of_environment()),
        "ci" => test_task::run(&rest, test_task::Missing::IsFailure),
        "tidy" => tidy::run(),
        "bench" => bench_task::run(&rest),
        "dist" => dist::run(&rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(true)
        }
        "" => Err(format!("no task given\n\n{HELP}")),
        other => Err(format!("unknown task {other:?}\n\n{HELP}")),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
    }
}
