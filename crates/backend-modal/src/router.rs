//! The command router of a sandbox: programs, their streams and their exit statuses, and snapshots of the file system.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{self, Stream, StreamExt as _};
use prost::Message;
use sandbox_cloud::http::parse_endpoint;
use sandbox_core::{CallContext, Error, ErrorKind, PtySize, Result, Secret, random_hex};
use tokio::io::{AsyncReadExt as _, AsyncWrite, DuplexStream};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::api::Api;
use crate::auth::add_secret;
use crate::channel::{server_streaming, unary};
use crate::client_factory::ApiFactory;
use crate::error;
use crate::router_wire::{self as wire, ExitStatus, Stdio, router_method};
use crate::wire::CommandRouterAccess;

/// Attempts of a call whose failures are temporary, and the pause after the first one, which doubles up to the longest.
const MAX_ATTEMPTS: u32 = 10;
const MIN_DELAY: Duration = Duration::from_millis(10);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Time for one attempt of a short call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// How long after its limit the service ends a program, which this process does in time unless the process is gone.
const LIMIT_ALLOWANCE: Duration = Duration::from_secs(30);
/// Time for a snapshot.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of standard input that wait to be sent, which is also the size of one message.
const STDIN_BUFFER: usize = 1 << 20;
/// Days that the service keeps a snapshot.
pub(crate) const SNAPSHOT_DAYS: i64 = 30;

/// The command router of one sandbox.
#[derive(Debug)]
pub(crate) struct Router {
    api: Api,
    channel: Channel,
    sandbox_id: String,
    task_id: String,
    jwt: Mutex<Secret>,
}

/// A program to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecSpec {
    pub(crate) argv: Vec<String>,
    pub(crate) env: HashMap<String, String>,
    pub(crate) workdir: Option<String>,
    /// The size of a terminal that replaces the streams.
    pub(crate) terminal: Option<PtySize>,
    /// The time limit that this process watches.
    pub(crate) limit: Option<Duration>,
}

/// A program that was started.
#[derive(Clone, Debug)]
pub(crate) struct Exec {
    router: Arc<Router>,
    id: String,
}

/// What a program has put out, and its exit status.
#[derive(Debug)]
pub(crate) struct ExecOutput {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

impl Router {
    /// Opens the command router of a sandbox. `access` is used where it is given, and otherwise asked for.
    pub(crate) async fn open(
        factory: &ApiFactory,
        api: Api,
        call: &CallContext,
        (sandbox_id, task_id): (&str, &str),
        access: Option<CommandRouterAccess>,
    ) -> Result<Arc<Self>> {
        let access = match access {
            Some(access) => access,
            None => api.router_access(call, sandbox_id, task_id).await?,
        };
        let url = parse_endpoint("url", &access.url).map_err(|error| {
            let message = format!("the service gave no address of the sandbox: {error}");
            Error::new(ErrorKind::Protocol, "connect", message)
        })?;
        let channel = factory.channel(&url)?;
        let jwt = Mutex::new(Secret::new(access.jwt));
        Ok(Arc::new(Self {
            api,
            channel,
            sandbox_id: sandbox_id.to_owned(),
            task_id: task_id.to_owned(),
            jwt,
        }))
    }

    /// Starts a program. The id makes several attempts one start.
    pub(crate) async fn start(self: &Arc<Self>, spec: &ExecSpec) -> Result<Exec> {
        let id = exec_id();
        let message = wire::TaskExecStartRequest {
            task_id: self.task_id.clone(),
            exec_id: id.clone(),
            command_args: spec.argv.clone(),
            stdout_config: wire::PIPE,
            stderr_config: wire::PIPE,
            workdir: spec.workdir.clone(),
            timeout_secs: spec.limit.map(provider_limit),
            pty_info: spec.terminal.map(|size| wire::PtyInfo {
                enabled: true,
                rows: size.rows.into(),
                columns: size.columns.into(),
                env_term: "xterm-256color".to_owned(),
                pty_type: wire::PTY_SHELL,
            }),
            env: spec.env.clone(),
        };
        let path = router_method!("TaskExecStart");
        self.call::<_, wire::TaskExecStartResponse>("start_command", path, &message, CALL_TIMEOUT)
            .await?;
        Ok(Exec { router: Arc::clone(self), id })
    }

