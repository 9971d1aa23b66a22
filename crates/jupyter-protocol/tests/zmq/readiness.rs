//! Kernels that become ready late or never.

use std::time::{Duration, Instant};

use crate::support::{Kernel, quick, text};
use jupyter_protocol::client::{ClientError, CloseReason, Effect};
use jupyter_protocol::readiness::SubscribedBy;
use jupyter_protocol::test_kernel::{Behaviour, Wire};
use jupyter_protocol::zmq::connect;
use jupyter_protocol::{Channel, ExecuteRequest};

use crate::READY;

#[tokio::test]
async fn readiness_needs_no_welcome_and_bears_many() {
    for (behaviour, expected) in [
        (Behaviour { no_welcome: true, ..Behaviour::default() }, Some(SubscribedBy::Nudge)),
        (Behaviour { many_welcomes: true, ..Behaviour::default() }, None),
    ] {
        let kernel = Kernel::start(behaviour, Wire::default()).await;
        for _ in 0..2 {
            let ready = kernel.client().await.ready(READY).await.unwrap();
            assert!(expected.is_none_or(|expected| ready.subscribed_by == expected));
        }
    }
}

#[tokio::test]
async fn a_kernel_that_ignores_one_channel_becomes_ready_by_the_other() {
    for ignored in [Channel::Shell, Channel::Control] {
        let ignored = vec![(ignored, "kernel_info_request")];
        let kernel =
            Kernel::start(Behaviour { ignored, ..Behaviour::default() }, Wire::default()).await;
        kernel.client().await.ready(READY).await.unwrap();
    }
}

#[tokio::test]
async fn a_kernel_that_never_listens_on_stdin_is_usable() {
    let wire = Wire { late_stdin: Some(Duration::from_secs(3600)), ..Wire::default() };
    let kernel = Kernel::start(Behaviour::default(), wire).await;
    let client = kernel.client().await;
    assert_eq!(text(&client, "print x").await, "x\n");
    let before = Instant::now();
    let running = client.execute(ExecuteRequest::new("print y")).await.unwrap();
    assert!(before.elapsed() < Duration::from_millis(900), "stdin was not waited for");
    assert!(running.outcome().await.is_ok());
    let mut request = ExecuteRequest::new("print y");
    request.allow_stdin = true;
    assert!(client.execute(request).await.unwrap().outcome().await.is_ok());
}

#[tokio::test]
async fn a_kernel_that_starts_late_is_waited_for() {
    let wire = Wire { late: Some(Duration::from_millis(400)), ..Wire::default() };
    let kernel = Kernel::start(Behaviour::default(), wire).await;
    assert_eq!(text(&kernel.client().await, "print x").await, "x\n");
}

#[tokio::test]
async fn a_kernel_that_is_not_there_is_given_up() {
    let kernel = Kernel::new();
    let mut options = quick();
    options.client.connect_timeout = Duration::from_millis(300);
    let error = connect(&kernel.info, options).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Closed { reason: CloseReason::Unreachable { .. }, .. }),
        "{error}"
    );
    assert_eq!(error.effect(), Effect::None);
}
