//! Tests of connections from this process to servers in a cell.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::net::{bind, connect, getsockname};
use sandbox_isolation::{Cell, CellLauncher, CellSpec, Error};

use crate::support::{cell, python, start_until_line, strict_cell};

const SOON: Duration = Duration::from_secs(20);

/// Connects to that port of the cell's loopback.
async fn connection(cell: &Cell, port: u16) -> Result<TcpStream, rustix::io::Errno> {
    let socket = cell.tcp_socket().await.unwrap();
    rustix::io::ioctl_fionbio(&socket, false).unwrap();
    connect(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).unwrap();
    Ok(stream)
}

/// Starts an echo server in the cell, and returns its port.
async fn echo(cell: &Cell) -> u16 {
    let server = "
import socket
server = socket.create_server(('127.0.0.1', 0))
print(server.getsockname()[1], flush=True)
while True:
    there, _ = server.accept()
    there.sendall(b'cell: ' + there.recv(100))
    there.close()";
    let (_, line) = start_until_line(cell, python(server)).await;
    line.parse().unwrap()
}

#[tokio::test]
async fn a_server_in_a_cell_is_reached_and_the_same_port_of_the_host_is_not() {
    for spec in [CellSpec::strict(), CellSpec { gate: true, ..CellSpec::strict() }] {
        let cell = cell(&spec).await;
        let port = echo(&cell).await;
        // A server on the same port of the host must not be the one that answers.
        let _here = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let mut stream = connection(&cell, port).await.unwrap();
        stream.write_all(b"hello").unwrap();
        let mut received = String::new();
        stream.read_to_string(&mut received).unwrap();
        assert_eq!(received, "cell: hello");
    }
}

/// As Node does for a server configured with `localhost`.
#[tokio::test]
async fn a_server_on_ipv6_only_is_reached() {
    let server = "
import socket
server = socket.create_server(('::1', 0), family=socket.AF_INET6)
print(server.getsockname()[1], flush=True)
there, _ = server.accept()
there.sendall(b'six')";
    let cell = strict_cell().await;
    let (_, line) = start_until_line(&cell, python(server)).await;
    let port = line.parse().unwrap();
    let mut stream = cell.connect_port(port).await.unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut received = String::new();
    stream.read_to_string(&mut received).unwrap();
    assert_eq!(received, "six");
    // Neither of the host's two is reached.
    let here = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = here.local_addr().unwrap().port();
    let refused = cell.connect_port(port).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn a_server_on_the_host_is_not_reached_through_a_cell() {
    let here = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = here.local_addr().unwrap().port();
    // The control: the host's server is reachable from the host.
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let cell = strict_cell().await;
    let refused = connection(&cell, port).await.unwrap_err();
    assert_eq!(refused, rustix::io::Errno::CONNREFUSED);
    let beyond = cell.tcp_socket().await.unwrap();
    rustix::io::ioctl_fionbio(&beyond, false).unwrap();
    let beyond = connect(&beyond, &SocketAddr::from(([198, 51, 100, 1], 80))).unwrap_err();
    assert_eq!(beyond, rustix::io::Errno::NETUNREACH);
}

#[tokio::test]
async fn ports_that_are_free_in_a_cell_can_be_bound_from_outside() {
    let cell = strict_cell().await;
    let socket = cell.tcp_socket().await.unwrap();
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let port = SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap().port();
    assert!(port > 1024, "{port}");
}

#[tokio::test]
async fn a_connection_ends_with_the_cell_and_then_there_are_no_more() {
    let cell = strict_cell().await;
    let port = echo(&cell).await;
    let mut stream = connection(&cell, port).await.unwrap();
    cell.kill();
    cell.closed().await;
    let ended = stream.read(&mut [0]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(matches!(cell.tcp_socket().await, Err(Error::Closed)));
}

#[tokio::test]
async fn without_isolation_there_is_no_network_of_its_own() {
    let launcher = CellLauncher::start_off().await.unwrap();
    let cell = launcher.cell(&CellSpec::off()).await.unwrap();
    assert!(matches!(cell.tcp_socket().await, Err(Error::Invalid(_))));
}
