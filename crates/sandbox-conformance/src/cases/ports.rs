//! A server in a sandbox is reached from outside, and not when the sandbox has ended.

use std::future::pending;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use sandbox_core::{ErrorKind, Sandbox, SandboxStatus};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, eventually, is_usable, ok, refused, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("ports", [expose_port, run_code, command_background], {
        a_server_is_reached;
        a_port_is_exposed_once;
        connections_are_independent;
        a_port_that_nobody_listens_on_answers_nothing;
        connections_that_nobody_reads_hold_up_no_code;
        servers_that_read_nothing_hold_up_no_code;
        // What shares the network of this host is connected to directly, and nothing sees it.
        an_open_connection_is_use needs idle_timeout, strict;
        ports_end_with_their_sandbox;
    })
}

/// A port that no other case has, nor anything of this host: without isolation they are the same ports.
fn free_port() -> Checked<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Answers each line with the same line in capitals, each connection in a thread of its own.
fn echo(port: u16) -> String {
    let server = "
import socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(('127.0.0.1', PORT), Echo).serve_forever()
";
    server.replace("PORT", &port.to_string())
}

/// A sandbox with a server, and where that is reached.
async fn served(f: &Fixture) -> Checked<(Sandbox, String)> {
    let (sandbox, port) = (f.sandbox().await?, free_port()?);
    sandbox.files().write("server.py", echo(port)).await?;
    sandbox.commands().run(["python3", "server.py"]).background().start().await?;
    let address = reached(&sandbox, port).await?;
    Ok((sandbox, address))
}

/// Where its server is reached, which has answered.
async fn reached(sandbox: &Sandbox, port: u16) -> Checked<String> {
    let exposed = sandbox.expose_port(port).await?;
    ensure_eq!(exposed.port, port);
    let address = exposed.url.strip_prefix("http://").map(str::to_owned);
    let address = address.ok_or_else(|| Failure::new(format!("{exposed:?}")))?;
    let answers = async || Ok(said(&address, b"x\n").await == b"X\n");
    eventually("an answer of the server", WAIT_TIMEOUT, answers).await?;
    Ok(address)
}

/// What is answered until the connection ends. Nothing: there is no connection, or no process at its other end.
async fn said(address: &str, question: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(address).await
        && stream.write_all(question).await.is_ok()
        && stream.shutdown().await.is_ok()
    {
        // What ends in the middle has said what it has said.
        let _ = within(WAIT_TIMEOUT, stream.read_to_end(&mut answer)).await;
    }
    answer
}

async fn a_server_is_reached(f: Fixture) -> Checked {
    let (_sandbox, address) = served(&f).await?;
    let line: Vec<u8> = [vec![b'a'; 3_000_000], b"\n".to_vec()].concat();
    ensure!(said(&address, &line).await == line.to_ascii_uppercase(), "not all of it came back");
    Ok(())
}

