//! The exchanges that no client of a cloud can leave out, without a client: what ours and the official one take above them
//! is what they add.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use reqwest::{Method, RequestBuilder};
use sandbox_cloud::http::tls;
use sandbox_core::random_hex;
use serde_json::{Value, json};
use tokio::time::sleep;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

use crate::modal_service::router_wire::{
    self, PIPE, Stdio, TaskExecRequest, TaskExecStartRequest, TaskExecStartResponse,
    TaskExecStdioReadRequest, TaskExecStdioReadResponse, TaskExecWaitResponse,
};
use crate::modal_service::wire::{
    AppGetOrCreateRequest, AppGetOrCreateResponse, CREATE_IF_MISSING, Definition, Image,
    ImageGetOrCreateRequest, ImageGetOrCreateResponse, SandboxCreateV2Request,
    SandboxCreateV2Response, SandboxIdRequest, SandboxTerminateResponse,
};
use crate::modal_service::{State, TOKEN_ID, TOKEN_SECRET};
use crate::sample::{Measured, text};

/// Pause between two looks at a sandbox that starts.
const START_PAUSE: Duration = Duration::from_millis(1);

/// What a program prints here.
const PRINTED: &[u8] = b"hi\n";

/// The exchanges of one provider.
pub(crate) enum Bare {
    Daytona(Http),
    Cloudflare(Http),
    E2b(Http),
    Modal(Modal),
}

/// A sandbox, by what requests about it need.
pub(crate) struct Made {
    id: String,
    /// The address or the token for commands in it.
    access: String,
}

impl Bare {
    /// Makes a sandbox.
    pub(crate) async fn create(&self) -> Measured<Made> {
        match self {
            Self::Daytona(http) => {
                let mut made = http.json(Method::POST, "/sandbox", Some(&json!({}))).await?;
                let id = word(&made, "id")?;
                while made["state"] != "started" {
                    sleep(START_PAUSE).await;
                    made = http.json(Method::GET, &format!("/sandbox/{id}"), None).await?;
                }
                let access = format!("{}/{id}", word(&made, "toolboxProxyUrl")?);
                Ok(Made { id, access })
            }
            Self::Cloudflare(http) => {
                let made = http.json(Method::POST, "/v1/sandbox", Some(&json!({}))).await?;
                Ok(Made { id: word(&made, "id")?, access: String::new() })
            }
            Self::E2b(http) => {
                let wish = json!({"templateID": "base", "timeout": 300, "secure": true});
                let made = http.json(Method::POST, "/v2/sandboxes", Some(&wish)).await?;
                Ok(Made { id: word(&made, "sandboxID")?, access: word(&made, "envdAccessToken")? })
            }
            Self::Modal(modal) => modal.create().await,
        }
    }

    /// Runs `echo hi`.
    pub(crate) async fn command(&self, made: &Made) -> Measured<()> {
        let said = match self {
            Self::Daytona(http) => {
                let url = format!("{}/process/execute", made.access.trim_end_matches('/'));
                let request = http.client.post(url).body(json!({"command": "echo hi"}).to_string());
                http.send(request).await?
            }
            Self::Cloudflare(http) => {
                let path = format!("/v1/sandbox/{}/exec", made.id);
                let wish = json!({"argv": ["sh", "-c", "echo hi"]});
                http.send(http.request(Method::POST, &path).body(wish.to_string())).await?
            }
            Self::E2b(http) => {
                let wish = json!({"process": {
                    "cmd": "/bin/bash", "args": ["-l", "-c", "echo hi"], "envs": {},
                }});
                let wish = wish.to_string();
                let length = u32::try_from(wish.len()).map_err(text)?;
                let body = [&[0], &length.to_be_bytes()[..], wish.as_bytes()].concat();
                let request = http.request(Method::POST, "/process.Process/Start");
                let request = request
                    .header("content-type", "application/connect+json")
                    .header("connect-protocol-version", "1")
                    .header("e2b-sandbox-id", &made.id)
                    .header("e2b-sandbox-port", "49983")
                    .header("x-access-token", &made.access);
                http.send(request.body(body)).await?
            }
            Self::Modal(modal) => modal.command(made).await?,
        };
        // As it is, or in Base64.
        let has = |part: &[u8]| said.windows(part.len()).any(|window| window == part);
        if has(b"hi\\n") || has(b"aGkK") || has(PRINTED) {
            return Ok(());
        }
        Err(format!("it said {}", String::from_utf8_lossy(&said)))
    }

