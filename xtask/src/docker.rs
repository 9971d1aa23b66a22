//! Containers: an engine to test with, the image, and the tests that need both.

use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::command::exists;
use crate::engine::Engine;
use crate::image::{self, Words};
use crate::podman::Podman;
use crate::setup::{install_packages, is_root};
use crate::suites::{Built, TestProgram, cargo};
use crate::summary::TestSummary;
use crate::test_plan::FULL;
use crate::test_task::Missing;
use crate::workspace;

/// The folder of the package of most of them.
const PACKAGE: &str = "backend-docker";

/// The test programs that need an engine, with the folders of their packages.
const PROGRAMS: [(&str, &str); 10] = [
    (PACKAGE, "engine"),
    (PACKAGE, "lost"),
    (PACKAGE, "snapshots"),
    (PACKAGE, "conformance"),
    (PACKAGE, "kernels"),
    (PACKAGE, "conformance_kernels"),
    (PACKAGE, "hostile"),
    (PACKAGE, "agentless"),
    (PACKAGE, "conformance_agentless"),
    ("cli", "containers"),
];

/// Those whose tests are left out everywhere else.
const IGNORED: [&str; 8] =
    ["engine", "snapshots", "kernels", "lost", "agentless", "containers", OWN_ENGINE, PODMAN];

/// The one that starts an engine of its own, and the one that needs another engine.
const OWN_ENGINE: &str = "own_engine";
const PODMAN: &str = "podman";

/// Where the latter is.
const PODMAN_VARIABLE: &str = "SANDBOX_TEST_PODMAN";

/// What tells them that there is one.
const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// `cargo xtask image`: the image for the engine that is there, on a base that comes from no registry.
pub(crate) fn image(arguments: &[String]) -> Result<bool, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let engine = Engine::found().ok_or("no container engine answers")?;
    install_missing();
    image::build_shown(&engine).map(|()| true)
}

/// `cargo xtask test-docker`: an engine if there is none, the image, the behaviour suite and the tests of the backend.
///
/// With `--part` as much of them as `cargo xtask test` runs.
pub(crate) fn test(arguments: &[String]) -> Result<bool, String> {
    let full = match arguments {
        [] => true,
        [part] if part == "--part" => false,
        [other, ..] => return Err(format!("unknown argument {other:?}")),
    };
    let engine = engine()?;
    let mut tally = TestSummary::default();
    let command = |folder: &str, program: &str, alone: Option<&str>| {
        let package = format!("code-sandboxes-{folder}");
        let mut command = cargo(&["test", "--package", &package, "--test", program, "--"]);
        with(&mut command, &engine, program, full, alone);
        command
    };
    for (folder, program) in PROGRAMS {
        tally.run(program, folder, &mut command(folder, program, None), |name| {
            command(folder, program, Some(name))
        });
    }
    if may_start_another(&mut tally) {
        tally.run(OWN_ENGINE, PACKAGE, &mut command(PACKAGE, OWN_ENGINE, None), |name| {
            command(PACKAGE, OWN_ENGINE, Some(name))
        });
    }
    if let Some(podman) = Podman::provide(&engine, missing(), &mut tally) {
        let command = |alone: Option<&str>| {
            let mut command = command(PACKAGE, PODMAN, alone);
            command.env(PODMAN_VARIABLE, podman.host());
            command
        };
        tally.run(PODMAN, PACKAGE, &mut command(None), |name| command(Some(name)));
    }
    tally.check("no container is left", nothing_is_left(&engine)?);
    Ok(tally.close())
}

/// Root installs what is missing, so that nothing need be.
fn missing() -> Missing {
    if is_root() { Missing::IsFailure } else { Missing::IsSkipped }
}

/// Whether an engine can be started beside the one that is there. Where not, that is counted.
fn may_start_another(tally: &mut TestSummary) -> bool {
    let lacking = ["dockerd", "openssl", "setpriv"].into_iter().find(|program| !exists(program));
    let obstacle = Engine::obstacle().map(str::to_owned);
    let obstacle = obstacle.or_else(|| lacking.map(|program| format!("there is no {program}")));
    if let Some(obstacle) = &obstacle {
        tally.skip("tests with an engine of their own", obstacle);
    }
    obstacle.is_none()
}

/// An engine that has the image: the one that answers, or one of our own.
///
/// # Errors
/// Why there is none.
pub(crate) fn engine() -> Result<Engine, String> {
    if Engine::obstacle().is_none() {
        install_missing();
    }
    let engine = Engine::found().map_or_else(Engine::start, Ok)?;
    engine.wait()?;
    image::provide(&engine, &Words::Shown)?;
    Ok(engine)
}

