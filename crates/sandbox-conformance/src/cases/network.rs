//! What code reaches through a network policy.
//!
//! Servers are on the loopback of this host, under names below `localhost`, which lead there everywhere. Other addresses
//! are private or from documentation ranges; nothing is sent to a real host.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandbox_core::{DenialReason, NetworkDenial, NetworkMode, NetworkPolicy, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("network", [run_code, local, strict, network_allowlist], {
        an_allowed_name_is_reached;
        an_allowed_name_is_reached_by_commands needs commands;
        the_port_of_a_rule_counts;
        other_names_do_not_exist_and_the_result_says_so;
        commands_are_told_too needs commands;
        a_name_is_no_permission_for_a_private_address;
        literal_addresses_need_a_rule;
        deny_wins;
        mode_all_is_the_public_internet needs network_all;
        a_listed_private_address_is_reached_under_all needs network_all;
        a_run_that_succeeds_has_no_hint;
        denials_of_earlier_runs_are_not_told_again;
        its_own_servers_are_its_own;
        packets_do_not_leave;
        sandboxes_have_gates_of_their_own;
        connections_end_with_the_sandbox;
        the_policy_is_shown;
    })
}

/// A server on this host that answers in capitals, until this is dropped.
struct Server {
    port: u16,
    over: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // It looks when a client connects.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

fn server() -> Checked<Server> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let over = Arc::new(AtomicBool::new(false));
    let server = Server { port: listener.local_addr()?.port(), over: Arc::clone(&over) };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            if over.load(Ordering::SeqCst) {
                return;
            }
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(server)
}

fn answer(mut stream: std::net::TcpStream) -> std::io::Result<()> {
    let mut told = [0; 100];
    loop {
        let count = stream.read(&mut told)?;
        if count == 0 {
            return Ok(());
        }
        told[..count].make_ascii_uppercase();
        stream.write_all(&told[..count])?;
    }
}

/// Talks with a server: the answer, or the name of the exception.
fn talk(host: &str, port: u16) -> String {
    format!(
        "
import socket
def talk():
    try:
        with socket.create_connection(({host:?}, {port}), 10) as s:
            s.sendall(b'hello')
            return s.recv(100).decode() or 'nothing'
    except OSError as e: return type(e).__name__
talk()"
    )
}

fn policy(mode: NetworkMode, allow: &[String], deny: &[&str]) -> Checked<NetworkPolicy> {
    let mut policy = NetworkPolicy { mode, ..NetworkPolicy::default() };
    for pattern in allow {
        policy.allow.push(pattern.parse()?);
    }
    for pattern in deny {
        policy.deny.push(pattern.parse()?);
    }
    Ok(policy)
}

async fn allowing(f: &Fixture, allow: &[String], deny: &[&str]) -> Checked<Sandbox> {
    let policy = policy(NetworkMode::Allowlist, allow, deny)?;
    f.create(|builder| builder.network(policy)).await
}

/// The names below `localhost` lead to 127.0.0.1, which has to be listed too.
fn with_host(patterns: &[&str]) -> Vec<String> {
    patterns.iter().copied().chain(["127.0.0.1"]).map(str::to_owned).collect()
}

/// Host, port, reason and what would allow it.
fn shown(denials: &[NetworkDenial]) -> Vec<String> {
    let show = |denial: &NetworkDenial| {
        let allow = denial.allow.as_deref().unwrap_or("nothing");
        format!("{denial} {} {allow}", denial.reason.as_str())
    };
    denials.iter().map(show).collect()
}

const REFUSED: &str = "'ConnectionResetError'";
const UNKNOWN: &str = "'gaierror'";

async fn an_allowed_name_is_reached(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = allowing(&f, &with_host(&["a.localhost", "*.b.localhost"]), &[]).await?;
    for host in ["a.localhost", "A.Localhost", "x.b.localhost"] {
        ensure_eq!(text(&sandbox, &talk(host, port)).await?, as_shown("'HELLO'"), "{host}");
    }
    Ok(())
}

async fn an_allowed_name_is_reached_by_commands(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = format!("{}\nprint(talk())", talk("a.localhost", port));
    let result = sandbox.commands().run(["python3", "-c", code.as_str()]).await?;
    ensure_eq!(result.stdout.trim(), "HELLO", "{}", result.stderr);
    ensure!(result.network_denied.is_empty(), "{:?}", result.network_denied);
    Ok(())
}

