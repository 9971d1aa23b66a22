//! Arguments that select a Jupyter kernel.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code_sandboxes::Secret;

/// The choice of a Jupyter kernel. Each of these flags selects `local-jupyter`.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Jupyter")]
pub(crate) struct KernelArgs {
    /// Jupyter kernel that runs the code, such as python3; `sandboxes environments -p local-jupyter`
    /// lists those of this host; with `-p local-docker` a kernel of the image
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) kernel: Option<String>,

    /// Transport between sandbox and kernel: `ipc` (Unix sockets) or `tcp` [default: ipc, or tcp for a
    /// kernel that does not start with ipc]
    #[arg(long, value_name = "HOW", value_parser = ["ipc", "tcp"], conflicts_with_all = ["server_url", "connection_file"])]
    pub(crate) transport: Option<String>,

    /// Jupyter Server whose kernels run the code; needs --isolation off. Use the address that the server
    /// prints, and prefer the variable JUPYTER_TOKEN for its token
    #[arg(long, value_name = "URL", conflicts_with = "connection_file", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) server_url: Option<String>,

    /// Token of that server; unlike the variable JUPYTER_TOKEN, other users can see it
    #[arg(long, value_name = "TOKEN", requires = "server_url", value_parser = secret)]
    pub(crate) token: Option<Secret>,

    /// Id of a kernel that runs on that server; it keeps its state, and is left running
    #[arg(long, value_name = "ID", requires = "server_url", conflicts_with = "kernel", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) kernel_id: Option<String>,

    /// Connection file of a running kernel; the kernel keeps its state, and is left running; needs
    /// --isolation off
    #[arg(long, value_name = "FILE", conflicts_with = "kernel")]
    pub(crate) connection_file: Option<PathBuf>,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

impl KernelArgs {
    /// Returns true when one of the flags is given.
    pub(crate) fn is_given(&self) -> bool {
        self.flag().is_some()
    }

    /// Returns the first of the flags that is given.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        [
            ("--kernel", self.kernel.is_some()),
            ("--transport", self.transport.is_some()),
            ("--server-url", self.server_url.is_some()),
            ("--connection-file", self.connection_file.is_some()),
        ]
        .into_iter()
        .find_map(|(flag, given)| given.then_some(flag))
    }
}
