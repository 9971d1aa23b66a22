//! Calls of the control plane.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use prost::Message;
use sandbox_cloud::http::{ServiceClock, retry_by_effect};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Secret, Tags, random_hex};
use tokio::time::timeout;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::account::Account;
use crate::auth::{TokenCache, add_account, add_secret};
use crate::channel::{server_streaming, unary};
use crate::config::Generation;
use crate::describe::with_clock;
use crate::error;
use crate::wire::{self, method};

/// Time for a request that starts a sandbox. Giving it up early may leave a sandbox that costs money.
const CREATE_TIMEOUT: Duration = Duration::from_secs(300);
/// Seconds that the service may wait before it answers a poll.
const LONG_POLL: f32 = 55.0;
/// Pages of a list that are read at most.
const MAX_PAGES: usize = 1000;

/// The control plane, for one account.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    pub(crate) channel: Channel,
    pub(crate) account: Account,
    pub(crate) tokens: Arc<TokenCache>,
    pub(crate) request_timeout: Duration,
    /// The clock of the service.
    pub(crate) clock: Arc<ServiceClock>,
}

/// One kind of call.
#[derive(Clone, Copy, Debug)]
struct Method {
    operation: &'static str,
    path: &'static str,
    /// The call asks for the short-lived token.
    with_token: bool,
    /// A second call does nothing that the first one has not done.
    is_idempotent: bool,
    timeout: Duration,
}

/// A sandbox that was just made.
#[derive(Debug, Default)]
pub(crate) struct Created {
    pub(crate) sandbox_id: String,
    pub(crate) task_id: Option<String>,
    pub(crate) access: Option<wire::CommandRouterAccess>,
    pub(crate) tunnels: Vec<wire::TunnelData>,
}

