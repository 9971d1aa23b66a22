//! What code under strict isolation can reach: its own loopback.
//!
//! Addresses outside the machine are from documentation ranges; nothing is sent to a real host.

use std::io::ErrorKind as IoErrorKind;
use std::net::{TcpListener, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{as_shown, ok, run, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("isolation", [run_code, local, strict], {
        its_own_loopback_works;
        the_outside_is_unreachable_at_once;
        names_do_not_resolve;
        services_of_the_host_are_unreachable;
        abstract_sockets_of_the_host_are_unreachable;
        sockets_in_files_of_the_host_are_absent;
        the_result_says_what_opens_the_network;
        no_network_can_be_asked_for needs network_none;
        the_network_of_another_sandbox_is_unreachable;
    })
}

async fn its_own_loopback_works(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for (family, address) in [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")] {
        let code = format!(
            "
import socket, threading
server = socket.socket(socket.{family}); server.bind(({address:?}, 0)); server.listen()
def serve():
    connection, _ = server.accept()
    connection.sendall(connection.recv(100).upper())
threading.Thread(target=serve).start()
client = socket.create_connection(server.getsockname()[:2], 5)
client.sendall(b'hello')
client.recv(100)"
        );
        if family == "AF_INET6" && !std::path::Path::new("/proc/net/if_inet6").exists() {
            continue;
        }
        ensure_eq!(text(&sandbox, &code).await?, "b'HELLO'", "{family}");
    }
    Ok(())
}

/// Tries to connect; the name of the exception, and whether it came at once.
fn connect(call: &str) -> String {
    format!(
        "
import socket, time
began = time.monotonic()
try:
    {call}
    found = 'connected'
except OSError as e: found = type(e).__name__
(found != 'connected', time.monotonic() - began < 1.5)"
    )
}

async fn the_outside_is_unreachable_at_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for address in ["198.51.100.1", "2001:db8::1", "169.254.169.254", "10.0.0.1", "172.17.0.1"] {
        let code = connect(&format!("socket.create_connection(({address:?}, 80), 5)"));
        ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "{address} (refused, at once)");
    }
    let code = connect(
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('198.51.100.1', 53))",
    );
    ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "a datagram");
    Ok(())
}

async fn names_do_not_resolve(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = connect("socket.gethostbyname('c2VjcmV0.sandbox.invalid')");
    ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "(refused, at once)");
    ensure_eq!(
        text(&sandbox, "socket.gethostbyname('localhost')").await?,
        as_shown("'127.0.0.1'"),
        "control"
    );
    Ok(())
}

async fn services_of_the_host_are_unreachable(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let control = TcpStream::connect(("127.0.0.1", port))?;
    let (accepted, _) = listener.accept()?;
    drop((control, accepted));
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        let code = connect(&format!("socket.create_connection(({host:?}, {port}), 2)"));
        ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "{host} (refused, at once)");
    }
    listener.set_nonblocking(true)?;
    let seen = listener.accept();
    ensure!(
        seen.is_err_and(|why| why.kind() == IoErrorKind::WouldBlock),
        "the host saw a connection"
    );
    Ok(())
}

async fn abstract_sockets_of_the_host_are_unreachable(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let name = host::token("canary-");
    let address = SocketAddr::from_abstract_name(&name)?;
    let listener = UnixListener::bind_addr(&address)?;
    let control = UnixStream::connect_addr(&address)?;
    let (accepted, _) = listener.accept()?;
    drop((control, accepted));
    let code = connect(&format!("socket.socket(socket.AF_UNIX).connect('\\0{name}')"));
    ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "(refused, at once)");
    listener.set_nonblocking(true)?;
    ensure!(listener.accept().is_err(), "the host saw a connection");
    Ok(())
}

async fn sockets_in_files_of_the_host_are_absent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let path = std::env::temp_dir().join(host::token("canary-"));
    let listener = UnixListener::bind(&path)?;
    let control = UnixStream::connect(&path)?;
    drop((control, listener.accept()?));
    let code = connect(&format!(
        "socket.socket(socket.AF_UNIX).connect({:?})",
        path.display().to_string()
    ));
    let answer = text(&sandbox, &code).await;
    std::fs::remove_file(&path)?;
    ensure_eq!(answer?, "(True, True)", "(refused, at once)");
    listener.set_nonblocking(true)?;
    ensure!(listener.accept().is_err(), "the host saw a connection");
    for service in ["/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket"] {
        let code = format!("import os; os.path.exists({service:?})");
        ensure_eq!(text(&sandbox, &code).await?, "False", "{service}");
    }
    Ok(())
}

async fn the_result_says_what_opens_the_network(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import socket; socket.create_connection(('198.51.100.1', 80), 5)";
    let result = run(&sandbox, code).await?;
    ensure!(result.code_error.is_some(), "it connected");
    let hint = result.hint.unwrap_or_default();
    ensure!(hint.to_lowercase().contains("network"), "hint {hint:?}");
    ensure_eq!(run(&sandbox, "1/0").await?.hint, None, "a hint for another error");
    Ok(())
}

async fn no_network_can_be_asked_for(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.network(sandbox_core::NetworkPolicy::none())).await?;
    let code = connect("socket.create_connection(('198.51.100.1', 80), 5)");
    ensure_eq!(text(&sandbox, &code).await?, "(True, True)", "(refused, at once)");
    Ok(())
}

async fn the_network_of_another_sandbox_is_unreachable(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let serve = "import socket\ns = socket.socket(); s.bind(('127.0.0.1', 18080)); s.listen()\nu = socket.socket(socket.AF_UNIX); u.bind('\\0between-sandboxes'); u.listen()";
    ok(&one, serve).await?;
    let tcp = connect("socket.create_connection(('127.0.0.1', 18080), 2)");
    let unix = connect("socket.socket(socket.AF_UNIX).connect('\\0between-sandboxes')");
    ensure_eq!(text(&one, &tcp).await?, "(False, True)", "control");
    ensure_eq!(text(&one, &unix).await?, "(False, True)", "control");
    ensure_eq!(text(&two, &tcp).await?, "(True, True)");
    ensure_eq!(text(&two, &unix).await?, "(True, True)");
    Ok(())
}
