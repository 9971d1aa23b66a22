//! What the tests need beyond Rust, installed where that is possible.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{Outcome, program, root, say};

/// The Python packages of the test environment.
const PACKAGES: [&str; 4] = ["numpy", "pandas", "matplotlib", "pillow"];

/// What was found or installed.
#[derive(Debug)]
pub(crate) struct Tools {
    /// An interpreter that has [`PACKAGES`].
    pub(crate) python: PathBuf,
    /// Languages whose tools are here, for the tests of the command line.
    pub(crate) languages: Vec<&'static str>,
    /// Whether a missing part is a failure.
    pub(crate) strict: bool,
}

/// A part of the system that tests use: how to see that it is there, and the package that has it.
struct Part {
    check: &'static [&'static str],
    package: &'static str,
}

const PARTS: [Part; 6] = [
    Part { check: &["/usr/bin/python3", "-c", "import ensurepip, venv"], package: "python3-venv" },
    Part { check: &["bwrap", "--version"], package: "bubblewrap" },
    Part { check: &["go", "version"], package: "golang-go" },
    Part { check: &["node", "--version"], package: "nodejs" },
    Part { check: &["npm", "--version"], package: "npm" },
    Part { check: &["setpriv", "--version"], package: "util-linux" },
];

/// Finds or installs everything. Without the means to install, the missing parts are named; that is an error when
/// `strict`.
pub(crate) fn tools(strict: bool) -> Outcome<Tools> {
    install_parts(strict)?;
    if !has(&["tsc", "--version"]) && has(&["npm", "--version"]) && is_root() {
        let install = ["install", "--global", "--no-fund", "--no-audit", "typescript@5"];
        if let Err(problem) = program("npm", &install).run() {
            complain(strict, &problem)?;
        }
    }
    let python = environment(strict)?;
    let mut languages = vec!["bash", "rust"];
    for (language, check) in [
        ("node", ["node", "--version"]),
        ("typescript", ["tsc", "--version"]),
        ("go", ["go", "version"]),
    ] {
        if has(&check) {
            languages.push(language);
        } else {
            complain(strict, &format!("no tools for {language}"))?;
        }
    }
    Ok(Tools { python, languages, strict })
}

fn complain(strict: bool, problem: &str) -> Outcome {
    if strict {
        return Err(problem.to_owned());
    }
    say(&format!("missing: {problem}"));
    Ok(())
}

fn has(check: &[&str]) -> bool {
    check.split_first().is_some_and(|(name, arguments)| program(name, arguments).succeeds())
}

/// Whether this runs as root.
pub(crate) fn is_root() -> bool {
    program("id", &["-u"]).output().is_ok_and(|id| id.trim() == "0")
}

fn install_parts(strict: bool) -> Outcome {
    let missing: Vec<_> =
        PARTS.iter().filter(|part| !has(part.check)).map(|part| part.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    if !is_root() || !has(&["apt-get", "--version"]) {
        return complain(strict, &format!("install these packages: {}", missing.join(" ")));
    }
    let quiet = |arguments: &[&str]| {
        program("apt-get", arguments).env("DEBIAN_FRONTEND", "noninteractive").run()
    };
    quiet(&["update", "-qq"])?;
    let mut install = vec!["install", "-y", "-qq", "--no-install-recommends"];
    install.extend(&missing);
    quiet(&install)
}

/// A private environment with the packages that rich results are tested with. Made once.
fn environment(strict: bool) -> Outcome<PathBuf> {
    let directory = root().join("target/test-env");
    let python = directory.join("bin/python");
    let stamp = directory.join("packages");
    let wanted = PACKAGES.join("\n");
    let there = fs::read_to_string(&stamp).is_ok_and(|have| have == wanted);
    if there && program(&python, &["-c", "import pandas, matplotlib, PIL"]).succeeds() {
        return Ok(python);
    }
    let base = if Path::new("/usr/bin/python3").exists() { "/usr/bin/python3" } else { "python3" };
    let made = program(base, &["-m", "venv", "--clear"]).arg(&directory).run().and_then(|()| {
        let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        PACKAGES.iter().fold(program(&python, &install), |pip, package| pip.arg(package)).run()
    });
    match made {
        Ok(()) => {
            fs::write(&stamp, wanted).map_err(|error| error.to_string())?;
            Ok(python)
        }
        Err(problem) if strict => Err(problem),
        Err(problem) => {
            say(&format!("missing: {problem}"));
            Ok(PathBuf::from(base))
        }
    }
}
