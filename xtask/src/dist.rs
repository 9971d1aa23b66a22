//! `cargo xtask dist`: what people download. A folder with the program, its completions, manual pages, licence and README;
//! the same as an archive, as a wheel, and as packages of Debian and npm; and checksums. Two runs over the same program give
//! the same archive.

mod archive;
mod packages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use self::packages::{Contents, Kind};
use crate::command::{output, shown};
use crate::suites::cargo;
use crate::workspace;

/// Completion scripts: the shell, and the file name under which that shell finds it.
const COMPLETIONS: [(&str, &str); 5] = [
    ("bash", "sandboxes.bash"),
    ("zsh", "_sandboxes"),
    ("fish", "sandboxes.fish"),
    ("elvish", "sandboxes.elv"),
    ("powershell", "_sandboxes.ps1"),
];
const SUMS: &str = "SHA256SUMS";

/// Builds the distribution, and tries it out as a user after the download would.
pub(crate) fn run(arguments: &[String]) -> Result<bool, String> {
    if let Some(argument) = arguments.first() {
        return Err(format!("unknown argument {argument:?}"));
    }
    let program = build()?;
    let target = host()?;
    let version = version(&program)?;
    let name = format!("sandboxes-{version}-{target}");
    let place = workspace::target().join("dist");
    let folder = place.join(&name);
    assemble(&program, &folder)?;
    let archive = place.join(format!("{name}.tar.gz"));
    archive::pack(&folder, &name, time_of_source(), &archive)?;
    let contents =
        Contents { folder: &folder, version: &version, target: &target, time: time_of_source() };
    let mut made = vec![archive];
    for kind in Kind::ALL {
        let Some(package) = packages::pack(kind, &contents, &place)? else { continue };
        packages::try_out(kind, &package, &version, &place)?;
        made.push(package);
    }
    write(&place.join(SUMS), sums(&made)?.as_bytes())?;
    try_out(&place, &name, &version)?;
    for path in &made {
        println!("{}", path.display());
    }
    println!("{}", place.join(SUMS).display());
    Ok(true)
}

/// The program with optimization, and without the folders of this host in its messages.
fn build() -> Result<PathBuf, String> {
    let target = workspace::target().join("dist-build");
    let mut flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    for (folder, shown_as) in
        [(Some(workspace::root()), "/code-sandboxes"), (cargo_home(), "/cargo")]
    {
        if let Some(folder) = folder {
            flags.push_str(&format!(" --remap-path-prefix={}={shown_as}", folder.display()));
        }
    }
    let mut command = cargo(&["build", "--profile", "optimized", "--locked"]);
    command.args(["--package", "code-sandboxes-cli", "--features", "full"]);
    command.arg("--target-dir").arg(&target).env("RUSTFLAGS", flags.trim_start());
    if !shown(&mut command) {
        return Err("the release build failed".to_owned());
    }
    Ok(target.join("optimized/sandboxes"))
}

fn cargo_home() -> Option<PathBuf> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    named.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// The platform that the compiler builds for.
fn host() -> Result<String, String> {
    let version = output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say what it builds for".to_owned())
}

fn version(program: &Path) -> Result<String, String> {
    let said = output(Command::new(program).arg("--version"))?;
    let version = said.trim().strip_prefix("sandboxes ");
    version.map(str::to_owned).ok_or_else(|| format!("the program says of itself {said:?}"))
}

/// Seconds since 1970 that the files of the archive get: what `SOURCE_DATE_EPOCH` says, or the time of the last commit.
fn time_of_source() -> u64 {
    let named = std::env::var("SOURCE_DATE_EPOCH").ok();
    let committed = || {
        let mut log = Command::new("git");
        output(log.current_dir(workspace::root()).args(["log", "-1", "--format=%ct"])).ok()
    };
    named.or_else(committed).and_then(|time| time.trim().parse().ok()).unwrap_or(0)
}

/// Fills the folder anew.
fn assemble(program: &Path, folder: &Path) -> Result<(), String> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    let (completions, manual) = (folder.join("completions"), folder.join("man"));
    for folder in [&completions, &manual] {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    copy(program, &folder.join("sandboxes"))?;
    for name in ["LICENSE", "README.md"] {
        copy(&workspace::root().join(name), &folder.join(name))?;
    }
    for (shell, name) in COMPLETIONS {
        let script = output(Command::new(program).args(["completion", shell]))?;
        write(&completions.join(name), script.as_bytes())?;
    }
    output(Command::new(program).arg("man").arg(&manual))?;
    Ok(())
}

