//! Connections that break, and kernels that end and start.

use std::time::{Duration, Instant};

use crate::support::{Kernel, quick, text};
use jupyter_protocol::client::{ClientError, Effect, Observed};
use jupyter_protocol::content::{CompleteRequest, DebugRequest};
use jupyter_protocol::execution::{End, Event, GracePeriods};
use jupyter_protocol::test_kernel::{Behaviour, Wire};
use jupyter_protocol::zmq::connect;
use jupyter_protocol::{Channel, ExecuteRequest, KernelInfoRequest};

use crate::READY;

#[tokio::test]
async fn a_broken_connection_is_made_again() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    for channel in ["iopub", "shell", "control"] {
        let running = client
            .execute(ExecuteRequest::new(format!("print x\ndrop {channel}\nsleep 200")))
            .await;
        let outcome = running.unwrap().outcome().await;
        assert_eq!(outcome.losses.disconnected, channel == "iopub", "{channel} {outcome:?}");
        assert_eq!(text(&client, "print again").await, "again\n", "after {channel}");
        let info = client.request_on(Channel::Control, KernelInfoRequest::default()).await.unwrap();
        assert_eq!(info.implementation, "test");
    }
}

#[tokio::test]
async fn a_lost_reply_is_known_by_a_later_one() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let mut options = quick();
    options.client.grace = GracePeriods::default()
        .with_idle(Duration::from_secs(60))
        .with_reply(Duration::from_secs(60));
    let client = connect(&kernel.info, options).await.unwrap();
    client.ready(READY).await.unwrap();
    let before = Instant::now();
    // The reply is sent while no client is connected.
    let running = client.execute(ExecuteRequest::new("print x\ndrop shell")).await.unwrap();
    let outcome = running.outcome().await;
    assert_eq!(outcome.end, End::ReplyLost);
    assert!(before.elapsed() < Duration::from_secs(10), "the grace period was skipped");
}

#[tokio::test]
async fn requests_of_a_dead_kernel_fail() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let mut options = quick();
    options.client.reconnect_timeout = Duration::from_millis(500);
    let client = connect(&kernel.info, options).await.unwrap();
    client.ready(READY).await.unwrap();
    let pending = client.execute(ExecuteRequest::new("print x\nsleep 100\ndie")).await.unwrap();
    let behind = tokio::spawn({
        let client = client.clone();
        async move { client.request(CompleteRequest::default()).await }
    });
    assert_eq!(pending.outcome().await.end, End::ConnectionLost);
    let error = behind.await.unwrap().unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error}");
    let error = client.execute(ExecuteRequest::new("x")).await.unwrap_err();
    assert_eq!(error.effect(), Effect::None);
    assert!(client.ready(READY).await.is_err());
}

#[tokio::test]
async fn a_restart_ends_executions() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let running = client.execute(ExecuteRequest::new("print x\nrestart\nsleep 100")).await.unwrap();
    assert_eq!(running.outcome().await.end, End::KernelRestarted);
    assert_eq!(text(&client, "print y").await, "y\n");
}

#[tokio::test]
async fn a_restart_ends_requests() {
    let ignored = vec![(Channel::Shell, "complete_request"), (Channel::Control, "debug_request")];
    let behaviour = Behaviour { ignored, ..Behaviour::default() };
    let kernel = Kernel::start(behaviour, Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let on_shell = client.session().request(CompleteRequest::default());
    // The new process has none of the earlier queues.
    let in_subshell = client.session().request_in("1", CompleteRequest::default());
    let on_control = client.session().request(DebugRequest::default());
    let asks = async {
        tokio::join!(
            client.exchange(Channel::Shell, on_shell),
            client.exchange(Channel::Shell, in_subshell),
            client.exchange(Channel::Control, on_control),
        )
    };
    let restarts = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.execute(ExecuteRequest::new("restart")).await.unwrap().outcome().await
    };
    let both = async { tokio::join!(asks, restarts) };
    let (replies, _) = tokio::time::timeout(READY, both).await.unwrap();
    for reply in [replies.0, replies.1, replies.2] {
        let error = reply.unwrap_err();
        assert!(matches!(error, ClientError::KernelRestarted), "{error}");
    }
}