async fn the_port_of_a_rule_counts(f: Fixture) -> Checked {
    let (server, another) = (server()?, server()?);
    let (port, other) = (server.port, another.port);
    let sandbox = allowing(&f, &with_host(&[&format!("a.localhost:{port}")]), &[]).await?;
    ensure_eq!(text(&sandbox, &talk("a.localhost", port)).await?, as_shown("'HELLO'"));
    let result = run(&sandbox, &talk("a.localhost", other)).await?;
    ensure_eq!(result.text(), Some(as_shown(REFUSED)));
    let expected = format!("a.localhost:{other} not_listed a.localhost:{other}");
    ensure_eq!(shown(&result.network_denied), [expected]);
    Ok(())
}

async fn other_names_do_not_exist_and_the_result_says_so(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = format!("import socket; socket.create_connection(('b.localhost', {port}), 10)");
    let result = run(&sandbox, &code).await?;
    ensure_eq!(result.code_error.map(|error| error.name), Some("gaierror".to_owned()));
    ensure_eq!(shown(&result.network_denied), ["b.localhost not_listed b.localhost"]);
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.contains("allowlist([\"b.localhost"), "hint {hint:?}");
    let began = std::time::Instant::now();
    for name in ["c2VjcmV0.sandbox.invalid", "xa.localhost", "b.a.localhost"] {
        let code = format!(
            "import socket\ntry: found = socket.getaddrinfo({name:?}, 80)\nexcept OSError as e: found = type(e).__name__\nfound"
        );
        ensure_eq!(text(&sandbox, &code).await?, as_shown(UNKNOWN), "{name}");
    }
    ensure!(began.elapsed().as_secs() < 3, "refusals took {:?}", began.elapsed());
    Ok(())
}

async fn commands_are_told_too(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = "import socket; socket.create_connection(('b.localhost', 80), 10)";
    let result = sandbox.commands().run(["python3", "-c", code]).await?;
    ensure_eq!(result.exit_code, 1);
    ensure_eq!(shown(&result.network_denied), ["b.localhost not_listed b.localhost"]);
    Ok(())
}

async fn a_name_is_no_permission_for_a_private_address(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = allowing(&f, &["a.localhost".to_owned()], &[]).await?;
    let result = run(&sandbox, &talk("a.localhost", port)).await?;
    ensure_eq!(result.text(), Some(as_shown(UNKNOWN)));
    ensure_eq!(shown(&result.network_denied), ["a.localhost private_address 127.0.0.1"]);
    Ok(())
}

async fn literal_addresses_need_a_rule(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    for address in ["10.0.0.1", "169.254.169.254", "198.51.100.7", "2852039166", "172.17.0.1"] {
        let result = run(&sandbox, &talk(address, 80)).await?;
        ensure_eq!(result.text(), Some(as_shown(REFUSED)), "{address}");
        let reasons: Vec<_> = result.network_denied.iter().map(|denial| denial.reason).collect();
        ensure_eq!(reasons, [DenialReason::PrivateAddress], "{address}");
    }
    Ok(())
}

async fn deny_wins(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let allow = with_host(&["*.a.localhost"]);
    let sandbox = allowing(&f, &allow, &["evil.a.localhost", "10.0.0.0/8"]).await?;
    ensure_eq!(
        text(&sandbox, &talk("good.a.localhost", port)).await?,
        as_shown("'HELLO'"),
        "control"
    );
    let result = run(&sandbox, &talk("evil.a.localhost", port)).await?;
    ensure_eq!(result.text(), Some(as_shown(UNKNOWN)));
    ensure_eq!(shown(&result.network_denied), ["evil.a.localhost denied nothing"]);
    Ok(())
}

async fn mode_all_is_the_public_internet(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = f.create(|builder| builder.network(NetworkPolicy::all())).await?;
    for (host, expected) in
        [("a.localhost", UNKNOWN), ("169.254.169.254", REFUSED), ("10.0.0.1", REFUSED)]
    {
        let result = run(&sandbox, &talk(host, port)).await?;
        ensure_eq!(result.text(), Some(as_shown(expected)), "{host}");
        let reasons: Vec<_> = result.network_denied.iter().map(|denial| denial.reason).collect();
        ensure_eq!(reasons, [DenialReason::PrivateAddress], "{host}");
    }
    Ok(())
}

