//! Everything of this crate that speaks with a service or with other processes, against real ones on this computer.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

mod body;
mod create;
mod facets;
mod lifetime;
mod lock;
mod retry;
mod server;

use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::auth::{Auth, Credentials, Key, KeyAuth, Scheme};
use sandbox_cloud::http::websocket::SocketRequest;
use sandbox_cloud::http::{Client, ClientFactory, ErrorRules, Request, Service, Url, join};
use sandbox_core::{CallContext, Effect, ErrorKind, Result, Secret};
use serde_json::{Value, json};

use self::server::{Reply, Server};

const RULES: ErrorRules = ErrorRules {
    timeout_hint: "wait longer",
    unreachable_hint: "look at the address",
    is_own_answer: |body| body.get("success").is_some(),
    reports_failure: |body| body.get("success") == Some(&Value::Bool(false)),
    ..ErrorRules::DEFAULT
};
static ERRORS: ErrorRules = RULES;

fn auth() -> KeyAuth {
    let key = Key { secret: "hunter2".into(), source: "EXAMPLE_API_KEY".into() };
    KeyAuth::new(Scheme::Bearer, Some(key), "there is no key", "set EXAMPLE_API_KEY")
}

fn service(server: &Server) -> Service {
    Service::new("Example", [server.url.clone()], &ERRORS)
}

fn client(server: &Server) -> Client<KeyAuth> {
    ClientFactory::default().client(service(server), auth()).unwrap()
}

fn impatient(server: &Server, limit: Duration) -> Client<KeyAuth> {
    ClientFactory::default().client(service(server).request_timeout(limit), auth()).unwrap()
}

fn get(server: &Server) -> Request {
    Request::get("list", join(&server.url, &["sandboxes"]))
}

fn post(server: &Server) -> Request {
    Request::post("create", join(&server.url, &["sandboxes"])).json(&json!({"name": "a"}))
}

fn call() -> CallContext {
    CallContext::new()
}

