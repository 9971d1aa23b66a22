//! Tests of the connections that leave a cell with a gate.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

use sandbox_isolation::{
    Cell, CellLauncher, CellSpec, Error, GateSockets, Privilege, Resource, Rlimit, SpawnSpec,
};

use crate::support::{cell, output, python, shell, strict_cell};

async fn cell_with_gate() -> (Cell, GateSockets) {
    with_gate(CellSpec::strict()).await
}

async fn with_gate(spec: CellSpec) -> (Cell, GateSockets) {
    let cell = cell(&CellSpec { gate: true, ..spec }).await;
    let sockets = cell.take_gate().expect("the sockets of a gate");
    (cell, sockets)
}

/// Accepts connections on a thread of its own, and answers each with its destination address.
fn serve_destinations(sockets: &GateSockets) {
    let listener = TcpListener::from(sockets.connections.try_clone().unwrap());
    std::thread::spawn(move || {
        for _ in 0..2000 {
            match listener.accept() {
                Ok((mut connection, _)) => {
                    let destination = connection.local_addr().unwrap().to_string();
                    connection.write_all(destination.as_bytes()).unwrap();
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    });
}

/// Connects to each destination, and prints the answer or the name of the exception.
fn dial(destinations: &[(&str, u16)]) -> SpawnSpec {
    python(&format!(
        "
import socket
for destination in {destinations:?}:
    try:
        with socket.create_connection(destination, 5) as s: print(s.recv(100).decode() or 'nothing')
    except OSError as e: print(type(e).__name__)"
    ))
}

#[tokio::test]
async fn every_port_of_every_address_arrives_with_its_destination() {
    let (cell, sockets) = cell_with_gate().await;
    serve_destinations(&sockets);
    let to = [("198.51.100.1", 80), ("169.254.169.254", 1), ("10.0.0.1", 65535), ("240.0.0.1", 22)];
    let expected: String = to.iter().map(|(host, port)| format!("{host}:{port}\n")).collect();
    assert_eq!(output(&cell, dial(&to)).await, expected);
}

#[tokio::test]
async fn without_the_sockets_nothing_is_reached() {
    let (cell, sockets) = cell_with_gate().await;
    drop(sockets);
    let to = [("198.51.100.1", 80), ("127.0.0.1", 53)];
    assert_eq!(output(&cell, dial(&to)).await, "ConnectionRefusedError\n".repeat(2));
    let none = strict_cell().await;
    assert!(none.take_gate().is_none());
    assert_eq!(output(&none, dial(&to[..1])).await, "OSError\n");
}

#[tokio::test]
async fn the_cells_own_servers_are_its_own() {
    let (cell, sockets) = cell_with_gate().await;
    serve_destinations(&sockets);
    let script = "
import socket, threading
server = socket.socket(); server.bind(('0.0.0.0', 8080)); server.listen()
def serve():
    while True: server.accept()[0].sendall(b'own')
threading.Thread(target=serve, daemon=True).start()
for host in '127.0.0.1', '127.1.2.3', '0.0.0.0', 'localhost', '198.51.100.1', '198.18.0.1':
    print(socket.create_connection((host, 8080), 5).recv(100).decode())";
    let expected = format!("{}198.51.100.1:8080\n198.18.0.1:8080\n", "own\n".repeat(4));
    assert_eq!(output(&cell, python(script)).await, expected);
}

#[tokio::test]
async fn dns_queries_arrive_and_other_packets_do_not_leave() {
    let (cell, sockets) = cell_with_gate().await;
    let questions = UdpSocket::from(sockets.dns_packets);
    let script = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b'question', ('127.0.0.1', 53))
for destination in ('198.51.100.1', 53), ('8.8.8.8', 443), ('224.0.0.5', 5000), ('198.18.0.1', 53):
    try: s.sendto(b'x', destination); print('sent')
    except OSError as e: print(type(e).__name__)
try: socket.socket(socket.AF_INET6).connect(('2001:db8::1', 80)); print('connected')
except OSError as e: print('OSError')
try: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); print('ping')
except OSError as e: print(type(e).__name__)";
    let expected = format!("{}OSError\nPermissionError\n", "PermissionError\n".repeat(4));
    assert_eq!(output(&cell, python(script)).await, expected);
    let mut question = [0; 100];
    let (count, from) = questions.recv_from(&mut question).unwrap();
    assert_eq!((&question[..count], from.ip()), (&b"question"[..], Ipv4Addr::LOCALHOST.into()));
    questions.recv_from(&mut question).expect_err("only one question was sent here");
}

#[tokio::test]
async fn code_cannot_stand_in_for_the_gate_or_change_its_rules() {
    let (cell, sockets) = cell_with_gate().await;
    serve_destinations(&sockets);
    let script = "
import socket
def attempt(what, how):
    try: how(); print(what)
    except OSError as e: pass
for port in 1, 53, 80, 443:
    attempt('bound', lambda: socket.socket().bind(('0.0.0.0', port)))
def transparent(): socket.socket().setsockopt(0, 19, 1)
def raw(): socket.socket(socket.AF_INET, socket.SOCK_RAW, 6)
def device(): socket.socket().setsockopt(1, 25, b'lo')
attempt('transparent', transparent)
attempt('raw', raw)
def rules():
    s = socket.socket(16, 3, 12)
    message = lambda kind, flags, body: (16 + len(body)).to_bytes(4, 'little') + kind.to_bytes(2, 'little') + flags.to_bytes(2, 'little') + bytes(8) + body
    delete = message(0xa02, 5, bytes([2, 0, 0, 0]))
    s.send(message(0x10, 1, bytes([0, 0, 0, 10])) + delete + message(0x11, 1, bytes([0, 0, 0, 10])))
    answer = s.recv(4096)
    if int.from_bytes(answer[16:20], 'little', signed=True): raise OSError('refused')
attempt('rules', rules)";
    assert_eq!(output(&cell, python(script)).await, "");
    assert_eq!(output(&cell, dial(&[("198.51.100.1", 80)])).await, "198.51.100.1:80\n");
    output(&cell, shell("grep -q 127.0.0.1 /etc/resolv.conf")).await;
}

#[tokio::test]
async fn a_flood_of_connections_fills_only_the_cells_queue() {
    let many = Rlimit::fixed(Resource::OpenFiles, 2048);
    let (cell, sockets) = with_gate(CellSpec::strict().limit(many)).await;
    let script = "
import socket
held, refused = [], 0
for n in range(1500):
    s = socket.socket(); s.setblocking(False)
    try: s.connect(('198.51.100.1', 80))
    except BlockingIOError: pass
    except OSError: refused += 1
    held.append(s)
    if n == 1000: break
print(len(held) > 900)";
    assert_eq!(output(&cell, python(script)).await, "True\n");
    let listener = TcpListener::from(sockets.connections);
    let (_, from): (_, SocketAddr) = listener.accept().unwrap();
    assert_eq!(from.ip(), GateSockets::ADDRESS);
}

/// Starts a process in a network namespace of its own, like a container's, that connects on request.
fn foreign(destination: &str) -> Child {
    let script = format!("ip link set lo up; read line; exec 3<>/dev/tcp/{destination} && cat <&3");
    let mut command = Command::new("unshare");
    command.args(["--net", "bash", "-c", &script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

#[tokio::test]
async fn a_gate_can_be_opened_in_a_foreign_network() {
    let launcher = CellLauncher::start().await.unwrap();
    let own = File::open("/proc/self/ns/net").unwrap();
    if launcher.privilege() != Privilege::Root {
        // Only root has capabilities over another user's namespace.
        let refused = launcher.gate(own.as_fd()).await;
        assert!(matches!(refused, Err(Error::NoGate { .. })), "{refused:?}");
        return;
    }
    let mut child = foreign("198.51.100.1/80");
    let path = format!("/proc/{}/ns/net", child.id());
    let namespace = || std::fs::read_link(&path).unwrap();
    let ours = std::fs::read_link("/proc/self/ns/net").unwrap();
    crate::support::eventually(Duration::from_secs(5), "a network", || namespace() != ours).await;
    // The loopback of the namespace comes up a moment later.
    let network = File::open(&path).unwrap();
    let mut sockets = Err(Error::Closed);
    for _ in 0..100 {
        sockets = launcher.gate(network.as_fd()).await;
        if sockets.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let sockets = sockets.unwrap();
    let second = launcher.gate(network.as_fd()).await;
    assert!(matches!(second, Err(Error::NoGate { .. })), "{second:?}");
    serve_destinations(&sockets);
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let answered = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    assert_eq!(answered.await.unwrap().stdout, b"198.51.100.1:80");
    // The launcher is back in its own namespace: its next cell works.
    let cell = launcher.cell(&CellSpec::strict()).await.unwrap();
    assert_eq!(output(&cell, shell("echo ok")).await, "ok\n");
}
