//! Starts the control plane for tests, a program of its own, and says to it what it shall do.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// The interpreter that has a Jupyter Server.
const INTERPRETER: &str = "SANDBOX_TEST_JUPYTER_PYTHON";

/// The interpreter that a variable names. None, and a word on standard error, where there is none.
pub(crate) fn interpreter(variable: &str) -> Option<OsString> {
    let python = env::var_os(variable);
    if python.is_none() {
        assert!(env::var_os("CI").is_none(), "{variable} is not set");
        let _ = writeln!(std::io::stderr(), "skipped: {variable} is not set");
    }
    python
}

/// A control plane with real Jupyter Servers. It ends with this handle, and with this process.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    child: Child,
    /// Address of all services.
    pub(crate) url: String,
    /// The one key that is accepted.
    pub(crate) key: String,
}

impl ControlPlane {
    /// One that speaks `old`, `new` or `both`, with that many servers started ahead. None, and a word on standard error, where
    /// there is no interpreter for it.
    pub(crate) fn speaking(dialect: &str, spares: u32) -> Option<Self> {
        Some(Self::run_by(&interpreter(INTERPRETER)?, dialect, spares))
    }

    /// One whose runtimes have the packages of that interpreter.
    pub(crate) fn run_by(python: &OsStr, dialect: &str, spares: u32) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../backend-datalayer/tests/support/control_plane.py");
        let mut child = Command::new(python)
            .arg(script)
            .args([dialect, &spares.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the control plane starts");
        let mut line = String::new();
        let output = child.stdout.take().expect("it has an output");
        BufReader::new(output).read_line(&mut line).expect("it says where it is");
        let ready: Value = serde_json::from_str(&line).expect("it says where it is");
        let text = |key: &str| ready[key].as_str().expect("it says where it is").to_owned();
        Self { child, url: text("url"), key: text("key") }
    }

    /// Tells it what to do; see `Test` in `control_plane.py`.
    pub(crate) fn tell(&self, what: &Value) {
        self.ask("POST", &what.to_string());
    }

    /// Answers the next request of that kind with a status.
    pub(crate) fn fail(&self, method: &str, path: &str, status: u16, count: u32) {
        let fault = json!({"method": method, "path": path, "status": status, "count": count});
        self.tell(&json!({"fault": fault}));
    }

    /// The requests it got so far, as `POST /api/..`.
    pub(crate) fn requests(&self) -> Vec<String> {
        let requests = self.sent();
        let shown = requests.iter().map(|request| {
            let text = |key: &str| request[key].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("method"), text("path"))
        });
        shown.collect()
    }

    /// The requests it got so far, with everything.
    pub(crate) fn sent(&self) -> Vec<Value> {
        self.ask("GET", "")["requests"].as_array().cloned().unwrap_or_default()
    }

    /// The runtimes that run, and so cost.
    pub(crate) fn runtimes(&self) -> Vec<Value> {
        self.ask("GET", "")["runtimes"].as_array().cloned().unwrap_or_default()
    }

    fn ask(&self, method: &str, body: &str) -> Value {
        let address = self.url.trim_start_matches("http://");
        let mut stream = TcpStream::connect(address).expect("it is there");
        let length = body.len();
        write!(
            stream,
            "{method} /_test HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        // The end of its input is its end.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
