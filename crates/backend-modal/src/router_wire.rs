//! Messages of the command router (`modal.task_command_router.TaskCommandRouter`), which starts programs in a sandbox.

use std::collections::HashMap;

use bytes::Bytes;
use prost::{Message, Oneof};

/// Returns the path of a method of the command router.
macro_rules! router_method {
    ($name:literal) => {
        concat!("/modal.task_command_router.TaskCommandRouter/", $name)
    };
}
pub(crate) use router_method;

/// `TaskExecStdoutConfig` and `TaskExecStderrConfig`: the stream is kept for readers.
pub(crate) const PIPE: i32 = 1;

/// `PTYType`: a terminal of a shell.
pub(crate) const PTY_SHELL: i32 = 2;

/// `TaskExecStdioFileDescriptor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdio {
    Stdout = 0,
    Stderr = 1,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PtyInfo {
    #[prost(bool, tag = "1")]
    pub(crate) enabled: bool,
    #[prost(uint32, tag = "2")]
    pub(crate) rows: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) columns: u32,
    #[prost(string, tag = "4")]
    pub(crate) env_term: String,
    #[prost(int32, tag = "7")]
    pub(crate) pty_type: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStartRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) command_args: Vec<String>,
    #[prost(int32, tag = "4")]
    pub(crate) stdout_config: i32,
    #[prost(int32, tag = "5")]
    pub(crate) stderr_config: i32,
    #[prost(uint32, optional, tag = "6")]
    pub(crate) timeout_secs: Option<u32>,
    #[prost(string, optional, tag = "7")]
    pub(crate) workdir: Option<String>,
    #[prost(message, optional, tag = "9")]
    pub(crate) pty_info: Option<PtyInfo>,
    #[prost(map = "string, string", tag = "12")]
    pub(crate) env: HashMap<String, String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStartResponse {}

/// A request about one program: that of wait, poll and the status of standard input.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecWaitResponse {
    #[prost(oneof = "ExitStatus", tags = "1, 2")]
    pub(crate) exit_status: Option<ExitStatus>,
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum ExitStatus {
    #[prost(int32, tag = "1")]
    Code(i32),
    #[prost(int32, tag = "2")]
    Signal(i32),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStdioReadRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint64, tag = "3")]
    pub(crate) offset: u64,
    #[prost(int32, tag = "4")]
    pub(crate) file_descriptor: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStdioReadResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) data: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStdinWriteRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
    #[prost(string, tag = "2")]
    pub(crate) exec_id: String,
    #[prost(uint64, tag = "3")]
    pub(crate) offset: u64,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) data: Bytes,
    #[prost(bool, tag = "5")]
    pub(crate) eof: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskExecStdinWriteResponse {}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskSnapshotFilesystemRequest {
    #[prost(string, tag = "1")]
    pub(crate) task_id: String,
    #[prost(string, tag = "2")]
    pub(crate) snapshot_id: String,
    #[prost(int64, optional, tag = "3")]
    pub(crate) ttl_seconds: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TaskSnapshotFilesystemResponse {
    #[prost(string, tag = "1")]
    pub(crate) image_id: String,
}
