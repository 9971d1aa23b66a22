//! `sandboxes serve`: what it prints, whom it lets in, and that nothing is left when it ends.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::Value;

use crate::detached::World;
use crate::e2b_server::Server;
use crate::support::sandboxes;

impl Server {
    /// Sends a request with a key, and returns the whole answer.
    fn ask(&self, key: &str, method: &str, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).unwrap();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn create(&self, wishes: &str) -> String {
        let body = format!("{{\"templateID\":\"base\"{wishes}}}");
        self.ask(&self.key, "POST", "/v2/sandboxes", &body)
    }

    /// Sends a request to envd of a sandbox that has just been made, and returns the whole answer.
    fn envd(&self, made: &str, method: &str, path: &str, kind: &str, body: &str) -> String {
        let (_, made) = made.split_once("\r\n\r\n").unwrap();
        let made: Value = serde_json::from_str(made).unwrap();
        let value = |name: &str| made[name].as_str().unwrap().to_owned();
        let (id, token) = (value("sandboxID"), value("envdAccessToken"));
        let mut stream = TcpStream::connect(format!("127.0.0.1:{}", self.port)).unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nE2b-Sandbox-Id: {id}\r\nX-Access-Token: {token}\r\n\
             Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn it_serves_until_it_is_interrupted() {
    let server = Server::start(&[]);
    assert!(server.ask("wrong", "GET", "/v2/sandboxes", "").starts_with("HTTP/1.1 401"));
    assert!(server.create("").starts_with("HTTP/1.1 201"));
    let listed = server.ask(&server.key, "GET", "/v2/sandboxes", "");
    assert!(listed.starts_with("HTTP/1.1 200") && listed.contains("\"sandboxID\""), "{listed}");
    let second = sandboxes(["serve", "--port", &server.port]).output();
    second.assert(125, "");
    assert!(second.stderr.contains("cannot be listened on"), "{}", second.stderr);
    assert_eq!(server.end(), 0);
}

#[test]
fn its_status_has_the_backend_with_its_circuit_breaker() {
    let server = Server::start(&[]);
    assert!(server.ask("wrong", "GET", "/status", "").starts_with("HTTP/1.1 401"));
    server.create("");
    let answer = server.ask(&server.key, "GET", "/status", "");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!((&status["variant"], &status["sandboxes"]), (&"local-eval".into(), &1.into()));
    let checks = status["health"]["checks"].as_array().unwrap();
    let breaker = checks.iter().find(|check| check["name"] == "circuit breaker").unwrap();
    assert_eq!((&breaker["ok"], &breaker["detail"]), (&true.into(), &"closed".into()));
    assert_eq!(server.end(), 0);
}

/// The place is an address at which nothing listens.
#[cfg(feature = "e2b")]
#[test]
fn an_open_circuit_breaker_shows_in_the_status() {
    let down = "http://127.0.0.1:9";
    let variables = [("E2B_API_KEY", "e2b_x"), ("E2B_API_URL", down), ("E2B_SANDBOX_URL", down)];
    let server = Server::start_with(&["-p", "e2b", "--network", "all"], &variables);
    for _ in 0..6 {
        assert!(!server.create("").starts_with("HTTP/1.1 201"));
    }
    let answer = server.ask(&server.key, "GET", "/status", "");
    assert!(answer.contains("\"circuit breaker\"") && answer.contains("open for"), "{answer}");
    assert_eq!(server.end(), 0);
}

#[test]
fn its_flags_are_the_ceiling() {
    let server = Server::start(&["--allow", "pypi.org", "--lifetime", "60", "--api-key", "chosen"]);
    assert_eq!(server.key, "chosen");
    for (wishes, status) in [
        (",\"allow_internet_access\":true", 403),
        (",\"network\":{\"denyOut\":[\"0.0.0.0/0\"],\"allowOut\":[\"example.com\"]}", 403),
        (",\"timeout\":61", 400),
        (",\"timeout\":30,\"allow_internet_access\":false", 201),
    ] {
        let answer = server.create(wishes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{wishes}: {answer}");
    }
    assert_eq!(server.end(), 0);
}

#[test]
fn kept_sandboxes_outlive_it() {
    let world = World::with_idle("1");
    let server = Server::spawn(world.call(&["serve", "--port", "0", "--keep"]));
    let made = server.create(",\"timeout\":600,\"metadata\":{\"kept\":\"yes\"}");
    assert!(made.starts_with("HTTP/1.1 201"), "{made}");
    let upload = "/files?path=/home/user/note.txt";
    let wrote = server.envd(&made, "POST", upload, "application/octet-stream", "kept");
    assert!(wrote.starts_with("HTTP/1.1 200"), "{wrote}");
    let ids = world.ids();
    assert_eq!(ids.len(), 1, "{ids:?}");
    assert_eq!(server.end(), 0);
    assert_eq!(world.ids(), ids, "it is still there");
    assert_eq!(world.ok(&["exec", &ids[0], "cat /home/user/note.txt"]), "kept");
    world.ok(&["rm", &ids[0]]);
    assert!(world.ids().is_empty());
}

#[test]
fn further_directories_are_writable() {
    let server = Server::start(&["--writable", "/app", "--writable", "/srv/cache"]);
    let made = server.create("");
    for path in ["/app/main.py", "/srv/cache/deep/a.txt", "/tmp/a.txt"] {
        let upload = format!("/files?path={path}");
        let wrote = server.envd(&made, "POST", &upload, "application/octet-stream", "content");
        assert!(wrote.starts_with("HTTP/1.1 200"), "{path}: {wrote}");
        let read = server.envd(&made, "GET", &upload, "text/plain", "");
        assert!(read.ends_with("content"), "{path}: {read}");
    }
    let code = "open('/app/by-code', 'w').write('x')\\ntry: open('/by-code', 'w')\\nexcept OSError as e: print(type(e))";
    let body = format!("{{\"code\":\"{code}\"}}");
    let ran = server.envd(&made, "POST", "/execute", "application/json", &body);
    assert!(ran.contains("PermissionError"), "{ran}");
    let read = server.envd(&made, "GET", "/files?path=/app/by-code", "text/plain", "");
    assert!(read.ends_with("\r\n\r\nx"), "{read}");
    assert_eq!(server.end(), 0);
    for (flags, status) in [
        (&["--writable", "/usr/local/lib"][..], 2),
        (&["--writable", "/etc"], 2),
        (&["--writable", "relative"], 2),
        (&["--writable", "/app", "--isolation", "off"], 125),
    ] {
        let refused = sandboxes(["serve", "--port", "0"]).args(flags.iter().copied()).output();
        assert_eq!(refused.status, status, "{flags:?}: {}", refused.stderr);
    }
}

#[test]
fn what_it_cannot_be_is_refused() {
    let open = sandboxes(["serve", "--host", "0.0.0.0", "--port", "0"]).output();
    open.assert(2, "");
    assert!(open.stderr.contains("--api-key"), "{}", open.stderr);
    let limited = sandboxes(["serve", "-t", "5"]).output();
    limited.assert(2, "");
    let shown =
        sandboxes(["serve", "--port", "0", "--isolation", "off", "--memory", "1g"]).output();
    assert_eq!(shown.status, 125, "a limit that cannot be enforced: {}", shown.stderr);
}