#[tokio::test]
async fn another_kernel_behind_the_same_sockets_is_noticed() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let ignored = vec![(Channel::Shell, "complete_request")];
    let waiting = tokio::spawn({
        let client = client.clone();
        async move {
            let request = client.session().request(ExecuteRequest::new("sleep 60000"));
            client.exchange(Channel::Shell, request).await
        }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let kernel = kernel.replace(Behaviour { ignored, ..Behaviour::default() }).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::KernelRestarted), "{error}");
    assert_eq!(text(&client, "print x").await, "x\n");
    drop(kernel);
}

#[tokio::test]
async fn the_heart_beats() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let mut options = quick();
    options.heartbeat = Some(Duration::from_millis(50));
    let client = connect(&kernel.info, options).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let heartbeat = client.heartbeat();
    assert!(heartbeat.last.is_some() && heartbeat.missed == 0, "{heartbeat:?}");
    let _ = client.execute(ExecuteRequest::new("die")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(client.heartbeat().missed > 0);
    let kernel = kernel.replace(Behaviour::default()).await;
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(client.heartbeat().missed, 0, "it recovers");
    drop(kernel);
}

#[tokio::test]
async fn a_connection_that_breaks_inside_of_a_message_is_made_again() {
    // The header of a frame of five bytes with none or some of its body; then the end.
    for fragment in [&[1, 5][..], &[1, 5, 0, 0], &[1, 0]] {
        let after = Some((Channel::IoPub, fragment.to_vec()));
        let wire = Wire { after_handshake: after, ..Wire::default() };
        let kernel = Kernel::start(Behaviour::default(), wire).await;
        let client = connect(&kernel.info, quick()).await.unwrap();
        let kernel = kernel.replace(Behaviour::default()).await;
        let before = Instant::now();
        assert_eq!(text(&client, "print x").await, "x\n");
        assert!(before.elapsed() < Duration::from_secs(5), "{fragment:?}");
        drop(kernel);
    }
}

#[tokio::test]
async fn a_kernel_that_is_known_to_be_dead_is_not_waited_for() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let mut running = client.execute(ExecuteRequest::new("print x\nsleep 60000")).await.unwrap();
    while !matches!(running.next().await, Some(Event::Stream(_))) {}
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.request(CompleteRequest::default()).await }
    });
    let (mut watch, before) = (client.watch(), client.restarts());
    // The kernel sleeps and does not reply.
    let readying = tokio::spawn({
        let client = client.clone();
        async move { client.ready(Duration::from_secs(60)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    client.kernel_died();
    assert!(matches!(readying.await.unwrap(), Err(ClientError::KernelDied)));
    while !matches!(watch.next().await.expect("the connection stays"), Observed::KernelDied) {}
    assert_eq!(client.restarts(), before + 1);
    while running.next().await.is_some() {}
    assert_eq!(running.outcome().await.end, End::KernelDied, "it can be asked afterwards too");
    assert!(matches!(waiting.await.unwrap(), Err(ClientError::KernelDied)));
    let kernel = kernel.replace(Behaviour::default()).await;
    assert_eq!(text(&client, "print y").await, "y\n");
    drop(kernel);
}

#[tokio::test]
async fn closing_closes_the_sockets() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let watch = client.watch();
    client.close();
    assert!(client.execute(ExecuteRequest::new("x")).await.is_err());
    // The handle still exists, but the connections are closed.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(kernel.subscribers(), 0);
    drop(watch);
}

#[tokio::test]
async fn two_clients_may_have_the_same_options() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let options = quick();
    let first = connect(&kernel.info, options.clone()).await.unwrap();
    let second = connect(&kernel.info, options).await.unwrap();
    let (a, b) = tokio::join!(text(&first, "print a"), text(&second, "print b"));
    assert_eq!((a.as_str(), b.as_str()), ("a\n", "b\n"));
}
