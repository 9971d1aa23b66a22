//! Messages of the control plane (`modal.client.ModalClient`): the fields that this backend sends and reads.
//!
//! Field numbers are those of the descriptors in the provider's Python client 1.6.4. A message of the provider has more
//! fields than are here; unknown ones are skipped.

use std::collections::HashMap;

use prost::{Message, Oneof};

/// Returns the path of a method of the control plane.
macro_rules! method {
    ($name:literal) => {
        concat!("/modal.client.ModalClient/", $name)
    };
}
pub(crate) use method;

/// `ObjectCreationType`: uses what is there, or makes it.
pub(crate) const CREATE_IF_MISSING: i32 = 1;
/// `ObjectCreationType`: makes an object without a name that ends with its app.
pub(crate) const ANONYMOUS_OWNED_BY_APP: i32 = 4;
/// `DeploymentNamespace`: that of the workspace.
pub(crate) const NAMESPACE_WORKSPACE: i32 = 1;
/// `RegistryAuthType`: user and password in a secret.
pub(crate) const REGISTRY_STATIC_CREDENTIALS: i32 = 4;

/// Statuses of a [`GenericResult`].
pub(crate) mod status {
    pub(crate) const RUNNING: i32 = 0;
    pub(crate) const SUCCESS: i32 = 1;
    pub(crate) const FAILURE: i32 = 2;
    pub(crate) const TERMINATED: i32 = 3;
    pub(crate) const TIMEOUT: i32 = 4;
    pub(crate) const INIT_FAILURE: i32 = 5;
    pub(crate) const IDLE_TIMEOUT: i32 = 7;
    pub(crate) const MEMORY_EVICTION: i32 = 8;
    pub(crate) const MEMORY_THRASHING: i32 = 9;
    pub(crate) const OUT_OF_MEMORY: i32 = 10;
}

