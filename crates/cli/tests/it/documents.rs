//! Console sessions in the documents: each command of a `console` block is run, and its output is compared with the text.
//!
//! Output that depends on the host is not compared: the path of its interpreter, and the tools that it has or lacks. A
//! command that is shown without output must succeed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::support::{Outcome, binary, shell};

/// A command, and its output in the document.
#[derive(Debug, PartialEq)]
struct Step {
    command: String,
    shown: String,
}

#[test]
fn the_readme_is_correct() {
    check("README.md", 12);
}

#[test]
fn the_reference_of_local_eval_is_correct() {
    check("docs/local-eval.md", 6);
}

#[test]
fn the_page_of_the_command_line_is_correct() {
    check("docs/cli.md", 20);
}

#[test]
fn every_page_of_the_index_is_there() {
    let docs = root().join("docs");
    let text = fs::read_to_string(docs.join("README.md")).unwrap();
    let links: Vec<_> =
        text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    for link in &links {
        assert!(docs.join(link.split('#').next().unwrap()).exists(), "{link} is missing");
    }
    for page in fs::read_dir(&docs).unwrap() {
        let name = page.unwrap().file_name().into_string().unwrap();
        let is_page = name.ends_with(".md") && name != "README.md";
        assert!(!is_page || links.contains(&name.as_str()), "{name} is not in docs/README.md");
    }
}

#[test]
fn the_page_of_the_network_is_correct() {
    check("docs/network.md", 1);
}

#[test]
fn the_page_of_snapshots_is_correct() {
    check("docs/snapshots.md", 9);
}

#[test]
fn the_pages_of_the_scan_and_the_audit_are_correct() {
    check("docs/scan.md", 1);
    check("docs/audit.md", 1);
}

#[test]
fn the_readmes_of_crates_are_correct() {
    for (package, least) in [("cli", 4), ("code-sandboxes", 0)] {
        check(&format!("crates/{package}/README.md"), least);
    }
}

#[test]
fn console_blocks_are_read_as_a_shell_reads_them() {
    let text = "$ not here\n```console\n$ echo 'a\n$ b'; echo \"it's\"\na\n$ b\n$ true\n```\n";
    let step = |command: &str, shown: &str| Step { command: command.into(), shown: shown.into() };
    assert_eq!(
        steps(text),
        [step("echo 'a\n$ b'; echo \"it's\"", "a\n"), step("b", ""), step("true", "")]
    );
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs every step of a document, in order and in one directory.
fn check(document: &str, least: usize) {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let home = tempfile::tempdir().unwrap();
    let programs = home.path().join("bin");
    fs::create_dir(&programs).unwrap();
    symlink(fs::canonicalize(binary()).unwrap(), programs.join("sandboxes")).unwrap();
    let steps = steps(&text);
    let run: Vec<_> = steps.iter().filter(|step| check_step(step, home.path())).collect();
    assert!(run.len() >= least, "{document} has lost its console blocks: {run:?}");
}

/// Runs a step and compares its output. Returns false for a command of cargo, which is only looked up.
#[expect(clippy::print_stderr, reason = "a test reports the steps that it leaves out")]
fn check_step(step: &Step, directory: &Path) -> bool {
    let Some(command) = of_sandboxes(&step.command) else { return false };
    if let Some(name) = command.strip_prefix("cat ") {
        fs::write(directory.join(name), &step.shown).unwrap();
        return false;
    }
    let mut outcome = shell(command, directory);
    // Lines are compared in any order: two streams that share a pipe may cut each other's lines.
    outcome.stdout.extend_from_slice(outcome.stderr.as_bytes());
    if decided_by_the_host(step, &outcome) {
        eprintln!("NOT COMPARED: {command}\n{}", outcome.text());
        return true;
    }
    if step.shown.is_empty() && outcome.status == 0 {
        return true;
    }
    let (printed, shown) = (comparable(command, outcome.text()), comparable(command, &step.shown));
    assert_eq!(printed, shown, "{command}\nprinted:\n{}", outcome.text());
    true
}

/// Returns the command of this binary that a step runs. `None`: it is a command of cargo, whose targets exist.
fn of_sandboxes(command: &str) -> Option<&str> {
    let Some(cargo) = command.strip_prefix("cargo ") else { return Some(command) };
    if let Some(command) = cargo.strip_prefix("run --release -p code-sandboxes-cli -- ") {
        assert!(command.starts_with("run "), "{command}");
        return Some("sandboxes run --lang python 'print(6 * 7)'")
            .filter(|known| known.ends_with(command));
    }
    let source = match cargo.split(' ').collect::<Vec<_>>()[..] {
        ["xtask", ..] => "xtask/src/main.rs".to_owned(),
        ["run", "--example", name] => format!("crates/code-sandboxes/examples/{name}.rs"),
        _ => panic!("a document shows a command that is not known here: {command}"),
    };
    assert!(root().join(&source).is_file(), "{command}: {source} is missing");
    None
}

/// Returns true when this host has tools that the author's lacked, or the reverse.
fn decided_by_the_host(step: &Step, outcome: &Outcome) -> bool {
    let lacks = |text: &str| text.contains(" programs need ") && text.contains("sandboxes: hint: ");
    let no_such_python = step.command.contains("python3.8 sandboxes")
        && outcome.text().starts_with("sandboxes: error: ")
        && outcome.text().contains("python3.8");
    lacks(outcome.text()) || lacks(&step.shown) || no_such_python
}

/// Returns the lines that do not depend on the host. Standard output and error may come in any order.
fn comparable<'a>(command: &str, text: &'a str) -> Vec<&'a str> {
    // Newer interpreters mark a position in a line of a traceback.
    let is_mark = |line: &str| line.chars().all(|c| " ^~".contains(c));
    let lines = text.lines().map(str::trim_end).filter(|line| !is_mark(line));
    if command.starts_with("sandboxes doctor") {
        // The name of a check. Its result depends on the host.
        return lines.filter_map(|line| line.split("  ").next()).collect();
    }
    let mut lines: Vec<_> = lines.collect();
    lines.sort_unstable();
    lines
}

fn steps(text: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        match (in_block, line) {
            (false, _) => in_block = line == "```console",
            (true, "```") => in_block = false,
            (true, _) => add_line(&mut steps, line),
        }
    }
    steps
}

fn add_line(steps: &mut Vec<Step>, line: &str) {
    match steps.last_mut() {
        Some(Step { command, .. }) if is_quote_open(command) => {
            command.push('\n');
            command.push_str(line);
        }
        last => match (line.strip_prefix("$ "), last) {
            (Some(command), _) => {
                steps.push(Step { command: command.to_owned(), shown: String::new() });
            }
            (None, Some(step)) => {
                step.shown.push_str(line);
                step.shown.push('\n');
            }
            (None, None) => panic!("output without a command: {line}"),
        },
    }
}

/// Returns true when the next line belongs to the command.
fn is_quote_open(command: &str) -> bool {
    let after = command.chars().fold(None, |open, c| match (open, c) {
        (None, '\'' | '"') => Some(c),
        (Some(quote), c) if quote == c => None,
        _ => open,
    });
    after.is_some()
}
