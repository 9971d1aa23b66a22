//! Arguments of `sandboxes serve`.

use std::convert::Infallible;
use std::net::IpAddr;

use clap::{Args, ValueEnum};
use code_sandboxes::Secret;

use super::SandboxArgs;

pub(super) const SERVE_EXAMPLES: &str = "\
Examples:
  sandboxes serve                                   sandboxes of local-eval, without a network
  sandboxes serve --network all --memory 2g
  sandboxes serve -p local-docker --port 3001
  sandboxes serve --host 0.0.0.0 --api-key KEY
  sandboxes serve --mcp                             for MCP clients, too, at /mcp

It prints three variables. With these set, programs that use the SDKs of E2B have their sandboxes here.
The flags about sandboxes are the most that such a program gets. Ctrl-C ends the server and all of its
sandboxes.";

/// `sandboxes serve`
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Port to listen on; 0 is a free one
    #[arg(long, value_name = "PORT", default_value_t = 3000)]
    pub(crate) port: u16,

    /// Address to listen on; any other than a loopback address needs a key of yours
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,

    /// Key that clients send; other users of this host see it in the list of processes, and not the variable
    /// [default: a random one]
    #[arg(long, value_name = "KEY", env = "SANDBOXES_API_KEY", hide_env_values = true, value_parser = secret)]
    pub(crate) api_key: Option<Secret>,

    /// Domain below which ports of sandboxes have names [default: localhost:PORT]
    #[arg(long, value_name = "DOMAIN")]
    pub(crate) domain: Option<String>,

    /// Serve MCP clients, too, at the path /mcp; they send the key as `Authorization: Bearer KEY`
    #[arg(long, conflicts_with = "keep")]
    pub(crate) mcp: bool,

    /// Maximum number of sandboxes at one time, of each protocol
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    pub(crate) max_sandboxes: usize,

    /// Further directory of each sandbox that its code and uploads may write; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) writable: Vec<String>,

    /// What runs the code of the template `code-interpreter-v1` with local-eval: a Jupyter kernel where Python has one
    /// installed (`auto`), always (`kernel`), or never (`worker`)
    #[arg(long, value_name = "KIND", value_enum, default_value_t)]
    pub(crate) code_interpreter: CodeInterpreterKind,

    /// Keep the sandboxes when the server ends, until their own time is over
    #[arg(long)]
    pub(crate) keep: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// What runs the code of the template `code-interpreter-v1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CodeInterpreterKind {
    /// A Jupyter kernel where one is installed.
    #[default]
    Auto,
    /// A Jupyter kernel.
    Kernel,
    /// The interpreter of local-eval.
    Worker,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}
