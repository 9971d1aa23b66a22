//! Runs code.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Kernel, names, quick, text};
use bytes::Bytes;
use jupyter_protocol::client::{ClientError, ClientOptions, CloseReason, Effect, Observed};
use jupyter_protocol::content::{
    CompleteRequest, CreateSubshellRequest, ExecuteInput, ExecutionState, InterruptRequest,
};
use jupyter_protocol::execution::{End, Event, Loss};
use jupyter_protocol::test_kernel::{Behaviour, Wire};
use jupyter_protocol::zmq::connect;
use jupyter_protocol::{Channel, ExecuteRequest, KernelInfoRequest};

use crate::READY;

#[tokio::test]
async fn code_runs_and_everything_arrives_in_order() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let ready = client.ready(READY).await.unwrap();
    assert_eq!(ready.kernel_info.implementation, "test");
    let code = "print a\nerr b\ndisplay 1 x\nupdate 1 y\nclear wait\nresult 42";
    let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
    let mut events = Vec::new();
    while let Some(event) = running.next().await {
        events.push(event);
    }
    let expected = [
        "started", "input", "stream", "stream", "display", "update", "clear", "result", "reply",
        "idle", "finished",
    ];
    let mut found = names(&events);
    // Replies use a channel of their own.
    let reply = found.iter().position(|name| *name == "reply").unwrap();
    let name = found.remove(reply);
    found.insert(8.min(found.len() - 1), name);
    assert_eq!(found, expected);
    assert!(running.next().await.is_none());
}

#[tokio::test]
async fn replies_and_output_may_come_in_any_order() {
    for behaviour in [
        Behaviour { reply_first: true, ..Behaviour::default() },
        Behaviour { idle_first: true, ..Behaviour::default() },
    ] {
        let kernel = Kernel::start(behaviour, Wire::default()).await;
        let client = kernel.client().await;
        assert_eq!(text(&client, "print a\nsleep 50\nprint b").await, "a\nb\n");
    }
}

/// The process is suspended or overloaded while the kernel continues.
#[test]
fn buffered_messages_are_read_before_a_timeout() {
    let mut elsewhere = tokio::runtime::Builder::new_multi_thread();
    let elsewhere = elsewhere.worker_threads(1).enable_all().build().unwrap();
    let behaviour = Behaviour { reply_first: true, ..Behaviour::default() };
    let kernel = elsewhere.block_on(Kernel::start(behaviour, Wire::default()));
    let here = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    here.block_on(async {
        let client = kernel.client().await;
        client.ready(READY).await.unwrap();
        for _ in 0..6 {
            let code = "sleep 100\nflood 6 1000000\nresult end";
            let mut running = client.execute(ExecuteRequest::new(code)).await.unwrap();
            while !matches!(running.next().await, Some(Event::Reply(_))) {}
            // Longer than the grace period.
            std::thread::sleep(Duration::from_millis(800));
            let outcome = running.outcome().await;
            assert!(!outcome.losses.no_idle, "{outcome:?}");
        }
    });
}

#[tokio::test]
async fn late_output_of_known_kernels_arrives() {
    let behaviour = Behaviour { late: true, ..Behaviour::default() };
    let kernel = Kernel::start(behaviour, Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    for _ in 0..3 {
        let ran = client.execute("print a\nresult 42").await.unwrap().collect().await;
        assert_eq!((ran.stdout.as_str(), ran.value().as_deref()), ("a\n", Some("42")));
        assert!(ran.is_ok() && ran.is_complete(), "{ran:?}");
    }
}

#[tokio::test]
async fn a_lost_idle_or_reply_does_not_hang() {
    let idle =
        Kernel::start(Behaviour { drop_idle: true, ..Behaviour::default() }, Wire::default()).await;
    let running = idle.client().await.execute(ExecuteRequest::new("print a")).await.unwrap();
    let outcome = running.outcome().await;
    assert!(outcome.is_ok() && outcome.losses.no_idle);

    let reply =
        Kernel::start(Behaviour { drop_reply: true, ..Behaviour::default() }, Wire::default())
            .await;
    let running = reply.client().await.execute(ExecuteRequest::new("print a")).await.unwrap();
    assert_eq!(running.outcome().await.end, End::ReplyLost);
}

#[tokio::test]
async fn malformed_content_loses_no_message() {
    let contents =
        vec![("execute_reply", "{\"status\": NaN}"), ("stream", "[]"), ("kernel_info_reply", "7")];
    let kernel =
        Kernel::start(Behaviour { contents, ..Behaviour::default() }, Wire::default()).await;
    let client = kernel.client().await;
    let mut running = client.execute(ExecuteRequest::new("print a")).await.unwrap();
    let mut malformed = Vec::new();
    while let Some(event) = running.next().await {
        match event {
            Event::Message { message, .. } => {
                assert!(message.content.is_malformed());
                malformed.push(message.header.msg_type);
            }
            Event::Finished(outcome) => {
                assert_eq!((outcome.end, outcome.reply), (End::Replied, None))
            }
            _ => {}
        }
    }
    malformed.sort();
    assert_eq!(malformed, ["execute_reply", "stream"]);
    let error = client.request(KernelInfoRequest::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Malformed(_)), "{error}");
    assert_eq!(error.effect(), Effect::Answered);
}

