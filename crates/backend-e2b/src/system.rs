//! What a sandbox is asked by small scripts: its working directory, its processor time, and packages.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_agent_client::parse_environment;
use sandbox_cloud::Backoff;
use sandbox_core::{CallContext, Error, ErrorKind, Metrics, Result};
use sandbox_engine::system_packages;

use crate::envd::{Envd, Output, StartProcess};

/// Makes a directory, if one is named, and prints the working directory.
const DIRECTORY: &str = r#"if [ "$1" ]; then mkdir -p -- "$1" && cd -- "$1" || exit 1; fi; pwd"#;

/// Prints the environment variables of programs, where there is a Python that the agent can run in.
const PYTHON: &str = r#"python=$(command -v python3 || command -v python) || exit 96
exec "$python" -I -S -c 'import os, sys
if sys.version_info < (3, 9): sys.exit(96)
os.write(1, b"".join(b"%s=%s\0" % pair for pair in os.environb.items()))'"#;

/// Prints the processor time in ticks, the ticks of a second, and the number of processes.
const PROCESSOR: &str = r#"read -r _ user nice system _ _ irq softirq _ </proc/stat
count=0
for process in /proc/[0-9]*; do count=$((count + 1)); done
echo $((user + nice + system + irq + softirq)) "$(getconf CLK_TCK 2>/dev/null || echo 100)" $count"#;

/// Installs Python packages for the user of the sandbox.
const PIP: &str = r#"command -v python3 >/dev/null || exit 96
exec python3 -m pip install --no-input --disable-pip-version-check "$@""#;

/// Status of [`PYTHON`] and [`PIP`] where there is no Python.
const NO_PYTHON: i32 = 96;

const INSTALL: &str = "install_packages";
const MAX_NAMES: usize = 1000;

/// Returns the working directory, which is made if it was asked for. `limit` is the time for a sandbox that is starting.
///
/// # Errors
/// `InvalidArgument` for a directory that cannot be made, and what kept the sandbox from answering.
pub(crate) async fn working_directory(
    envd: &Envd,
    wanted: Option<&str>,
    limit: Duration,
) -> Result<String> {
    let (call, mut backoff) = (CallContext::new(), Backoff::new(limit));
    let output = loop {
        match envd.run("create", DIRECTORY, &[wanted.unwrap_or_default()]).await {
            Ok(output) => break output,
            Err(error) if !is_starting(&error) || !backoff.wait(&call).await => return Err(error),
            Err(_) => {}
        }
    };
    let path = output.text();
    let path = path.strip_suffix('\n').unwrap_or(&path);
    match (output.status, wanted) {
        (0, _) if path.starts_with('/') => Ok(path.to_owned()),
        (_, Some(wanted)) => {
            let why = output.last_error();
            let message = format!("cannot be made in the sandbox, got {wanted:?}: {why}");
            Err(Error::invalid("working_dir", message))
        }
        _ => {
            let message = "the sandbox does not tell its working directory";
            Err(Error::new(ErrorKind::Protocol, "create", message))
        }
    }
}

/// Returns the environment variables that programs start with, or `None` where there is no Python 3.9 or later.
///
/// # Errors
/// What kept the sandbox from answering.
pub(crate) async fn python_environment(envd: &Envd) -> Result<Option<BTreeMap<String, String>>> {
    // Without a variable of ours: what is found is what programs have.
    let script = StartProcess::shell(PYTHON, []);
    let output = envd.run_process("create", &script).await?;
    Ok((output.status == 0).then(|| parse_environment(&output.stdout)))
}

/// Returns true for errors of a sandbox whose daemon does not listen yet.
pub(crate) fn is_starting(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::ConnectionLost)
}

/// Adds processor time and number of processes to what the service has measured.
///
/// # Errors
/// What kept the sandbox from answering.
pub(crate) async fn processor(envd: &Envd, metrics: &mut Metrics) -> Result<()> {
    let output = envd.run("metrics", PROCESSOR, &[]).await?;
    let Some((cpu_time, processes)) = parse_processor(&output.text()) else {
        let message = "the sandbox does not tell its processor time";
        return Err(Error::new(ErrorKind::Protocol, "metrics", message));
    };
    (metrics.cpu_time, metrics.processes) = (cpu_time, processes);
    Ok(())
}

