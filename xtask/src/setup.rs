//! Programs that the tests need, from the system's packages.

use std::process::Command;

use crate::command::{exists, quietly, shown};

/// A program, how one sees that it is there, and the Debian package that has it.
struct Need {
    what: &'static str,
    there: fn() -> bool,
    package: &'static str,
}

const NEEDS: [Need; 7] = [
    Need { what: "python3", there: || exists("python3"), package: "python3" },
    Need { what: "python3's venv module", there: has_venv, package: "python3-venv" },
    Need { what: "bwrap", there: || exists("bwrap"), package: "bubblewrap" },
    Need { what: "setpriv", there: || exists("setpriv"), package: "util-linux" },
    Need { what: "go", there: || exists("go"), package: "golang-go" },
    Need { what: "node", there: || exists("node"), package: "nodejs" },
    Need { what: "npm", there: || exists("npm"), package: "npm" },
];

/// The system's own interpreter, which every user of this host can run; else the one on `PATH`.
pub(crate) fn system_python() -> &'static str {
    let system = "/usr/bin/python3";
    if std::path::Path::new(system).exists() { system } else { "python3" }
}

fn has_venv() -> bool {
    quietly(Command::new(system_python()).args(["-c", "import venv, ensurepip"]))
}

/// Installs what is missing where that is possible; says what is still missing then.
pub(crate) fn install() -> Vec<&'static str> {
    let missing = || NEEDS.iter().filter(|need| !(need.there)());
    let packages: Vec<_> = missing().map(|need| need.package).collect();
    if !packages.is_empty() && is_root() && exists("apt-get") {
        install_packages(&packages);
    }
    missing().map(|need| need.what).collect()
}

/// Installs packages of Debian, all or none, and returns whether that worked.
pub(crate) fn install_packages(packages: &[&str]) -> bool {
    let mut update = Command::new("apt-get");
    shown(update.args(["update", "--quiet"]));
    let mut install = Command::new("apt-get");
    install.env("DEBIAN_FRONTEND", "noninteractive");
    shown(install.args(["install", "--yes", "--quiet", "--no-install-recommends"]).args(packages))
}

/// Whether this process runs as root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}