async fn a_port_is_exposed_once(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let (first, other) = (sandbox.expose_port(8000).await?, sandbox.expose_port(8001).await?);
    ensure_eq!(sandbox.expose_port(8000).await?, first);
    ensure!(other.url != first.url, "{other:?}");
    refused(sandbox.expose_port(0).await, ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn connections_are_independent(f: Fixture) -> Checked {
    let (sandbox, address) = served(&f).await?;
    let mut silent = TcpStream::connect(&address).await?;
    let (one, other) = tokio::join!(said(&address, b"one\n"), said(&address, b"other\n"));
    ensure_eq!((one, other), (b"ONE\n".to_vec(), b"OTHER\n".to_vec()));
    is_usable(&sandbox).await?;
    silent.write_all(b"still\n").await?;
    let mut heard = [0; 6];
    within(WAIT_TIMEOUT, silent.read_exact(&mut heard)).await??;
    ensure_eq!(&heard, b"STILL\n");
    Ok(())
}

async fn a_port_that_nobody_listens_on_answers_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let exposed = sandbox.expose_port(9).await?;
    let address = exposed.url.trim_start_matches("http://").to_owned();
    ensure!(said(&address, b"anybody?\n").await.is_empty(), "a process has answered");
    is_usable(&sandbox).await?;
    Ok(())
}

/// A server that speaks without end, to each connection.
const TALKER: &str = "
import socket, threading
server = socket.create_server(('127.0.0.1', PORT))
def talk(connection):
    while True:
        connection.sendall(bytes(1 << 20))
def serve():
    while True:
        threading.Thread(target=talk, args=server.accept()[:1], daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
";

/// The output of the server has no reader.
async fn connections_that_nobody_reads_hold_up_no_code(f: Fixture) -> Checked {
    code_goes_on_beside_many(&f, TALKER, b"").await
}

/// The server reads nothing of what is said to it.
async fn servers_that_read_nothing_hold_up_no_code(f: Fixture) -> Checked {
    let server = "import socket; server = socket.create_server(('127.0.0.1', PORT))";
    code_goes_on_beside_many(&f, server, &[b'a'; 64 << 10]).await
}

/// Code with output and input of its own, beside connections that read nothing and send that without end.
async fn code_goes_on_beside_many(f: &Fixture, server: &str, said: &'static [u8]) -> Checked {
    let (sandbox, port) = (f.sandbox().await?, free_port()?);
    ok(&sandbox, &server.replace("PORT", &port.to_string())).await?;
    let exposed = sandbox.expose_port(port).await?;
    let address = exposed.url.trim_start_matches("http://");
    let mut connections = JoinSet::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).await?;
        connections.spawn(async move {
            while !said.is_empty() && stream.write_all(said).await.is_ok() {}
            pending::<()>().await;
        });
    }
    // Until the buffers on the way are full.
    sleep(Duration::from_secs(8)).await;
    let code = format!("given = {:?}; print(given * 2)", "x".repeat(500_000));
    let printed = within(WAIT_TIMEOUT, sandbox.run_code(code)).await??;
    ensure_eq!(printed.stdout_trimmed().trim_end().len(), 1_000_000);
    Ok(())
}

async fn an_open_connection_is_use(f: Fixture) -> Checked {
    let idle = Duration::from_secs(2);
    let sandbox = f.create(|b| b.idle_timeout(idle)).await?;
    // A thread of the interpreter is no use of the sandbox; a command would be.
    let port = free_port()?;
    let code = format!(
        "import threading; threading.Thread(target=exec, args=({:?}, {{}}), daemon=True).start()",
        echo(port)
    );
    ok(&sandbox, &code).await?;
    let mut open = TcpStream::connect(reached(&sandbox, port).await?).await?;
    sleep(idle * 2).await;
    open.write_all(b"still\n").await?;
    let mut heard = [0; 6];
    within(WAIT_TIMEOUT, open.read_exact(&mut heard)).await??;
    ensure_eq!(&heard, b"STILL\n");
    drop(open);
    let has_ended = async || Ok(sandbox.status() == SandboxStatus::Terminated);
    eventually("the end of the sandbox", WAIT_TIMEOUT, has_ended).await
}

async fn ports_end_with_their_sandbox(f: Fixture) -> Checked {
    let (sandbox, address) = served(&f).await?;
    let mut open = TcpStream::connect(&address).await?;
    sandbox.terminate().await?;
    let mut heard = Vec::new();
    // An end or a reset, and nothing before it.
    let _ = within(WAIT_TIMEOUT, open.read_to_end(&mut heard)).await?;
    ensure!(heard.is_empty(), "{heard:?}");
    let is_closed = async || Ok(TcpStream::connect(&address).await.is_err());
    eventually("the end of the port", WAIT_TIMEOUT, is_closed).await?;
    refused(sandbox.expose_port(8000).await, ErrorKind::Terminated)?;
    Ok(())
}