/// Checks the sums, unpacks the archive elsewhere, and runs what is in it.
fn try_out(place: &Path, name: &str, version: &str) -> Result<(), String> {
    output(Command::new("sha256sum").current_dir(place).args(["--check", "--strict", SUMS]))?;
    let elsewhere = place.join("unpacked");
    if elsewhere.exists() {
        fs::remove_dir_all(&elsewhere).map_err(|error| failed(&elsewhere, &error))?;
    }
    fs::create_dir_all(&elsewhere).map_err(|error| failed(&elsewhere, &error))?;
    let archive = place.join(format!("{name}.tar.gz"));
    output(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(&elsewhere))?;
    let program = elsewhere.join(name).join("sandboxes");
    let said = output(Command::new(&program).arg("--version"))?;
    let computed = output(Command::new(&program).args(["run", "--lang", "python", "6 * 7"]))?;
    if (said.trim(), computed.trim()) != (&*format!("sandboxes {version}"), "42") {
        return Err(format!("the unpacked program says {said:?} and computes {computed:?}"));
    }
    fs::remove_dir_all(&elsewhere).map_err(|error| failed(&elsewhere, &error))
}

/// The lines of the file of checksums.
fn sums(paths: &[PathBuf]) -> Result<String, String> {
    let line = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sum(path).map(|sum| format!("{sum}  {name}\n"))
    };
    paths.iter().map(line).collect()
}

fn sum(path: &Path) -> Result<String, String> {
    let data = fs::read(path).map_err(|error| failed(path, &error))?;
    Ok(Sha256::digest(data).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map(drop).map_err(|error| failed(from, &error))
}

fn write(path: &Path, data: &[u8]) -> Result<(), String> {
    fs::write(path, data).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// Stands for the program: it answers what is asked of it here.
    const STAND_IN: &str = r##"#!/bin/sh
case "$1" in
    --version) echo "sandboxes 9.8.7" ;;
    completion) echo "# completes $2" ;;
    man) echo '.TH sandboxes 1' > "$2/sandboxes.1" ;;
    run) echo 42 ;;
esac
"##;

    #[test]
    fn every_package_can_be_installed_and_run() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        fs::write(&program, STAND_IN).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let folder = place.path().join("folder");
        assemble(&program, &folder).unwrap();
        let target = host().unwrap();
        let contents =
            Contents { folder: &folder, version: "9.8.7", target: &target, time: 1_000_000_000 };
        for kind in Kind::ALL {
            let Some(package) = packages::pack(kind, &contents, place.path()).unwrap() else {
                continue;
            };
            if packages::try_out(kind, &package, "9.8.7", place.path()).unwrap() {
                packages::try_out(kind, &package, "1.0.0", place.path()).unwrap_err();
            }
            let first = sum(&package).unwrap();
            packages::pack(kind, &contents, place.path()).unwrap();
            assert_eq!(sum(&package).unwrap(), first, "{kind:?} differs from run to run");
        }
    }

    #[test]
    fn what_is_packed_can_be_unpacked_and_run() {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("program");
        fs::write(&program, STAND_IN).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let name = "sandboxes-9.8.7-any";
        let pack = || {
            assemble(&program, &place.path().join(name)).unwrap();
            let archive = place.path().join(format!("{name}.tar.gz"));
            archive::pack(&place.path().join(name), name, 1_000_000_000, &archive).unwrap();
            let sum = sum(&archive).unwrap();
            fs::write(place.path().join(SUMS), format!("{sum}  {name}.tar.gz\n")).unwrap();
            sum
        };
        let first = pack();
        assert_eq!(version(&program).unwrap(), "9.8.7");
        try_out(place.path(), name, "9.8.7").unwrap();
        try_out(place.path(), name, "1.0.0").unwrap_err();
        // Another time, another mode: the same archive.
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(pack(), first);
        let mut list = Command::new("tar");
        let listed = output(list.arg("-tzf").arg(place.path().join(format!("{name}.tar.gz"))));
        let listed = listed.unwrap();
        for path in
            ["sandboxes", "LICENSE", "README.md", "completions/_sandboxes", "man/sandboxes.1"]
        {
            assert!(listed.lines().any(|line| line == format!("{name}/{path}")), "{listed}");
        }
        let sums = place.path().join(SUMS);
        fs::write(&sums, fs::read_to_string(&sums).unwrap().replacen(&first[..4], "0000", 1))
            .unwrap();
        try_out(place.path(), name, "9.8.7").unwrap_err();
    }
}
