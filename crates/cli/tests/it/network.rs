//! `--network`, `--allow` and `--deny`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;

use crate::detached::kill;
use crate::support::{Call, run, wait};

/// Starts a server on this host that answers once in capitals. Returns its port.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reported = [0; 5];
            stream.read_exact(&mut reported).unwrap();
            reported.make_ascii_uppercase();
            stream.write_all(&reported).unwrap();
        }
    });
    port
}

fn talk(host: &str) -> String {
    let port = server();
    format!(
        "import socket; s = socket.create_connection(({host:?}, {port})); s.send(b'hello'); print(s.recv(5).decode())"
    )
}

/// Runs the binary with addresses for the names below `a.localhost`.
fn allowed(arguments: &[&str]) -> Call {
    let allow = ["--allow", "*.a.localhost", "--allow", "127.0.0.1"];
    run(allow.iter().chain(arguments))
}

fn python(code: &str) -> Call {
    allowed(&["--lang", "python", code])
}

#[test]
fn allow_without_network_opens_the_named_hosts() {
    python(&talk("x.a.localhost")).output().assert(0, "HELLO\n");
}

#[test]
fn refused_connections_are_reported_with_the_flag() {
    let outcome = python(&talk("a.example")).output();
    assert_eq!(outcome.status, 1);
    let hint = "sandboxes: hint: the network policy refused a.example: it is not allowed; `--allow a.example` opens it\n";
    assert!(outcome.stderr.ends_with(hint), "{}", outcome.stderr);
    let outcome = python(&talk("a.example")).arg("--json").output();
    let denied = &outcome.json()["network_denied"][0];
    assert_eq!(denied["host"], "a.example");
    assert_eq!(denied["allow"], "a.example");
}

#[test]
fn refused_connections_of_commands_are_reported_too() {
    let line = "python3 -c \"import socket; socket.gethostbyname('a.example')\" 2>/dev/null";
    let outcome = allowed(&[line]).output();
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("`--allow a.example` opens it"), "{}", outcome.stderr);
}

#[test]
fn deny_wins() {
    let code = talk("y.a.localhost");
    let outcome = python(&code).arg("--deny=y.a.localhost").output();
    assert_eq!(outcome.status, 1);
    assert!(outcome.stderr.contains("refused y.a.localhost: it is denied\n"), "{}", outcome.stderr);
}

const CONNECT: &str = "import socket; socket.create_connection(('198.51.100.1', 80), 5)";

#[test]
fn missing_network_is_reported_with_the_flag_once_and_without_rust_names() {
    let command = format!("python3 -c \"{CONNECT}\" 2>/dev/null");
    let looks_up = "python3 -c \"import socket; socket.gethostbyname('a.example')\" 2>/dev/null";
    let survives = "getent hosts a.example; echo 'Could not resolve host: a.example' >&2; true";
    for (arguments, status) in [
        (&[command.as_str()][..], 1),
        (&[looks_up], 1),
        (&[survives], 0),
        (&["--lang", "python", CONNECT], 1),
        (&["--lang", "bash", &command], 1),
    ] {
        let outcome = run(arguments).output();
        assert_eq!(outcome.status, status, "{arguments:?}: {}", outcome.stderr);
        assert_eq!(
            outcome.stderr.matches("--allow HOST").count(),
            1,
            "{arguments:?}: {}",
            outcome.stderr
        );
        let result = run(arguments).arg("--json").output();
        assert!(result.json()["hint"].as_str().unwrap().contains("--network all"), "{result:?}");
        for text in [outcome.stderr.as_str(), result.text()] {
            assert!(!text.contains("NetworkPolicy"), "{text}");
        }
    }
    for fine in ["echo 'Network is unreachable' >&2; exit 1", "false", "true"] {
        let outcome = run([fine]).output();
        assert!(!outcome.stderr.contains("hint"), "{fine}: {}", outcome.stderr);
    }
}

#[test]
fn repeated_refusals_are_reported_during_the_run() {
    let line = "python3 -c \"
import socket, time
while True:
    try: socket.gethostbyname('a.example')
    except OSError: time.sleep(0.5)\"";
    let mut child = run(["-t", "60", line]).spawn();
    let mut reported = String::new();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    lines.read_line(&mut reported).unwrap();
    assert!(reported.contains("hint") && reported.contains("--allow HOST"), "{reported}");
    assert!(child.try_wait().unwrap().is_none(), "it still runs");
    kill(i32::try_from(child.id()).unwrap(), "TERM");
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    assert!(!rest.contains("--allow"), "once is enough: {rest}");
    wait(&mut child);
}

#[test]
fn its_own_loopback_cannot_be_allowed() {
    for host in ["127.0.0.1:8000", "localhost", "[fe80::1]:80"] {
        let outcome = run(["--allow", host, "ls"]).output();
        assert_eq!(outcome.status, 2, "{host}");
        assert!(
            outcome.stderr.contains(host.trim_end_matches(":80")),
            "{host}: {}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains("sandboxes: hint: "), "{host}: {}", outcome.stderr);
    }
}