fn parse_processor(text: &str) -> Option<(f64, u32)> {
    let mut words = text.split_whitespace();
    let ticks: f64 = words.next()?.parse().ok()?;
    let second: f64 = words.next()?.parse().ok()?;
    let count = words.next()?.parse().ok()?;
    (second > 0.0).then(|| (ticks / second, count))
}

/// Installs Python packages.
///
/// # Errors
/// `InvalidArgument` for what is no requirement, `NotFound`, `Unsupported` without Python, and pip's own words.
pub(crate) async fn install_python(envd: &Envd, names: &[String], upgrade: bool) -> Result<()> {
    check_requirements(names)?;
    if names.is_empty() {
        return Ok(());
    }
    let mut arguments = if upgrade { vec!["--upgrade", "--"] } else { vec!["--"] };
    arguments.extend(names.iter().map(String::as_str));
    let output = envd.run(INSTALL, PIP, &arguments).await?;
    match output.status {
        0 => Ok(()),
        NO_PYTHON => Err(Error::unsupported(INSTALL, "the template has no Python")),
        _ => Err(pip_failed(&output)),
    }
}

fn check_requirements(names: &[String]) -> Result<()> {
    if names.len() > MAX_NAMES {
        return Err(Error::invalid("packages", format!("must be at most {MAX_NAMES}")));
    }
    let is_requirement = |name: &String| {
        let first = name.chars().next();
        first.is_some_and(|c| c.is_ascii_alphanumeric()) && !name.chars().any(char::is_control)
    };
    match names.iter().find(|name| !is_requirement(name)) {
        Some(name) => Err(Error::invalid(
            "packages",
            format!("must be requirements such as `numpy` or `numpy>=2`, got {name:.100?}"),
        )),
        None => Ok(()),
    }
}

fn pip_failed(output: &Output) -> Error {
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("ERROR:")).collect();
    let said = if errors.is_empty() { output.last_error() } else { errors.join(" ") };
    let said: String = said.chars().take(500).collect();
    let has = |part: &str| text.contains(part);
    let kind = if has("Invalid requirement") {
        ErrorKind::InvalidArgument
    } else if has("Temporary failure in name resolution") || has("NewConnectionError") {
        ErrorKind::Unavailable
    } else if has("No matching distribution found") {
        ErrorKind::NotFound
    } else if has("No space left on device") {
        ErrorKind::ResourceExhausted
    } else {
        ErrorKind::Unavailable
    };
    Error::new(kind, INSTALL, format!("pip: {said}"))
}

/// Installs packages of the system, as its administrator.
///
/// # Errors
/// `InvalidArgument` for malformed names, and those of the package manager.
pub(crate) async fn install_system(envd: &Envd, names: Vec<String>) -> Result<()> {
    let names = system_packages::checked(names)?;
    if names.is_empty() {
        return Ok(());
    }
    let root = envd.as_root();
    let mut process =
        StartProcess::shell(system_packages::SCRIPT, names.iter().map(String::as_str));
    // The script ends early when its standard input does.
    process.stdin = true;
    process.env.insert("LC_ALL".into(), "C".into());
    let output = root.run_process(INSTALL, &process).await?;
    if output.status == 0 {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(system_packages::failed(&said, i64::from(output.status), false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_and_others_refused() {
        assert_eq!(parse_processor("12345 100 17\n"), Some((123.45, 17)));
        for text in ["", "1 0 2", "1 100", "x 100 1"] {
            assert_eq!(parse_processor(text), None, "{text:?}");
        }
    }

    #[test]
    fn options_are_no_packages() {
        check_requirements(&["numpy>=2".into(), "pandas[excel]".into()]).unwrap();
        for name in ["--index-url=https://x.example", "", "-r", "a\nb"] {
            check_requirements(&[name.into()]).unwrap_err();
        }
    }

    #[test]
    fn words_of_pip_have_their_kind() {
        let kind = |stderr: &str| {
            pip_failed(&Output { status: 1, stderr: stderr.into(), ..Output::default() }).kind()
        };
        let missing = "ERROR: No matching distribution found for nothing-of-that-name";
        assert_eq!(kind(missing), ErrorKind::NotFound);
        let offline = "WARNING: Temporary failure in name resolution\nERROR: No matching distribution found for x";
        assert_eq!(kind(offline), ErrorKind::Unavailable);
    }
}