#[tokio::test]
async fn a_request_says_whose_it_is_and_what_it_is_for() {
    let server = Server::answering(vec![Reply::json(r#"{"id": "b"}"#).with_header("x-next", "7")]);
    let service = service(&server).header("x-version", "1.2").unwrap();
    let client = ClientFactory::default().client(service, auth()).unwrap();
    let request = post(&server).query("dry", "a b").header("x-one", "1").unwrap();
    let call = call().with_trace("00-aa-bb-01");
    let response = client.send(&call, &request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.header("X-Next")), (200, Some("7")));
    assert_eq!(response.json::<Value>().unwrap(), json!({"id": "b"}));
    let received = server.received().remove(0);
    assert_eq!((&*received.method, &*received.path), ("POST", "/sandboxes?dry=a+b"));
    assert_eq!(received.body, br#"{"name":"a"}"#);
    for (name, value) in [
        ("authorization", "Bearer hunter2"),
        ("content-type", "application/json"),
        ("accept", "application/json"),
        ("x-version", "1.2"),
        ("x-one", "1"),
        ("traceparent", "00-aa-bb-01"),
    ] {
        assert_eq!(received.header(name), Some(value), "{name}");
    }
    assert!(received.header("user-agent").unwrap().starts_with("code-sandboxes/"));
}

#[tokio::test]
async fn a_refusal_names_the_source_of_the_key_and_never_the_key() {
    let body = r#"{"message": "hunter2 is not valid"}"#.to_owned();
    let refusal = Reply::Answer { status: 401, headers: Vec::new(), body };
    let server = Server::answering(vec![refusal]);
    let error = client(&server).send(&call(), &get(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unauthenticated, "*** is not valid"));
    assert!(error.context().contains(&("key_from", "EXAMPLE_API_KEY".to_owned())));
    assert!(!format!("{error:?}").contains("hunter2"));
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn a_success_can_report_a_failure() {
    let server =
        Server::answering(vec![Reply::json(r#"{"success": false, "message": "hunter2"}"#)]);
    let client = client(&server);
    for error in [
        client.json::<Value>(&call(), &post(&server)).await.unwrap_err(),
        client.send_and_wait(&call(), &post(&server)).await.unwrap_err(),
    ] {
        assert_eq!((error.kind(), error.message()), (ErrorKind::Unexpected, "***"));
    }
    let server = Server::answering(vec![Reply::json("<html>")]);
    let error = self::client(&server).json::<Value>(&call(), &post(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Protocol, Effect::Unknown));
    assert!(error.hint().unwrap().contains("address"), "a page of something else: {error:?}");
}

#[tokio::test]
async fn an_answer_that_opens_no_websocket_says_so() {
    let server = Server::answering(vec![Reply::json("<html>")]);
    let request = SocketRequest::new("run_code", server.url.clone());
    let error = client(&server).websocket(&call(), &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.message().ends_with("opened no WebSocket: it answered 200 OK"), "{error:?}");
}

#[tokio::test]
async fn credentials_go_to_the_origins_of_the_service_only() {
    let other = Server::answering(vec![Reply::json("{}")]);
    let server = Server::answering(vec![
        Reply::status(302).with_header("location", other.url.as_str()),
        Reply::status(202).with_header("location", other.url.as_str()),
    ]);
    let client = client(&server);
    let error = client.send(&call(), &get(&server)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "redirected: {error}");
    let error = client.send_and_wait(&call(), &get(&server)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "polled: {error}");
    let error = client.send(&call(), &get(&other)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Protocol, Effect::NotSent));
    assert!(error.message().contains("is not an address of Example"), "{error}");
    assert!(other.received().is_empty());
    // The control: with that origin, the same request arrives.
    let both = Service::new("Example", [server.url.clone(), other.url.clone()], &ERRORS);
    client.of_service(both, auth()).send(&call(), &get(&other)).await.unwrap();
    assert_eq!(other.received().len(), 1);
}

#[tokio::test]
async fn what_is_accepted_is_polled_where_its_end_can_be_seen() {
    let server = Server::answering(vec![
        Reply::status(202).with_header("location", "/operations/7"),
        Reply::status(202),
        Reply::json(r#"{"done": true}"#),
    ]);
    let done: Value = client(&server).json(&call(), &post(&server)).await.unwrap();
    assert_eq!(done, json!({"done": true}));
    let paths: Vec<_> = server.received().iter().map(|one| one.path.clone()).collect();
    assert_eq!(paths, ["/sandboxes", "/operations/7", "/operations/7"]);
    // Without a place, the answer itself counts.
    let server = Server::answering(vec![Reply::status(202)]);
    let response = client(&server).send_and_wait(&call(), &post(&server)).await.unwrap();
    assert_eq!(response.status().as_u16(), 202);
    // What does not end within the call may have happened.
    let server = Server::answering(vec![Reply::status(202).with_header("location", "/o")]);
    let soon = call().with_deadline(std::time::Instant::now() + Duration::from_millis(1500));
    let error = client(&server).send_and_wait(&soon, &post(&server)).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Timeout, Effect::Unknown));
}

/// Credentials that the service exchanges for others.
#[derive(Clone, Debug)]
struct Tokens {
    login: Url,
}

#[async_trait]
impl Auth for Tokens {
    async fn credentials(&self, _: &'static str) -> Result<Credentials> {
        Credentials::new().bearer(&"expired".into())
    }

    async fn renew(
        &self,
        client: &Client<Self>,
        call: &CallContext,
        refused: &Credentials,
    ) -> Option<Credentials> {
        let request = Request::post("login", self.login.clone());
        let response = client.send_once(call, &request, refused).await.ok()?;
        let token = response.json::<Value>().ok()?["token"].as_str().map(Secret::new)?;
        Credentials::new().bearer(&token).ok()
    }
}

fn tokens(server: &Server) -> Tokens {
    Tokens { login: join(&server.url, &["login"]) }
}

#[tokio::test]
async fn refused_credentials_are_renewed_once() {
    let server =
        Server::start(|_, request| match (&*request.path, request.header("authorization")) {
            ("/login", _) => Reply::json(r#"{"token": "fresh"}"#),
            (_, Some("Bearer fresh")) => Reply::json("{}"),
            _ => Reply::status(401),
        });
    let client = ClientFactory::default().client(service(&server), tokens(&server)).unwrap();
    client.send(&call(), &post(&server)).await.unwrap();
    assert_eq!(server.received().len(), 3);
    let never = Server::start(|_, request| match &*request.path {
        "/login" => Reply::json(r#"{"token": "fresh"}"#),
        _ => Reply::status(401),
    });
    let client = ClientFactory::default().client(service(&never), tokens(&never)).unwrap();
    let error = client.send(&call(), &post(&never)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert_eq!(never.received().len(), 3);
}