    /// Returns a program that was started before.
    pub(crate) fn exec(self: &Arc<Self>, id: &str) -> Exec {
        Exec { router: Arc::clone(self), id: id.to_owned() }
    }

    /// Runs a program to its end, without standard input.
    ///
    /// # Errors
    /// `ResourceExhausted` for more than `most` bytes of output.
    pub(crate) async fn run(self: &Arc<Self>, spec: &ExecSpec, most: usize) -> Result<ExecOutput> {
        let exec = self.start(spec).await?;
        let read = async |which| {
            let mut all = Vec::new();
            let mut chunks = Box::pin(exec.read(which));
            while let Some(chunk) = chunks.next().await {
                let broken = "the connection to the sandbox broke";
                let chunk = chunk.map_err(|error| {
                    Error::new(ErrorKind::ConnectionLost, "start_command", broken)
                        .with_source(error)
                })?;
                if all.len() + chunk.len() > most {
                    let message = format!("a program has put out more than {most} bytes");
                    return Err(Error::new(ErrorKind::ResourceExhausted, "start_command", message));
                }
                all.extend_from_slice(&chunk);
            }
            Ok(all)
        };
        let ended = tokio::try_join!(read(Stdio::Stdout), read(Stdio::Stderr), exec.wait());
        let (stdout, stderr, status) = ended?;
        Ok(ExecOutput { status: status_of(status), stdout, stderr })
    }

    /// Stores the file system of the sandbox as an image, which the service keeps for some days, and returns its id. `key`
    /// makes several attempts one snapshot.
    pub(crate) async fn snapshot(
        &self,
        operation: &'static str,
        key: &str,
        days: i64,
    ) -> Result<String> {
        let message = wire::TaskSnapshotFilesystemRequest {
            task_id: self.task_id.clone(),
            snapshot_id: key.to_owned(),
            ttl_seconds: Some(days * 24 * 3600),
        };
        let path = router_method!("TaskSnapshotFilesystem");
        let answer: wire::TaskSnapshotFilesystemResponse =
            self.call(operation, path, &message, SNAPSHOT_TIMEOUT).await?;
        Ok(answer.image_id)
    }

    /// Makes a call that does nothing twice, until it is answered or fails for good.
    async fn call<Q, A>(
        &self,
        operation: &'static str,
        path: &'static str,
        message: &Q,
        limit: Duration,
    ) -> Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        self.retry(operation, || async {
            let request = self.request(message.clone())?;
            let answer = timeout(limit, unary(&self.channel, path, request)).await;
            let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("")));
            Ok(answer.map(Response::into_inner))
        })
        .await
        .map_err(|status| self.failed(operation, &status))
    }

    /// Tries until an attempt is answered, fails for good, or has failed too often.
    async fn retry<T, F>(
        &self,
        operation: &'static str,
        attempt: impl Fn() -> F,
    ) -> std::result::Result<T, Status>
    where
        F: Future<Output = Result<std::result::Result<T, Status>>>,
    {
        let (mut failures, mut delay, mut is_refreshed) = (0, MIN_DELAY, false);
        loop {
            let status = match attempt().await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(error) => return Err(Status::internal(error.to_string())),
            };
            if status.code() == Code::Unauthenticated && !is_refreshed {
                is_refreshed = true;
                self.refresh().await?;
                continue;
            }
            failures += 1;
            if !error::is_temporary(status.code()) || failures >= MAX_ATTEMPTS {
                return Err(status);
            }
            tracing::debug!(%status, operation, "trying again");
            sleep(delay).await;
            delay = (delay * 2).min(MAX_DELAY);
        }
    }

    /// Asks for another access token.
    async fn refresh(&self) -> std::result::Result<(), Status> {
        let call = CallContext::new();
        let access = self.api.router_access(&call, &self.sandbox_id, &self.task_id).await;
        let access = access.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::Terminated => Status::not_found(error.to_string()),
            _ => Status::unauthenticated(error.to_string()),
        })?;
        *self.jwt.lock().unwrap_or_else(PoisonError::into_inner) = Secret::new(access.jwt);
        Ok(())
    }

    /// Turns the status of a failed call into an error, which does not repeat the access token.
    fn failed(&self, operation: &'static str, status: &Status) -> Error {
        let jwt = self.jwt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        error::parse(operation, status, &[jwt])
    }

    fn request<Q>(&self, message: Q) -> Result<Request<Q>> {
        let mut request = Request::new(message);
        let jwt = self.jwt.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bearer = Secret::new(format!("Bearer {}", jwt.expose()));
        add_secret(request.metadata_mut(), "authorization", &bearer)?;
        Ok(request)
    }
}

