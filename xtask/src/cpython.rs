//! `cargo xtask test-cpython`: modules of CPython's own regression tests, in a strict cell and outside.
//!
//! Every difference is listed. One that is in the table of expected differences has its reason there; any other fails.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::{output, shown};
use crate::suites::cargo;
use crate::workspace;

/// Runs modules and prints what became of them.
const SCRIPT: &str = include_str!("cpython/run.py");

/// The end of a name of tests, a `*` for whatever comes after, and the reason.
const EXPECTED: &str = include_str!("cpython/differences.txt");

/// What ordinary Python life uses: files, processes, threads, sockets, time, data.
const MODULES: [&str; 40] = [
    "test_os",
    "test_posix",
    "test_subprocess",
    "test_threading",
    "test_thread",
    "test_fork1",
    "test_wait3",
    "test_wait4",
    "test_signal",
    "test_threadsignals",
    "test_select",
    "test_selectors",
    "test_poll",
    "test_epoll",
    "test_socketserver",
    "test_httpservers",
    "test_ssl",
    "test_asyncio.test_subprocess",
    "test_asyncio.test_events",
    "test_multiprocessing_main_handling",
    "test_tempfile",
    "test_shutil",
    "test_pathlib",
    "test_glob",
    "test_fcntl",
    "test_mmap",
    "test_pty",
    "test_resource",
    "test_pwd",
    "test_grp",
    "test_sqlite3",
    "test_ctypes",
    "test_json",
    "test_pickle",
    "test_zipfile",
    "test_tarfile",
    "test_gzip",
    "test_hashlib",
    "test_io",
    "test_import",
];

type Outcomes = BTreeMap<String, (String, String)>;

/// Runs the modules in both places; whether every difference was expected. Arguments name the modules, and otherwise all
/// are run.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    if !shown(&mut cargo(&["build", "--package", "code-sandboxes-cli"])) {
        return Err("the build failed".to_owned());
    }
    let sandboxes = workspace::target().join("debug/sandboxes");
    let ask = ["run", "-q", "--lang", "python", "import sys, test.support; sys.executable"];
    let python = output(Command::new(&sandboxes).args(ask)).map_err(|why| {
        format!("{why}\nthe interpreter of this host has no regression tests (`libpython3-testsuite` of Debian has them)")
    })?;
    let python = python.trim().trim_matches('\'').to_owned();
    let all = MODULES.map(str::to_owned);
    let modules = if arguments.is_empty() { &all[..] } else { arguments };
    println!("Outside, with {python}:");
    let mut outside = Command::new(&python);
    // As little environment as in a cell, where some of it would decide about tests.
    outside.env_clear().envs([("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")]);
    let outside = outcomes(outside.args(["-c", SCRIPT]).args(modules))?;
    println!("In a strict cell:");
    let mut inside = Command::new(&sandboxes);
    inside.args(["run", "-q", "-t", "7200", "--", &python, "-c", SCRIPT]).args(modules);
    let inside = outcomes(&mut inside)?;
    Ok(report(&outside, &inside))
}

/// What the script printed, by the name of the test.
fn outcomes(command: &mut Command) -> Result<Outcomes, String> {
    let done = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let done = done.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&done.stdout);
    let mut found = Outcomes::new();
    for line in text.lines() {
        let tests: Value = serde_json::from_str(line).map_err(|error| {
            format!("{error}: {:?}", line.chars().take(400).collect::<String>())
        })?;
        for (name, end) in tests.as_object().into_iter().flatten() {
            let part = |at: usize| end[at].as_str().unwrap_or_default().to_owned();
            found.insert(name.clone(), (part(0), part(1)));
        }
    }
    if found.is_empty() { Err("no test was run".to_owned()) } else { Ok(found) }
}

/// Says what differs, and whether all of it was expected.
fn report(outside: &Outcomes, inside: &Outcomes) -> bool {
    let names: BTreeSet<_> = outside.keys().chain(inside.keys()).collect();
    let expected = expected();
    let missing = ("not run".to_owned(), String::new());
    let mut same = 0;
    let mut known = BTreeMap::<&str, Vec<String>>::new();
    let mut unknown = 0;
    for name in names {
        let at = |outcomes: &Outcomes| outcomes.get(name).unwrap_or(&missing).clone();
        let ((there, _), (here, why)) = (at(outside), at(inside));
        if there == here {
            same += 1;
            continue;
        }
        let line = format!("{name}: {there} outside, {here} inside");
        match expected.iter().find(|(pattern, _)| matches(name, pattern)) {
            Some((_, reason)) => known.entry(reason).or_default().push(line),
            None => {
                println!("UNEXPECTED {line}: {why}");
                unknown += 1;
            }
        }
    }
    for (reason, lines) in &known {
        println!("\n{reason}:");
        lines.iter().for_each(|line| println!("  {line}"));
    }
    let expected = known.values().map(Vec::len).sum::<usize>();
    println!(
        "\n{same} tests the same, {expected} different as expected, {unknown} different otherwise"
    );
    unknown == 0
}

/// Patterns and reasons.
fn expected() -> Vec<(&'static str, &'static str)> {
    let lines = EXPECTED.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(':')).map(|(name, why)| (name, why.trim())).collect()
}

fn matches(name: &str, pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.contains(beginning),
        None => name == pattern || name.ends_with(&format!(".{pattern}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_end_of_a_name_or_the_beginning_of_its_end() {
        assert!(matches("test.test_os.FileTests.test_read", "FileTests.test_read"));
        assert!(!matches("test.test_os.FileTests.test_read", "ileTests.test_read"));
        assert!(matches("test.test_os.FileTests.test_read", "test_os.FileTests.*"));
        assert!(!matches("test.test_os.FileTests.test_read", "FileTests"));
    }

    #[test]
    fn every_expected_difference_has_a_reason() {
        for (pattern, reason) in expected() {
            assert!(!pattern.is_empty() && reason.len() > 10, "{pattern}: {reason}");
        }
    }

    #[test]
    fn only_what_is_expected_may_differ() {
        let outcomes =
            |end: &str| Outcomes::from([("test.x.Y.z".into(), (end.into(), String::new()))]);
        assert!(report(&outcomes("passed"), &outcomes("passed")));
        assert!(!report(&outcomes("passed"), &outcomes("failure")));
        assert!(!report(&outcomes("passed"), &Outcomes::new()));
    }
}
