//! gRPC over HTTP/2, by the path of each call.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use http::header::DATE;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::server::Grpc;
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use super::wire::{AnyDetail, RpcRetryPolicy, RpcStatus};
use super::{FaultKind, State, TOKEN_ID, TOKEN_SECRET, control, router};

pub(super) async fn accept(listener: TcpListener, state: Arc<State>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let _ = stream.set_nodelay(true);
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = hyper::service::service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(answer(state, request).await) }
            });
            let _ = http2::Builder::new(TokioExecutor::new())
                .initial_stream_window_size(8 << 20)
                .initial_connection_window_size(32 << 20)
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer(state: Arc<State>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    state.requests.lock().unwrap().push(method.to_owned());
    let fault = take_fault(&state, method);
    match &fault {
        Some(FaultKind::Refused(code)) => {
            return Status::new(*code, "as the test asks").into_http();
        }
        Some(FaultKind::Throttled(wait)) => return throttled(*wait).into_http(),
        Some(FaultKind::Slow(wait)) => tokio::time::sleep(*wait).await,
        _ => {}
    }
    let of_router = service == "modal.task_command_router.TaskCommandRouter";
    if let Err(status) = check(&state, of_router, method, &request) {
        return status.into_http();
    }
    let cut = match fault {
        Some(FaultKind::Cut(bytes)) => Some(bytes),
        _ => None,
    };
    let answered = match of_router {
        true => router::answer(Arc::clone(&state), method, request, cut).await,
        false => control::answer(Arc::clone(&state), method, request).await,
    };
    match fault {
        Some(FaultKind::Lost) => Status::unavailable("the answer is lost").into_http(),
        _ => dated(&state, answered),
    }
}

/// Tells the time of the service.
fn dated(state: &State, mut answered: Response<Body>) -> Response<Body> {
    let ahead = TimeDelta::milliseconds((*state.clock_ahead.lock().unwrap() * 1e3) as i64);
    let now = (Utc::now() + ahead).format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(now) = HeaderValue::try_from(now) {
        answered.headers_mut().insert(DATE, now);
    }
    answered
}

fn take_fault(state: &State, method: &str) -> Option<FaultKind> {
    let mut faults = state.faults.lock().unwrap();
    let at = faults.iter().position(|fault| fault.method == method && fault.count > 0)?;
    faults[at].count -= 1;
    Some(faults[at].kind.clone())
}

/// The wait that the service asks for is in the details of the status.
fn throttled(wait: Duration) -> Status {
    let value = RpcRetryPolicy { retry_after_secs: wait.as_secs_f32() }.encode_to_vec();
    let type_url = "type.modal.com/modal.client.RPCRetryPolicy".to_owned();
    let details = RpcStatus { details: vec![AnyDetail { type_url, value }] }.encode_to_vec();
    Status::with_details(Code::ResourceExhausted, "too many requests", details.into())
}

/// Checks what calls carry: the token of the account, for newer calls the short-lived one too, or the one of a router.
fn check(
    state: &State,
    of_router: bool,
    method: &str,
    request: &Request<Incoming>,
) -> Result<(), Status> {
    let header = |name: &str| {
        request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    };
    let jwt = state.jwt.lock().unwrap().clone();
    if of_router {
        let given = header("authorization").trim_start_matches("Bearer ").to_owned();
        return if given == jwt {
            Ok(())
        } else {
            Err(Status::unauthenticated("the token has ended"))
        };
    }
    if header("x-modal-client-type").is_empty() || header("x-modal-client-version").is_empty() {
        return Err(Status::invalid_argument("the client does not say what it is"));
    }
    if (header("x-modal-token-id"), header("x-modal-token-secret")) != (TOKEN_ID, TOKEN_SECRET) {
        return Err(Status::unauthenticated("Token ID not found"));
    }
    let needs_jwt = method.ends_with("V2") || method == "SandboxGetCommandRouterAccess";
    if needs_jwt && header("x-modal-auth-token") != jwt {
        return Err(Status::unauthenticated("the token has ended"));
    }
    Ok(())
}

/// Answers a call that has one request and one answer.
pub(super) async fn unary<Q, A, F>(
    request: Request<Incoming>,
    handler: impl FnOnce(Q) -> F + Send + 'static,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let mut handler = Some(handler);
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let answer = handler.take().map(|handler| handler(request.into_inner()));
        async move {
            match answer {
                Some(answer) => answer.await.map(tonic::Response::new),
                None => Err(Status::internal("called twice")),
            }
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(64 << 20);
    grpc.unary(service, request).await
}

/// Answers a call with a stream of answers.
pub(super) async fn server_streaming<Q, A, S, F>(
    request: Request<Incoming>,
    handler: impl FnOnce(Q) -> F + Send + 'static,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    S: futures_util::Stream<Item = Result<A, Status>> + Send + 'static,
    F: Future<Output = Result<S, Status>> + Send + 'static,
{
    let mut handler = Some(handler);
    let service = tower::service_fn(move |request: tonic::Request<Q>| {
        let answer = handler.take().map(|handler| handler(request.into_inner()));
        async move {
            match answer {
                Some(answer) => answer.await.map(tonic::Response::new),
                None => Err(Status::internal("called twice")),
            }
        }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).server_streaming(service, request).await
}

/// Answers a call with a stream of requests.
pub(super) async fn client_streaming<Q, A, F>(
    request: Request<Incoming>,
    handler: impl FnOnce(Streaming<Q>) -> F + Send + 'static,
) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>> + Send + 'static,
{
    let mut handler = Some(handler);
    let service = tower::service_fn(move |request: tonic::Request<Streaming<Q>>| {
        let answer = handler.take().map(|handler| handler(request.into_inner()));
        async move {
            match answer {
                Some(answer) => answer.await.map(tonic::Response::new),
                None => Err(Status::internal("called twice")),
            }
        }
    });
    Grpc::new(ProstCodec::<A, Q>::default()).client_streaming(service, request).await
}