    /// Ends a sandbox.
    pub(crate) async fn end(&self, made: Made) -> Measured<()> {
        let (http, path) = match self {
            Self::Daytona(http) => (http, format!("/sandbox/{}", made.id)),
            Self::Cloudflare(http) => (http, format!("/v1/sandbox/{}", made.id)),
            Self::E2b(http) => (http, format!("/sandboxes/{}", made.id)),
            Self::Modal(modal) => return modal.end(made).await,
        };
        http.send(http.request(Method::DELETE, &path)).await.map(drop)
    }
}

fn word(answer: &Value, name: &str) -> Measured<String> {
    answer[name].as_str().map(str::to_owned).ok_or_else(|| format!("no {name} in {answer}"))
}

/// A service over HTTP.
pub(crate) struct Http {
    client: reqwest::Client,
    base: String,
}

impl Http {
    /// The service at that address, with a header that has the key.
    pub(crate) fn new(base: &str, name: &'static str, key: &str) -> Measured<Self> {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert(name, key.parse().map_err(text)?);
        headers.insert("content-type", "application/json".parse().map_err(text)?);
        let client = reqwest::Client::builder()
            .default_headers(headers)
            .tls_backend_preconfigured(tls::client_config().map_err(text)?)
            .build()
            .map_err(text)?;
        Ok(Self { client, base: base.trim_end_matches('/').to_owned() })
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    async fn send(&self, request: RequestBuilder) -> Measured<Vec<u8>> {
        let answer = request.send().await.map_err(text)?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(text)?;
        match status.is_success() {
            true => Ok(body.to_vec()),
            false => Err(format!("{status}: {}", String::from_utf8_lossy(&body))),
        }
    }

    async fn json(&self, method: Method, path: &str, wish: Option<&Value>) -> Measured<Value> {
        let mut request = self.request(method, path);
        if let Some(wish) = wish {
            request = request.body(wish.to_string());
        }
        serde_json::from_slice(&self.send(request).await?).map_err(text)
    }
}

/// The service of Modal, over gRPC.
pub(crate) struct Modal {
    channel: Channel,
    state: Arc<State>,
    app_id: String,
    image_id: String,
}

impl Modal {
    /// Connects, and makes what all sandboxes share.
    pub(crate) async fn connect(url: &str, state: Arc<State>) -> Measured<Self> {
        let endpoint = Endpoint::from_shared(url.to_owned()).map_err(text)?;
        let channel = endpoint.tcp_nodelay(true).connect().await.map_err(text)?;
        let mut modal = Self { channel, state, app_id: String::new(), image_id: String::new() };
        let app = AppGetOrCreateRequest {
            app_name: "of-the-bench".to_owned(),
            object_creation_type: CREATE_IF_MISSING,
            ..Default::default()
        };
        let app: AppGetOrCreateResponse =
            modal.call("/modal.client.ModalClient/AppGetOrCreate", app).await?;
        modal.app_id = app.app_id;
        let lines = vec!["FROM python:3.12-slim".to_owned()];
        let image = ImageGetOrCreateRequest {
            image: Some(Image { dockerfile_commands: lines, ..Default::default() }),
            app_id: modal.app_id.clone(),
            ..Default::default()
        };
        let image: ImageGetOrCreateResponse =
            modal.call("/modal.client.ModalClient/ImageGetOrCreate", image).await?;
        modal.image_id = image.image_id;
        Ok(modal)
    }

