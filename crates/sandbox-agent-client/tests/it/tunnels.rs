//! Servers in a sandbox.

use std::time::{Duration, Instant};

use sandbox_agent_client::{Listener, PeerProcess, Tunnel};
use sandbox_core::ErrorKind;
use sandbox_engine::host::{ProcessHost as _, Readable, Spawned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::support::TestBox;

const SOON: Duration = Duration::from_secs(20);

/// Returns a server and its port. The agent of a test is a process of this host.
async fn server() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    timeout(SOON, listener.accept()).await.expect("a client").expect("a connection").0
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
    // The one that fits into its queue, and is never accepted.
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

/// Starts a Python program that also writes to a Unix socket, and connects to it.
async fn speaker(place: &TestBox, always: bool, code: &str) -> (Spawned, Tunnel) {
    let code = format!(
        "import os, socket, threading\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind('s')\nlistener.listen()\n\
         there, _ = listener.accept()\n{code}"
    );
    let mut spec = place.shell("");
    spec.argv = ["python3", "-c", &code].map(str::to_owned).to_vec();
    let socket = Listener::Socket(format!("{}/s", spec.cwd));
    let spawned = place.pipe.spawn(spec).await.expect("it starts");
    let peer = PeerProcess { pid: spawned.process.pid(), always };
    let connect = async {
        loop {
            match place.pipe.ports().open(&socket, Some(peer)).await {
                Ok(tunnel) => return tunnel,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let tunnel = timeout(SOON, connect).await.expect("it listens");
    (spawned, tunnel)
}

/// Returns the number of bytes that are there now.
fn read_now(stream: &dyn Readable) -> usize {
    let mut buffer = [0; 4096];
    let mut count = 0;
    while let Ok(more @ 1..) = stream.try_read(&mut buffer) {
        count += more;
    }
    count
}

#[tokio::test]
async fn what_was_written_before_an_answer_is_there_before_it() {
    let place = TestBox::start().await;
    let code = "while there.recv(1):\n    os.write(1, b'o' * 60000); os.write(2, b'e' * 500); there.send(b'.')";
    for always in [true, false] {
        let (spawned, mut tunnel) = speaker(&place, always, code).await;
        for round in 0..100 {
            tunnel.write_all(b"?").await.unwrap();
            let mut answer = [0];
            timeout(SOON, tunnel.read_exact(&mut answer)).await.unwrap().unwrap();
            let written =
                (read_now(&*spawned.stdout), read_now(&**spawned.stderr.as_ref().unwrap()));
            assert_eq!(written, (60_000, 500), "round {round}, always: {always}");
        }
        drop(tunnel);
        std::fs::remove_file(place.shell("").cwd + "/s").unwrap();
    }
}

#[tokio::test]
async fn answers_wait_for_output_that_nobody_reads_only_where_they_always_come_after_it() {
    let place = TestBox::start().await;
    let code = "threading.Thread(target=os.write, args=(1, b'o' * 5_000_000)).start()\n\
                while there.recv(1): there.send(b'.')";
    for always in [true, false] {
        let (spawned, mut tunnel) = speaker(&place, always, code).await;
        let patience = Duration::from_secs(if always { 1 } else { 20 });
        let mut waits = false;
        // Some arrive: there is room for output that comes before them, and the thread may not have written yet.
        let began = Instant::now();
        let mut answers = 0;
        while if always { began.elapsed() < SOON } else { answers < 10 } {
            answers += 1;
            tunnel.write_all(b"?").await.unwrap();
            waits = timeout(patience, tunnel.read_u8()).await.is_err();
            if waits {
                break;
            }
        }
        assert_eq!(waits, always);
        if always {
            let came = async {
                loop {
                    read_now(&*spawned.stdout);
                    if let Ok(answer) = timeout(Duration::from_millis(1), tunnel.read_u8()).await {
                        return answer.unwrap();
                    }
                }
            };
            assert_eq!(timeout(SOON, came).await.expect("it comes"), b'.');
        }
        spawned.process.kill_tree().await.unwrap();
        std::fs::remove_file(place.shell("").cwd + "/s").unwrap();
    }
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_refused() {
    let place = TestBox::start().await;
    let socket = Listener::Socket("/no/such/socket".to_owned());
    let error = place.pipe.ports().open(&socket, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("socket /no/such/socket"), "{error}");
}

#[tokio::test]
async fn connections_inside_are_taken_here_in_their_order() {
    let place = TestBox::start().await;
    let listener = place.pipe.ports().listen().await.unwrap();
    // They wait until they are accepted.
    let mut inside = Vec::new();
    for number in 0..40_u8 {
        let mut client = TcpStream::connect(("127.0.0.1", listener.port())).await.unwrap();
        client.write_all(&[number]).await.unwrap();
        inside.push(client);
    }
    let mut here = Vec::new();
    for number in 0..40_u8 {
        let mut tunnel = timeout(SOON, listener.accept()).await.unwrap().unwrap();
        assert_eq!(tunnel.read_u8().await.unwrap(), number);
        here.push(tunnel);
    }
    // Each with more than any window, in both directions at once, and their ends.
    let sent: Vec<u8> = (0..1_500_000u32).map(|n| (n % 251) as u8).collect();
    let talks = inside.into_iter().take(8).zip(here).map(|(client, tunnel)| {
        let talk = async |stream: Box<dyn Both>| {
            let (mut from, mut to) = tokio::io::split(stream);
            let mut heard = Vec::new();
            let write = async {
                to.write_all(&sent).await.unwrap();
                to.shutdown().await.unwrap();
            };
            let (read, ()) = tokio::join!(from.read_to_end(&mut heard), write);
            read.unwrap();
            assert!(heard == sent, "{} bytes", heard.len());
        };
        async move { tokio::join!(talk(Box::new(client)), talk(Box::new(tunnel))) }
    });
    timeout(SOON, futures_util::future::join_all(talks)).await.unwrap();
}

#[tokio::test]
async fn an_accept_that_was_given_up_takes_no_connection() {
    let place = TestBox::start().await;
    let listener = place.pipe.ports().listen().await.unwrap();
    for _ in 0..3 {
        let given_up = timeout(Duration::from_millis(20), listener.accept()).await;
        assert!(given_up.is_err());
    }
    // The agent has handled it when it answers another request.
    place.pipe.ports().listen().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", listener.port())).await.unwrap();
    client.write_all(b"x").await.unwrap();
    let mut tunnel = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    assert_eq!(tunnel.read_u8().await.unwrap(), b'x');
    drop(tunnel);
    assert_eq!(timeout(SOON, client.read(&mut [0])).await.unwrap().unwrap_or(0), 0);
    // It ends with the sandbox.
    let waiting = tokio::spawn(async move { listener.accept().await.map(drop) });
    drop(place);
    let error = timeout(SOON, waiting).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated);
}

/// A connection, as both of its ends have it.
trait Both: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send> Both for T {}