#[tokio::test]
async fn every_field_may_be_missing() {
    let types =
        ["execute_reply", "kernel_info_reply", "stream", "execute_input", "error", "display_data"];
    let contents = types.map(|msg_type| (msg_type, "{}")).to_vec();
    let kernel =
        Kernel::start(Behaviour { contents, ..Behaviour::default() }, Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let running =
        client.execute(ExecuteRequest::new("print a\ndisplay 1 x\nraise E")).await.unwrap();
    assert_eq!(running.outcome().await.end, End::Replied);
}

#[tokio::test]
async fn input_is_asked_for_and_given() {
    let late = Wire { late_stdin: Some(Duration::from_millis(300)), ..Wire::default() };
    for wire in [Wire::default(), late] {
        let kernel = Kernel::start(Behaviour::default(), wire).await;
        let client = kernel.client().await;
        client.ready(READY).await.unwrap();
        let mut request = ExecuteRequest::new("input name?\nprint after");
        request.allow_stdin = true;
        let mut running = client.execute(request).await.unwrap();
        let mut out = String::new();
        while let Some(event) = running.next().await {
            match event {
                Event::InputRequest(question) => {
                    assert_eq!(question.prompt, "name?");
                    running.reply_input("me").await.unwrap();
                    let error = running.reply_input("again").await.unwrap_err();
                    assert_eq!(error.effect(), Effect::None, "{error}");
                }
                Event::Stream(stream) => out.push_str(&stream.text),
                _ => {}
            }
        }
        assert_eq!(out, "me\nafter\n");
    }
}

#[tokio::test]
async fn a_flood_is_drained_and_its_loss_is_reported() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let mut options = quick();
    options.client.buffered = 1024 * 1024;
    let client = connect(&kernel.info, options).await.unwrap();
    client.ready(READY).await.unwrap();
    let mut running =
        client.execute(ExecuteRequest::new("flood 20000 200\nprint end")).await.unwrap();
    // No event is taken until the end.
    for state in [ExecutionState::Busy, ExecutionState::Idle] {
        while client.kernel_state() != Some(state.clone()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    let (mut bytes, mut lost) = (0, 0);
    let mut outcome = None;
    while let Some(event) = running.next().await {
        match event {
            Event::Stream(stream) => bytes += stream.text.len(),
            Event::Lost(Loss::Overflow { messages, .. }) => lost += messages,
            Event::Finished(finished) => outcome = Some(*finished),
            _ => {}
        }
    }
    let outcome = outcome.unwrap();
    assert!(outcome.is_ok() && !outcome.losses.no_idle, "{outcome:?}");
    assert_eq!(outcome.losses.messages, lost);
    assert!(lost > 10_000 && bytes > 100_000 && bytes < 1024 * 1024, "{lost} {bytes}");
}

#[tokio::test]
async fn a_flood_that_is_taken_is_complete() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let out = text(&client, "flood 20000 100").await;
    assert_eq!(out.len(), 2_000_000);
}

#[tokio::test]
async fn large_buffers_come_whole() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let mut running = client.execute(ExecuteRequest::new("buffers 20000000")).await.unwrap();
    let mut found = None;
    while let Some(event) = running.next().await {
        if let Event::Display { buffers, .. } = event {
            found = Some(buffers);
        }
    }
    assert_eq!(found.unwrap(), [Bytes::from(vec![7; 20_000_000])]);
}

#[tokio::test]
async fn any_client_can_watch() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let (worker, spectator) = (kernel.client().await, kernel.client().await);
    spectator.ready(READY).await.unwrap();
    let mut watch = spectator.watch();
    assert_eq!(text(&worker, "print seen").await, "seen\n");
    let mut types = Vec::new();
    while !types.iter().any(|kind| kind == "stream") {
        let Some(Observed::Message { channel, message }) = watch.next().await else { continue };
        assert_eq!(channel, Channel::IoPub);
        if let Ok(input) = serde_json::from_slice::<ExecuteInput>(message.content())
            && message.msg_type() == "execute_input"
        {
            assert_eq!(input.code, "print seen");
        }
        types.push(message.msg_type().to_owned());
    }
    assert!(types.iter().any(|kind| kind == "execute_input"), "{types:?}");
    spectator.close();
    while watch.next().await.is_some() {}
    assert_eq!(watch.close_reason(), Some(&CloseReason::Closed));
}

