//! A container engine for tests: the one that is there, or one that is started and ended here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::command::{exists, output, quietly};
use crate::setup::is_root;
use crate::workspace;

/// How long a new engine may take to start, and to end.
const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(20);

/// What an engine makes for its containers and leaves at its end.
const BRIDGE: &str = "docker0";

/// An engine. One that was started here ends with this, and its files with it.
pub(crate) struct Engine {
    own: Option<Own>,
}

struct Own {
    child: Child,
    directory: PathBuf,
    socket: PathBuf,
    had_bridge: bool,
}

impl Engine {
    /// The one that answers, if one does.
    pub(crate) fn found() -> Option<Self> {
        quietly(Command::new("docker").arg("version")).then_some(Self { own: None })
    }

    /// Why none can be started here, if so.
    pub(crate) fn obstacle() -> Option<&'static str> {
        const SYS_ADMIN: u64 = 1 << 21;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let held = held.and_then(|held| u64::from_str_radix(held.trim(), 16).ok()).unwrap_or(0);
        if !is_root() {
            Some("no container engine answers, and only root can start one")
        } else if held & SYS_ADMIN == 0 {
            Some("no container engine answers, and this root may not start one (CAP_SYS_ADMIN)")
        } else {
            None
        }
    }

    /// Starts one with a socket and files of its own. It ends with the thread that calls this, if not before.
    pub(crate) fn start() -> Result<Self, String> {
        if let Some(obstacle) = Self::obstacle() {
            return Err(obstacle.to_owned());
        }
        if !exists("dockerd") {
            return Err("there is no dockerd".to_owned());
        }
        let directory = workspace::target().join("docker-engine");
        unmount_below(&directory);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let path = |name: &str| directory.join(name).to_string_lossy().into_owned();
        // A socket has a short name: longer ones than 108 bytes cannot be.
        let socket = PathBuf::from(format!("/run/code-sandboxes-test-{}.sock", std::process::id()));
        let log = fs::File::create(path("log")).map_err(|error| error.to_string())?;
        let had_bridge = has_bridge();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "dockerd", "--host", &address(&socket)])
            .args(["--data-root", &path("data"), "--exec-root", &path("exec")])
            .args(["--pidfile", &path("pid")])
            // The host's own rules and settings stay as they are.
            .args(["--iptables=false", "--ip6tables=false", "--ip-forward=false"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .map_err(|error| format!("dockerd: {error}"))?;
        Ok(Self { own: Some(Own { child, directory, socket, had_bridge }) })
    }

    /// Waits until it answers.
    pub(crate) fn wait(&self) -> Result<(), String> {
        let log = self.own.as_ref().map(|own| own.directory.join("log"));
        let said = || log.as_ref().and_then(|log| fs::read_to_string(log).ok()).unwrap_or_default();
        let started = Instant::now();
        while !self.runs(&["version"]) {
            let said = said();
            if started.elapsed() > START || said.contains("failed to start daemon") {
                let last = said.lines().last().unwrap_or_default();
                return Err(format!("the engine did not start: {last}"));
            }
            sleep(Duration::from_millis(200));
        }
        Ok(())
    }

    /// Its address, unless that is the default one.
    pub(crate) fn host(&self) -> Option<String> {
        self.own.as_ref().map(|own| address(&own.socket))
    }

    pub(crate) fn docker(&self, arguments: &[&str]) -> Command {
        let mut docker = Command::new("docker");
        if let Some(host) = self.host() {
            docker.args(["--host", &host]);
        }
        docker.args(arguments);
        docker
    }

    pub(crate) fn runs(&self, arguments: &[&str]) -> bool {
        quietly(&mut self.docker(arguments))
    }

    /// Our containers that are still there. One that has just ended may take a moment to be gone.
    pub(crate) fn containers(&self) -> Result<String, String> {
        let arguments =
            ["ps", "--all", "--filter", "label=code-sandboxes.id", "--format", "{{.Names}}"];
        let began = Instant::now();
        loop {
            let found = output(&mut self.docker(&arguments))?;
            if found.trim().is_empty() || began.elapsed() > END {
                return Ok(found.split_whitespace().collect::<Vec<_>>().join(" "));
            }
            sleep(Duration::from_millis(200));
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let Some(own) = &mut self.own else { return };
        quietly(Command::new("kill").arg(own.child.id().to_string()));
        let began = Instant::now();
        while own.child.try_wait().is_ok_and(|status| status.is_none()) {
            if began.elapsed() > END {
                let _ = own.child.kill();
                let _ = own.child.wait();
            }
            sleep(Duration::from_millis(50));
        }
        if !own.had_bridge && has_bridge() {
            quietly(Command::new("ip").args(["link", "delete", BRIDGE]));
        }
        let _ = fs::remove_file(&own.socket);
        unmount_below(&own.directory);
        if let Err(error) = fs::remove_dir_all(&own.directory) {
            eprintln!("warning: {} is left: {error}", own.directory.display());
        }
    }
}

fn address(socket: &Path) -> String {
    format!("unix://{}", socket.display())
}

/// An engine that ends leaves mounts, such as that of its network namespace.
pub(crate) fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new);
    let below: Vec<_> = places.filter(|place| place.starts_with(directory)).collect();
    for place in below.iter().rev() {
        quietly(Command::new("umount").arg(place));
    }
}

fn has_bridge() -> bool {
    Path::new("/sys/class/net").join(BRIDGE).exists()
}
