//! Bodies of both directions: bounded, and as they come.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use sandbox_cloud::http::{Part, lines, server_events};
use sandbox_core::{ByteStream, Effect, Error, ErrorKind};

use crate::server::{Reply, Server};
use crate::{call, client, get, post};

fn chunks(chunks: &[&'static str]) -> ByteStream {
    let chunks: Vec<_> =
        chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
    Box::pin(stream::iter(chunks))
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_an_error() {
    let server = Server::answering(vec![Reply::json("0123456789")]);
    let client = client(&server);
    client.send(&call(), &get(&server).max_response(10)).await.unwrap();
    let error = client.send(&call(), &get(&server).max_response(9)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Protocol, Effect::Unknown));
    // The body of a refusal is cut.
    let body = format!("{{\"message\": \"{}\"}}", "x".repeat(1 << 20));
    let server = Server::answering(vec![Reply::Answer { status: 400, headers: Vec::new(), body }]);
    let error = self::client(&server).send(&call(), &get(&server)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().len() < 1000, "{}", error.message().len());
}

#[tokio::test]
async fn a_body_is_sent_as_it_comes_and_once() {
    let server = Server::answering(vec![Reply::status(429).with_header("retry-after", "0")]);
    let request = post(&server).stream("application/x-tar", chunks(&["one ", "two"]));
    let client = client(&server);
    let error = client.send(&call(), &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RateLimited);
    let received = server.received();
    assert_eq!(received.len(), 1, "the stream is gone, so there is no second attempt");
    assert_eq!(received[0].body, b"one two");
    assert_eq!(received[0].header("content-type"), Some("application/x-tar"));
    let error = client.send(&call(), &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected, "{error}");
}

#[tokio::test]
async fn a_body_that_fails_is_the_error_of_its_source() {
    let server = Server::answering(vec![Reply::json("{}")]);
    let failing = stream::iter([
        Ok(Bytes::from_static(b"one")),
        Err(Error::new(ErrorKind::PermissionDenied, "read", "the disk is locked")),
    ]);
    let request = post(&server).stream("text/plain", Box::pin(failing));
    let error = client(&server).send(&call(), &request).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::PermissionDenied, "create"));
    assert!(error.message().contains("the disk is locked"), "{error}");
}

#[tokio::test]
async fn forms_have_fields_and_files() {
    let server = Server::answering(vec![Reply::json("{}")]);
    let parts = vec![
        Part::text("path", "/a b"),
        Part::file("file", "/a b", "whole"),
        Part::streamed_file("more", "c.txt", chunks(&["in ", "parts"]), Some(8)),
    ];
    client(&server).send(&call(), &post(&server).multipart(parts)).await.unwrap();
    let received = server.received().remove(0);
    let body = String::from_utf8(received.body.clone()).unwrap();
    assert!(received.header("content-type").unwrap().starts_with("multipart/form-data; boundary="));
    assert!(received.header("content-length").is_some(), "all lengths are known");
    for part in [
        "form-data; name=\"path\"\r\n\r\n/a b\r\n",
        "form-data; name=\"file\"; filename=\"/a b\"\r\nContent-Type: application/octet-stream\r\n\r\nwhole\r\n",
        "form-data; name=\"more\"; filename=\"c.txt\"\r\nContent-Type: application/octet-stream\r\n\r\nin parts\r\n",
    ] {
        assert!(body.contains(part), "{body}");
    }
    // A form of bytes can be sent again.
    let server = Server::answering(vec![Reply::status(429), Reply::json("{}")]);
    let form = post(&server).multipart(vec![Part::file("file", "a", "whole")]);
    client(&server).send(&call(), &form).await.unwrap();
    assert_eq!(server.received()[0].body.len(), server.received()[1].body.len());
}

#[tokio::test]
async fn an_answer_is_read_as_it_comes() {
    let pause = Duration::from_millis(300);
    let server = Server::answering(vec![Reply::Chunks(vec![
        (Duration::ZERO, "{\"n\":1}\n{\"n\""),
        (pause, ":2}\n"),
    ])]);
    let opened = client(&server).open(&call(), &get(&server)).await.unwrap();
    let mut lines = Box::pin(lines("run", opened.into_bytes(), 99));
    let started = std::time::Instant::now();
    assert_eq!(lines.next().await.unwrap().unwrap(), "{\"n\":1}");
    assert!(started.elapsed() < pause, "the first line does not wait for the second");
    assert_eq!(lines.next().await.unwrap().unwrap(), "{\"n\":2}");
    assert!(lines.next().await.is_none());

    let server = Server::answering(vec![Reply::Chunks(vec![
        (Duration::ZERO, ": hi\n\nevent: stdout\ndata: aGk=\n\n"),
        (Duration::ZERO, "event: exit\ndata: {\"exit_code\":0}\n\n"),
    ])]);
    let opened = client(&server).open(&call(), &post(&server)).await.unwrap();
    let events: Vec<_> = server_events("run", opened.into_bytes(), 99).try_collect().await.unwrap();
    let shown: Vec<_> = events.iter().map(|one| (&*one.event, &*one.data)).collect();
    assert_eq!(shown, [("stdout", "aGk="), ("exit", "{\"exit_code\":0}")]);
}

#[tokio::test]
async fn an_answer_that_stops_is_an_error() {
    let server = Server::answering(vec![Reply::HalfBody]);
    let opened = client(&server).open(&call(), &post(&server)).await.unwrap();
    let read: Vec<_> = opened.into_bytes().collect().await;
    let error = read.last().unwrap().as_ref().unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::ConnectionLost, Effect::Unknown));

    let pieces = vec![(Duration::ZERO, "one"), (Duration::from_secs(20), "two")];
    let server = Server::answering(vec![Reply::Chunks(pieces)]);
    let request = get(&server).idle_timeout(Duration::from_millis(200));
    let opened = client(&server).open(&call(), &request).await.unwrap();
    let read: Vec<_> = opened.into_bytes().collect().await;
    assert_eq!(read.len(), 2, "{read:?}");
    assert_eq!(read[1].as_ref().unwrap_err().kind(), ErrorKind::ConnectionLost);
    // A refusal is one before anything is read.
    let server = Server::answering(vec![Reply::status(404)]);
    let error = client(&server).open(&call(), &get(&server)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}
