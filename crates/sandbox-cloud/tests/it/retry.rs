//! What is sent again, and what is not.

use std::time::{Duration, Instant};

use sandbox_core::{Effect, ErrorKind, Retry};

use crate::server::{Reply, Server};
use crate::{call, client, get, impatient, post};

#[tokio::test]
async fn a_post_that_was_sent_is_never_repeated() {
    for (reply, kind) in [
        (Reply::Drop, ErrorKind::ConnectionLost),
        (Reply::HalfBody, ErrorKind::ConnectionLost),
        (Reply::status(500), ErrorKind::Unexpected),
        (Reply::status(502), ErrorKind::Unavailable),
        (Reply::status(503), ErrorKind::Unavailable),
        (Reply::status(504), ErrorKind::Unavailable),
    ] {
        let server = Server::answering(vec![reply.clone(), Reply::json("{}")]);
        let error = client(&server).send(&call(), &post(&server)).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (kind, Effect::Unknown), "{reply:?}: {error:?}");
        assert_eq!(server.received().len(), 1, "{reply:?}");
        // The control: a request that can be repeated is.
        let server = Server::answering(vec![reply.clone(), Reply::json("{}")]);
        client(&server).send(&call(), &get(&server)).await.unwrap();
        assert_eq!(server.received().len(), 2, "{reply:?}");
    }
}

/// The connection is one that was used before, which the service ends when the request arrives.
#[tokio::test]
async fn a_post_over_a_connection_that_was_kept_is_not_repeated_either() {
    let server = Server::answering(vec![Reply::json("{}"), Reply::Drop, Reply::json("{}")]);
    let client = client(&server);
    client.send(&call(), &post(&server)).await.unwrap();
    let error = client.send(&call(), &post(&server)).await.unwrap_err();
    assert_eq!(error.effect(), Effect::Unknown, "{error:?}");
    assert_eq!(server.received().len(), 2);
}

#[tokio::test]
async fn a_post_that_did_nothing_or_is_known_to_the_service_is_repeated() {
    let own = r#"{"success": false, "message": "busy"}"#.to_owned();
    let busy = Reply::Answer { status: 503, headers: Vec::new(), body: own };
    for reply in [busy, Reply::status(429)] {
        let server = Server::answering(vec![reply.clone(), Reply::json("{}")]);
        client(&server).send(&call(), &post(&server)).await.unwrap();
        assert_eq!(server.received().len(), 2, "{reply:?}");
    }
    let server = Server::answering(vec![Reply::Drop, Reply::status(500), Reply::json("{}")]);
    let request = post(&server).header("idempotency-key", "k").unwrap().idempotent();
    client(&server).send(&call(), &request).await.unwrap();
    let keys: Vec<_> = server
        .received()
        .iter()
        .map(|one| one.header("idempotency-key").map(str::to_owned))
        .collect();
    assert_eq!(keys, [Some("k".to_owned()), Some("k".to_owned()), Some("k".to_owned())]);
}

#[tokio::test]
async fn a_service_that_stays_broken_is_asked_four_times() {
    let server = Server::answering(vec![Reply::status(502).with_header("retry-after", "0")]);
    let error = client(&server).send(&call(), &get(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Exhausted));
    assert_eq!(server.received().len(), 4);
}

#[tokio::test]
async fn a_service_says_how_long_to_wait() {
    let later = |after: &str| Reply::status(429).with_header("retry-after", after);
    let server = Server::answering(vec![later("1"), Reply::json("{}")]);
    let started = Instant::now();
    client(&server).send(&call(), &post(&server)).await.unwrap();
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    // A wait of an hour is left to the caller.
    let server = Server::answering(vec![later("3600"), Reply::json("{}")]);
    let error = client(&server).send(&call(), &post(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::RateLimited, Retry::Exhausted));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn all_attempts_share_one_deadline() {
    let server = Server::answering(vec![Reply::Silence]);
    let started = Instant::now();
    let limit = Duration::from_millis(700);
    let error = impatient(&server, limit).send(&call(), &get(&server)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.hint()),
        (ErrorKind::Timeout, Some("wait longer")),
        "{error:?}"
    );
    assert!(error.context().contains(&("waited", "0.7 seconds".to_owned())), "{error:?}");
    // Four attempts of that length would be more.
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());

    // A deadline of the caller counts when it is nearer, and is not the service's fault.
    let soon = call().with_deadline(Instant::now() + Duration::from_millis(200));
    let error = client(&server).send(&soon, &get(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::Timeout, None), "{error:?}");
    // A stream that does not even begin is bounded like that.
    let soon = call().with_deadline(Instant::now() + Duration::from_millis(200));
    let error = client(&server).open(&soon, &post(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown), "{error:?}");
}

#[tokio::test]
async fn a_service_that_is_not_there_was_sent_nothing() {
    let server = Server::answering(vec![Reply::json("{}")]);
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut gone = server;
    gone.url.set_port(Some(port)).unwrap();
    let limit = Duration::from_secs(1);
    let error = impatient(&gone, limit).send(&call(), &post(&gone)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotSent));
    assert_eq!((error.retry(), error.hint()), (Retry::Exhausted, Some("look at the address")));
}
