//! `--network`, `--allow` and `--deny`.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::support::{Call, run};

/// A server on this host that answers once in capitals; its port.
fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut told = [0; 5];
            stream.read_exact(&mut told).unwrap();
            told.make_ascii_uppercase();
            stream.write_all(&told).unwrap();
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

/// A run with the names below `a.localhost`, and where they lead.
fn allowed(arguments: &[&str]) -> Call {
    let allow = ["--allow", "*.a.localhost", "--allow", "127.0.0.1"];
    run(allow.iter().chain(arguments))
}

fn python(code: &str) -> Call {
    allowed(&["--lang", "python", code])
}

#[test]
fn allow_alone_opens_what_it_names() {
    python(&talk("x.a.localhost")).output().assert(0, "HELLO\n");
}

#[test]
fn what_is_refused_is_told_with_its_flag() {
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
fn a_command_is_told_too() {
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
