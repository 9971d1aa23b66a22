//! Calls of the control plane.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::stream;
use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use sandbox_core::{random_hex, unix_now};
use tonic::Status;
use tonic::body::Body;

use super::cells::{self, Cell};
use super::serve::{server_streaming, unary};
use super::wire::*;
use super::{BuiltImage, PAGE, State};

#[derive(Clone, PartialEq, Message)]
struct SandboxTagsGetResponse {
    #[prost(message, repeated, tag = "1")]
    tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxGetFromNameRequest {
    #[prost(string, tag = "1")]
    sandbox_name: String,
    #[prost(string, tag = "2")]
    environment_name: String,
    #[prost(string, tag = "3")]
    app_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct SandboxGetFromNameResponse {
    #[prost(string, tag = "1")]
    sandbox_id: String,
}

/// `ObjectCreationType`: an object without a name that ends with its client.
const EPHEMERAL: i32 = 5;

/// The number of the client for JavaScript (`CLIENT_TYPE_LIBMODAL_JS`).
const JAVASCRIPT: &str = "8";

pub(super) async fn answer(
    state: Arc<State>,
    method: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    let name = method.strip_suffix("V2").unwrap_or(method);
    let is_v2 = name != method;
    let client = request.headers().get("x-modal-client-type");
    let is_javascript = client.is_some_and(|kind| kind == JAVASCRIPT);
    match name {
        "ClientHello" => {
            let hello = move |_: Empty| async move {
                let image_builder_version = "2025.06".to_owned();
                Ok(ClientHelloResponse { warning: String::new(), image_builder_version })
            };
            unary(request, hello).await
        }
        "AuthTokenGet" => {
            let token = state.jwt.lock().unwrap().clone();
            unary(request, |_: Empty| async { Ok(AuthTokenGetResponse { token }) }).await
        }
        "AppGetOrCreate" => {
            let app = |asked: AppGetOrCreateRequest| async move {
                if asked.app_name.is_empty() {
                    return Err(Status::invalid_argument("an app has a name"));
                }
                Ok(AppGetOrCreateResponse { app_id: format!("ap-{}", asked.app_name) })
            };
            unary(request, app).await
        }
        "EnvironmentGetOrCreate" => {
            let environment = |_: EnvironmentGetOrCreateRequest| async {
                let settings = EnvironmentSettings { image_builder_version: "2025.06".into() };
                let metadata =
                    EnvironmentMetadata { name: "main".into(), settings: Some(settings) };
                let environment_id = "en-main".into();
                Ok(EnvironmentGetOrCreateResponse { environment_id, metadata: Some(metadata) })
            };
            unary(request, environment).await
        }
        "SecretGetOrCreate" => unary(request, |asked| async move { secret(&state, asked) }).await,
        "ImageGetOrCreate" => unary(request, |asked| async move { image(&state, asked) }).await,
        "ImageJoinStreaming" => {
            let join = |asked: ImageJoinStreamingRequest| async move { build_log(&state, &asked) };
            server_streaming(request, join).await
        }
        "ImageDelete" => {
            let delete = move |asked: ImageDeleteRequest| async move {
                let removed = state.images.lock().unwrap().remove(&asked.image_id);
                removed.map(|_| Empty {}).ok_or_else(|| Status::not_found("no image"))
            };
            unary(request, delete).await
        }
        "SandboxCreate" if is_v2 => {
            unary(request, move |asked| create_v2(state, asked, is_javascript)).await
        }
        "SandboxCreate" => unary(request, |asked| create_v1(state, asked)).await,
        "SandboxGetTaskId" => {
            let task = move |asked: SandboxGetTaskIdRequest| async move {
                let cell = state.cell(&asked.sandbox_id)?;
                let (task_id, task_result) = (Some(cell.task_id.clone()), cell.result());
                Ok(SandboxGetTaskIdResponse { task_id, task_result })
            };
            unary(request, task).await
        }
        "TaskGetCommandRouterAccess" => {
            let access = move |asked: TaskGetCommandRouterAccessRequest| async move {
                state.task(&asked.task_id)?;
                Ok(access(&state, is_javascript))
            };
            unary(request, access).await
        }
        "SandboxGetCommandRouterAccess" => {
            let access = move |asked: SandboxGetCommandRouterAccessRequest| async move {
                match asked.target {
                    Some(AccessTarget::SandboxId(id)) if state.cell(&id)?.is_running() => {}
                    Some(AccessTarget::TaskId(id)) => drop(state.task(&id)?),
                    _ => return Err(Status::not_found("the sandbox has ended")),
                }
                Ok(access(&state, is_javascript))
            };
            unary(request, access).await
        }
        "SandboxWait" => {
            let wait = move |asked: SandboxWaitRequest| async move {
                let cell = state.cell(&asked.sandbox_id)?;
                let metadata = SandboxHandleMetadata { result: None, app_id: cell.app_id.clone() };
                let result = cell.result().unwrap_or_default();
                Ok(SandboxWaitResponse { result: Some(result), metadata: Some(metadata) })
            };
            unary(request, wait).await
        }
        "SandboxTerminate" => {
            let terminate = move |asked: SandboxIdRequest| async move {
                let cell = state.cell(&asked.sandbox_id)?;
                let existing_result = cell.result();
                cell.end(status::TERMINATED).await;
                Ok(SandboxTerminateResponse { existing_result })
            };
            unary(request, terminate).await
        }
        "SandboxTagsSet" => {
            let set = move |asked: SandboxTagsSetRequest| async move {
                *state.cell(&asked.sandbox_id)?.tags.lock().unwrap() = asked.tags;
                Ok(Empty {})
            };
            unary(request, set).await
        }
        "SandboxTagsGet" => {
            let get = move |asked: SandboxIdRequest| async move {
                let tags = state.cell(&asked.sandbox_id)?.tags.lock().unwrap().clone();
                Ok(SandboxTagsGetResponse { tags })
            };
            unary(request, get).await
        }
        "SandboxGetTunnels" => {
            let get = move |asked: SandboxGetTunnelsRequest| async move {
                let cell = state.cell(&asked.sandbox_id)?;
                if cell.definition.open_ports.is_none() {
                    return Err(Status::failed_precondition("the sandbox has no open ports"));
                }
                let result = GenericResult { status: status::SUCCESS, ..Default::default() };
                let tunnels = cell.tunnels().await?;
                Ok(SandboxGetTunnelsResponse { result: Some(result), tunnels })
            };
            unary(request, get).await
        }
        "SandboxList" => unary(request, |asked| async move { Ok(list(&state, &asked)) }).await,
        "SandboxGetFromName" => {
            let find = move |asked: SandboxGetFromNameRequest| async move {
                let all = state.all.lock().unwrap();
                let found = all.values().find(|cell| {
                    cell.is_running() && cell.definition.name.as_ref() == Some(&asked.sandbox_name)
                });
                let found = found.ok_or_else(|| Status::not_found("no sandbox of that name"))?;
                Ok(SandboxGetFromNameResponse { sandbox_id: found.id.clone() })
            };
            unary(request, find).await
        }
        "SandboxGetResourceUsage" => {
            let usage = move |asked: SandboxIdRequest| async move {
                let age = unix_now() - state.cell(&asked.sandbox_id)?.created_at;
                let nanos = (age * 1e9) as u64;
                Ok(SandboxGetResourceUsageResponse {
                    cpu_core_nanosecs: nanos / 8,
                    mem_gib_nanosecs: nanos / 8,
                    ..Default::default()
                })
            };
            unary(request, usage).await
        }
        "SandboxGetStats" => {
            let stats = move |asked: SandboxIdRequest| async move {
                state.cell(&asked.sandbox_id)?;
                Ok(SandboxGetStatsResponse { cost: Some("0.0001".into()) })
            };
            unary(request, stats).await
        }
        other => Status::unimplemented(format!("the tests have no {other}")).into_http(),
    }
}

/// The client for JavaScript takes encrypted addresses of routers alone, and yet does not encrypt its calls to a router of this
/// computer.
fn access(state: &State, is_javascript: bool) -> CommandRouterAccess {
    let url = match is_javascript {
        true => state.url.replace("http://", "https://"),
        false => state.url.clone(),
    };
    CommandRouterAccess { jwt: state.jwt.lock().unwrap().clone(), url }
}

fn secret(
    state: &State,
    asked: SecretGetOrCreateRequest,
) -> Result<SecretGetOrCreateResponse, Status> {
    let mut secrets = state.secrets.lock().unwrap();
    if ![ANONYMOUS_OWNED_BY_APP, EPHEMERAL].contains(&asked.object_creation_type) {
        let name = asked.deployment_name;
        return match secrets.contains_key(&name) {
            true => Ok(SecretGetOrCreateResponse { secret_id: name }),
            false => Err(Status::not_found(format!("Secret '{name}' not found"))),
        };
    }
    let secret_id = format!("st-{}", random_hex(11));
    secrets.insert(secret_id.clone(), asked.env_dict);
    Ok(SecretGetOrCreateResponse { secret_id })
}

/// Answers at once for an image of a registry; further lines are built, which takes until its log is read.
fn image(
    state: &State,
    asked: ImageGetOrCreateRequest,
) -> Result<ImageGetOrCreateResponse, Status> {
    let lines = asked.image.unwrap_or_default().dockerfile_commands;
    let first = lines.first().cloned().unwrap_or_default();
    if !first.starts_with("FROM ") {
        return Err(Status::invalid_argument("a Dockerfile begins with FROM"));
    }
    let failure = match () {
        () if first.contains("no-such-image") => Some(format!("{first}: manifest unknown\n")),
        () if lines.iter().any(|line| line == "RUN false") => {
            Some("RUN false\nexit code: 1\n".to_owned())
        }
        () => None,
    };
    let mut images = state.images.lock().unwrap();
    let known = images.iter().find(|(_, image)| image.lines == lines && !asked.force_build);
    let id = known.map(|(id, _)| id.clone());
    let is_new = id.is_none();
    let id = id.unwrap_or_else(|| format!("im-{}", random_hex(11)));
    let is_built = failure.is_none() && (lines.len() == 1 || !is_new);
    images.insert(id.clone(), BuiltImage { lines, failure, is_snapshot: false });
    let result = GenericResult {
        status: if is_built { status::SUCCESS } else { status::RUNNING },
        ..GenericResult::default()
    };
    Ok(ImageGetOrCreateResponse { image_id: id, result: Some(result) })
}

type BuildLog = stream::Iter<std::vec::IntoIter<Result<ImageJoinStreamingResponse, Status>>>;

fn build_log(state: &State, asked: &ImageJoinStreamingRequest) -> Result<BuildLog, Status> {
    let image = state.images.lock().unwrap().get(&asked.image_id).cloned();
    let image = image.ok_or_else(|| Status::not_found("no image"))?;
    let entry = |number: usize, text: String| ImageJoinStreamingResponse {
        task_logs: vec![TaskLogs { data: text }],
        entry_id: number.to_string(),
        ..Default::default()
    };
    let mut all: Vec<_> = image
        .lines
        .iter()
        .enumerate()
        .map(|(n, line)| entry(n + 1, format!("=> {line}\n")))
        .collect();
    let result = match &image.failure {
        None => GenericResult { status: status::SUCCESS, ..Default::default() },
        Some(why) => {
            all.push(entry(all.len() + 1, why.clone()));
            let exception = "Image build failed".to_owned();
            GenericResult { status: status::FAILURE, exception, ..Default::default() }
        }
    };
    let seen: usize = asked.last_entry_id.parse().unwrap_or(0);
    let mut rest: Vec<_> = all.into_iter().skip(seen).map(Ok).collect();
    rest.push(Ok(ImageJoinStreamingResponse {
        result: Some(result),
        eof: true,
        ..Default::default()
    }));
    Ok(stream::iter(rest))
}

async fn create_v1(
    state: Arc<State>,
    asked: SandboxCreateRequest,
) -> Result<SandboxCreateResponse, Status> {
    let definition = asked.definition.unwrap_or_default();
    let mut env = HashMap::new();
    {
        let secrets = state.secrets.lock().unwrap();
        for id in &definition.secret_ids {
            let secret = secrets.get(id).ok_or_else(|| Status::not_found("no secret"))?;
            env.extend(secret.clone());
        }
    }
    let cell = cells::create(&state, false, asked.app_id, definition, asked.tags, env).await?;
    let metadata = SandboxHandleMetadata { result: None, app_id: cell.app_id.clone() };
    Ok(SandboxCreateResponse { sandbox_id: cell.id.clone(), metadata: Some(metadata) })
}

async fn create_v2(
    state: Arc<State>,
    asked: SandboxCreateV2Request,
    is_javascript: bool,
) -> Result<SandboxCreateV2Response, Status> {
    let mut env = HashMap::new();
    for source in asked.secret_sources {
        match source.source {
            Some(Source::Env(given)) => env.extend(given.contents),
            Some(Source::SecretId(id)) => {
                let secrets = state.secrets.lock().unwrap();
                env.extend(secrets.get(&id).ok_or_else(|| Status::not_found("no secret"))?.clone());
            }
            None => {}
        }
    }
    let definition = asked.definition.unwrap_or_default();
    let cell = cells::create(&state, true, asked.app_id, definition, asked.tags, env).await?;
    Ok(SandboxCreateV2Response {
        sandbox_id: cell.id.clone(),
        tunnels: cell.tunnels().await?,
        task_id: cell.task_id.clone(),
        metadata: Some(SandboxHandleMetadata { result: None, app_id: cell.app_id.clone() }),
        command_router_access: Some(access(&state, is_javascript)),
        sandbox_token: String::new(),
    })
}

/// Lists from the newest on, a page at a time.
fn list(state: &State, asked: &SandboxListRequest) -> SandboxListResponse {
    let clock_ahead = *state.clock_ahead.lock().unwrap();
    let all = state.all.lock().unwrap();
    let mut found: Vec<&Arc<Cell>> = all
        .values()
        .filter(|cell| asked.include_finished || cell.is_running())
        .filter(|cell| asked.app_id.is_empty() || cell.app_id == asked.app_id)
        .filter(|cell| {
            let before = asked.before_timestamp;
            before == 0.0 || cell.created_at + clock_ahead < before
        })
        .filter(|cell| {
            let tags = cell.tags.lock().unwrap();
            asked.tags.iter().all(|tag| tags.contains(tag))
        })
        .collect();
    found.sort_by(|a, b| b.created_at.total_cmp(&a.created_at));
    SandboxListResponse {
        sandboxes: found.into_iter().take(PAGE).map(|cell| listed(cell, clock_ahead)).collect(),
    }
}

fn listed(cell: &Cell, clock_ahead: f64) -> ListedSandbox {
    let created_at = cell.created_at + clock_ahead;
    let resources = cell.definition.resources.clone().unwrap_or_default();
    let value = |value| (value > 0).then_some(ResourceValue { value });
    ListedSandbox {
        id: cell.id.clone(),
        created_at,
        task_info: Some(TaskInfo {
            id: cell.task_id.clone(),
            started_at: created_at,
            result: Some(cell.result().unwrap_or_default()),
            ..TaskInfo::default()
        }),
        app_id: cell.app_id.clone(),
        tags: cell.tags.lock().unwrap().clone(),
        name: cell.definition.name.clone().unwrap_or_default(),
        image_id: cell.definition.image_id.clone(),
        resource_info: Some(ResourceInfo {
            memory_mb: value(resources.memory_mb),
            milli_cpu: value(resources.milli_cpu),
            gpu_type: resources.gpu_config.map(|gpu| gpu.gpu_type).unwrap_or_default(),
            ..ResourceInfo::default()
        }),
        timeout_secs: cell.definition.timeout_secs,
        ..ListedSandbox::default()
    }
}