/// Returns the generation of a sandbox, which its id shows.
pub(crate) fn generation(id: &str) -> Generation {
    let is_v1 = id.strip_prefix("sb-").is_some_and(|rest| {
        rest.len() == 22 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    if is_v1 { Generation::V1 } else { Generation::V2 }
}

/// Returns the path of a method that both generations have.
macro_rules! of_generation {
    ($generation:expr, $name:literal) => {
        match $generation {
            Generation::V1 => method!($name),
            Generation::V2 => concat!("/modal.client.ModalClient/", $name, "V2"),
        }
    };
}

impl Api {
    fn method(&self, operation: &'static str, path: &'static str) -> Method {
        let timeout = self.request_timeout;
        Method { operation, path, with_token: false, is_idempotent: true, timeout }
    }

    fn sandbox_method(&self, operation: &'static str, path: &'static str, id: &str) -> Method {
        let with_token = generation(id) == Generation::V2;
        Method { with_token, ..self.method(operation, path) }
    }

    /// Makes a call, again where that cannot do anything twice.
    async fn call<Q, A>(&self, call: &CallContext, method: Method, request: &Q) -> Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let key = random_hex(16);
        retry_by_effect(call, method.operation, method.is_idempotent, || {
            self.call_once(call, method, request, &key)
        })
        .await
    }

    async fn call_once<Q, A>(
        &self,
        call: &CallContext,
        method: Method,
        request: &Q,
        key: &str,
    ) -> Result<A>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let answered = self.attempt(call, method, request, key).await?;
        match answered {
            // The short-lived token may have ended early.
            Err(status) if method.with_token && status.code() == Code::Unauthenticated => {
                self.tokens.forget(&self.account);
                let again = self.attempt(call, method, request, key).await?;
                again.map_err(|status| self.failed(method.operation, &status))
            }
            answered => answered.map_err(|status| self.failed(method.operation, &status)),
        }
    }

    /// Turns the status of a failed call into an error, which repeats no secret of the account.
    fn failed(&self, operation: &'static str, status: &Status) -> Error {
        let token = self.account.token(operation).ok();
        let secrets = token.map(|(_, secret)| secret.clone()).into_iter();
        let secrets: Vec<_> = secrets.chain(self.tokens.get(&self.account)).collect();
        error::parse(operation, status, &secrets)
    }

    async fn attempt<Q, A>(
        &self,
        call: &CallContext,
        method: Method,
        request: &Q,
        key: &str,
    ) -> Result<std::result::Result<A, Status>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let request = self.request(call, method, request.clone(), key).await?;
        let limit = limit(call, method.timeout);
        let answer = timeout(limit, unary(&self.channel, method.path, request)).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("")));
        Ok(answer.map(|answer| {
            let (metadata, message, _) = answer.into_parts();
            self.clock.note(&metadata.into_headers());
            message
        }))
    }

    /// Adds what calls carry.
    async fn request<Q>(
        &self,
        call: &CallContext,
        method: Method,
        message: Q,
        key: &str,
    ) -> Result<Request<Q>> {
        let mut request = Request::new(message);
        let metadata = request.metadata_mut();
        add_account(metadata, &self.account, method.operation)?;
        if let Ok(key) = MetadataValue::try_from(key) {
            metadata.insert("x-idempotency-key", key);
        }
        if method.with_token {
            let token = Box::pin(self.token(call, method.operation)).await?;
            add_secret(request.metadata_mut(), "x-modal-auth-token", &token)?;
        }
        Ok(request)
    }

    /// Returns the short-lived token.
    async fn token(&self, call: &CallContext, operation: &'static str) -> Result<Secret> {
        if let Some(token) = self.tokens.get(&self.account) {
            return Ok(token);
        }
        let method = self.method(operation, method!("AuthTokenGet"));
        let answer: wire::AuthTokenGetResponse = self.call(call, method, &wire::Empty {}).await?;
        let token = Secret::new(answer.token);
        self.tokens.put(&self.account, &token);
        Ok(token)
    }

    /// Checks that the service is there and takes the token.
    pub(crate) async fn hello(&self, call: &CallContext) -> Result<wire::ClientHelloResponse> {
        let method = self.method("health", method!("ClientHello"));
        self.call(call, method, &wire::Empty {}).await
    }

    /// Returns the id of the app of that name, which is made when it is missing.
    pub(crate) async fn app(
        &self,
        call: &CallContext,
        operation: &'static str,
        name: &str,
    ) -> Result<String> {
        let request = wire::AppGetOrCreateRequest {
            app_name: name.to_owned(),
            environment_name: self.account.environment.clone(),
            object_creation_type: wire::CREATE_IF_MISSING,
        };
        let method = self.method(operation, method!("AppGetOrCreate"));
        let answer: wire::AppGetOrCreateResponse = self.call(call, method, &request).await?;
        Ok(answer.app_id)
    }

    /// Returns the version of the image builder that the environment uses.
    pub(crate) async fn builder_version(&self, call: &CallContext) -> Result<String> {
        if let Some(version) = &self.account.builder_version {
            return Ok(version.clone());
        }
        let request = wire::EnvironmentGetOrCreateRequest {
            deployment_name: self.account.environment.clone(),
            object_creation_type: 0,
        };
        let method = self.method("create", method!("EnvironmentGetOrCreate"));
        let answer: wire::EnvironmentGetOrCreateResponse =
            self.call(call, method, &request).await?;
        let settings = answer.metadata.and_then(|metadata| metadata.settings);
        Ok(settings.unwrap_or_default().image_builder_version)
    }

    /// Returns the id of an image, and the result of its build as far as there is one.
    pub(crate) async fn image(
        &self,
        call: &CallContext,
        request: &wire::ImageGetOrCreateRequest,
    ) -> Result<wire::ImageGetOrCreateResponse> {
        self.call(call, self.method("create", method!("ImageGetOrCreate")), request).await
    }

    /// Waits for news of a build, and gives every piece of its log to `log`. Returns the result, once there is one.
    pub(crate) async fn join_image(
        &self,
        call: &CallContext,
        image_id: &str,
        last_entry_id: &mut String,
        mut log: impl FnMut(&str),
    ) -> Result<Option<wire::GenericResult>> {
        let method = self.method("create", method!("ImageJoinStreaming"));
        let request = wire::ImageJoinStreamingRequest {
            image_id: image_id.to_owned(),
            timeout: LONG_POLL,
            last_entry_id: last_entry_id.clone(),
            include_logs_for_finished: true,
        };
        let request = self.request(call, method, request, &random_hex(16)).await?;
        let parse = |status: Status| self.failed("create", &status);
        let answers = server_streaming(&self.channel, method.path, request).await;
        let mut answers = answers.map_err(parse)?;
        while let Some(answer) = answers.next().await {
            let answer: wire::ImageJoinStreamingResponse = answer.map_err(parse)?;
            if !answer.entry_id.is_empty() {
                *last_entry_id = answer.entry_id;
            }
            answer.task_logs.iter().for_each(|entry| log(&entry.data));
            let result = answer.result.filter(|result| result.status != wire::status::RUNNING);
            if result.is_some() {
                return Ok(result);
            }
        }
        Ok(None)
    }

    /// Deletes an image.
    pub(crate) async fn delete_image(&self, call: &CallContext, image_id: &str) -> Result<()> {
        let request = wire::ImageDeleteRequest { image_id: image_id.to_owned() };
        let method = self.method("delete_snapshot", method!("ImageDelete"));
        self.call::<_, wire::Empty>(call, method, &request).await.map(drop)
    }

    /// Returns the id of a secret: a new one with these variables that ends with the app, or one that is there by its name.
    pub(crate) async fn secret(
        &self,
        call: &CallContext,
        app_id: &str,
        secret: SecretOf<'_>,
    ) -> Result<String> {
        let mut request = wire::SecretGetOrCreateRequest {
            environment_name: self.account.environment.clone(),
            ..Default::default()
        };
        match secret {
            SecretOf::Name(name) => name.clone_into(&mut request.deployment_name),
            SecretOf::Variables(variables) => {
                request.object_creation_type = wire::ANONYMOUS_OWNED_BY_APP;
                request.env_dict = variables.clone();
                app_id.clone_into(&mut request.app_id);
            }
        }
        let method = self.method("create", method!("SecretGetOrCreate"));
        let answer: wire::SecretGetOrCreateResponse = self.call(call, method, &request).await?;
        Ok(answer.secret_id)
    }

    /// Makes a sandbox of the older generation. The variables are in secrets of the definition.
    pub(crate) async fn create_v1(
        &self,
        call: &CallContext,
        request: &wire::SandboxCreateRequest,
    ) -> Result<Created> {
        let method = Method {
            is_idempotent: false,
            timeout: CREATE_TIMEOUT,
            ..self.method("create", method!("SandboxCreate"))
        };
        let answer: wire::SandboxCreateResponse = self.call(call, method, request).await?;
        named(Created { sandbox_id: answer.sandbox_id, ..Created::default() })
    }

    /// Makes a sandbox.
    pub(crate) async fn create_v2(
        &self,
        call: &CallContext,
        request: &wire::SandboxCreateV2Request,
    ) -> Result<Created> {
        let method = Method {
            is_idempotent: false,
            with_token: true,
            timeout: CREATE_TIMEOUT,
            ..self.method("create", method!("SandboxCreateV2"))
        };
        let answer: wire::SandboxCreateV2Response = self.call(call, method, request).await?;
        named(Created {
            sandbox_id: answer.sandbox_id,
            task_id: Some(answer.task_id).filter(|id| !id.is_empty()),
            access: answer.command_router_access,
            tunnels: answer.tunnels,
        })
    }

    /// Returns the id of the task of a sandbox, once it runs.
    pub(crate) async fn task_id(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<wire::SandboxGetTaskIdResponse> {
        let request =
            wire::SandboxGetTaskIdRequest { sandbox_id: id.to_owned(), ..Default::default() };
        let path = of_generation!(generation(id), "SandboxGetTaskId");
        self.call(call, self.sandbox_method(operation, path, id), &request).await
    }

    /// Returns the access to the command router of a sandbox.
    pub(crate) async fn router_access(
        &self,
        call: &CallContext,
        id: &str,
        task_id: &str,
    ) -> Result<wire::CommandRouterAccess> {
        match generation(id) {
            Generation::V1 => {
                let request =
                    wire::TaskGetCommandRouterAccessRequest { task_id: task_id.to_owned() };
                let method = self.method("connect", method!("TaskGetCommandRouterAccess"));
                self.call(call, method, &request).await
            }
            Generation::V2 => {
                let target = Some(wire::AccessTarget::SandboxId(id.to_owned()));
                let request = wire::SandboxGetCommandRouterAccessRequest { target };
                let path = method!("SandboxGetCommandRouterAccess");
                self.call(call, self.sandbox_method("connect", path, id), &request).await
            }
        }
    }

    /// Returns the result of a sandbox: one with a status when it has ended.
    pub(crate) async fn result(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<wire::GenericResult> {
        let request = wire::SandboxWaitRequest { sandbox_id: id.to_owned(), timeout: 0.0 };
        let path = of_generation!(generation(id), "SandboxWait");
        let method = self.sandbox_method(operation, path, id);
        let answer: wire::SandboxWaitResponse = self.call(call, method, &request).await?;
        Ok(answer.result.unwrap_or_default())
    }

    /// Ends a sandbox.
    pub(crate) async fn terminate(
        &self,
        call: &CallContext,
        operation: &'static str,
        id: &str,
    ) -> Result<()> {
        let request = wire::SandboxIdRequest { sandbox_id: id.to_owned() };
        let path = of_generation!(generation(id), "SandboxTerminate");
        let method = self.sandbox_method(operation, path, id);
        self.call::<_, wire::SandboxTerminateResponse>(call, method, &request).await.map(drop)
    }

    /// Replaces the tags of a sandbox.
    pub(crate) async fn set_tags(&self, call: &CallContext, id: &str, tags: &Tags) -> Result<()> {
        let request = wire::SandboxTagsSetRequest {
            environment_name: self.account.environment.clone(),
            sandbox_id: id.to_owned(),
            tags: to_tags(tags),
        };
        let path = of_generation!(generation(id), "SandboxTagsSet");
        let method = self.sandbox_method("set_tags", path, id);
        self.call::<_, wire::Empty>(call, method, &request).await.map(drop)
    }

    /// Returns the open ports of a sandbox.
    pub(crate) async fn tunnels(
        &self,
        call: &CallContext,
        id: &str,
    ) -> Result<Vec<wire::TunnelData>> {
        let request =
            wire::SandboxGetTunnelsRequest { sandbox_id: id.to_owned(), timeout: LONG_POLL };
        let path = of_generation!(generation(id), "SandboxGetTunnels");
        let method = self.sandbox_method("expose_port", path, id);
        let answer: wire::SandboxGetTunnelsResponse = self.call(call, method, &request).await?;
        Ok(answer.tunnels)
    }

    /// Returns what a sandbox has used so far.
    pub(crate) async fn usage(
        &self,
        call: &CallContext,
        id: &str,
    ) -> Result<wire::SandboxGetResourceUsageResponse> {
        let request = wire::SandboxIdRequest { sandbox_id: id.to_owned() };
        let path = method!("SandboxGetResourceUsage");
        self.call(call, self.sandbox_method("metrics", path, id), &request).await
    }

    /// Returns what a sandbox has cost so far, as far as the service says.
    pub(crate) async fn cost(&self, call: &CallContext, id: &str) -> Result<Option<String>> {
        let request = wire::SandboxIdRequest { sandbox_id: id.to_owned() };
        let path = of_generation!(generation(id), "SandboxGetStats");
        let method = self.sandbox_method("metrics", path, id);
        let answer: wire::SandboxGetStatsResponse = self.call(call, method, &request).await?;
        Ok(answer.cost)
    }

    /// Lists the sandboxes of an app that have not ended, of both generations, newest first.
    ///
    /// Times are those of the clock of this computer.
    pub(crate) async fn list(
        &self,
        call: &CallContext,
        operation: &'static str,
        app_id: &str,
    ) -> Result<Vec<wire::ListedSandbox>> {
        let mut all: Vec<wire::ListedSandbox> = Vec::new();
        let mut before_timestamp = 0.0;
        let method =
            Method { with_token: true, ..self.method(operation, method!("SandboxListV2")) };
        for _ in 0..MAX_PAGES {
            let request = wire::SandboxListRequest {
                app_id: app_id.to_owned(),
                before_timestamp,
                environment_name: self.account.environment.clone(),
                ..Default::default()
            };
            let page: wire::SandboxListResponse = self.call(call, method, &request).await?;
            let Some(last) = page.sandboxes.last() else { return Ok(all) };
            before_timestamp = last.created_at;
            all.extend(page.sandboxes.into_iter().map(|listed| with_clock(listed, &self.clock)));
        }
        let message = format!("the service has more than {MAX_PAGES} pages of sandboxes");
        Err(Error::new(ErrorKind::Protocol, operation, message))
    }
}

/// The secret of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SecretOf<'a> {
    /// One that is there.
    Name(&'a str),
    /// A new one with these variables.
    Variables(&'a std::collections::HashMap<String, String>),
}

/// Checks that a sandbox that was made has an id.
fn named(created: Created) -> Result<Created> {
    if created.sandbox_id.is_empty() {
        let message = "the service made a sandbox without an id";
        return Err(Error::new(ErrorKind::Protocol, "create", message).with_effect(Effect::Unknown));
    }
    Ok(created)
}

/// Returns the time for one attempt, which the deadline of its call may shorten.
fn limit(call: &CallContext, most: Duration) -> Duration {
    let left =
        call.deadline.map(|deadline| deadline.saturating_duration_since(std::time::Instant::now()));
    left.map_or(most, |left| left.min(most))
}

/// Returns tags as messages.
pub(crate) fn to_tags(tags: &Tags) -> Vec<wire::SandboxTag> {
    let tag = |(name, value): (&String, &String)| wire::SandboxTag {
        tag_name: name.clone(),
        tag_value: value.clone(),
    };
    tags.iter().map(tag).collect()
}

/// Returns messages as tags.
pub(crate) fn from_tags(tags: &[wire::SandboxTag]) -> Tags {
    tags.iter().map(|tag| (tag.tag_name.clone(), tag.tag_value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_show_their_generation() {
        assert_eq!(generation("sb-abcdefghijABCDEFGHIJ12"), Generation::V1);
        for id in ["sb-short", "ta-01KXYZV", "sb-abcdefghijABCDEFGHIJ123", "abcdefghijABCDEFGHIJ12"]
        {
            assert_eq!(generation(id), Generation::V2, "{id}");
        }
    }
}
