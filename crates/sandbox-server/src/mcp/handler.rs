//! The protocol: requests of a client become calls of tools, and their output becomes progress.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::StreamExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
    ElicitRequest, ElicitRequestParams, ElicitationAction, ElicitationSchema, GetTaskParams,
    GetTaskResult, Implementation, InitializeRequestParams, InitializeResult, InputRequest,
    InputRequests, InputRequiredResult, ListResourceTemplatesResult, ListResourcesResult,
    ListToolsResult, PaginatedRequestParams, ProgressNotificationParam, ProgressToken,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, Resource,
    ResourceUpdatedNotificationParam, ServerCapabilities, ServerConfig, SubscribeRequestParams,
    SubscriptionFilter, Tool, ToolAnnotations, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{Peer, RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use sandbox_core::NetworkMode;
use serde_json::{Map, Value};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

use super::catalog::ToolDefinition;
use super::reply::{ReplyContent, ToolReply};
use super::resources;
use super::tasks::{self, Tasks};
use super::toolset::{Progress, Toolset};

/// Time between two signs of life of a call without output: clients give up on calls that are silent for a minute.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Key of the user's confirmation among the answers of a client.
const CONFIRM: &str = "confirm";

/// Resources that one session watches at most.
const MAX_WATCHED: usize = 64;

/// One session with a client, or one request without a session.
pub(super) struct McpHandler {
    /// The tools of the session, once it has begun.
    session: OnceLock<Toolset>,
    /// The tools for requests without a session.
    requests: Toolset,
    /// Calls that take long.
    tasks: Arc<Tasks>,
    /// Watches of resources, by their addresses.
    watched: Mutex<BTreeMap<String, AbortHandle>>,
}

impl McpHandler {
    /// Makes the handler of a connection that is one session.
    pub(super) fn for_session(tools: Toolset, tasks: Arc<Tasks>) -> Self {
        let handler = Self::for_requests(tools.clone(), tasks);
        // It is empty before.
        drop(handler.session.set(tools));
        handler
    }

    /// Makes the handler of requests, which become a session when the client begins one.
    pub(super) fn for_requests(tools: Toolset, tasks: Arc<Tasks>) -> Self {
        Self { session: OnceLock::new(), requests: tools, tasks, watched: Mutex::default() }
    }

    fn tools(&self) -> &Toolset {
        self.session.get().unwrap_or(&self.requests)
    }

    async fn confirmed(
        &self,
        question: String,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<Confirmation, ErrorData> {
        let can_ask =
            context.client_capabilities().is_some_and(|client| client.elicitation.is_some());
        if !can_ask {
            return Ok(Confirmation::Refused(
                "This server asks the user before such a call, and this client cannot ask."
                    .to_owned(),
            ));
        }
        let schema = ElicitationSchema::builder().required_bool(CONFIRM).build();
        let schema = schema.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
        let params = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: question,
            requested_schema: schema,
        };
        let is_stateless = context
            .protocol_version()
            .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str());
        let answer = if is_stateless {
            let given = request.input_responses.as_ref().and_then(|answers| answers.get(CONFIRM));
            let Some(given) = given else {
                let ask = InputRequest::Elicitation(ElicitRequest::new(params));
                let asks = InputRequests::from([(CONFIRM.to_owned(), ask)]);
                return Ok(Confirmation::Ask(InputRequiredResult::from_input_requests(asks)));
            };
            is_yes(
                given.get("action").and_then(Value::as_str) == Some("accept"),
                given.get("content"),
            )
        } else {
            let answer = context.peer.create_elicitation(params).await;
            let answer =
                answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            is_yes(answer.action == ElicitationAction::Accept, answer.content.as_ref())
        };
        Ok(match answer {
            true => Confirmation::Given,
            false => Confirmation::Refused(
                "The user did not allow this call. Nothing was done.".to_owned(),
            ),
        })
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, AbortHandle>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for McpHandler {
    fn drop(&mut self) {
        self.watched().values().for_each(AbortHandle::abort);
    }
}

/// The answer of a user.
enum Confirmation {
    Given,
    /// The client has to ask, and to send the request again with the answer.
    Ask(InputRequiredResult),
    Refused(String),
}

fn is_yes(is_accepted: bool, content: Option<&Value>) -> bool {
    is_accepted && content.and_then(|content| content.get(CONFIRM)) == Some(&Value::Bool(true))
}

/// Sends output to whatever forwards it to the client. Output that comes too fast for it is left out.
pub(super) struct Forward(pub(super) Sender<String>);

impl Progress for Forward {
    fn output(&self, text: &str) {
        // The whole output is in the answer.
        drop(self.0.try_send(text.to_owned()));
    }
}

/// Tells the client that a call still works, and what it has put out.
pub(super) async fn forward(
    peer: Peer<RoleServer>,
    token: ProgressToken,
    mut output: Receiver<String>,
) {
    let started = Instant::now();
    let mut heartbeat = interval(HEARTBEAT);
    heartbeat.reset();
    let mut count = 0.0;
    loop {
        let message = tokio::select! {
            text = output.recv() => match text {
                Some(text) => {
                    heartbeat.reset();
                    text
                }
                None => return,
            },
            _ = heartbeat.tick() => format!("running for {} s", started.elapsed().as_secs()),
        };
        count += 1.0;
        let notice = ProgressNotificationParam::new(token.clone(), count).with_message(message);
        if peer.notify_progress(notice).await.is_err() {
            return;
        }
    }
}

impl ServerHandler for McpHandler {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tasks()
            .build();
        let server = Implementation::new("code-sandboxes", env!("CARGO_PKG_VERSION"))
            .with_title("Code Sandboxes");
        ServerConfig::new(capabilities)
            .with_server_info(server)
            .with_instructions(instructions(self.tools()))
    }

    async fn initialize(
        &self,
        request: InitializeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<InitializeResult, ErrorData> {
        self.session.get_or_init(|| self.requests.new_session());
        context.peer.set_peer_info(request.clone());
        self.negotiate_initialize(&request)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools().definitions().iter().map(tool).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        self.tools().definition(name).map(tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tools = self.tools();
        if tools.definition(&request.name).is_none() {
            let names: Vec<_> = tools.definitions().iter().map(|tool| tool.name).collect();
            let message =
                format!("there is no tool {:?}; there are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        }
        let arguments = request.arguments.clone().unwrap_or_default();
        if let Some(question) = tools.question(&request.name, &arguments) {
            match self.confirmed(question, &request, &context).await? {
                Confirmation::Given => {}
                Confirmation::Ask(ask) => return Ok(ask.into()),
                Confirmation::Refused(why) => return Ok(answer(ToolReply::problem(why)).into()),
            }
        }
        if tasks::may_be(&request.name, &context) {
            return self.tasks.call(tools, &request.name, arguments, &context).await;
        }
        let reply = watched_call(tools, &request.name, arguments, &context).await?;
        Ok(answer(reply).into())
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        self.tasks.get(&request)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.update(request)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel(&request)
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        resources::list(self.tools()).await
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(resources::templates())
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(self.tools(), &request.uri).await.map(Into::into)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if self.watched().len() >= MAX_WATCHED && !self.watched().contains_key(&request.uri) {
            let message = format!("{MAX_WATCHED} resources are subscribed to already");
            return Err(ErrorData::invalid_params(message, None));
        }
        let mut changes = resources::watch(self.tools(), &request.uri).await?;
        let (peer, uri) = (context.peer.clone(), request.uri.clone());
        let task = tokio::spawn(async move {
            while changes.next().await.is_some() {
                let notice = ResourceUpdatedNotificationParam::new(uri.clone());
                if peer.notify_resource_updated(notice).await.is_err() {
                    return;
                }
            }
        });
        if let Some(before) = self.watched().insert(request.uri, task.abort_handle()) {
            before.abort();
        }
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if let Some(task) = self.watched().remove(&request.uri) {
            task.abort();
        }
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let uris = requested.resource_subscriptions.iter().flatten();
        let uris = uris.filter(|uri| resources::parse(uri).is_some()).take(MAX_WATCHED);
        Some(SubscriptionFilter::builder().resource_subscriptions(uris.cloned()).build())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let uris = context.accepted().resource_subscriptions.clone().unwrap_or_default();
        let mut changes = futures_util::stream::SelectAll::new();
        for uri in uris {
            let watched = resources::watch(self.tools(), &uri).await?;
            changes.push(watched.map(move |()| uri.clone()).boxed());
        }
        loop {
            let uri = tokio::select! {
                Some(uri) = changes.next() => uri,
                () = context.cancelled() => return Ok(()),
            };
            if context.sink().notify_resource_updated(uri).await.is_err() {
                return Ok(());
            }
        }
    }
}

/// Calls a tool, with progress, until it is done or the client cancels it.
async fn watched_call(
    tools: &Toolset,
    name: &str,
    arguments: Map<String, Value>,
    context: &RequestContext<RoleServer>,
) -> Result<ToolReply, ErrorData> {
    let (sender, receiver) = channel(4);
    let progress = Forward(sender);
    let token = context.meta.get_progress_token();
    let forwarding = token.map(|token| {
        let task = tokio::spawn(forward(context.peer.clone(), token, receiver));
        AbortOnDrop(task.abort_handle())
    });
    let reply = tokio::select! {
        biased;
        () = context.ct.cancelled() => {
            return Err(ErrorData::internal_error("the call was cancelled", None));
        }
        reply = tools.call(name, arguments, &progress) => reply,
    };
    drop(forwarding);
    Ok(reply)
}

/// Ends a task with the call that it belongs to: no progress comes after an answer.
pub(super) struct AbortOnDrop(pub(super) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn tool(definition: &ToolDefinition) -> Tool {
    let annotations = ToolAnnotations::with_title(definition.title)
        .read_only(definition.read_only)
        .destructive(definition.destructive)
        .idempotent(definition.idempotent)
        .open_world(definition.open_world);
    let input = Arc::new(definition.input_schema.clone());
    Tool::new(definition.name, definition.description.clone(), input)
        .with_title(definition.title)
        .with_raw_output_schema(Arc::new(definition.output_schema.clone()))
        .with_annotations(annotations)
}

pub(super) fn answer(reply: ToolReply) -> CallToolResult {
    let content = reply.content.into_iter().map(|content| match content {
        ReplyContent::Text(text) => ContentBlock::text(text),
        ReplyContent::Image { data, mime_type } => ContentBlock::image(data, mime_type),
        ReplyContent::Link { uri, name, mime_type } => {
            let resource = Resource::new(uri, name);
            ContentBlock::resource_link(match mime_type {
                Some(mime_type) => resource.with_mime_type(mime_type),
                None => resource,
            })
        }
    });
    let content = content.collect();
    let mut result = match reply.is_error {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = reply.structured;
    result
}

/// Says what a model should know beside the tools.
fn instructions(tools: &Toolset) -> String {
    let mut text = "Code and commands run in an isolated sandbox, not on the user's computer. The first call that needs a sandbox \
                    makes it; it keeps files and Python variables until the session ends."
        .to_owned();
    let options = tools.options();
    if let Some(name) = &options.keep {
        text = format!(
            "{text} It is kept under the name {name:?}, and the next session finds it again."
        );
    }
    if options.ceiling.base.network.mode == NetworkMode::None {
        text.push_str(" It has no network.");
    }
    text
}
