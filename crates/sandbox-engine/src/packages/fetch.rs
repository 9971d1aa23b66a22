//! Fetches the wheels of packages to a directory of the host.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Result, Retry, format_duration};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use super::OPERATION;

const PROGRAM: &str = include_str!("fetch.py");

/// Settings of pip that would change what pip is asked to do here.
pub(super) const UNSET: [&str; 9] = [
    "PIP_DOWNLOAD",
    "PIP_DRY_RUN",
    "PIP_PLATFORM",
    "PIP_PREFIX",
    "PIP_REPORT",
    "PIP_REQUIRE_VIRTUALENV",
    "PIP_ROOT",
    "PIP_TARGET",
    "PIP_USER",
];

/// Time limit of each step: an index may send forever, and code in the sandbox may delay pip forever.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(30 * 60);

const MAX_NAMES: usize = 1000;
const MAX_NAME_LENGTH: usize = 500;

/// Options of pip that may be given: where packages come from, and how the index is reached.
const SOURCES: [&str; 11] = [
    "--cert",
    "--client-cert",
    "--constraint",
    "--extra-index-url",
    "--find-links",
    "--index-url",
    "--no-index",
    "--pre",
    "--proxy",
    "--timeout",
    "--trusted-host",
];

/// Checks an option for pip: one of those about where packages come from, with its value after `=`.
pub fn is_option(option: &str) -> bool {
    let name = option.split('=').next().unwrap_or_default();
    let alone = matches!(name, "--no-index" | "--pre");
    SOURCES.contains(&name) && alone != option.contains('=')
}

/// The interpreter's own pip, on the host.
#[derive(Debug)]
pub(super) struct Pip {
    executable: PathBuf,
    options: Vec<String>,
    /// Set when the packages of this interpreter are not those of the sandbox.
    is_elsewhere: bool,
}

/// One distribution to install.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pinned {
    pub(super) name: String,
    pub(super) version: String,
}

/// Downloaded wheels, which are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Wheels {
    directory: TempDir,
    names: Vec<PathBuf>,
}

impl Wheels {
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| self.directory.path().join(name)).collect()
    }
}

/// Checks requirements as pip takes them: a name with extras, versions and a marker. No option, no path and no address,
/// because those can be sources, and sources run code when they are built.
pub(super) fn requirements(names: Vec<String>) -> Result<Vec<String>> {
    let invalid = |name: &str, why: &str| {
        Err(Error::invalid("packages", format!("{why}, got {name:.100?}"))
            .with_hint(
                "name packages as in `requests>=2,<3`; of sources make a wheel, copy that into the sandbox, and install it \
                 there: `.files().upload(..)`, then the command `pip install ./x.whl`",
            ))
    };
    if names.len() > MAX_NAMES {
        return Err(Error::invalid("packages", format!("must be at most {MAX_NAMES}")));
    }
    let mut checked = Vec::new();
    for name in names {
        let name = name.trim();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-[]<>=!~,;()'\"*+ ".contains(c);
        if name.len() > MAX_NAME_LENGTH || !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            return invalid(name, "must be a name, and perhaps versions");
        }
        if !name.chars().all(allowed) {
            return invalid(name, "must have no address, path or other special character");
        }
        checked.push(name.to_owned());
    }
    Ok(checked)
}

/// Returns true when two requirements are about one package.
pub(super) fn is_same(one: &str, other: &str) -> bool {
    let in_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name = |requirement: &str| {
        canonical(requirement.split(|c| !in_name(c)).next().unwrap_or_default())
    };
    name(one) == name(other)
}