    fn request<Q>(&self, message: Q) -> Measured<tonic::Request<Q>> {
        let token = self.state.jwt.lock().map_err(text)?.clone();
        let mut request = tonic::Request::new(message);
        let bearer = format!("Bearer {token}");
        let fields = [
            ("x-modal-token-id", TOKEN_ID),
            ("x-modal-token-secret", TOKEN_SECRET),
            ("x-modal-client-type", "9"),
            ("x-modal-client-version", "1.0.0"),
            ("x-modal-auth-token", &token),
            ("authorization", &bearer),
        ];
        for (name, value) in fields {
            request.metadata_mut().insert(name, value.parse().map_err(text)?);
        }
        Ok(request)
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Measured<A>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(text)?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(self.request(message)?, path, codec).await;
        answer.map(tonic::Response::into_inner).map_err(text)
    }

    async fn create(&self) -> Measured<Made> {
        let definition = Definition {
            entrypoint_args: vec!["sleep".to_owned(), "600".to_owned()],
            image_id: self.image_id.clone(),
            timeout_secs: 600,
            direct_sandbox_commands_enabled: true,
            ..Default::default()
        };
        let wish = SandboxCreateV2Request {
            app_id: self.app_id.clone(),
            definition: Some(definition),
            ..Default::default()
        };
        let path = "/modal.client.ModalClient/SandboxCreateV2";
        let made: SandboxCreateV2Response = self.call(path, wish).await?;
        Ok(Made { id: made.sandbox_id, access: made.task_id })
    }

    async fn command(&self, made: &Made) -> Measured<Vec<u8>> {
        let (task_id, exec_id) = (made.access.clone(), random_hex(16));
        let start = TaskExecStartRequest {
            task_id: task_id.clone(),
            exec_id: exec_id.clone(),
            command_args: ["sh", "-c", "echo hi"].map(str::to_owned).to_vec(),
            stdout_config: PIPE,
            stderr_config: PIPE,
            env: HashMap::new(),
            ..Default::default()
        };
        self.call::<_, TaskExecStartResponse>(
            "/modal.task_command_router.TaskCommandRouter/TaskExecStart",
            start,
        )
        .await?;
        let wait = TaskExecRequest { task_id: task_id.clone(), exec_id: exec_id.clone() };
        let wait = self.call::<_, TaskExecWaitResponse>(
            "/modal.task_command_router.TaskCommandRouter/TaskExecWait",
            wait,
        );
        let read = |which: Stdio| TaskExecStdioReadRequest {
            task_id: task_id.clone(),
            exec_id: exec_id.clone(),
            offset: 0,
            file_descriptor: which as i32,
        };
        let (stdout, stderr) = (read(Stdio::Stdout), read(Stdio::Stderr));
        let (ended, stdout, _) = tokio::try_join!(wait, self.read(stdout), self.read(stderr))?;
        match ended.exit_status {
            Some(router_wire::ExitStatus::Code(0)) => Ok(stdout),
            other => Err(format!("it ended with {other:?}")),
        }
    }

    async fn read(&self, wish: TaskExecStdioReadRequest) -> Measured<Vec<u8>> {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(text)?;
        let codec = ProstCodec::<_, TaskExecStdioReadResponse>::default();
        let path = PathAndQuery::from_static(
            "/modal.task_command_router.TaskCommandRouter/TaskExecStdioRead",
        );
        let answers = grpc.server_streaming(self.request(wish)?, path, codec).await;
        let mut answers = answers.map_err(text)?.into_inner();
        let mut all = Vec::new();
        while let Some(piece) = answers.message().await.map_err(text)? {
            all.extend_from_slice(&piece.data);
        }
        Ok(all)
    }

    async fn end(&self, made: Made) -> Measured<()> {
        let wish = SandboxIdRequest { sandbox_id: made.id };
        let path = "/modal.client.ModalClient/SandboxTerminateV2";
        self.call::<_, SandboxTerminateResponse>(path, wish).await.map(drop)
    }
}
