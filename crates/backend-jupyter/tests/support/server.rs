//! A real Jupyter Server, for tests.

use std::env;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Names an interpreter that has Jupyter.
const VARIABLE: &str = "SANDBOX_TEST_JUPYTER_PYTHON";

/// The one token that it takes.
pub(crate) const TOKEN: &str = "a-token-for-tests-alone";

/// The interpreter that the tests are told of.
pub(crate) fn named() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(Into::into)
}

/// An interpreter with a Jupyter Server. Where the tests are told of none, it is `None`, and the line that the test was
/// skipped: `cargo xtask test` counts those.
pub(crate) fn interpreter() -> Option<PathBuf> {
    let found = named();
    if found.is_none() {
        assert!(env::var_os("CI").is_none(), "{VARIABLE} is not set");
        // Past what captures the output of tests, and past the line that their harness may have begun.
        let _ = write!(std::io::stdout(), "\nskipped: {VARIABLE} is not set\n");
    }
    found
}

/// A Jupyter Server of the interpreter that the tests are told of. It ends with this handle, and with this process.
#[derive(Debug)]
pub(crate) struct JupyterServer {
    child: Child,
    folder: TempDir,
    pub(crate) url: String,
}

impl JupyterServer {
    /// One that is ready. `None`, and the line that the test was skipped, where there is no interpreter for it.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(Some("ZMQChannelsWebsocketConnection.limit_rate=False"))
    }

    /// One as it is out of the box: it drops output that comes too fast.
    pub(crate) fn start_limited() -> Option<Self> {
        Self::start_with(None)
    }

    fn start_with(setting: Option<&str>) -> Option<Self> {
        let python = interpreter()?;
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let home = folder.path().join("home");
        fs::create_dir(&home).expect("a home");
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../backend-jupyter/tests/support/server.py");
        let log = fs::File::create(folder.path().join("log")).expect("a log");
        let options = [
            "ServerApp.ip=127.0.0.1",
            &format!("ServerApp.port={port}"),
            "ServerApp.port_retries=0",
            &format!("ServerApp.root_dir={}", home.display()),
            "ServerApp.allow_root=True",
            "ServerApp.open_browser=False",
            &format!("IdentityProvider.token={TOKEN}"),
        ];
        let mut command = Command::new(&python);
        let options = options.into_iter().chain(setting);
        command.arg(script).args(options.map(|option| format!("--{option}")));
        let programs = python.parent().expect("a folder").display().to_string();
        let below = |name: &str| folder.path().join(name);
        let child = command
            .env_clear()
            .env("PATH", format!("{programs}:/usr/local/bin:/usr/bin:/bin"))
            .env("HOME", &home)
            .env("LANG", "C.UTF-8")
            .env("IPYTHONDIR", below("ipython"))
            .env("JUPYTER_RUNTIME_DIR", below("runtime"))
            .env("JUPYTER_CONFIG_DIR", below("config"))
            .env("JUPYTER_DATA_DIR", below("data"))
            .env("JUPYTER_NO_CONFIG", "1")
            .current_dir(&home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("a server");
        let mut server = Self { child, folder, url: format!("http://127.0.0.1:{port}") };
        server.wait_until_ready(port);
        Some(server)
    }

    fn wait_until_ready(&mut self, port: u16) {
        let begun = Instant::now();
        while !answers(port) {
            let ended = self.child.try_wait().expect("its state");
            assert!(ended.is_none() && begun.elapsed() < Duration::from_secs(60), "{}", self.log());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A folder that its kernels can write to.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Adds a kernel specification that is started with that shell script.
    pub(crate) fn add_kernel(&self, name: &str, script: &str) {
        write_kernel(&self.folder.path().join("data"), name, script);
    }
}

impl Drop for JupyterServer {
    fn drop(&mut self) {
        // The end of its input is its end, and that of its kernels.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Adds a kernel specification below a folder of Jupyter's.
pub(crate) fn write_kernel(data: &Path, name: &str, script: &str) {
    let spec = serde_json::json!({
        "argv": ["/bin/sh", "-c", script, "{connection_file}"], "display_name": name, "language": "none",
    });
    write_spec(data, name, &spec);
}

/// The same with a whole specification.
pub(crate) fn write_spec(data: &Path, name: &str, spec: &serde_json::Value) {
    let folder = data.join("kernels").join(name);
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("kernel.json"), spec.to_string()).expect("a specification");
}

/// A port that was free just now.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn answers(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains("\"version\"")
}