async fn a_listed_private_address_is_reached_under_all(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let policy = policy(NetworkMode::All, &with_host(&[]), &["evil.localhost"])?;
    let sandbox = f.create(|builder| builder.network(policy)).await?;
    ensure_eq!(text(&sandbox, &talk("any.localhost", port)).await?, as_shown("'HELLO'"));
    ensure_eq!(text(&sandbox, &talk("evil.localhost", port)).await?, UNKNOWN);
    Ok(())
}

async fn a_run_that_succeeds_has_no_hint(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let result = run(&sandbox, &talk("b.localhost", 80)).await?;
    ensure_eq!(result.network_denied.len(), 1);
    ensure_eq!(result.hint, None);
    Ok(())
}

async fn denials_of_earlier_runs_are_not_told_again(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = "import socket
for name in 'b.localhost', 'c.localhost', 'b.localhost':
    try: socket.gethostbyname(name)
    except OSError: pass";
    let result = run(&sandbox, code).await?;
    let counts: Vec<_> =
        result.network_denied.iter().map(|denial| (denial.host.as_str(), denial.count)).collect();
    ensure_eq!(counts, [("b.localhost", 2), ("c.localhost", 1)]);
    ensure!(run(&sandbox, "1").await?.network_denied.is_empty(), "told again");
    Ok(())
}

async fn its_own_servers_are_its_own(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = format!(
        "
import socket, threading
server = socket.create_server(('0.0.0.0', {port}))
def serve():
    while True:
        s, _ = server.accept(); s.sendall(b'own')
threading.Thread(target=serve, daemon=True).start()
[socket.create_connection((host, {port}), 10).recv(10) for host in ('127.0.0.1', 'localhost', '127.1.2.3')]"
    );
    ensure_eq!(text(&sandbox, &code).await?, "[b'own', b'own', b'own']");
    ensure_eq!(text(&sandbox, &talk("a.localhost", port)).await?, as_shown("'HELLO'"));
    Ok(())
}

async fn packets_do_not_leave(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = "import socket
found = []
for host, port in ('198.51.100.1', 53), ('198.51.100.1', 443), ('127.0.0.1', 9):
    try: found.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (host, port)))
    except OSError as e: found.append(type(e).__name__)
found";
    let expected = "['PermissionError', 'PermissionError', 1]";
    ensure_eq!(text(&sandbox, code).await?, expected, "outside, outside, own loopback");
    Ok(())
}

async fn sandboxes_have_gates_of_their_own(f: Fixture) -> Checked {
    let server = server()?;
    let port = server.port;
    let one = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let two = allowing(&f, &with_host(&["b.localhost"]), &[]).await?;
    for (sandbox, host, expected) in [
        (&one, "a.localhost", "'HELLO'"),
        (&one, "b.localhost", UNKNOWN),
        (&two, "b.localhost", "'HELLO'"),
        (&two, "a.localhost", UNKNOWN),
        // The address that stands for the one's name stands for the other's here.
        (&two, "198.18.0.9", REFUSED),
    ] {
        ensure_eq!(text(sandbox, &talk(host, port)).await?, as_shown(expected), "{host}");
    }
    Ok(())
}

async fn connections_end_with_the_sandbox(f: Fixture) -> Checked {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let sandbox = allowing(&f, &with_host(&["a.localhost"]), &[]).await?;
    let code = format!(
        "import socket; held = socket.create_connection(('a.localhost', {port}), 10); held.send(b'x')"
    );
    ensure_eq!(text(&sandbox, &code).await?, "1");
    let (mut stream, _) = listener.accept()?;
    stream.set_read_timeout(Some(std::time::Duration::from_secs(10)))?;
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    sandbox.terminate().await?;
    let end = tokio::task::spawn_blocking(move || stream.read(&mut byte)).await?;
    let timed_out = end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    ensure!(!timed_out && !matches!(end, Ok(1)), "it goes on: {end:?}");
    Ok(())
}

async fn the_policy_is_shown(f: Fixture) -> Checked {
    let sandbox = allowing(&f, &with_host(&["a.localhost:80"]), &["b.localhost"]).await?;
    let shown = sandbox.info().isolation.unwrap_or_default().network;
    ensure_eq!(shown, "allowlist: a.localhost:80, 127.0.0.1; denied: b.localhost");
    Ok(())
}
