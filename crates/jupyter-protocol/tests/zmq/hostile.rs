//! Hostile kernels.

use std::time::{Duration, Instant};

use crate::support::{Kernel, quick, text};
use jupyter_protocol::client::{ClientError, CloseReason};
use jupyter_protocol::content::CompleteRequest;
use jupyter_protocol::execution::End;
use jupyter_protocol::test_kernel::{Behaviour, Wire};
use jupyter_protocol::zmq::connect;
use jupyter_protocol::{Channel, ExecuteRequest, KernelInfoRequest, Limits};

use crate::READY;

#[tokio::test]
async fn messages_without_a_valid_signature_are_rejected_and_counted() {
    for behaviour in [
        Behaviour { unsigned: true, ..Behaviour::default() },
        Behaviour { bad_signature: true, ..Behaviour::default() },
    ] {
        let kernel = Kernel::start(behaviour, Wire::default()).await;
        let client = kernel.client().await;
        let error = client.ready(Duration::from_millis(300)).await.unwrap_err();
        assert!(matches!(error, ClientError::NotReady { .. }), "{error}");
        assert!(client.rejected() > 0);
    }
}

#[tokio::test]
async fn messages_that_are_sent_twice_count_once() {
    let kernel =
        Kernel::start(Behaviour { duplicates: true, ..Behaviour::default() }, Wire::default())
            .await;
    let client = kernel.client().await;
    assert_eq!(text(&client, "print x").await, "x\n");
    assert!(client.rejected() > 0);
}

#[tokio::test]
async fn a_silent_kernel_times_out() {
    let kernel =
        Kernel::start(Behaviour::default(), Wire { silent: true, ..Wire::default() }).await;
    let mut options = quick();
    options.client.connect_timeout = Duration::from_millis(300);
    let before = Instant::now();
    let error = connect(&kernel.info, options).await.unwrap_err();
    assert!(error.to_string().contains("the handshake timed out"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn hostile_handshakes_are_reported_at_once() {
    for (wire, word) in [
        (Wire { mechanism: Some("CURVE"), ..Wire::default() }, "CURVE"),
        (Wire { socket_type: Some("STREAM"), ..Wire::default() }, "STREAM"),
        (
            Wire {
                greeting: Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
                ..Wire::default()
            },
            "ZMTP",
        ),
    ] {
        let kernel = Kernel::start(Behaviour::default(), wire).await;
        let before = Instant::now();
        let error = connect(&kernel.info, quick()).await.unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert!(before.elapsed() < Duration::from_secs(3));
    }
}

#[tokio::test]
async fn nine_bytes_do_not_end_the_process() {
    for length in [1_u64 << 36, 1 << 62, u64::MAX] {
        let header = [&[2][..], &length.to_be_bytes()].concat();
        for channel in [Channel::IoPub, Channel::Shell, Channel::Control] {
            let wire = Wire { after_handshake: Some((channel, header.clone())), ..Wire::default() };
            let kernel = Kernel::start(Behaviour::default(), wire).await;
            let reason = match connect(&kernel.info, quick()).await {
                Ok(client) => {
                    let mut watch = client.watch();
                    while watch.next().await.is_some() {}
                    watch.close_reason().unwrap().clone()
                }
                Err(ClientError::Closed { reason, .. }) => reason,
                Err(error) => panic!("{error}"),
            };
            assert!(
                matches!(&reason, CloseReason::Violation { channel: on, .. } if *on == channel),
                "{reason}"
            );
        }
    }
}

#[tokio::test]
async fn a_message_without_end_is_cut() {
    let endless = [[1, 0]; 20_000].concat();
    let wire = Wire { on_execute: Some(endless), ..Wire::default() };
    let kernel = Kernel::start(Behaviour::default(), wire).await;
    let client = kernel.client().await;
    let running = client.execute(ExecuteRequest::new("print x")).await.unwrap();
    let outcome = running.outcome().await;
    assert_eq!(outcome.end, End::ConnectionLost);
    assert!(client.close_reason().unwrap().to_string().contains("4096 frames"));
}

#[tokio::test]
async fn commands_and_junk_messages_do_no_harm() {
    let ping = [&[4, 7][..], b"\x04PING\0\0"].concat();
    let junk = [ping.repeat(1000), vec![0, 0, 0, 1, 7, 1, 0, 0, 0]].concat();
    let wire = Wire { after_handshake: Some((Channel::IoPub, junk.clone())), ..Wire::default() };
    let kernel = Kernel::start(Behaviour::default(), wire).await;
    let client = kernel.client().await;
    assert_eq!(text(&client, "print x").await, "x\n");
    assert_eq!(client.rejected(), 3);
}

#[tokio::test]
async fn a_kernel_that_does_not_read_blocks_no_caller() {
    let wire = Wire { deaf: true, ..Wire::default() };
    let kernel = Kernel::start(Behaviour::default(), wire).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let info = client.request_on(Channel::Control, KernelInfoRequest::default());
    assert!(tokio::time::timeout(READY, info).await.unwrap().is_ok());
    let request = client.request(CompleteRequest::default());
    assert!(
        tokio::time::timeout(Duration::from_millis(200), request).await.is_err(),
        "given up by the caller"
    );
}

#[tokio::test]
async fn encrypted_kernels_are_refused_and_not_talked_to_in_the_clear() {
    let mut kernel = Kernel::new();
    kernel.info.curve_publickey = Some("p".into());
    let error = connect(&kernel.info, quick()).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)));
}

#[tokio::test]
async fn limits_are_those_of_the_caller() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let mut options = quick();
    options.client.limits = Limits::default().with_message(100_000);
    let client = connect(&kernel.info, options).await.unwrap();
    assert_eq!(text(&client, "print x").await, "x\n");
    let running = client.execute(ExecuteRequest::new("buffers 200000")).await.unwrap();
    assert_eq!(running.outcome().await.end, End::ConnectionLost);
    assert!(matches!(
        client.close_reason(),
        Some(CloseReason::Violation { channel: Channel::IoPub, .. })
    ));
}