/// Types of a [`NetworkAccess`].
pub(crate) mod network {
    pub(crate) const OPEN: i32 = 1;
    pub(crate) const BLOCKED: i32 = 2;
    pub(crate) const ALLOWLIST: i32 = 3;
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClientHelloResponse {
    #[prost(string, tag = "1")]
    pub(crate) warning: String,
    #[prost(string, tag = "2")]
    pub(crate) image_builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(crate) app_name: String,
    #[prost(string, tag = "2")]
    pub(crate) environment_name: String,
    #[prost(int32, tag = "3")]
    pub(crate) object_creation_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AppGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(crate) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AuthTokenGetResponse {
    #[prost(string, tag = "1")]
    pub(crate) token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvironmentGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(crate) deployment_name: String,
    #[prost(int32, tag = "2")]
    pub(crate) object_creation_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvironmentGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(crate) environment_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<EnvironmentMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvironmentMetadata {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) settings: Option<EnvironmentSettings>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct EnvironmentSettings {
    #[prost(string, tag = "1")]
    pub(crate) image_builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GenericResult {
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
    #[prost(string, tag = "2")]
    pub(crate) exception: String,
    #[prost(int32, tag = "3")]
    pub(crate) exitcode: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct StringMap {
    #[prost(map = "string, string", tag = "1")]
    pub(crate) contents: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretSource {
    #[prost(oneof = "Source", tags = "1, 2")]
    pub(crate) source: Option<Source>,
}

/// Where the variables of a [`SecretSource`] are.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Source {
    #[prost(string, tag = "1")]
    SecretId(String),
    #[prost(message, tag = "2")]
    Env(StringMap),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretGetOrCreateRequest {
    #[prost(string, tag = "1")]
    pub(crate) deployment_name: String,
    #[prost(string, tag = "3")]
    pub(crate) environment_name: String,
    #[prost(int32, tag = "4")]
    pub(crate) object_creation_type: i32,
    #[prost(map = "string, string", tag = "5")]
    pub(crate) env_dict: HashMap<String, String>,
    #[prost(string, tag = "6")]
    pub(crate) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SecretGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(crate) secret_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageRegistryConfig {
    #[prost(int32, tag = "1")]
    pub(crate) registry_auth_type: i32,
    #[prost(string, tag = "2")]
    pub(crate) secret_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(string, repeated, tag = "6")]
    pub(crate) dockerfile_commands: Vec<String>,
    #[prost(string, repeated, tag = "12")]
    pub(crate) secret_ids: Vec<String>,
    #[prost(message, optional, tag = "16")]
    pub(crate) gpu_config: Option<GpuConfig>,
    #[prost(message, optional, tag = "17")]
    pub(crate) image_registry_config: Option<ImageRegistryConfig>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageGetOrCreateRequest {
    #[prost(message, optional, tag = "2")]
    pub(crate) image: Option<Image>,
    #[prost(string, tag = "4")]
    pub(crate) app_id: String,
    #[prost(bool, tag = "7")]
    pub(crate) force_build: bool,
    #[prost(int32, tag = "8")]
    pub(crate) namespace: i32,
    #[prost(string, tag = "9")]
    pub(crate) builder_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageGetOrCreateResponse {
    #[prost(string, tag = "1")]
    pub(crate) image_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageJoinStreamingRequest {
    #[prost(string, tag = "1")]
    pub(crate) image_id: String,
    #[prost(float, tag = "2")]
    pub(crate) timeout: f32,
    #[prost(string, tag = "3")]
    pub(crate) last_entry_id: String,
    #[prost(bool, tag = "4")]
    pub(crate) include_logs_for_finished: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageJoinStreamingResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) result: Option<GenericResult>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) task_logs: Vec<TaskLogs>,
    #[prost(string, tag = "3")]
    pub(crate) entry_id: String,
    #[prost(bool, tag = "4")]
    pub(crate) eof: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskLogs {
    #[prost(string, tag = "1")]
    pub(crate) data: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ImageDeleteRequest {
    #[prost(string, tag = "1")]
    pub(crate) image_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GpuConfig {
    #[prost(uint32, tag = "2")]
    pub(crate) count: u32,
    #[prost(string, tag = "4")]
    pub(crate) gpu_type: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Resources {
    #[prost(uint32, tag = "2")]
    pub(crate) memory_mb: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) milli_cpu: u32,
    #[prost(message, optional, tag = "4")]
    pub(crate) gpu_config: Option<GpuConfig>,
    #[prost(uint32, tag = "5")]
    pub(crate) memory_mb_max: u32,
    #[prost(uint32, tag = "6")]
    pub(crate) ephemeral_disk_mb: u32,
    #[prost(uint32, tag = "7")]
    pub(crate) milli_cpu_max: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NetworkAccess {
    #[prost(int32, tag = "1")]
    pub(crate) network_access_type: i32,
    #[prost(string, repeated, tag = "2")]
    pub(crate) allowed_cidrs: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) allowed_domains: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PortSpec {
    #[prost(uint32, tag = "1")]
    pub(crate) port: u32,
    #[prost(bool, tag = "2")]
    pub(crate) unencrypted: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PortSpecs {
    #[prost(message, repeated, tag = "1")]
    pub(crate) ports: Vec<PortSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SchedulerPlacement {
    #[prost(string, repeated, tag = "4")]
    pub(crate) regions: Vec<String>,
}

/// Headers that the provider puts into requests of a sandbox: `modal.client.ExperimentalOutboundPolicy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OutboundPolicy {
    #[prost(message, repeated, tag = "1")]
    pub(crate) header_replacements: Vec<HeaderReplacement>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeaderReplacement {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(string, tag = "4")]
    pub(crate) secret_id: String,
    #[prost(map = "string, string", tag = "5")]
    pub(crate) headers: HashMap<String, String>,
}

/// The definition of a sandbox: `modal.client.Sandbox`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Definition {
    #[prost(string, repeated, tag = "1")]
    pub(crate) entrypoint_args: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) image_id: String,
    #[prost(string, repeated, tag = "4")]
    pub(crate) secret_ids: Vec<String>,
    #[prost(message, optional, tag = "5")]
    pub(crate) resources: Option<Resources>,
    #[prost(uint32, tag = "7")]
    pub(crate) timeout_secs: u32,
    #[prost(string, optional, tag = "8")]
    pub(crate) workdir: Option<String>,
    #[prost(bool, tag = "11")]
    pub(crate) block_network: bool,
    #[prost(message, optional, tag = "17")]
    pub(crate) scheduler_placement: Option<SchedulerPlacement>,
    #[prost(message, optional, tag = "20")]
    pub(crate) open_ports: Option<PortSpecs>,
    #[prost(message, optional, tag = "22")]
    pub(crate) network_access: Option<NetworkAccess>,
    #[prost(string, tag = "26")]
    pub(crate) cloud_provider: String,
    #[prost(string, optional, tag = "30")]
    pub(crate) name: Option<String>,
    #[prost(uint32, optional, tag = "33")]
    pub(crate) idle_timeout_secs: Option<u32>,
    #[prost(bool, tag = "34")]
    pub(crate) direct_sandbox_commands_enabled: bool,
    #[prost(message, optional, tag = "42")]
    pub(crate) outbound_policy: Option<OutboundPolicy>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxTag {
    #[prost(string, tag = "1")]
    pub(crate) tag_name: String,
    #[prost(string, tag = "2")]
    pub(crate) tag_value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxCreateRequest {
    #[prost(string, tag = "1")]
    pub(crate) app_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) definition: Option<Definition>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxHandleMetadata {
    #[prost(message, optional, tag = "1")]
    pub(crate) result: Option<GenericResult>,
    #[prost(string, tag = "2")]
    pub(crate) app_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxCreateResponse {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxHandleMetadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxCreateV2Request {
    #[prost(string, tag = "1")]
    pub(crate) app_id: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) definition: Option<Definition>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) tags: Vec<SandboxTag>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) secret_sources: Vec<SecretSource>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxCreateV2Response {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) tunnels: Vec<TunnelData>,
    #[prost(string, tag = "3")]
    pub(crate) task_id: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) metadata: Option<SandboxHandleMetadata>,
    #[prost(message, optional, tag = "5")]
    pub(crate) command_router_access: Option<CommandRouterAccess>,
    #[prost(string, tag = "6")]
    pub(crate) sandbox_token: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommandRouterAccess {
    #[prost(string, tag = "1")]
    pub(crate) jwt: String,
    #[prost(string, tag = "2")]
    pub(crate) url: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetCommandRouterAccessRequest {
    #[prost(oneof = "AccessTarget", tags = "1, 2")]
    pub(crate) target: Option<AccessTarget>,
}

/// What the access of a [`SandboxGetCommandRouterAccessRequest`] is for.
#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum AccessTarget {
    #[prost(string, tag = "1")]
    SandboxId(String),
    #[prost(string, tag = "2")]
    TaskId(String),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskGetCommandRouterAccessRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetTaskIdRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) timeout: Option<f32>,
    #[prost(bool, tag = "3")]
    pub(crate) wait_until_ready: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetTaskIdResponse {
    #[prost(string, optional, tag = "1")]
    pub(crate) task_id: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub(crate) task_result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxWaitRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(float, tag = "2")]
    pub(crate) timeout: f32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxWaitResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) result: Option<GenericResult>,
    #[prost(message, optional, tag = "2")]
    pub(crate) metadata: Option<SandboxHandleMetadata>,
}

/// A request about one sandbox: that of terminate, tags and usage.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxIdRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxTerminateResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) existing_result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxTagsSetRequest {
    #[prost(string, tag = "1")]
    pub(crate) environment_name: String,
    #[prost(string, tag = "2")]
    pub(crate) sandbox_id: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetTunnelsRequest {
    #[prost(string, tag = "1")]
    pub(crate) sandbox_id: String,
    #[prost(float, tag = "2")]
    pub(crate) timeout: f32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetTunnelsResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) result: Option<GenericResult>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) tunnels: Vec<TunnelData>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TunnelData {
    #[prost(string, tag = "1")]
    pub(crate) host: String,
    #[prost(uint32, tag = "2")]
    pub(crate) port: u32,
    #[prost(string, optional, tag = "3")]
    pub(crate) unencrypted_host: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    pub(crate) unencrypted_port: Option<u32>,
    #[prost(uint32, tag = "5")]
    pub(crate) container_port: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxListRequest {
    #[prost(string, tag = "1")]
    pub(crate) app_id: String,
    #[prost(double, tag = "2")]
    pub(crate) before_timestamp: f64,
    #[prost(string, tag = "3")]
    pub(crate) environment_name: String,
    #[prost(bool, tag = "4")]
    pub(crate) include_finished: bool,
    #[prost(message, repeated, tag = "5")]
    pub(crate) tags: Vec<SandboxTag>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxListResponse {
    #[prost(message, repeated, tag = "1")]
    pub(crate) sandboxes: Vec<ListedSandbox>,
}

/// A sandbox in a list: `modal.client.SandboxInfo`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListedSandbox {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(double, tag = "3")]
    pub(crate) created_at: f64,
    #[prost(message, optional, tag = "4")]
    pub(crate) task_info: Option<TaskInfo>,
    #[prost(string, tag = "5")]
    pub(crate) app_id: String,
    #[prost(message, repeated, tag = "6")]
    pub(crate) tags: Vec<SandboxTag>,
    #[prost(string, tag = "7")]
    pub(crate) name: String,
    #[prost(string, tag = "8")]
    pub(crate) image_id: String,
    #[prost(message, optional, tag = "9")]
    pub(crate) resource_info: Option<ResourceInfo>,
    #[prost(string, repeated, tag = "10")]
    pub(crate) regions: Vec<String>,
    #[prost(uint32, tag = "11")]
    pub(crate) timeout_secs: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskInfo {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(double, tag = "2")]
    pub(crate) started_at: f64,
    #[prost(double, tag = "3")]
    pub(crate) finished_at: f64,
    #[prost(message, optional, tag = "4")]
    pub(crate) result: Option<GenericResult>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceInfo {
    #[prost(message, optional, tag = "1")]
    pub(crate) memory_mb: Option<ResourceValue>,
    #[prost(message, optional, tag = "2")]
    pub(crate) milli_cpu: Option<ResourceValue>,
    #[prost(string, tag = "3")]
    pub(crate) gpu_type: String,
    #[prost(uint32, tag = "5")]
    pub(crate) ephemeral_disk_mb: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResourceValue {
    #[prost(uint32, tag = "1")]
    pub(crate) value: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetResourceUsageResponse {
    #[prost(uint64, tag = "1")]
    pub(crate) cpu_core_nanosecs: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) mem_gib_nanosecs: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) gpu_nanosecs: u64,
    #[prost(string, optional, tag = "4")]
    pub(crate) gpu_type: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SandboxGetStatsResponse {
    #[prost(string, optional, tag = "1")]
    pub(crate) cost: Option<String>,
}

/// The details of a failed call: `modal.client.RPCStatus`, which has the field numbers of `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(message, repeated, tag = "3")]
    pub(crate) details: Vec<AnyDetail>,
}

/// A typed detail: `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyDetail {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) value: Vec<u8>,
}

/// The wait that a service asks for before another attempt: `modal.client.RPCRetryPolicy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcRetryPolicy {
    #[prost(float, tag = "1")]
    pub(crate) retry_after_secs: f32,
}
