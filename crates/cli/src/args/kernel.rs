//! Arguments about Jupyter kernels: which one, and where it is.

use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use code_sandboxes::Secret;

/// The choice of a Jupyter kernel. With any of it, `local-jupyter` is where code runs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Jupyter")]
pub(crate) struct KernelArgs {
    /// Jupyter kernel that runs the code, such as python3; `sandboxes environments -p local-jupyter`
    /// lists those of this host, and with `-p local-docker` it is one of the image
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) kernel: Option<String>,

    /// How that kernel is talked to, within its sandbox: `ipc` is Unix sockets, `tcp` is for kernels
    /// that have none. Without it `ipc`, and `tcp` for a kernel that ends when it is to use those
    #[arg(long, value_name = "HOW", value_parser = ["ipc", "tcp"], conflicts_with_all = ["server_url", "connection_file"])]
    pub(crate) transport: Option<String>,

    /// Jupyter Server whose kernels run the code; it needs --isolation off. The address that the
    /// server prints will do; its token is better in the variable JUPYTER_TOKEN
    #[arg(long, value_name = "URL", conflicts_with = "connection_file", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) server_url: Option<String>,

    /// Token of that server; the variable JUPYTER_TOKEN is seen by nobody else
    #[arg(long, value_name = "TOKEN", requires = "server_url", value_parser = secret)]
    pub(crate) token: Option<Secret>,

    /// Kernel that runs on that server, by its id; it is used as it is, and left running
    #[arg(long, value_name = "ID", requires = "server_url", conflicts_with = "kernel", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) kernel_id: Option<String>,

    /// Connection file of a kernel that runs; it is used as it is, and left running; it needs
    /// --isolation off
    #[arg(long, value_name = "FILE", conflicts_with = "kernel")]
    pub(crate) connection_file: Option<PathBuf>,
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

impl KernelArgs {
    /// Whether there is any of it.
    pub(crate) fn is_given(&self) -> bool {
        self.flag().is_some()
    }

    /// The first flag of it that is given.
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
