//! Arguments of `sandboxes mcp` and `sandboxes tools`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use code_sandboxes::Secret;
use sandbox_server::mcp::{McpClient, ToolFormat};

use super::{ProviderArgs, SandboxArgs};
use crate::time;

pub(super) const MCP_EXAMPLES: &str = "\
Examples:
  sandboxes mcp                                    serve the client that started this command
  sandboxes mcp --network none --memory 1g         with limits that no client can widen
  sandboxes mcp --tools run_code,read_file
  sandboxes mcp --mount /srv/data:/data --keep
  sandboxes mcp --tools-from servers.json          code can call tools of other servers
  sandboxes mcp --http 127.0.0.1:8765
  sandboxes mcp install claude                     add the server to Claude Code
  sandboxes mcp install vscode --project -- --network none

A sandbox is made when the first tool needs one, and ends with the session. Standard input and output
belong to the client; messages go to standard error.";

pub(super) const TOOLS_EXAMPLES: &str = "\
Examples:
  sandboxes tools                       names and descriptions
  sandboxes tools --format openai       for chat completions
  sandboxes tools --format anthropic    for messages
  sandboxes tools --format gemini       for function declarations";

/// `sandboxes mcp`
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct McpArgs {
    #[command(subcommand)]
    pub(crate) command: Option<McpCommand>,

    #[command(flatten)]
    pub(crate) serve: McpServeArgs,
}

/// The commands beside serving.
#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Add the server to the configuration of a client
    Install(McpInstallArgs),
}

/// Settings of the server.
#[derive(Debug, Args)]
pub(crate) struct McpServeArgs {
    /// Serve over HTTP on this address instead of standard input and output; port 0 is a free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) http: Option<SocketAddr>,

    /// Key that clients need with --http [default: a random one, which is printed]; prefer the variable,
    /// which other users cannot see
    #[arg(long, value_name = "KEY", env = "CODE_SANDBOXES_MCP_KEY", hide_env_values = true, requires = "http", value_parser = secret)]
    pub(crate) key: Option<Secret>,

    /// Serve without a key, to every user of this computer
    #[arg(long, requires = "http", conflicts_with = "key")]
    pub(crate) no_key: bool,

    /// Offer only these tools; `sandboxes tools` lists them
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) tools: Vec<String>,

    /// Offer only tools that change nothing
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Let the client ask its user before calls that destroy something or widen access
    #[arg(long)]
    pub(crate) confirm: bool,

    /// Keep the sandbox, and find it again in the next session
    #[arg(long)]
    pub(crate) keep: bool,

    /// Name of the sandbox that is kept
    #[arg(short, long, value_name = "NAME", requires = "keep", default_value = "mcp")]
    pub(crate) name: String,

    /// Time after which a call that still runs becomes a task, for clients that have tasks
    #[arg(long, value_name = "TIME", default_value = "5", value_parser = time::parse)]
    pub(crate) task_after: f64,

    /// Maximum number of sandboxes at one time
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    pub(crate) max_sandboxes: usize,

    /// Let code call the tools of these MCP servers; the file has `mcpServers`, as the configuration of a
    /// client, and for each server optionally the `tools` that code may call
    #[arg(long, value_name = "FILE")]
    pub(crate) tools_from: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// `sandboxes mcp install`
#[derive(Debug, Args)]
pub(crate) struct McpInstallArgs {
    /// The client: claude, cursor, vscode, codex or zed
    pub(crate) client: McpClient,

    /// Change the configuration of the project in the working directory instead of that of the user
    #[arg(long)]
    pub(crate) project: bool,

    /// Print the entry, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Do not install the skill, which says when to use which tool
    #[arg(long)]
    pub(crate) no_skill: bool,

    /// Flags for `sandboxes mcp`, after `--`
    #[arg(value_name = "FLAGS", last = true)]
    pub(crate) flags: Vec<String>,
}

/// `sandboxes tools`
#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Form of the definitions: openai, anthropic or gemini [default: a list for people]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<ToolFormat>,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::new(text))
}
