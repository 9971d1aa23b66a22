//! The program for those who have no Rust: a wheel for pip and uv, a package of Debian, and one of npm. Each has the program
//! alone, and is installed into an empty place and run before it is done.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use super::{archive, copy, failed, write};
use crate::command::{exists, output};

/// The name of the program in registries, where `code-sandboxes` and `sandboxes` belong to others.
const NAME: &str = "code-sandboxes-cli";
const SUMMARY: &str =
    "Run code safely: one command line over local cells, containers and cloud sandboxes";
const HOMEPAGE: &str = "https://github.com/datalayer/code-sandboxes";

/// The kinds of packages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Wheel,
    Debian,
    Npm,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Wheel, Self::Debian, Self::Npm];

    /// The program that makes or installs it.
    fn tool(self) -> &'static str {
        match self {
            Self::Wheel => "python3",
            Self::Debian => "dpkg-deb",
            Self::Npm => "npm",
        }
    }
}

/// What is packed.
#[derive(Clone, Debug)]
pub(super) struct Contents<'a> {
    /// The folder of the distribution, with program, manual pages and completions.
    pub(super) folder: &'a Path,
    pub(super) version: &'a str,
    /// The platform as Rust names it, such as `x86_64-unknown-linux-gnu`.
    pub(super) target: &'a str,
    /// The time that every file gets, in seconds since 1970.
    pub(super) time: u64,
}

impl Contents<'_> {
    fn machine(&self) -> &str {
        self.target.split('-').next().unwrap_or(self.target)
    }

    fn program(&self) -> PathBuf {
        self.folder.join("sandboxes")
    }
}

/// Makes a package in `place`. `None`, with a line that says so, where the tool for it is missing.
pub(super) fn pack(
    kind: Kind,
    contents: &Contents<'_>,
    place: &Path,
) -> Result<Option<PathBuf>, String> {
    match kind {
        Kind::Wheel => wheel(contents, place).map(Some),
        Kind::Npm => npm(contents, place).map(Some),
        Kind::Debian if exists("dpkg-deb") => debian(contents, place).map(Some),
        Kind::Debian => {
            println!("SKIPPED: the package of Debian, because this host has no dpkg-deb");
            Ok(None)
        }
    }
}

