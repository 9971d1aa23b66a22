//! A service of Podman for tests, with a socket and files of its own, and the image from the engine that has it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{exists, quietly};
use crate::engine::{Engine, unmount_below};
use crate::image::IMAGE;
use crate::setup::{install_packages, is_root};
use crate::summary::TestSummary;
use crate::test_task::Missing;
use crate::workspace;

/// How long it may take to start, and to end.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);

const WHAT: &str = "tests with Podman";

/// It ends with this, and its files with it.
pub(crate) struct Podman {
    child: Child,
    directory: PathBuf,
    socket: PathBuf,
}

impl Podman {
    /// One that has the image of that engine. `None` where there can be none, which is counted: as a failure where it
    /// could be installed and nothing may be missing.
    pub(crate) fn provide(
        engine: &Engine,
        missing: Missing,
        tally: &mut TestSummary,
    ) -> Option<Self> {
        if let Some(obstacle) = Engine::obstacle().filter(|_| !is_root()) {
            tally.skip(WHAT, obstacle);
            return None;
        }
        let may_install = missing == Missing::IsFailure && exists("apt-get");
        if !exists("podman") && may_install {
            install_packages(&["podman"]);
        }
        let started = if exists("podman") {
            Self::start().and_then(|podman| podman.load(engine).map(|()| podman))
        } else {
            Err("there is no podman".to_owned())
        };
        match started {
            Ok(podman) => Some(podman),
            Err(why) if may_install => {
                println!("podman: {why}");
                tally.check("a Podman with the image", false);
                None
            }
            Err(why) => {
                tally.skip(WHAT, &why);
                None
            }
        }
    }

    fn start() -> Result<Self, String> {
        let directory = workspace::target().join("podman-engine");
        unmount_below(&directory);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
        // A socket has a short name: longer ones than 108 bytes cannot be.
        let socket =
            PathBuf::from(format!("/run/code-sandboxes-podman-{}.sock", std::process::id()));
        let log = fs::File::create(path("log")).map_err(|error| error.to_string())?;
        // With crun it starts nothing where both versions of control groups are mounted.
        let runtime = exists("runc").then_some(["--runtime", "runc"]);
        let child = Command::new("setpriv")
            // What watches its containers leaves a file where it works when one was out of memory.
            .current_dir(&directory)
            .args(["--pdeathsig", "TERM", "podman"])
            // Not every host has the services that it would ask.
            .args(["--cgroup-manager", "cgroupfs", "--events-backend", "file"])
            .args(["--root", &path("root"), "--runroot", &path("run"), "--tmpdir", &path("tmp")])
            .args(runtime.into_iter().flatten())
            .args(["system", "service", "--time", "0", &address(&socket)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("podman: {error}"))?;
        let mut podman = Self { child, directory, socket };
        let began = Instant::now();
        while !quietly(podman.docker().arg("version")) {
            let ended = podman.child.try_wait().is_ok_and(|status| status.is_some());
            if ended || began.elapsed() > START {
                let said = fs::read_to_string(podman.directory.join("log")).unwrap_or_default();
                return Err(format!(
                    "it did not start: {}",
                    said.lines().last().unwrap_or_default()
                ));
            }
            sleep(Duration::from_millis(200));
        }
        Ok(podman)
    }

    fn load(&self, engine: &Engine) -> Result<(), String> {
        let mut saving = engine.docker(&["save", IMAGE]);
        let mut saving =
            saving.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let archive = saving.stdout.take().ok_or("the engine gives nothing")?;
        let mut loading = self.docker();
        let loaded =
            loading.args(["load", "--quiet"]).stdin(archive).stdout(Stdio::null()).status();
        // The command has the other end of the pipe for as long as it lives.
        drop(loading);
        let saved = saving.wait().is_ok_and(|status| status.success());
        if saved && loaded.is_ok_and(|status| status.success()) {
            Ok(())
        } else {
            Err("it did not take the image".to_owned())
        }
    }

    /// The client that both engines have in common.
    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.host()]);
        docker
    }

    pub(crate) fn host(&self) -> String {
        address(&self.socket)
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        quietly(Command::new("kill").arg(self.child.id().to_string()));
        let began = Instant::now();
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            if began.elapsed() > END {
                let _ = self.child.kill();
                let _ = self.child.wait();
            }
            sleep(Duration::from_millis(50));
        }
        let _ = fs::remove_file(&self.socket);
        unmount_below(&self.directory);
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("warning: {} is left: {error}", self.directory.display());
        }
    }
}

fn address(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}
