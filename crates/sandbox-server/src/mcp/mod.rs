//! The Model Context Protocol: tools for agents over any backend.
//!
//! A [`Toolset`] has the tools and the sandboxes of a session. [`serve_stdio`] and [`McpHttpServer`] offer it to MCP clients;
//! a program with an agent of its own calls [`Toolset::call`] itself, and gives a model the definitions by [`ToolFormat`].

mod catalog;
mod clients;
mod code_mode;
mod code_module;
mod cut;
mod formats;
mod handler;
mod html_table;
mod options;
mod output_log;
mod reply;
mod resources;
mod sandboxes;
mod schema;
mod server;
mod tasks;
mod tools;
mod toolset;
mod wishes;

pub use self::catalog::ToolDefinition;
pub use self::clients::{ClientConfig, McpClient, SKILL};
pub use self::code_mode::{OtherServers, connect_servers};
pub use self::formats::{ToolFormat, all_tools};
pub use self::options::{DEFAULT_RUN_TIMEOUT, HostTools, McpOptions};
pub use self::reply::{ReplyContent, ToolReply};
pub use self::server::{MCP_PATH, McpHttpServer, McpRoutes, serve_stdio, serve_stream};
pub use self::toolset::{NoProgress, Progress, Toolset};
