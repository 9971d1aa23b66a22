//! Automation for this workspace: `cargo xtask <task>`.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "tasks talk on their terminal")]

mod backend_task;
mod bench_task;
mod command;
mod cpython;
mod demo;
mod dependency_rules;
mod descriptor;
mod dist;
mod docker;
mod engine;
mod environment;
mod fuzz;
mod generate;
mod helper;
mod hostile_task;
mod image;
mod job_queue;
mod metadata;
mod podman;
mod programs;
mod setup;
mod suites;
mod summary;
mod test_plan;
mod test_task;
mod tidy;
mod timing;
mod toolchain;
mod unprivileged;
mod vectors;
mod workspace;

use std::process::ExitCode;

const HELP: &str = "\
Usage: cargo xtask <task>

Tasks:
  test     what must pass before a change lands: installs what it needs, then format, lints, tests, the
           dependency graph, and as root parts of them once more as an ordinary user
           (--full: every case in every combination, for a release; --no-setup: install nothing;
           --as-user: only the run as an ordinary user)
  check    format, lints (of every crate alone, too), documentation, dependency graph: what `test` begins with
  test-hostile
           the hostile suite, which `test` has among the others, in every mode that this host can have
  soak     many sandboxes: nothing grows, all answer (--count N, --alive N, --json FILE)
  tidy     the house rules about files
  generate what follows from the manifests of the backends (tables, features, registry) and the map of the files
           (--check: writes nothing and fails where something would be written)
  bench    the speed and memory table (--quick, --only NAME, --peers, --containers, --markdown, --json FILE)
  fuzz     every parser of bytes from elsewhere, with bytes that a fuzzer makes up (--seconds N, TARGET..)
  test-cpython  modules of CPython's own tests in a cell and outside, and every difference
  test-programs  everyday programs in a cell and outside, and every difference
           (NAME.., --variant NAME; --no-setup: install nothing)
  vectors  the test vectors of jupyter-protocol, made again by the reference
  dist     the program as people download it: archive, wheel, packages of Debian and npm, checksums
  demo     the picture of a terminal session in the README, made again by the program
  image    the image of local-docker, from Debian's packages and no registry (as root)
  test-docker
           the tests that need a container engine; starts one when there is none (as root)
           (--part: as much of them as `test` runs)
  test-backend NAME
           every test program of one backend, with every case of the behaviour suite
  ci       what continuous integration runs: `test` (or `test --full`), where nothing may be missing; with an
           engine of its own where it may start one, also the tests that need containers
  help     this text
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let task = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let outcome = match task.as_str() {
        "test" => test_task::run(&rest, test_task::Missing::of_environment()),
        "ci" => test_task::run(&rest, test_task::Missing::IsFailure),
        "check" => suites::check(&rest),
        "test-hostile" => hostile_task::hostile(&rest),
        "soak" => hostile_task::soak(&rest),
        "tidy" => tidy::run(),
        "generate" => generate::run(&rest),
        "bench" => bench_task::run(&rest),
        "test-cpython" => cpython::run(&rest),
        "test-programs" => programs::run(&rest),
        "demo" => demo::run(&rest),
        "dist" => dist::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "vectors" => vectors::run(&rest),
        "image" => docker::image(&rest),
        "test-docker" => docker::test(&rest),
        "test-backend" => backend_task::test(&rest),
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