/// Adds to the command of a test program what it needs of the engine.
fn with(command: &mut Command, engine: &Engine, program: &str, full: bool, alone: Option<&str>) {
    if IGNORED.contains(&program) {
        command.arg("--include-ignored");
    }
    if let Some(name) = alone {
        command.args(["--exact", name]);
    }
    command.env(VARIABLE, "1").env(FULL, if full { "1" } else { "0" });
    if let Some(host) = engine.host() {
        command.env("DOCKER_HOST", host);
    }
}

fn nothing_is_left(engine: &Engine) -> Result<bool, String> {
    let left = engine.containers()?;
    if !left.is_empty() {
        println!("containers are left: {left}");
    }
    Ok(left.is_empty())
}

/// What starts an engine and makes the image, from the system's packages.
fn install_missing() {
    let needs = [
        ("dockerd", "docker.io"),
        ("docker", "docker.io"),
        ("debootstrap", "debootstrap"),
        ("openssl", "openssl"),
        ("busybox", "busybox-static"),
    ];
    let missing = needs.iter().filter(|(program, _)| !exists(program));
    let mut packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    packages.dedup();
    if !packages.is_empty() && Engine::obstacle().is_none() && exists("apt-get") {
        install_packages(&packages);
    }
}

/// The tests that need an engine, as a part of everything. Engine and image are made ready meanwhile.
pub(crate) struct Tests {
    engine: Arc<Engine>,
    preparing: Option<JoinHandle<Result<(), String>>>,
    missing: Missing,
    full: bool,
}

impl Tests {
    /// Begins to prepare. `None` where there is no engine and none may be started, which is counted.
    pub(crate) fn begin(missing: Missing, full: bool, tally: &mut TestSummary) -> Option<Self> {
        let may_start = missing == Missing::IsFailure;
        if may_start {
            install_missing();
        }
        let engine = match Engine::found() {
            Some(engine) => engine,
            None if !may_start => {
                let reason = "no container engine answers; cargo xtask test-docker starts one";
                tally.skip("tests with containers", reason);
                return None;
            }
            None => match (Engine::obstacle(), Engine::start()) {
                (_, Ok(engine)) => engine,
                (Some(obstacle), _) => {
                    tally.skip("tests with containers", obstacle);
                    return None;
                }
                (None, Err(why)) => {
                    println!("containers: {why}");
                    tally.check("a container engine", false);
                    return None;
                }
            },
        };
        let engine = Arc::new(engine);
        let log = workspace::target().join("containers.log");
        let _ = std::fs::remove_file(&log);
        let preparing = std::thread::spawn({
            let engine = Arc::clone(&engine);
            move || {
                engine.wait()?;
                image::provide(&engine, &Words::Into(log))
            }
        });
        Some(Self { engine, preparing: Some(preparing), missing, full })
    }

    /// Takes its test programs out of the others.
    pub(crate) fn take(built: &mut Built) -> Vec<TestProgram> {
        let is_ours = |program: &mut TestProgram| {
            let target = &*program.target;
            let further = [OWN_ENGINE, PODMAN].contains(&target);
            let package = &*program.package;
            (package == PACKAGE && further) || PROGRAMS.contains(&(package, target))
        };
        built.tests.extract_if(.., is_ours).collect()
    }

    /// Runs them.
    pub(crate) fn run(
        mut self,
        programs: &[TestProgram],
        tally: &mut TestSummary,
    ) -> Result<(), String> {
        let preparing = self.preparing.take();
        let prepared = preparing.map(JoinHandle::join).ok_or("the engine was prepared before")?;
        let prepared = prepared.unwrap_or_else(|_| Err("it ended early".to_owned()));
        if let Err(why) = prepared {
            println!("containers: {why}");
            match self.missing {
                Missing::IsFailure => tally.check("a container engine and an image", false),
                Missing::IsSkipped => tally.skip("tests with containers", &why),
            }
            return Ok(());
        }
        let podman = Podman::provide(&self.engine, self.missing, tally);
        let starts_another = may_start_another(tally);
        for program in programs {
            let is_left_out = match &*program.target {
                OWN_ENGINE => !starts_another,
                PODMAN => podman.is_none(),
                _ => false,
            };
            if is_left_out {
                continue;
            }
            let command = |alone: Option<&str>| {
                let mut command = program.command();
                with(&mut command, &self.engine, &program.target, self.full, alone);
                command.envs(podman.as_ref().map(|podman| (PODMAN_VARIABLE, podman.host())));
                command
            };
            tally.run(&program.name(), &program.package, &mut command(None), |name| {
                command(Some(name))
            });
        }
        tally.check("no container is left", nothing_is_left(&self.engine)?);
        Ok(())
    }
}

impl Drop for Tests {
    fn drop(&mut self) {
        // Keeps the engine alive; it ends with its last user.
        if let Some(preparing) = self.preparing.take() {
            let _ = preparing.join();
        }
    }
}