#[tokio::test]
async fn requests_are_answered_by_type() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    let complete = client.request(CompleteRequest::default()).await.unwrap();
    assert_eq!(complete.matches, ["print"]);
    assert!(client.request(InterruptRequest::default()).await.unwrap().status.is_ok());
    let request = client.request(CreateSubshellRequest::default());
    assert!(
        tokio::time::timeout(Duration::from_millis(200), request).await.is_err(),
        "not known to this kernel"
    );
    let info = client.session().request(KernelInfoRequest::default());
    let error = client.execute_message(info.clone()).await.unwrap_err();
    assert!(error.to_string().contains("kernel_info_request does not run code"), "{error}");
    let error = client.send(Channel::IoPub, info).await.unwrap_err();
    assert!(matches!(error, ClientError::Unsupported(_)));
}

#[tokio::test]
async fn clients_with_one_session_share_nothing_else() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    drop(client.execute(ExecuteRequest::new("print dropped")).await.unwrap());
    let (a, b) = tokio::join!(text(&client, "print a\nsleep 20"), text(&client, "print b"));
    assert_eq!((a.as_str(), b.as_str()), ("a\n", "b\n"));
    let options = ClientOptions::default();
    assert!(Arc::strong_count(&options.session) == 1);
}

/// The stream works with the combinators of `futures`.
#[tokio::test]
async fn executions_and_watches_are_streams() {
    use futures_util::StreamExt;

    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let watch = client.watch();
    let running = client.execute("print a\nsleep 50\nprint b").await.unwrap();
    let events: Vec<Event> = StreamExt::collect(running).await;
    let text = |event: &Event| match event {
        Event::Stream(stream) => Some(stream.text.clone()),
        _ => None,
    };
    assert_eq!(events.iter().filter_map(text).collect::<String>(), "a\nb\n");
    assert!(matches!(events.last(), Some(Event::Finished(outcome)) if outcome.is_ok()));
    client.close();
    let seen: Vec<Observed> = StreamExt::collect(watch).await;
    let streams = seen.iter().filter(
        |seen| matches!(seen, Observed::Message { message, .. } if message.msg_type() == "stream"),
    );
    assert_eq!(streams.count(), 2);
}

/// A cancelled wait in a `select!` loses nothing, and the next one is woken.
#[tokio::test]
async fn waiting_for_a_stream_can_be_given_up() {
    use futures_util::StreamExt;

    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let mut running = client.execute("sleep 300\nprint a\nsleep 300\nprint b").await.unwrap();
    let (mut given_up, mut out) = (0, String::new());
    loop {
        let next = StreamExt::next(&mut running);
        match tokio::time::timeout(Duration::from_millis(20), next).await {
            Ok(Some(Event::Stream(stream))) => out.push_str(&stream.text),
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(_) => given_up += 1,
        }
    }
    assert_eq!(out, "a\nb\n");
    assert!(given_up > 2, "{given_up}");
}

#[tokio::test]
async fn everything_is_collected_and_bounded() {
    let kernel = Kernel::start(Behaviour::default(), Wire::default()).await;
    let client = kernel.client().await;
    client.ready(READY).await.unwrap();
    let code = "print a\nerr b\ndisplay 1 x\nupdate 1 y\nprint c\nresult 42";
    let ran = client.execute(code).await.unwrap().collect().await;
    assert!(ran.is_ok() && ran.is_complete() && ran.error().is_none());
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a\nc\n", "b\n"));
    assert_eq!(ran.value().as_deref(), Some("42"));
    assert_eq!(ran.outputs.len(), 5, "{:?}", ran.outputs);

    let code = ["print 123456789"; 1000].join("\n");
    let ran = client.execute(code).await.unwrap().collect_within(1005).await;
    assert_eq!(ran.stdout.len(), 1005);
    assert!(ran.stdout.ends_with("\n12345") && ran.is_ok() && !ran.is_complete());
    // Of the text and of the outputs, which hold fewer bytes because of their overhead.
    let missing = 2 * (10_000 - 1005);
    assert!((missing..missing + 1000).contains(&ran.cut), "{}", ran.cut);
}
