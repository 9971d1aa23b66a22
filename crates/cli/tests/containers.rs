//! Containers from the command line, detached ones, and pools of them. Needs an engine and the image:
//! `cargo xtask test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[path = "it/e2b_server.rs"]
mod e2b_server;
#[path = "containers/pools.rs"]
mod pools;
#[path = "containers/served.rs"]
mod served;
#[expect(dead_code, reason = "other tests need more of it")]
#[path = "it/support.rs"]
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{Outcome, run, sandboxes};
use tempfile::TempDir;

/// Maximum wait for an engine on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The image of all containers.
const IMAGE: &str = "code-sandboxes:latest";

/// Runs the client of the engine, and returns its output.
fn docker(arguments: &[&str]) -> String {
    assert!(std::env::var_os("SANDBOX_TEST_DOCKER").is_some(), "there is no engine to test with");
    let output = Command::new("docker").args(arguments).output().expect("docker runs");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "docker {arguments:?}: {message}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Another name of the image, which identifies the containers of one test.
struct Named(String);

impl Named {
    fn new(test: &str) -> Self {
        let name = format!("code-sandboxes-test:{test}-{}", std::process::id());
        docker(&["tag", IMAGE, &name]);
        Self(name)
    }

    /// Counts the containers of the image, running or not.
    fn count(&self) -> usize {
        let filter = format!("label=code-sandboxes.image={}", self.0);
        docker(&["ps", "--all", "--quiet", "--filter", &filter]).lines().count()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["image", "rm", &self.0]).output();
    }
}

/// A directory with a supervisor of its own, which ends when it is idle.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        Self(directory)
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let path = self.0.path().to_str().unwrap();
        sandboxes(arguments)
            .env("CODE_SANDBOXES_RUNTIME_DIR", path)
            .env("CODE_SANDBOXES_STATE_DIR", path)
            .env("CODE_SANDBOXES_SUPERVISOR_IDLE", "1")
            .output()
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let outcome = self.run(arguments);
        assert_eq!(outcome.status, 0, "{arguments:?}: {}", outcome.transcript());
        outcome.text().trim().to_owned()
    }
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn the_images_of_the_engine_are_listed() {
    let id = docker(&["image", "inspect", "--format", "{{.Id}}", IMAGE]);
    let listed = sandboxes(["image", "ls", "--json"]).output();
    assert_eq!(listed.status, 0, "{}", listed.transcript());
    let listed = listed.json();
    let own = listed.as_array().unwrap().iter().find(|image| image["name"] == IMAGE).unwrap();
    assert_eq!(own["id"], *id);
    assert!(own["size"].as_u64().unwrap() > 1 << 20, "{own}");
    let table = sandboxes(["image", "ls"]).output();
    assert!(table.text().lines().next().unwrap().starts_with("Name"), "{}", table.text());
    let row = table.text().lines().find(|line| line.contains(IMAGE)).unwrap();
    assert!(row.contains(&id.trim_start_matches("sha256:")[..12]), "{row}");
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn a_run_is_one_container_which_ends_with_it() {
    let image = Named::new("run");
    let with = |arguments: &[&str]| {
        let own = ["-p", "local-docker", "--image", &image.0];
        run(own.iter().chain(arguments).copied()).output()
    };
    with(&["--lang", "python", "6 * 7"]).assert(0, "42\n");
    with(&["pwd; cat /etc/hostname; exit 7"]).assert(7, "/workspace\nsandbox\n");
    let failed = with(&["--lang", "python", "1 / 0"]);
    assert_eq!(failed.status, 1, "{}", failed.transcript());
    assert!(failed.stderr.contains("ZeroDivisionError"), "{}", failed.transcript());
    let kernel = with(&["--kernel", "python3", "--lang", "python", "%pwd"]);
    kernel.assert(0, "'/workspace'\n");
    eventually("its containers are gone", || image.count() == 0);
    let missing = run(["-p", "local-docker", "--image", "no-such-image:at-all", "true"]).output();
    assert_eq!(missing.status, 125, "{}", missing.transcript());
    assert!(missing.stderr.contains("sandboxes image pull"), "{}", missing.transcript());
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn a_container_that_stays_is_found_again_and_ended() {
    let (image, world) = (Named::new("stays"), World::new());
    let id = world.ok(&["create", "-p", "local-docker", "--image", &image.0, "--name", "stays"]);
    assert!(id.starts_with("local-docker/"), "{id}");
    assert_eq!(image.count(), 1);
    world.ok(&["exec", &id, "--lang", "python", "x = 41"]);
    assert_eq!(world.ok(&["exec", "stays", "--lang", "python", "x + 1"]), "42");
    assert_eq!(world.ok(&["exec", "stays", "echo here > made; cat made"]), "here");
    let listed: Value = serde_json::from_str(&world.ok(&["ls", "--json"])).unwrap();
    assert_eq!((&listed[0]["id"], &listed[0]["status"]), (&id.clone().into(), &"running".into()));
    // Later creations do not affect it.
    let other = run(["-p", "local-docker", "--lang", "python", "1 + 1"]).output();
    other.assert(0, "2\n");
    assert_eq!(world.ok(&["exec", "stays", "cat made"]), "here");
    world.ok(&["rm", &id]);
    eventually("its container is gone", || image.count() == 0);
    let gone = world.run(&["exec", &id, "true"]);
    assert_ne!(gone.status, 0, "{}", gone.transcript());
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn a_command_of_root_is_asked_for_with_user() {
    let world = World::new();
    let id = world.ok(&["create", "-p", "local-docker", "--lifetime", "60"]);
    assert_eq!(world.ok(&["exec", "--user", "root", &id, "id -u"]), "0");
    assert_ne!(world.ok(&["exec", &id, "id -u"]), "0");
    world.ok(&["rm", &id]);
}

#[test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
fn a_container_that_stays_ends_by_itself() {
    let (image, world) = (Named::new("expires"), World::new());
    let made = ["create", "-p", "local-docker", "--image", &image.0, "--lifetime", "8"];
    let began = Instant::now();
    let id = world.ok(&made);
    assert_eq!(world.ok(&["exec", &id, "echo here"]), "here");
    eventually("its container is gone", || image.count() == 0);
    assert!(began.elapsed() > Duration::from_secs(8), "it has ended before its time");
    let listed: Value = serde_json::from_str(&world.ok(&["ls", "--json"])).unwrap();
    assert_eq!(listed, Value::Array(Vec::new()));
}