/// Returns the canonical spelling of a name.
pub(super) fn canonical(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

impl Pip {
    pub(super) fn new(executable: PathBuf, options: Vec<String>) -> Self {
        Self { executable, options, is_elsewhere: false }
    }

    /// Makes a pip for an interpreter elsewhere, which has none of the packages of this one.
    pub(super) fn elsewhere(executable: PathBuf, options: Vec<String>) -> Self {
        Self { executable, options, is_elsewhere: true }
    }

    pub(super) fn is_elsewhere(&self) -> bool {
        self.is_elsewhere
    }

    async fn run(&self, verb: &str, directory: &Path, arguments: &[String]) -> Result<()> {
        let mut pip = Command::new(&self.executable);
        pip.args(self.words(verb))
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        for name in UNSET {
            pip.env_remove(name);
        }
        let output = timeout(STEP_TIMEOUT, pip.output()).await.map_err(|_| not_in_time())?;
        let output = output.map_err(host_problem)?;
        if output.status.success() {
            return Ok(());
        }
        Err(refused(&String::from_utf8_lossy(&output.stderr)))
    }

    /// Returns the arguments of the interpreter, up to those of a verb.
    fn words(&self, verb: &str) -> Vec<String> {
        let own = ["-I", "-c", PROGRAM, verb, "--only-binary=:all:", "--no-input"];
        let more = ["--disable-pip-version-check", "--quiet", "--retries=2"];
        let words = own.into_iter().chain(more).map(str::to_owned);
        words.chain(self.options.iter().cloned()).collect()
    }

    fn program(&self, verb: &str, arguments: Vec<String>) -> Vec<String> {
        let mut program = vec![self.executable.to_string_lossy().into_owned()];
        program.extend(self.words(verb));
        program.extend(arguments);
        program
    }

    /// Returns the program that writes a report of what would be installed.
    pub(super) fn resolving(
        &self,
        report: &str,
        requirements: &[String],
        upgrade: bool,
    ) -> Vec<String> {
        self.program("install", self.resolution(report, requirements, upgrade))
    }

    /// Returns the program that fetches the wheels of exactly those into a directory.
    pub(super) fn downloading(&self, directory: &str, pinned: &[Pinned]) -> Vec<String> {
        self.program("download", downloading(directory, pinned))
    }

    fn resolution(&self, report: &str, requirements: &[String], upgrade: bool) -> Vec<String> {
        let upgrading = upgrade.then(|| "--upgrade".to_owned());
        let ignoring = self.is_elsewhere.then(|| "--ignore-installed".to_owned());
        let fixed = ["--dry-run".to_owned(), format!("--report={report}")];
        let requirements = requirements.iter().cloned();
        let options = fixed.into_iter().chain(ignoring).chain(upgrading);
        options.chain(["--".to_owned()]).chain(requirements).collect()
    }

    /// Resolves everything that has to be installed beside what the interpreter has.
    pub(super) async fn resolve(
        &self,
        requirements: &[String],
        upgrade: bool,
    ) -> Result<Vec<Pinned>> {
        let directory = tempfile::tempdir().map_err(host_problem)?;
        let report = directory.path().join("report.json");
        let arguments = self.resolution(&report.display().to_string(), requirements, upgrade);
        self.run("install", directory.path(), &arguments).await?;
        pinned(&fs::read(&report).map_err(host_problem)?)
    }

    /// Downloads the wheels of exactly those.
    pub(super) async fn download(&self, pinned: &[Pinned]) -> Result<Wheels> {
        let directory = tempfile::tempdir().map_err(host_problem)?;
        let empty = tempfile::tempdir().map_err(host_problem)?;
        let arguments = downloading(&directory.path().display().to_string(), pinned);
        self.run("download", empty.path(), &arguments).await?;
        let mut names = Vec::new();
        for entry in fs::read_dir(directory.path()).map_err(host_problem)? {
            let entry = entry.map_err(host_problem)?;
            let name = PathBuf::from(entry.file_name());
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            if !is_file || name.extension().is_none_or(|extension| extension != "whl") {
                let message = format!("{} is no wheel", name.display());
                return Err(Error::new(ErrorKind::Unexpected, OPERATION, message));
            }
            names.push(name);
        }
        names.sort();
        Ok(Wheels { directory, names })
    }
}

fn downloading(directory: &str, pinned: &[Pinned]) -> Vec<String> {
    let mut arguments =
        vec!["--no-deps".to_owned(), format!("--dest={directory}"), "--".to_owned()];
    arguments.extend(pinned.iter().map(|pin| format!("{}=={}", pin.name, pin.version)));
    arguments
}

pub(super) fn pinned(report: &[u8]) -> Result<Vec<Pinned>> {
    #[derive(Deserialize)]
    struct Report {
        install: Vec<Item>,
    }
    #[derive(Deserialize)]
    struct Item {
        metadata: Metadata,
        #[serde(default)]
        is_direct: bool,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: String,
        version: String,
    }
    let report: Report = serde_json::from_slice(report).map_err(|error| {
        Error::new(ErrorKind::Unexpected, OPERATION, "pip wrote no report").with_source(error)
    })?;
    let pin = |item: Item| {
        let Metadata { name, version } = item.metadata;
        if item.is_direct {
            let message = format!("{name} is named by an address, which may be sources");
            return Err(Error::new(ErrorKind::InvalidArgument, OPERATION, message));
        }
        Ok(Pinned { name, version })
    };
    report.install.into_iter().map(pin).collect()
}

/// Makes the error of a failure of pip.
pub(super) fn refused(said: &str) -> Error {
    let words = exit_message(said);
    let has = |parts: &[&str]| parts.iter().any(|part| said.contains(part));
    let error = |kind, message| Error::new(kind, OPERATION, message);
    if has(&["No module named pip"]) {
        return error(ErrorKind::Unsupported, "the interpreter has no pip".to_owned()).with_hint(
            "install it: `python -m ensurepip`, or Debian: apt-get install python3-pip",
        );
    }
    if has(&["no such option: --report", "no such option: --dry-run"]) {
        return error(ErrorKind::Unsupported, "the interpreter's pip is too old".to_owned())
            .with_hint("pip 22.2 or later is needed");
    }
    if has(&[
        "Connection",
        "Failed to establish",
        "Could not fetch URL",
        "timed out",
        "Temporary failure",
    ]) {
        return error(
            ErrorKind::Unavailable,
            format!("the package index cannot be reached: {words}"),
        )
        .with_retry(Retry::Temporary);
    }
    if has(&["No matching distribution", "Could not find a version"]) {
        return error(ErrorKind::NotFound, words)
            .with_hint("there is no such package or version, or it has no wheel for this interpreter; sources are not built");
    }
    if has(&["ResolutionImpossible", "conflict", "Invalid requirement", "usage:", "Usage:"]) {
        return error(ErrorKind::InvalidArgument, words);
    }
    error(ErrorKind::Unexpected, format!("pip failed: {words}"))
}

/// Joins the last lines that are not empty to one.
pub(super) fn exit_message(said: &str) -> String {
    const MAX_DOWNLOADS: usize = 4;
    let wanted =
        |line: &&str| !line.is_empty() && !line.starts_with("WARNING: There was an error checking");
    let mut lines: Vec<&str> = said.lines().map(str::trim).filter(wanted).collect();
    if let Some(first) = lines.iter().position(|line| line.starts_with("ERROR:")) {
        lines.drain(..first);
        lines.truncate(MAX_DOWNLOADS);
    } else {
        lines.drain(..lines.len().saturating_sub(MAX_DOWNLOADS));
    }
    let words: Vec<&str> = lines.iter().map(|line| line.trim_start_matches("ERROR: ")).collect();
    words.join("; ").chars().take(1000).collect()
}

pub(super) fn not_in_time() -> Error {
    let message = format!("packages were not installed within {}", format_duration(STEP_TIMEOUT));
    Error::new(ErrorKind::Timeout, OPERATION, message)
        .with_hint("the index may be slow, or code in the sandbox may delay pip")
}

pub(super) fn host_problem(error: io::Error) -> Error {
    let message = "wheels cannot be fetched on this host";
    Error::new(ErrorKind::Unavailable, OPERATION, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_are_requirements() {
        let one = |name: &str| requirements(vec![name.to_owned()]);
        for fine in ["requests", "a.b_c-d[x,y]>=1.0,!=2.*; python_version < '4'", " numpy == 2 "] {
            one(fine).unwrap();
        }
        for bad in [
            "",
            "-r x",
            "--index-url=http://x",
            "./here",
            "/there",
            "a/b",
            "x @ file:///y",
            "git+https://h/x",
            "a\nb",
            "a\\b",
            "é",
        ] {
            assert_eq!(one(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }

    // Otherwise a package that this host happens to have would be missing in the sandbox, without an error.
    #[test]
    fn what_this_host_has_counts_only_where_it_is_there_too() {
        let ignores = |pip: Pip| {
            let words = pip.resolving("report.json", &["numpy".to_owned()], false);
            let (at, end) =
                (words.iter().position(|word| word == "--ignore-installed"), words.len());
            assert_eq!(words[end - 2..], ["--", "numpy"]);
            at.is_some_and(|at| at < end - 2)
        };
        assert!(!ignores(Pip::new("python3".into(), Vec::new())));
        assert!(ignores(Pip::elsewhere("python3".into(), Vec::new())));
    }

    #[test]
    fn a_package_is_known_by_its_name() {
        assert!(is_same("Foo_Bar[x]>=1", "foo.bar==2"));
        assert!(!is_same("foo>1", "foo-bar>1"));
    }

    #[test]
    fn options_are_about_sources_alone() {
        for fine in ["--no-index", "--find-links=/x", "--index-url=https://h/simple", "--pre"] {
            assert!(is_option(fine), "{fine}");
        }
        for bad in ["--find-links", "--no-index=1", "--no-binary=:all:", "x", "", "--target=/"] {
            assert!(!is_option(bad), "{bad}");
        }
    }

    #[test]
    fn a_report_is_read_and_addresses_are_refused() {
        let item = |direct: bool| {
            format!(
                r#"{{"install": [{{"metadata": {{"name": "a", "version": "1"}}, "is_direct": {direct}}}]}}"#
            )
        };
        let expected = Pinned { name: "a".into(), version: "1".into() };
        assert_eq!(pinned(item(false).as_bytes()).unwrap(), [expected]);
        assert_eq!(pinned(item(true).as_bytes()).unwrap_err().kind(), ErrorKind::InvalidArgument);
        assert_eq!(pinned(b"x").unwrap_err().kind(), ErrorKind::Unexpected);
    }

    #[test]
    fn what_pip_says_is_told_in_short() {
        let said = "WARNING: x\nERROR: Could not find a version that satisfies the requirement a\nERROR: No matching distribution found for a\n";
        assert_eq!(
            exit_message(said),
            "Could not find a version that satisfies the requirement a; No matching distribution found for a"
        );
    }
}
