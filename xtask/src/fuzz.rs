//! `cargo xtask fuzz`: every parser of bytes from elsewhere, against bytes that a fuzzer thinks of.
//!
//! The compiler's coverage passes work with a stable toolchain, so this needs neither `cargo-fuzz` nor a nightly. With those,
//! `cargo +nightly fuzz run TARGET` adds the address sanitizer.

mod seeds;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{line_of, output};
use crate::suites::cargo;
use crate::summary::TestSummary;
use crate::workspace;

/// How long each target is fuzzed when nothing is said.
pub(crate) const SECONDS: u32 = 10;

/// What makes a program tell the fuzzer which of its branches were taken.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// The task as it is typed: `[--seconds N] [TARGET..]`.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    let (mut seconds, mut only) = (SECONDS, Vec::new());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if argument == "--seconds" {
            let number = arguments.next().and_then(|number| number.parse().ok());
            seconds = number.ok_or("--seconds needs a whole number")?;
        } else if argument.starts_with('-') {
            return Err(format!("unknown argument {argument:?}"));
        } else {
            only.push(argument.as_str());
        }
    }
    let mut tally = TestSummary::default();
    fuzz(seconds, &only, &mut tally)?;
    Ok(tally.close())
}

/// Builds the targets and gives each of them that many seconds; only those that are named, if any are.
pub(crate) fn fuzz(seconds: u32, only: &[&str], tally: &mut TestSummary) -> Result<(), String> {
    let targets = build()?;
    tally.check("the fuzz targets build", targets.is_some());
    for target in targets.into_iter().flatten() {
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if only.is_empty() || only.contains(&name.as_str()) {
            tally.check(&format!("fuzzing {name}"), fuzz_one(&target, &name, seconds)?);
        }
    }
    Ok(())
}

/// The platform of this toolchain. Only with one that is named are build scripts spared the flags.
fn host() -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".to_owned())
}

/// The programs; none when one of them does not build.
fn build() -> Result<Option<Vec<PathBuf>>, String> {
    let mut command = cargo(&["build", "--message-format=json-render-diagnostics"]);
    command.arg("--manifest-path").arg(workspace::root().join("fuzz/Cargo.toml"));
    command.args(["--target", &host()?, "--target-dir"]).arg(workspace::target().join("fuzz"));
    command.env("RUSTFLAGS", COVERAGE).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    let executable = |line: &str| {
        let message: Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    };
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(output.status.success().then(|| lines.lines().filter_map(executable).collect()))
}

/// What was found stays below `target/fuzz`: inputs that reached new code, and the one that broke it.
fn fuzz_one(target: &Path, name: &str, seconds: u32) -> Result<bool, String> {
    let place = workspace::target().join("fuzz");
    let corpus = place.join("corpus").join(name);
    std::fs::create_dir_all(&corpus).map_err(|error| format!("no corpus: {error}"))?;
    seeds::write(name, &corpus)?;
    let mut command = Command::new(target);
    command.arg(format!("-max_total_time={seconds}"));
    command.args(["-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0"]);
    command.arg(format!("-artifact_prefix={}/broken-{name}-", place.display())).arg(corpus);
    println!("$ {}", line_of(&command));
    let output = command.output().map_err(|error| format!("{name}: {error}"))?;
    // Of what went well, what the fuzzer would like to be told the next time is left out: hundreds of lines.
    let counts = |line: &&str| !output.status.success() || line.starts_with("stat::");
    String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(counts)
        .for_each(|line| println!("{line}"));
    Ok(output.status.success())
}
