//! Transports to a kernel.

use crate::support::{Kernel, quick, text};
use jupyter_protocol::test_kernel::{Behaviour, TestServer, Wire};
use jupyter_protocol::zmq::{Dialer, Endpoints, Io, connect};
use jupyter_protocol::{Channel, ConnectionInfo, Endpoint, Key, SignatureScheme};

#[tokio::test]
async fn it_works_over_tcp_and_every_signature_scheme() {
    for scheme in
        [SignatureScheme::HmacSha256, SignatureScheme::HmacSha384, SignatureScheme::HmacSha512]
    {
        for ip in ["127.0.0.1", "::1"] {
            let reserved = jupyter_protocol::ReservedPorts::reserve(ip).unwrap();
            let mut info = reserved.connection().unwrap();
            drop(reserved);
            info.signature_scheme = scheme;
            let _server =
                TestServer::start(&info, Behaviour::default(), Wire::default()).await.unwrap();
            let client = connect(&info, quick()).await.unwrap();
            assert_eq!(text(&client, "print hello").await, "hello\n");
        }
    }
}

#[tokio::test]
async fn without_a_key_nothing_is_signed() {
    let mut kernel = Kernel::new();
    kernel.info.key = Key::default();
    let kernel = kernel.serve(Behaviour::default(), Wire::default()).await;
    assert_eq!(text(&kernel.client().await, "print x").await, "x\n");
}

#[tokio::test]
async fn any_way_to_the_kernel_will_do() {
    /// A tunnel, which copies bytes through a pipe in memory.
    struct Tunnel(Endpoints);

    #[async_trait::async_trait]
    impl Dialer for Tunnel {
        async fn dial(&self, channel: Channel) -> std::io::Result<Box<dyn Io>> {
            let mut far = self.0.dial(channel).await?;
            let (near, mut inner) = tokio::io::duplex(1000);
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut inner, &mut far).await });
            Ok(Box::new(near))
        }
    }

    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let options = quick().with_dialer(Tunnel(Endpoints::from_connection_info(&kernel.info)));
    // The connection file describes the inside of a container, where nothing listens on the outside.
    let mut inside = ConnectionInfo::ipc("/run/kernel/inside");
    inside.key = kernel.info.key.clone();
    let client = connect(&inside, options).await.unwrap();
    assert_eq!(text(&client, "flood 2000 500").await.len(), 1_000_000);
    assert_eq!(text(&client, "print x\ndrop shell\nsleep 100").await, "x\n");
    assert_eq!(text(&client, "print y").await, "y\n");
}

#[tokio::test]
async fn sockets_can_be_given_one_by_one() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let given = Channel::MESSAGES.into_iter().fold(Endpoints::default(), |given, channel| {
        let Endpoint::Ipc { path } = kernel.info.endpoint(channel) else { panic!("not a path") };
        given.with(channel, Endpoint::Ipc { path })
    });
    let mut info = ConnectionInfo::default();
    info.key = kernel.info.key.clone();
    let client = connect(&info, quick().with_dialer(given)).await.unwrap();
    assert_eq!(text(&client, "print x").await, "x\n");
}
