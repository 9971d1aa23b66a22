//! Logs contain no secrets, at any level.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::detached::World;
use crate::support::{Call, Outcome, binary};

/// A text that occurs nowhere else.
const SECRET: &str = "zq7-canary-of-the-logs-41c9";

/// Enables all logs.
fn loudly(call: Call) -> Call {
    call.args(["-v", "-v"]).env("RUST_LOG", "trace")
}

/// Starts a server that reads every request and refuses it.
fn refusing_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let answer = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            let _ = connection.write_all(answer.as_bytes());
        }
    });
    format!("http://{address}")
}

#[test]
fn no_log_has_a_secret() {
    let world = World::new();
    let (log, variable) = (world.path().join("supervisor.log"), format!("API_KEY={SECRET}"));
    let mut supervisor = Command::new(binary())
        .args(["supervisor", "-v", "-v"])
        .env("RUST_LOG", "trace")
        .env("CODE_SANDBOXES_RUNTIME_DIR", world.path())
        .env("CODE_SANDBOXES_STATE_DIR", world.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while !fs::read_to_string(&log).unwrap().contains(" serving") {
        assert!(began.elapsed() < Duration::from_secs(30), "no supervisor");
        thread::sleep(Duration::from_millis(10));
    }
    let mut all: Vec<Outcome> = Vec::new();
    let mut call = |arguments: &[&str], status: i32| {
        let call = world.call(&arguments[..1]).env("API_KEY", SECRET);
        // Arguments after the program's first word belong to the program.
        let outcome = loudly(call).args(arguments[1..].iter().copied()).output();
        assert_eq!(outcome.status, status, "{arguments:?}: {}", outcome.transcript());
        all.push(outcome);
    };
    let (length, code) =
        ("test ${#API_KEY} -eq 27", "import os; assert len(os.environ['API_KEY']) == 27");
    call(&["create", "--name", "kept", "-e", &variable], 0);
    call(&["exec", "kept", length], 0);
    call(&["exec", "kept", "--lang", "python", code], 0);
    call(&["exec", "-e", "API_KEY", "kept", length], 0);
    call(&["run", "-e", &variable, length], 0);
    call(&["run", "-e", "API_KEY", "--lang", "python", code], 0);
    call(&["logs", "kept"], 0);
    call(&["ls"], 0);
    let url = refusing_server();
    let server = ["--server-url", &url, "--isolation", "off", "--lang", "python", "1"];
    call(&[&["run", "--token", SECRET], &server[..]].concat(), 125);
    call(&["rm", "kept"], 0);
    let by_variable = loudly(world.call(&["run"]).env("JUPYTER_TOKEN", SECRET));
    all.push(by_variable.args(server).output());
    supervisor.kill().unwrap();
    supervisor.wait().unwrap();
    let loud = all.iter().filter(|outcome| outcome.stderr.contains("TRACE")).count();
    assert!(loud >= 2, "runs with a token must log, else the test proves nothing: {loud}");
    for outcome in all {
        assert!(!outcome.transcript().contains(SECRET), "{}", outcome.transcript());
    }
    let mut message = String::new();
    File::open(&log).unwrap().read_to_string(&mut message).unwrap();
    assert!(message.contains(" serving"), "the test would prove nothing: {message}");
    let reported: Vec<_> = message.lines().filter(|line| line.contains(SECRET)).collect();
    assert!(reported.is_empty(), "{reported:?}");
}
