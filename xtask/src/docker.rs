//! Containers: an engine to test with, the image, and the tests that need both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{exists, output, quietly, shown};
use crate::setup::is_root;
use crate::suites::cargo;
use crate::workspace;

const IMAGE: &str = "code-sandboxes:latest";

/// A base made here, for places without a registry.
const BASE: &str = "code-sandboxes-base:bookworm";

/// How long a new engine may take.
const START: Duration = Duration::from_secs(60);

/// `cargo xtask image`: the image for the engine that is there, on a base that comes from no registry.
pub(crate) fn image(arguments: &[String]) -> Result<bool, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    if !quietly(Command::new("docker").arg("version")) {
        return Err("no container engine answers".to_owned());
    }
    build_image(&Engine { own: None, host: None }).map(|()| true)
}

/// `cargo xtask test-docker`: an engine if there is none, the image, the behaviour suite and the tests of the backend.
pub(crate) fn test(arguments: &[String]) -> Result<bool, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let engine = Engine::find_or_start()?;
    if !engine.run(&["image", "inspect", IMAGE]) {
        build_image(&engine)?;
    }
    let tests = |arguments: &[&str]| {
        let mut tests = cargo(&["test", "--package", "code-sandboxes-backend-docker"]);
        tests.args(arguments).env("SANDBOX_TEST_DOCKER", "1");
        if let Some(host) = &engine.host {
            tests.env("DOCKER_HOST", host);
        }
        shown(&mut tests)
    };
    // Those that need an engine are left out everywhere else.
    let passed = tests(&["--lib", "--test", "engine", "--", "--include-ignored"]);
    let passed = tests(&["--test", "conformance"]) && passed;
    let left = engine.containers()?;
    if !left.is_empty() {
        println!("containers are left: {left}");
    }
    Ok(passed && left.is_empty())
}

/// An engine. One that was started here ends with this, and its files with it.
struct Engine {
    own: Option<(Child, PathBuf)>,
    host: Option<String>,
}

impl Engine {
    fn find_or_start() -> Result<Self, String> {
        if quietly(Command::new("docker").arg("version")) {
            return Ok(Self { own: None, host: None });
        }
        if !is_root() {
            return Err("no container engine answers, and only root can start one".to_owned());
        }
        if !exists("dockerd") {
            let mut update = Command::new("apt-get");
            shown(update.args(["update", "--quiet"]));
            let mut install = Command::new("apt-get");
            install.env("DEBIAN_FRONTEND", "noninteractive");
            let packages = ["install", "--yes", "--quiet", "--no-install-recommends", "docker.io"];
            if !shown(install.args(packages)) {
                return Err("no container engine could be installed".to_owned());
            }
        }
        let directory = workspace::target().join("docker-engine");
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
        // A socket has a short name: longer ones than 108 bytes cannot be.
        let host = format!("unix:///run/code-sandboxes-test-{}.sock", std::process::id());
        let log = fs::File::create(path("log")).map_err(|error| error.to_string())?;
        let child = Command::new("dockerd")
            .args(["--host", &host, "--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("dockerd: {error}"))?;
        let engine = Self { own: Some((child, directory.clone())), host: Some(host) };
        let started = Instant::now();
        while !engine.run(&["version"]) {
            if started.elapsed() > START {
                let log = fs::read_to_string(directory.join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or_default();
                return Err(format!("the engine did not start: {last}"));
            }
            sleep(Duration::from_millis(200));
        }
        Ok(engine)
    }

    fn docker(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        if let Some(host) = &self.host {
            docker.args(["--host", host]);
        }
        docker.args(arguments);
        docker
    }

    fn run(&self, arguments: &[&str]) -> bool {
        quietly(&mut self.docker(arguments))
    }

    /// Our containers that are still there.
    fn containers(&self) -> Result<String, String> {
        let filter = "label=code-sandboxes.id";
        let found = output(&mut self.docker(&[
            "ps",
            "--all",
            "--filter",
            filter,
            "--format",
            "{{.Names}}",
        ]))?;
        Ok(found.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some((child, directory)) = &mut self.own else { return };
        quietly(Command::new("kill").arg(child.id().to_string()));
        let _ = child.wait();
        let _ = fs::remove_dir_all(directory);
    }
}

fn build_image(engine: &Engine) -> Result<(), String> {
    if !engine.run(&["image", "inspect", BASE]) {
        import_base(engine)?;
    }
    let context = workspace::target().join("docker-context");
    let copy = |from: &Path, name: &str| {
        fs::copy(from, context.join(name)).map_err(|error| format!("{}: {error}", from.display()))
    };
    fs::create_dir_all(&context).map_err(|error| error.to_string())?;
    copy(&workspace::root().join("docker/Dockerfile"), "Dockerfile")?;
    let bundle = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if bundle.exists() {
        copy(bundle, "ca-bundle.crt")?;
    }
    let base = format!("BASE={BASE}");
    let mut build = engine.docker(&["build", "--network", "host", "--build-arg", &base]);
    if let Some(index) = package_index() {
        build.args(["--build-arg", &format!("PIP_INDEX_URL={index}")]);
    }
    build.args(["--tag", IMAGE]).arg(&context).env("DOCKER_BUILDKIT", "0");
    if quietly_or_shown(&mut build) { Ok(()) } else { Err(format!("{IMAGE} could not be built")) }
}

/// Shown by its result alone: an index may have a password in its address.
fn quietly_or_shown(build: &mut Command) -> bool {
    println!("building {IMAGE}");
    build.stdin(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Where pip of this host fetches from, when that is not the usual place.
fn package_index() -> Option<String> {
    let set = std::env::var("PIP_INDEX_URL").ok().filter(|url| !url.is_empty());
    let configured = || {
        let mut pip = Command::new("python3");
        output(pip.args(["-m", "pip", "config", "get", "global.index-url"])).ok()
    };
    set.or_else(configured).map(|url| url.trim().to_owned()).filter(|url| !url.is_empty())
}

/// A Debian with Python, from the packages that this host's own come from.
fn import_base(engine: &Engine) -> Result<(), String> {
    if !is_root() {
        return Err("only root can make the base of the image without a registry".to_owned());
    }
    if !exists("debootstrap") {
        let mut install = Command::new("apt-get");
        install.env("DEBIAN_FRONTEND", "noninteractive");
        shown(install.args(["install", "--yes", "--quiet", "debootstrap"]));
    }
    let root = workspace::target().join("docker-base");
    let _ = fs::remove_dir_all(&root);
    let mut debootstrap = Command::new("debootstrap");
    debootstrap
        .args(["--variant=minbase", "--include=ca-certificates,python3,python3-pip,python3-venv"]);
    if !shown(debootstrap.arg("bookworm").arg(&root)) {
        return Err("debootstrap failed".to_owned());
    }
    let mut tar = Command::new("tar");
    let mut packed = tar
        .arg("-C")
        .arg(&root)
        .args(["-c", "."])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("tar: {error}"))?;
    let archive = packed.stdout.take().ok_or("tar gives nothing")?;
    let imported = engine
        .docker(&["import", "-", BASE])
        .stdin(archive)
        .status()
        .is_ok_and(|status| status.success());
    let packed = packed.wait().is_ok_and(|status| status.success());
    let _ = fs::remove_dir_all(&root);
    if imported && packed { Ok(()) } else { Err("the base could not be imported".to_owned()) }
}
