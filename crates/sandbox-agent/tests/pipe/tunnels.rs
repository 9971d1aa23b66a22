//! Servers in a box.

use std::time::Duration;

use sandbox_core::ErrorKind;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::TestBox;

const SOON: Duration = Duration::from_secs(20);

/// A server, and the port it listens on. The agent of a test is a process of this host.
async fn server() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    timeout(SOON, listener.accept()).await.expect("somebody").expect("a connection").0
}

#[tokio::test]
async fn a_server_hears_and_is_heard_until_both_have_ended() {
    let place = TestBox::start().await;
    let (listener, port) = server().await;
    let mut tunnel = place.pipe.ports().connect(port).await.unwrap();
    let mut there = accepted(&listener).await;

    tunnel.write_all(b"question").await.unwrap();
    let mut heard = [0; 8];
    there.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"question");

    // More than any window, after the other direction has ended.
    tunnel.shutdown().await.unwrap();
    assert_eq!(timeout(SOON, there.read(&mut heard)).await.unwrap().unwrap(), 0);
    let sent: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let answer = async move {
        there.write_all(&sent).await.unwrap();
        there.shutdown().await.unwrap();
    };
    let mut answered = Vec::new();
    let (read, ()) =
        timeout(SOON, async { tokio::join!(tunnel.read_to_end(&mut answered), answer) })
            .await
            .unwrap();
    read.unwrap();
    assert!(answered == expected, "{} bytes", answered.len());
}

#[tokio::test]
async fn a_server_that_reads_slowly_gets_everything() {
    let place = TestBox::start().await;
    let (listener, port) = server().await;
    let mut tunnel = place.pipe.ports().connect(port).await.unwrap();
    let mut there = accepted(&listener).await;
    let sent: Vec<u8> = (0..20_000_000u32).map(|n| (n % 241) as u8).collect();
    let expected = sent.clone();
    let write = async move {
        tunnel.write_all(&sent).await.unwrap();
        tunnel.shutdown().await.unwrap();
        tunnel
    };
    let read = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut all = Vec::new();
        there.read_to_end(&mut all).await.unwrap();
        all
    };
    let (all, _tunnel) = timeout(SOON, async { tokio::join!(read, write) }).await.unwrap();
    assert!(all == expected, "{} bytes", all.len());
}

#[tokio::test]
async fn a_tunnel_that_is_dropped_ends_the_connection() {
    let place = TestBox::start().await;
    let (listener, port) = server().await;
    let tunnel = place.pipe.ports().connect(port).await.unwrap();
    let mut there = accepted(&listener).await;
    drop(tunnel);
    let mut heard = [0; 8];
    assert_eq!(timeout(SOON, there.read(&mut heard)).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_refused() {
    let place = TestBox::start().await;
    let (listener, port) = server().await;
    drop(listener);
    let error = place.pipe.ports().connect(port).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("Connection refused"), "{error}");
}

#[tokio::test]
async fn a_server_that_takes_no_connection_is_given_up() {
    let place = TestBox::start().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let _listener = socket.listen(0).unwrap();
    // The one that fits into its queue, and is never taken out.
    let _first = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let error = timeout(SOON, place.pipe.ports().connect(port)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("does not answer"), "{error}");
}

#[tokio::test]
async fn tunnels_end_with_their_box() {
    let place = TestBox::start().await;
    let (listener, port) = server().await;
    let ports = place.pipe.ports();
    let mut tunnel = ports.connect(port).await.unwrap();
    let _there = accepted(&listener).await;
    drop(place);
    let mut heard = Vec::new();
    timeout(SOON, tunnel.read_to_end(&mut heard)).await.unwrap().unwrap();
    assert!(heard.is_empty());
    assert!(tunnel.write_all(b"x").await.is_err());
    timeout(SOON, ports.closed()).await.unwrap();
    assert_eq!(ports.connect(port).await.unwrap_err().kind(), ErrorKind::Terminated);
}
