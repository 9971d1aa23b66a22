//! `cargo xtask test-programs`: everyday programs in a strict cell and outside, and what they do differently.
//!
//! A program is a script in `programs/`. It runs twice in an empty directory, and its exit status, its output and the
//! files that it leaves are compared. A difference is in `programs/differences.txt` with its reason, or it fails.

mod compare;
mod document;
mod place;
mod script;

use std::time::{Duration, Instant};

use crate::command::{exists, shown};
use crate::environment::virtual_environment;
use crate::setup::{install_packages, is_root};
use crate::suites::cargo;
use crate::workspace;
use compare::Verdict;
use place::Places;
use script::Program;

/// Time for all programs together.
const TOTAL_TIMEOUT: Duration = Duration::from_mins(60);

/// Choices of the command line.
struct Options {
    names: Vec<String>,
    variant: String,
    setup: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self { names: Vec::new(), variant: "local-eval".to_owned(), setup: true };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--no-setup" => options.setup = false,
                "--variant" => {
                    let variant = arguments.next().ok_or("--variant needs a name")?;
                    options.variant.clone_from(variant);
                }
                flag if flag.starts_with('-') => return Err(format!("unknown option {flag:?}")),
                name => options.names.push(name.to_owned()),
            }
        }
        Ok(options)
    }
}

/// Runs the programs that the arguments name, else all, and reports whether every difference was expected.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    let options = Options::parse(arguments)?;
    let all = script::all()?;
    let chosen = choose(&all, &options.names)?;
    if document::write(&all)? {
        println!("{} was out of date: its table is written again", document::PAGE);
    }
    let sandboxes = match std::env::var_os("SANDBOX_TEST_CLI") {
        Some(path) => path.into(),
        None if shown(&mut cargo(&["build", "--package", "code-sandboxes-cli"])) => {
            workspace::target().join("debug/sandboxes")
        }
        None => return Err("the build failed".to_owned()),
    };
    let tools = workspace::target().join("test-programs");
    let places = Places::new(sandboxes, tools, options.variant)?;
    if options.setup {
        set_up(&all, &chosen, &places);
    }
    let began = Instant::now();
    let expected = compare::expected()?;
    let mut tally = TestSummary::default();
    for program in chosen {
        if began.elapsed() > TOTAL_TIMEOUT {
            println!("FAILED   {}: not run, the time for all is over", program.name);
            tally.failed += 1;
            continue;
        }
        if let Some(what) = places.lacks(program)? {
            println!("skipped  {}: {what} is missing", program.name);
            tally.skipped += 1;
            continue;
        }
        let start = Instant::now();
        let outside = places.outside(program)?;
        let inside = places.inside(program)?;
        let verdict = compare::judge(&program.name, &outside, &inside, &expected);
        tally.count(&verdict);
        verdict.print(&program.name, start.elapsed());
    }
    println!(
        "\n{} programs alike, {} different as expected, {} different otherwise, {} skipped",
        tally.alike, tally.expected, tally.failed, tally.skipped
    );
    let may_skip = std::env::var_os("CI").is_none_or(|value| value.is_empty());
    Ok(tally.failed == 0 && (tally.skipped == 0 || may_skip))
}

/// Numbers of programs.
#[derive(Default)]
struct TestSummary {
    alike: usize,
    expected: usize,
    failed: usize,
    skipped: usize,
}

impl TestSummary {
    fn count(&mut self, verdict: &Verdict) {
        if !verdict.unexpected.is_empty() {
            self.failed += 1;
        } else if verdict.explained.is_empty() {
            self.alike += 1;
        } else {
            self.expected += 1;
        }
    }
}

fn choose<'a>(all: &'a [Program], names: &[String]) -> Result<Vec<&'a Program>, String> {
    if names.is_empty() {
        return Ok(all.iter().collect());
    }
    let find = |name: &String| {
        let known = || all.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(" ");
        let found = all.iter().find(|program| program.name == *name);
        found.ok_or_else(|| format!("no program is called {name:?}; there are: {}", known()))
    };
    names.iter().map(find).collect()
}

/// Installs what is missing, where that is possible. Programs that still lack something are skipped.
fn set_up(all: &[Program], chosen: &[&Program], places: &Places) {
    let lacking: Vec<_> =
        chosen.iter().filter(|program| matches!(places.lacks(program), Ok(Some(_)))).collect();
    let all_packages: Vec<_> = lacking.iter().flat_map(|program| packages(program)).collect();
    if !all_packages.is_empty()
        && is_root()
        && exists("apt-get")
        && !install_packages(&all_packages)
    {
        // One package that cannot be installed beside what is there keeps the others out.
        for program in lacking.iter().filter(|program| !program.apt.is_empty()) {
            install_packages(&packages(program));
        }
    }
    // All of them, also when few are run, so that the folders stay the same.
    if chosen.iter().any(|program| !program.pip.is_empty()) {
        let packages = union(all, |program| &program.pip);
        virtual_environment(&places.python(), &packages);
    }
    if chosen.iter().any(|program| !program.npm.is_empty()) {
        let packages = union(all, |program| &program.npm);
        let modules = places.node();
        if packages.iter().all(|name| modules.join(name).exists()) {
            return;
        }
        let mut install = std::process::Command::new("npm");
        install.args(["install", "--no-audit", "--no-fund", "--prefix"]);
        shown(install.arg(modules.parent().unwrap_or(&modules)).args(packages));
    }
}

/// The packages of Debian that a program needs.
fn packages(program: &Program) -> Vec<&str> {
    program.apt.iter().map(String::as_str).collect()
}

/// Packages of all programs, each once.
fn union(all: &[Program], of: impl Fn(&Program) -> &Vec<String>) -> Vec<&str> {
    let mut packages: Vec<&str> = Vec::new();
    for program in all {
        for package in of(program) {
            if !packages.contains(&package.as_str()) {
                packages.push(package);
            }
        }
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_names_a_variant_and_no_setup() {
        let parse = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            Options::parse(&words)
        };
        let options = parse("git --variant local-docker --no-setup make").expect("options");
        assert_eq!(options.names, ["git", "make"]);
        assert_eq!((options.variant.as_str(), options.setup), ("local-docker", false));
        assert!(parse("--variant").is_err() && parse("--fast").is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let all = script::all().expect("programs");
        assert!(choose(&all, &["no-such".to_owned()]).is_err_and(|why| why.contains("no-such")));
        assert_eq!(choose(&all, &[]).expect("all").len(), all.len());
    }
}