impl Exec {
    /// Returns the id that the service knows the program by.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Reads a stream from its beginning to its end. A connection that breaks is opened again at the same place.
    pub(crate) fn read(
        &self,
        which: Stdio,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send + use<> {
        let reading = Reading { exec: self.clone(), which, offset: 0, open: None, failures: 0 };
        let chunks = stream::unfold(Some(reading), |reading| async move {
            let mut reading = reading?;
            match reading.next().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(reading))),
                Ok(None) => None,
                Err(status) => Some((Err(io::Error::other(lost(&status))), None)),
            }
        });
        // Readers may look again after the end.
        chunks.fuse()
    }

    /// Returns the standard input. What is written is sent in order; dropping the writer is its end.
    pub(crate) fn stdin(&self) -> impl AsyncWrite + Send + use<> {
        let (ours, theirs) = tokio::io::duplex(STDIN_BUFFER);
        tokio::spawn(self.clone().send_stdin(theirs));
        ours
    }

    /// Sends standard input until it ends, or the program takes no more.
    async fn send_stdin(self, mut from: DuplexStream) {
        let mut offset = 0;
        loop {
            let mut data = BytesMut::with_capacity(64 << 10);
            let is_end = !matches!(from.read_buf(&mut data).await, Ok(count) if count > 0);
            // Whatever else is there already travels along.
            while !is_end && data.len() < STDIN_BUFFER {
                let more = std::future::poll_fn(|cx| {
                    let reading = std::pin::pin!(from.read_buf(&mut data));
                    std::task::Poll::Ready(match reading.poll(cx) {
                        std::task::Poll::Ready(Ok(count)) => count,
                        _ => 0,
                    })
                });
                if more.await == 0 {
                    break;
                }
            }
            let message = wire::TaskExecStdinWriteRequest {
                task_id: self.router.task_id.clone(),
                exec_id: self.id.clone(),
                offset,
                data: data.freeze(),
                eof: is_end,
            };
            offset += message.data.len() as u64;
            let path = router_method!("TaskExecStdinWrite");
            let sent = self
                .router
                .call::<_, wire::TaskExecStdinWriteResponse>(
                    "write_stdin",
                    path,
                    &message,
                    CALL_TIMEOUT,
                )
                .await;
            if let Err(error) = sent {
                tracing::debug!(%error, "the program takes no more input");
                return;
            }
            if is_end {
                return;
            }
        }
    }

    /// Waits for the end of the program.
    pub(crate) async fn wait(&self) -> Result<ExitStatus> {
        let message = wire::TaskExecRequest {
            task_id: self.router.task_id.clone(),
            exec_id: self.id.clone(),
        };
        let path = router_method!("TaskExecWait");
        loop {
            let request = self.router.request(message.clone())?;
            let answered = timeout(CALL_TIMEOUT, unary(&self.router.channel, path, request)).await;
            let status = match answered.map(|answer| answer.map(Response::into_inner)) {
                Ok(Ok(wire::TaskExecWaitResponse { exit_status: Some(status) })) => {
                    return Ok(status);
                }
                // The program still runs.
                Ok(Ok(_)) | Err(_) => continue,
                Ok(Err(status)) => status,
            };
            match status.code() {
                Code::Unauthenticated => self
                    .router
                    .refresh()
                    .await
                    .map_err(|status| self.router.failed("start_command", &status))?,
                code if error::is_temporary(code) => sleep(MAX_DELAY / 10).await,
                _ => return Err(self.router.failed("start_command", &status)),
            }
        }
    }
}