/// A wheel whose program becomes a script of the environment. It has no Python code.
fn wheel(contents: &Contents<'_>, place: &Path) -> Result<PathBuf, String> {
    let (version, machine) = (contents.version, contents.machine());
    let name = NAME.replace('-', "_");
    let tag = format!("py3-none-{}_{machine}", manylinux());
    let path = place.join(format!("{name}-{version}-{tag}.whl"));
    let info = format!("{name}-{version}.dist-info");
    let metadata = format!(
        "Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\nSummary: {SUMMARY}\nHome-page: {HOMEPAGE}\n\
         License: BSD-3-Clause\nRequires-Python: >=3.9\n"
    );
    let wheel =
        format!("Wheel-Version: 1.0\nGenerator: xtask\nRoot-Is-Purelib: false\nTag: {tag}\n");
    let read = |path: &Path| fs::read(path).map_err(|error| failed(path, &error));
    let mut files = vec![
        (format!("{name}-{version}.data/scripts/sandboxes"), read(&contents.program())?, 0o755),
        (format!("{info}/METADATA"), metadata.into_bytes(), 0o644),
        (format!("{info}/WHEEL"), wheel.into_bytes(), 0o644),
        (format!("{info}/licenses/LICENSE"), read(&contents.folder.join("LICENSE"))?, 0o644),
    ];
    let mut record = String::new();
    for (name, data, _) in &files {
        let digest = URL_SAFE_NO_PAD.encode(Sha256::digest(data));
        record.push_str(&format!("{name},sha256={digest},{}\n", data.len()));
    }
    record.push_str(&format!("{info}/RECORD,,\n"));
    files.push((format!("{info}/RECORD"), record.into_bytes(), 0o644));
    zipped(&files, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The oldest C library that the program may need: that of this host.
fn manylinux() -> String {
    let said = output(Command::new("getconf").arg("GNU_LIBC_VERSION")).unwrap_or_default();
    let version = said.trim().strip_prefix("glibc ").unwrap_or("2.36").replace('.', "_");
    format!("manylinux_{version}")
}

fn zipped(files: &[(String, Vec<u8>, u32)], path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut zip = ZipWriter::new(File::create(path)?);
    for (name, data, mode) in files {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(*mode);
        zip.start_file(name.as_str(), options)?;
        zip.write_all(data)?;
    }
    zip.finish()?;
    Ok(())
}

/// A package of Debian with the program, its manual pages and the completions of bash, zsh and fish.
fn debian(contents: &Contents<'_>, place: &Path) -> Result<PathBuf, String> {
    let machine = match contents.machine() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let version = contents.version;
    let root = place.join("debian");
    fresh(&root)?;
    let control = format!(
        "Package: {NAME}\nVersion: {version}\nArchitecture: {machine}\nMaintainer: Datalayer <info@datalayer.io>\n\
         Depends: libc6, python3 (>= 3.9)\nSection: devel\nPriority: optional\nHomepage: {HOMEPAGE}\nDescription: {SUMMARY}\n"
    );
    let (share, completions) = (root.join("usr/share"), contents.folder.join("completions"));
    let documents = share.join("doc").join(NAME);
    let mut files = vec![
        (contents.program(), root.join("usr/bin/sandboxes")),
        (contents.folder.join("LICENSE"), documents.join("copyright")),
        (completions.join("sandboxes.bash"), share.join("bash-completion/completions/sandboxes")),
        (completions.join("_sandboxes"), share.join("zsh/vendor-completions/_sandboxes")),
        (
            completions.join("sandboxes.fish"),
            share.join("fish/vendor_completions.d/sandboxes.fish"),
        ),
    ];
    let manual = contents.folder.join("man");
    for entry in fs::read_dir(&manual).map_err(|error| failed(&manual, &error))? {
        let entry = entry.map_err(|error| failed(&manual, &error))?;
        files.push((entry.path(), share.join("man/man1").join(entry.file_name())));
    }
    for (from, to) in files {
        let folder = to.parent().unwrap_or(&root);
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
        copy(&from, &to)?;
    }
    let folder = root.join("DEBIAN");
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    write(&folder.join("control"), control.as_bytes())?;
    let path = place.join(format!("{NAME}_{version}_{machine}.deb"));
    let mut build = Command::new("dpkg-deb");
    build.env("SOURCE_DATE_EPOCH", contents.time.to_string());
    output(build.args(["--build", "--root-owner-group"]).arg(&root).arg(&path))?;
    fs::remove_dir_all(&root).map_err(|error| failed(&root, &error))?;
    Ok(path)
}

/// A package of npm whose command is the program itself. It runs no script when it is installed.
fn npm(contents: &Contents<'_>, place: &Path) -> Result<PathBuf, String> {
    let machine = match contents.machine() {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => other,
    };
    let package = serde_json::json!({
        "name": NAME,
        "version": contents.version,
        "description": SUMMARY,
        "homepage": HOMEPAGE,
        "license": "BSD-3-Clause",
        "os": ["linux"],
        "cpu": [machine],
        "bin": {"sandboxes": "sandboxes"},
        "files": ["sandboxes", "LICENSE"],
    });
    let folder = place.join("npm");
    fresh(&folder)?;
    copy(&contents.program(), &folder.join("sandboxes"))?;
    copy(&contents.folder.join("LICENSE"), &folder.join("LICENSE"))?;
    write(&folder.join("package.json"), format!("{package:#}\n").as_bytes())?;
    let path = place.join(format!("{NAME}-{}.tgz", contents.version));
    archive::pack(&folder, "package", contents.time, &path)?;
    fs::remove_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    Ok(path)
}

fn fresh(folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))
}

/// Installs a package into an empty place, and runs the program there with an empty environment. Returns false, with a line
/// that says so, where the tool for it is missing.
pub(super) fn try_out(
    kind: Kind,
    package: &Path,
    version: &str,
    place: &Path,
) -> Result<bool, String> {
    if !exists(kind.tool()) {
        println!(
            "SKIPPED: {} is not tried, because this host has no {}",
            package.display(),
            kind.tool()
        );
        return Ok(false);
    }
    let empty = place.join("installed");
    fresh(&empty)?;
    let program = match kind {
        Kind::Wheel => {
            output(Command::new("python3").args(["-m", "venv"]).arg(&empty))?;
            let mut install = Command::new(empty.join("bin/pip"));
            output(install.args(["install", "--quiet", "--no-index"]).arg(package))?;
            empty.join("bin/sandboxes")
        }
        Kind::Debian => {
            output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&empty))?;
            empty.join("usr/bin/sandboxes")
        }
        Kind::Npm => {
            let mut install = Command::new("npm");
            install.args([
                "install",
                "--global",
                "--offline",
                "--no-audit",
                "--no-fund",
                "--prefix",
            ]);
            output(install.arg(&empty).arg(package))?;
            empty.join("bin/sandboxes")
        }
    };
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        output(command.env_clear().env("PATH", "/usr/bin:/bin").args(arguments))
    };
    let said = run(&["--version"])?;
    let computed = run(&["run", "--lang", "python", "6 * 7"])?;
    if (said.trim(), computed.trim()) != (&*format!("sandboxes {version}"), "42") {
        let package = package.display();
        return Err(format!("{package}: the program says {said:?} and computes {computed:?}"));
    }
    fs::remove_dir_all(&empty).map_err(|error| failed(&empty, &error))?;
    Ok(true)
}