/// A stream that is being read.
struct Reading {
    exec: Exec,
    which: Stdio,
    offset: u64,
    open: Option<Streaming<wire::TaskExecStdioReadResponse>>,
    failures: u32,
}

impl Reading {
    async fn next(&mut self) -> std::result::Result<Option<Bytes>, Status> {
        loop {
            let stream = match &mut self.open {
                Some(stream) => stream,
                None => self.open.insert(self.exec.open(self.which, self.offset).await?),
            };
            match stream.next().await {
                None => return Ok(None),
                Some(Ok(chunk)) if chunk.data.is_empty() => {}
                Some(Ok(chunk)) => {
                    self.offset += chunk.data.len() as u64;
                    self.failures = 0;
                    return Ok(Some(chunk.data));
                }
                Some(Err(status)) => {
                    self.open = None;
                    self.failures += 1;
                    let is_final = status.code() != Code::Unauthenticated
                        && !error::is_temporary(status.code());
                    if is_final || self.failures >= MAX_ATTEMPTS {
                        return Err(status);
                    }
                    if status.code() == Code::Unauthenticated {
                        self.exec.router.refresh().await?;
                    }
                    sleep((MIN_DELAY * (1 << self.failures)).min(MAX_DELAY)).await;
                }
            }
        }
    }
}

impl Exec {
    async fn open(
        &self,
        which: Stdio,
        offset: u64,
    ) -> std::result::Result<Streaming<wire::TaskExecStdioReadResponse>, Status> {
        let message = wire::TaskExecStdioReadRequest {
            task_id: self.router.task_id.clone(),
            exec_id: self.id.clone(),
            offset,
            file_descriptor: which as i32,
        };
        let path = router_method!("TaskExecStdioRead");
        let router = &self.router;
        let attempt = || async {
            let request = router.request(message.clone())?;
            Ok(server_streaming(&router.channel, path, request).await)
        };
        router.retry("start_command", attempt).await
    }
}

/// Returns the seconds after which the service ends a program whose owner is gone.
fn provider_limit(limit: Duration) -> u32 {
    u32::try_from(limit.saturating_add(LIMIT_ALLOWANCE).as_secs()).unwrap_or(u32::MAX)
}

/// Explains why a stream ended before its end.
fn lost(status: &Status) -> String {
    match status.code() {
        Code::NotFound => "the sandbox has ended".to_owned(),
        code => format!("the connection to the sandbox broke: {code:?} {}", status.message()),
    }
}

/// Returns the exit status as a shell shows it: 128 + n for signal n.
pub(crate) fn status_of(status: ExitStatus) -> i32 {
    match status {
        ExitStatus::Code(code) => code,
        ExitStatus::Signal(signal) => 128 + signal,
    }
}

/// Makes an id in the form that the service asks for, a random UUID.
fn exec_id() -> String {
    let hex = random_hex(16);
    let variant = ["8", "9", "a", "b"][usize::from(hex.as_bytes()[16] % 4)];
    format!(
        "{}-{}-4{}-{variant}{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..32]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_programs_are_random_uuids() {
        let (one, other) = (exec_id(), exec_id());
        assert_ne!(one, other);
        let lengths: Vec<_> = one.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!(&one[14..15], "4");
        assert!(matches!(&one[19..20], "8" | "9" | "a" | "b"), "{one}");
    }

    #[test]
    fn signals_show_as_in_a_shell() {
        assert_eq!(status_of(ExitStatus::Code(7)), 7);
        assert_eq!(status_of(ExitStatus::Signal(9)), 137);
    }
}
